//! The workload's identity and every other secret that Envoy may ask for: certificates signed by istiod or found in files, renewed
//! in time, the last good one kept.
//!
//! Three tasks: [`Task`] owns the identity, [`Reader`] reads certificate files, [`output`] writes the identity to disk where that
//! is asked for. What there is leaves over two `watch` channels: [`Snapshot`] (identity) and [`Table`] (files); `sds` serves both.
//! Private keys are in memory only, and nowhere in logs.

pub mod answer;
mod authority;
pub mod bundle;
mod ca;
mod certificate;
mod config;
mod csr;
mod debug;
mod distinguished;
mod file;
mod files;
mod google;
mod key;
mod metrics;
pub mod output;
pub mod pem;
mod rotate;
mod task;
mod trial;
mod worker;

#[cfg(test)]
pub(crate) mod testing;

use std::sync::Arc;

use tokio::{sync::watch, time::Instant};

pub use answer::rfc3339;
pub use authority::{Answer, Authority, Cause, Failure, Order};
pub use ca::Citadel;
pub use certificate::public_key;
pub use config::{Config, Provider};
pub use csr::{Curve, KeyStyle};
pub use debug::certificates;
pub use file::{Content, Source};
pub use files::{Files, Lease, Reader, State, Table};
pub use google::{Cas, MeshCa};
pub use rotate::Reserve;
pub use task::Task;
pub use trial::try_out;

use crate::{
    base::{Clock, Gates},
    telemetry::metrics::Registry,
    wires::{Snapshot, TrustBundle},
};
use metrics::Metrics;
use task::Wish;
use worker::{Now, Worker};

/// Everything of this room, made and not yet running.
pub struct Secrets {
    /// Owns the identity.
    pub task: Task,
    /// Reads files.
    pub reader: Reader,
    /// Where files are asked for.
    pub files: Files,
    /// The identity as it is.
    pub snapshots: watch::Receiver<Snapshot>,
}

impl Secrets {
    /// Makes the room. `authority` signs; `None` when certificates come from files or from another SDS server. `anchors` are trust
    /// roots that istiod announces over xDS.
    pub fn new(
        config: &Config,
        authority: Option<Arc<dyn Authority>>,
        anchors: watch::Receiver<Option<Arc<TrustBundle>>>,
        (gates, registry): (&Gates, &Registry),
        clock: Clock,
    ) -> Secrets {
        let (files, reader) = Files::new(config.debounce, clock, registry);
        let (snapshot, snapshots) = watch::channel(Snapshot::default());
        let gate = gates.gate("identity", "");
        gate.open();
        let now = Now { wall: clock.now(), steady: Instant::now() };
        let task = Task {
            worker: Worker::new(config.reserve, authority.is_some(), now),
            wish: Wish { identity: config.identity.clone(), key: config.key, validity: config.validity },
            authority,
            files: files.clone(),
            pair: config.pair.clone(),
            roots: config.roots.clone(),
            anchors,
            snapshot,
            metrics: Metrics::new(registry),
            gate,
            clock,
        };
        Secrets { task, reader, files, snapshots }
    }
}
