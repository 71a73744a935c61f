//! What the relay counts, under Istio's names (spec 20 §7).

use std::sync::atomic::{AtomicUsize, Ordering};

use super::ends::Class;
use crate::{
    base::Gate,
    telemetry::metrics::{Counter, Gauge, Registry},
};

/// The counters of the relay; made once.
pub struct Metrics {
    /// Requests sent to istiod, the agent's own included.
    pub requests: Counter,
    /// Responses received from istiod.
    pub responses: Counter,
    /// Connections to istiod that could not be made.
    pub failures: Counter,
    /// 1 while istiod refuses this proxy for good.
    pub refused: Gauge,
    istiod_ended: [Counter; 2],
    envoy_ended: [Counter; 2],
    largest: Gauge,
    largest_seen: AtomicUsize,
}

impl Metrics {
    /// Registers all of them; `gate` has a note while the last good configuration is served, since when that was accepted.
    pub fn new(registry: &Registry, gate: Gate) -> Metrics {
        let ended = |name, help| ["cancelled", "error"].map(|kind| registry.counter(name, help, &[("type", kind)]));
        let age = registry.gauge(
            "xds_last_good_age_seconds",
            "Age of the last good configuration that is served while Istiod is away",
            &[],
        );
        registry.on_scrape(move || match gate.noted_since() {
            Some(accepted) => age.set(accepted.elapsed().unwrap_or_default().as_secs_f64()),
            None => age.clear(),
        });
        Metrics {
            requests: registry.counter("xds_proxy_requests", "The total number of Xds Proxy Requests", &[]),
            responses: registry.counter("xds_proxy_responses", "The total number of Xds Proxy Responses", &[]),
            failures: registry.counter(
                "istiod_connection_failures",
                "The total number of connection failures to Istiod",
                &[],
            ),
            refused: registry.gauge("istiod_refused", "1 while Istiod permanently refuses this proxy", &[]),
            istiod_ended: ended("istiod_connection_terminations", "The total number of connection errors to Istiod"),
            envoy_ended: ended("envoy_connection_terminations", "The total number of connection errors from envoy"),
            largest: registry.gauge("pilot_xds_recv_max", "The largest config size agent receives", &[]),
            largest_seen: AtomicUsize::new(0),
        }
    }

    /// A stream ended: at Envoy's side, and at istiod's. The end of one is that of the other, too, which Istio counts as cancelled;
    /// without a way to istiod there is only its side.
    pub fn ended(&self, envoy: Option<Class>, istiod: Class) {
        if let Some(envoy) = envoy {
            self.envoy_ended[index(envoy)].inc();
        }
        self.istiod_ended[index(istiod)].inc();
    }

    /// Envoy sent a message of that size.
    pub fn received(&self, bytes: usize) {
        if bytes > self.largest_seen.fetch_max(bytes, Ordering::Relaxed) {
            self.largest.set(bytes as f64);
        }
    }
}

fn index(class: Class) -> usize {
    match class {
        Class::Graceful | Class::Expected => 0,
        Class::Unexpected => 1,
    }
}
