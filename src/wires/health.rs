//! Health of the application beside the proxy, as `health` finds it and `xds` reports it to istiod.

use std::sync::Arc;

use tokio::sync::Notify;

/// One decision of the health checker; made at first decision and on each change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AppHealth {
    /// The application passed successThreshold checks in a row.
    Healthy,
    /// It failed failureThreshold checks in a row; the text of the last failure.
    Unhealthy(Arc<str>),
    /// The proxy is about to drain: unhealthy, whatever the application says. Nothing follows.
    Leaving(Told),
}

/// Tells when istiod has been told.
#[derive(Debug, Clone, Default)]
pub struct Told(Arc<Notify>);

impl Told {
    /// istiod has been told.
    pub fn done(&self) {
        self.0.notify_one();
    }

    /// Waits for that.
    pub async fn wait(&self) {
        self.0.notified().await;
    }
}

impl PartialEq for Told {
    fn eq(&self, other: &Told) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Told {}
