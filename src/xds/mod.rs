//! ADS between Envoy and istiod.

mod ecds;

pub use ecds::{Ecds, Kind, Rewrite, Step};
