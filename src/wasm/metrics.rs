//! What is counted, by Istio's names.

use crate::telemetry::metrics::{Counter, Gauge, Histogram, Registry};

/// Milliseconds.
const DURATIONS: &[f64] =
    &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0];

/// The room's metrics.
#[derive(Clone)]
pub(super) struct Metrics {
    pub(super) entries: Gauge,
    pub(super) hit: Counter,
    pub(super) miss: Counter,
    pub(super) fetched: Counter,
    pub(super) download_failure: Counter,
    pub(super) manifest_failure: Counter,
    pub(super) checksum_mismatched: Counter,
    /// What was fetched is no module.
    pub(super) fetch_failure: Counter,
    pub(super) converted: Counter,
    pub(super) no_remote_load: Counter,
    pub(super) marshal_failure: Counter,
    pub(super) unmarshal_failure: Counter,
    pub(super) conversion_failure: Counter,
    pub(super) no_address: Counter,
    /// One sample for each ECDS response.
    pub(super) duration: Histogram,
}

impl Metrics {
    pub(super) fn new(registry: &Registry) -> Metrics {
        let lookups = |hit| {
            registry.counter("wasm_cache_lookup_count", "number of Wasm remote fetch cache lookups.", &[("hit", hit)])
        };
        let fetches = |result| {
            let help = "number of Wasm remote fetches and results, including success, download failure, and checksum mismatch.";
            registry.counter("wasm_remote_fetch_count", help, &[("result", result)])
        };
        let conversions = |result| {
            let help = "number of Wasm config conversion count and results, including success, no remote load, marshal failure, remote fetch failure, miss remote fetch hint.";
            registry.counter("wasm_config_conversion_count", help, &[("result", result)])
        };
        let duration = "Total time in milliseconds istio-agent spends on converting remote load in Wasm config.";
        Metrics {
            entries: registry.gauge("wasm_cache_entries", "number of Wasm remote fetch cache entries.", &[]),
            hit: lookups("true"),
            miss: lookups("false"),
            fetched: fetches("success"),
            download_failure: fetches("download_failure"),
            manifest_failure: fetches("manifest_failure"),
            checksum_mismatched: fetches("checksum_mismatched"),
            fetch_failure: fetches("fetch_failure"),
            converted: conversions("success"),
            no_remote_load: conversions("no_remote_load"),
            marshal_failure: conversions("marshal_failure"),
            unmarshal_failure: conversions("unmarshal_failure"),
            conversion_failure: conversions("fetch_failure"),
            no_address: conversions("miss_remote_fetch_hint"),
            duration: registry.histogram("wasm_config_conversion_duration", duration, DURATIONS),
        }
    }
}
