//! Small lifetime primitives that every room uses: drain, readiness gates, backoff, a clock that tests can hold still.
//! Knows nothing of Envoy, istiod or configuration.

mod backoff;
mod clock;
mod drain;
mod future;
mod gate;
mod random;

pub use backoff::{Backoff, Policy};
pub use clock::{Clock, civil_date, later, process_start};
pub use drain::{Drain, Trigger};
pub use future::{BoxFuture, apart, first};
pub use gate::{Gate, Gates};
pub use random::{random_below, random_u64, random_unit};
