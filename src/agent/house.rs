//! What the rooms share: gates, metrics, debug pages, channels, tasks. Made once by `agent::build`, taken apart by `agent::rooms`.

use tokio::sync::{mpsc, watch};

use super::Tasks;
use crate::{
    base::Gates,
    envoy,
    telemetry::{metrics::Registry, pages::Pages},
    wires::Event,
};

/// What the rooms share.
pub struct House {
    /// Readiness.
    pub gates: Gates,
    /// The agent's own metrics.
    pub registry: Registry,
    /// What the rooms show of themselves.
    pub pages: Pages,
    /// What the lifecycle decides on.
    pub events: mpsc::Sender<Event>,
    /// Envoy's process.
    pub envoy: watch::Receiver<envoy::State>,
    /// Every long-lived task.
    pub tasks: Tasks,
}

impl House {
    /// Events that may wait for the lifecycle; it takes them at once, so that few ever do.
    pub const EVENTS: usize = 16;

    /// An empty house whose events go to `events`.
    pub fn new(events: mpsc::Sender<Event>, envoy: watch::Receiver<envoy::State>) -> House {
        House {
            gates: Gates::default(),
            registry: Registry::default().with_process_metrics(),
            pages: Pages::default(),
            tasks: Tasks::new(events.clone()),
            events,
            envoy,
        }
    }
}
