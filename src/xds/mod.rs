//! ADS between Envoy and istiod.

mod ecds;

pub use ecds::{BoxFuture, Ecds, Kind, Resource, Rewrite, Rewritten, Step, Update};
