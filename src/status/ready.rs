//! `/healthz/ready`: whether the pod can take traffic, and what it waits for.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::SystemTime,
};

use super::grpc_bootstrap::GrpcBootstrap;
use crate::{
    base::Gates,
    envoy::Readiness,
    telemetry::metrics::{Gauge, Registry},
};

/// The gate that the lifecycle shuts for good when the agent terminates.
const SERVER: &str = "server";

/// All that must be so before the pod is ready.
pub struct Ready {
    envoy: Option<Readiness>,
    bootstrap: Option<GrpcBootstrap>,
    gates: Gates,
    started: SystemTime,
    startup: Gauge,
    was_ready: AtomicBool,
}

impl Ready {
    /// `envoy` and `bootstrap` where they are part of it; `started`: when this process began.
    pub fn new(
        envoy: Option<Readiness>,
        bootstrap: Option<GrpcBootstrap>,
        gates: Gates,
        registry: &Registry,
        started: SystemTime,
    ) -> Ready {
        let startup = registry.gauge(
            "startup_duration_seconds",
            "Seconds from the start of the agent to the first successful check of Envoy.",
            &[],
        );
        Ready { envoy, bootstrap, gates, started, startup, was_ready: AtomicBool::new(false) }
    }

    /// What is still waited for, by name; empty when ready.
    pub async fn waits_for(&self) -> Vec<(&'static str, String)> {
        let mut reasons = self.gates.shut();
        if let Some(terminating) = reasons.iter().position(|(name, _)| *name == SERVER) {
            return vec![reasons.swap_remove(terminating)];
        }
        if let Some(bootstrap) = &self.bootstrap
            && let Err(reason) = bootstrap.check()
        {
            reasons.insert(0, ("gRPC bootstrap", reason));
        }
        if let Some(envoy) = &self.envoy {
            match envoy.check().await {
                Ok(()) => self.envoy_is_ready(),
                Err(reason) => reasons.insert(0, ("envoy", reason)),
            }
        }
        reasons
    }

    /// Whether the agent is on its way out (or not yet in): a kept connection would only lead back here.
    pub fn is_closed(&self) -> bool {
        self.gates.shut().iter().any(|(name, _)| *name == SERVER)
    }

    /// What the rooms say beside that, by name: a pod may be ready and yet serve what is old.
    pub fn notes(&self) -> Vec<(&'static str, String)> {
        self.gates.notes(SystemTime::now())
    }

    /// The probe's answer, ready or not: one line for people, or nothing when ready and there is nothing to say.
    pub async fn check(&self) -> Result<String, String> {
        let reasons = self.waits_for().await;
        let ready = reasons.is_empty();
        if self.was_ready.swap(ready, Ordering::Relaxed) != ready && ready {
            log::info!("Readiness succeeded");
        }
        let notes = join(self.notes());
        if ready {
            return Ok(if notes.is_empty() { notes } else { format!("ready ({notes})\n") });
        }
        let mut reasons = join(reasons);
        if !notes.is_empty() {
            reasons += &format!(" ({notes})");
        }
        log::warn!("Readiness failed: {reasons}");
        Err(format!("not ready: {reasons}\n"))
    }

    fn envoy_is_ready(&self) {
        if self.startup.get().is_none() {
            let seconds = self.started.elapsed().unwrap_or_default().as_secs_f64();
            self.startup.set(seconds);
            log::info!("Envoy proxy is ready after {seconds:.3} s");
        }
    }
}

fn join(details: Vec<(&'static str, String)>) -> String {
    let details: Vec<String> = details.iter().map(|(name, detail)| format!("{name}: {}", detail.trim_end())).collect();
    details.join("; ")
}
