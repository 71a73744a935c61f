//! Health of the application beside the proxy, as `health` finds it and `xds` reports it to istiod.

use std::sync::Arc;

/// One decision of the health checker; made at first decision and on each change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AppHealth {
    /// The application passed successThreshold checks in a row.
    Healthy,
    /// It failed failureThreshold checks in a row; the text of the last failure.
    Unhealthy(Arc<str>),
}
