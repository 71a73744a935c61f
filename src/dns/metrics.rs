//! What the DNS proxy counts: Istio's names, and a few more of the same kind.

use std::time::Duration;

use crate::telemetry::metrics::{Counter, Gauge, Histogram, Registry};

/// Handles of the DNS metrics.
#[derive(Clone)]
pub struct Metrics {
    /// Queries that could be read.
    pub requests: Counter,
    /// Queries answered from the table.
    pub hits: Counter,
    /// Queries that the table does not answer.
    pub misses: Counter,
    /// Queries answered from kept answers.
    pub cache_hits: Counter,
    /// Expired answers served because no server answered.
    pub stale: Counter,
    /// Queries refused because too many wait for servers.
    pub overload: Counter,
    /// Queries forwarded.
    pub forwarded: Counter,
    /// Queries that no server answered.
    pub failures: Counter,
    /// Hosts of the table.
    pub hosts: Gauge,
    seconds: Histogram,
}

impl Metrics {
    /// Registers all families.
    pub fn new(registry: &Registry) -> Metrics {
        let counter = |name, help| registry.counter(name, help, &[]);
        Metrics {
            requests: counter("dns_requests_total", "Total number of DNS requests."),
            hits: counter("dns_table_hits_total", "DNS requests answered from the name table."),
            misses: counter("dns_table_misses_total", "DNS requests that the name table does not answer."),
            cache_hits: counter("dns_cache_hits_total", "DNS requests answered from kept upstream answers."),
            stale: counter("dns_stale_answers_total", "Expired answers served because no upstream answered."),
            overload: counter(
                "dns_overload_total",
                "DNS requests refused because too many were waiting for upstreams.",
            ),
            forwarded: counter("dns_upstream_requests_total", "Total number of DNS requests forwarded to upstream."),
            failures: counter("dns_upstream_failures_total", "Total number of DNS requests that no upstream answered."),
            hosts: registry.gauge("dns_table_hosts", "Hosts in the name table in use.", &[]),
            seconds: registry.histogram(
                "dns_upstream_request_duration_seconds",
                "Time that upstreams took, in seconds.",
                &[0.001, 0.005, 0.01, 0.1, 1.0, 5.0],
            ),
        }
    }

    /// Counts one forwarded query's time.
    pub fn took(&self, time: Duration) {
        self.seconds.observe(time.as_secs_f64());
    }
}
