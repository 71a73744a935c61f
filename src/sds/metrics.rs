//! What is counted about SDS. Names are Istio's where Istio has them.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use crate::{
    grpc::{Code, Status},
    telemetry::metrics::{Counter, Gauge, Histogram, Registry},
};

const SDS: &[(&str, &str)] = &[("type", "sds")];
const SECONDS: &[f64] = &[0.01, 0.1, 1.0, 3.0, 5.0, 10.0, 20.0, 30.0];

/// An open stream.
pub(super) struct Open {
    streams: Gauge,
    open: Arc<AtomicU64>,
}

pub(super) struct Metrics {
    pub expired_nonce: Counter,
    pub rejects: Counter,
    streams: Gauge,
    open: Arc<AtomicU64>,
    pushes: Counter,
    internal_errors: Counter,
    send_time: Histogram,
}

impl Metrics {
    pub(super) fn new(registry: &Registry) -> Metrics {
        registry.counter("pilot_xds_write_timeout", "Pilot XDS response write timeouts.", &[]);
        Metrics {
            expired_nonce: registry.counter(
                "pilot_xds_expired_nonce",
                "Total number of XDS requests with an expired nonce.",
                SDS,
            ),
            rejects: registry.counter(
                "pilot_total_xds_rejects",
                "Total number of XDS responses from pilot rejected by proxy.",
                SDS,
            ),
            streams: registry.gauge("sds_streams", "Open secret streams.", &[]),
            open: Arc::default(),
            pushes: registry.counter("sds_pushes", "Secret responses sent.", &[]),
            internal_errors: registry.counter(
                "pilot_total_xds_internal_errors",
                "Total number of internal XDS errors in pilot.",
                &[],
            ),
            send_time: registry.histogram(
                "pilot_xds_send_time",
                "Total time in seconds Pilot takes to send generated configuration.",
                SECONDS,
            ),
        }
    }

    /// Counts a stream until the guard is dropped.
    pub(super) fn opened(&self) -> Open {
        self.streams.set(self.open.fetch_add(1, Ordering::Relaxed) as f64 + 1.0);
        Open { streams: self.streams.clone(), open: Arc::clone(&self.open) }
    }

    pub(super) fn sent(&self, took: Duration) {
        self.pushes.inc();
        self.send_time.observe(took.as_secs_f64());
    }

    /// Counts the end of a stream, unless it is one of the usual ones.
    pub(super) fn ended(&self, status: &Status) {
        let is_usual = status.is_transport()
            || matches!(status.code, Code::Ok | Code::Cancelled | Code::DeadlineExceeded | Code::Unavailable);
        if !is_usual {
            log::warn!(target: "sds", "secret stream ends: {status}");
            if status.code == Code::Internal {
                self.internal_errors.inc();
            }
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.streams.set(self.open.fetch_sub(1, Ordering::Relaxed) as f64 - 1.0);
    }
}
