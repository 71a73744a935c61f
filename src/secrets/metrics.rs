//! What is counted about certificate requests. Names and kinds are Istio's where Istio has them.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::SystemTime,
};

use crate::{
    base::Clock,
    telemetry::metrics::{Counter, Gauge, Registry},
};

const CSR: &[(&str, &str)] = &[("request_type", "csr")];

#[derive(Clone)]
pub(crate) struct Metrics {
    pub requests: Counter,
    pub failed: Counter,
    pub retries: Counter,
    /// A sum of milliseconds, as in Istio.
    pub latency: Counter,
    /// 1 while the CA's refusals count as permanent.
    pub refused: Gauge,
    end: Arc<Mutex<Option<(SystemTime, Clock)>>>,
}

impl Metrics {
    pub(crate) fn new(registry: &Registry) -> Metrics {
        let expiry = registry.gauge(
            "cert_expiry_seconds",
            "The time remaining, in seconds, before the certificate expires; negative afterwards.",
            &[("resource_name", "default")],
        );
        let end: Arc<Mutex<Option<(SystemTime, Clock)>>> = Arc::default();
        let seen = Arc::clone(&end);
        registry.on_scrape(move || {
            if let Some((end, clock)) = *seen.lock().unwrap_or_else(PoisonError::into_inner) {
                let now = clock.now();
                expiry.set(match end.duration_since(now) {
                    Ok(left) => left.as_secs_f64(),
                    Err(over) => -over.duration().as_secs_f64(),
                });
            }
        });
        Metrics {
            requests: registry.counter("num_outgoing_requests", "Number of total outgoing requests.", CSR),
            failed: registry.counter("num_failed_outgoing_requests", "Number of failed outgoing requests.", CSR),
            retries: registry.counter("num_outgoing_retries", "Number of outgoing retry requests.", CSR),
            latency: registry.counter("outgoing_latency", "The latency of outgoing requests in milliseconds.", CSR),
            refused: registry.gauge(
                "cert_requests_refused",
                "1 while the CA has refused five certificate requests in a row or more.",
                &[],
            ),
            end,
        }
    }

    /// The certificate that counts ends then.
    pub(crate) fn expires(&self, end: SystemTime, clock: Clock) {
        *self.end.lock().unwrap_or_else(PoisonError::into_inner) = Some((end, clock));
    }
}
