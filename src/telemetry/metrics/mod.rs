//! The agent's own metrics: a registry that every room counts into, and its Prometheus text (exposition format 0.0.4).
//!
//! A clone of [`Registry`] is the same registry. Handles are cheap to keep and to record into; a room makes its handles once, when it
//! is built. Names are Istio's, without the prefix `istio_agent_` that every family gets. Counters and histograms are exposed from
//! the moment they are made, so that the first increment is visible to `rate()`; a gauge from its first value on.

mod process;
mod text;

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

/// What every family's name begins with.
pub const PREFIX: &str = "istio_agent_";

/// The content type of [`Registry::text`].
pub const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// All families of the agent.
#[derive(Clone, Default)]
pub struct Registry(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    families: BTreeMap<&'static str, Family>,
    before_scrape: Vec<Arc<dyn Fn() + Send + Sync>>,
}

struct Family {
    help: &'static str,
    kind: Kind,
    series: Vec<Series>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Counter,
    Gauge,
    Histogram,
}

struct Series {
    labels: Labels,
    value: Arc<Value>,
}

/// Label names and values of a series, in the order in which they are exposed.
type Labels = Vec<(&'static str, String)>;

enum Value {
    /// Bits of an `f64`; [`UNSET`] for what has no value yet.
    Number(AtomicU64),
    Histogram(Mutex<Buckets>),
}

struct Buckets {
    bounds: &'static [f64],
    /// How many observations fell into each bucket, `+Inf` last; not cumulative.
    counts: Vec<u64>,
    sum: f64,
}

/// What was never set: a NaN that no arithmetic makes.
const UNSET: u64 = u64::MAX;

/// A number that only grows.
#[derive(Clone)]
pub struct Counter(Arc<Value>);

/// A number that goes up and down.
#[derive(Clone)]
pub struct Gauge(Arc<Value>);

/// How many observations were at most so large.
#[derive(Clone)]
pub struct Histogram(Arc<Value>);

impl Registry {
    /// The counter of that name and these labels; made at 0 when it is new.
    pub fn counter(&self, name: &'static str, help: &'static str, labels: &[(&'static str, &str)]) -> Counter {
        Counter(self.series(name, help, Kind::Counter, labels, || Value::Number(AtomicU64::new(0f64.to_bits()))))
    }

    /// A counter of what is counted elsewhere; not exposed before its first [`Counter::set_total`].
    fn total(&self, name: &'static str, help: &'static str) -> Counter {
        Counter(self.series(name, help, Kind::Counter, &[], || Value::Number(AtomicU64::new(UNSET))))
    }

    /// The gauge of that name and these labels; not exposed before its first value.
    pub fn gauge(&self, name: &'static str, help: &'static str, labels: &[(&'static str, &str)]) -> Gauge {
        Gauge(self.series(name, help, Kind::Gauge, labels, || Value::Number(AtomicU64::new(UNSET))))
    }

    /// The histogram of that name; `bounds` ascend, `+Inf` is added.
    pub fn histogram(&self, name: &'static str, help: &'static str, bounds: &'static [f64]) -> Histogram {
        let fresh = || Value::Histogram(Mutex::new(Buckets { bounds, counts: vec![0; bounds.len() + 1], sum: 0.0 }));
        Histogram(self.series(name, help, Kind::Histogram, &[], fresh))
    }

    /// Has `refresh` called before each exposition, to set what is computed at scrape time.
    pub fn on_scrape(&self, refresh: impl Fn() + Send + Sync + 'static) {
        self.inner().before_scrape.push(Arc::new(refresh));
    }

    /// Adds what is known of this process: memory, CPU, descriptors, network, start time.
    pub fn with_process_metrics(self) -> Registry {
        process::register(&self, "/proc");
        self
    }

    /// Whether there is a family of that name.
    pub fn has(&self, name: &str) -> bool {
        self.inner().families.contains_key(name)
    }

    /// All families, sorted by name, in text format 0.0.4.
    pub fn text(&self) -> String {
        // Callbacks record into this registry, so they run without its lock.
        let callbacks = self.inner().before_scrape.clone();
        callbacks.iter().for_each(|refresh| refresh());
        let mut out = String::with_capacity(4096);
        for (name, family) in &self.inner().families {
            text::family(&mut out, name, family);
        }
        out
    }

    fn series(
        &self,
        name: &'static str,
        help: &'static str,
        kind: Kind,
        labels: &[(&'static str, &str)],
        fresh: impl FnOnce() -> Value,
    ) -> Arc<Value> {
        let mut inner = self.inner();
        let family = inner.families.entry(name).or_insert_with(|| Family { help, kind, series: Vec::with_capacity(1) });
        debug_assert!(family.kind == kind, "{name} is registered as two kinds");
        let same =
            |series: &&Series| series.labels.iter().map(|(name, value)| (*name, &**value)).eq(labels.iter().copied());
        if let Some(series) = family.series.iter().find(same) {
            return series.value.clone();
        }
        let value = Arc::new(fresh());
        let labels = labels.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        family.series.push(Series { labels, value: value.clone() });
        value
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Counter {
    /// Adds one.
    pub fn inc(&self) {
        self.add(1.0);
    }

    /// Adds `amount`, which is not negative.
    pub fn add(&self, amount: f64) {
        self.0.update(|value| value + amount);
    }

    /// Takes over a total that is counted elsewhere, by the kernel for instance.
    pub fn set_total(&self, total: f64) {
        self.0.update(|_| total);
    }

    /// The value now.
    pub fn get(&self) -> f64 {
        self.0.number().unwrap_or(0.0)
    }
}

impl Gauge {
    /// Sets the value.
    pub fn set(&self, value: f64) {
        self.0.update(|_| value);
    }

    /// The value now; `None` before the first one.
    pub fn get(&self) -> Option<f64> {
        self.0.number()
    }

    /// Takes the gauge out of the exposition until it is set again.
    pub fn clear(&self) {
        if let Value::Number(bits) = &*self.0 {
            bits.store(UNSET, Ordering::Relaxed);
        }
    }
}

impl Histogram {
    /// Counts one observation.
    pub fn observe(&self, value: f64) {
        if let Value::Histogram(buckets) = &*self.0 {
            let mut buckets = buckets.lock().unwrap_or_else(PoisonError::into_inner);
            let index = buckets.bounds.iter().position(|bound| value <= *bound).unwrap_or(buckets.bounds.len());
            buckets.counts[index] += 1;
            buckets.sum += value;
        }
    }
}

impl Value {
    fn number(&self) -> Option<f64> {
        match self {
            Value::Number(bits) => Some(bits.load(Ordering::Relaxed)).filter(|bits| *bits != UNSET).map(f64::from_bits),
            Value::Histogram(_) => None,
        }
    }

    fn update(&self, change: impl Fn(f64) -> f64) {
        if let Value::Number(bits) = self {
            let next = |bits| Some(change(f64::from_bits(bits)).to_bits());
            // The closure never gives None, so this cannot fail.
            let _ = bits.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        }
    }
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.inner().families.keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exposes_what_was_recorded() {
        let registry = Registry::default();
        let refused = registry.counter("things_total", "Things that\nhappened.", &[("type", "a\"b\\\n")]);
        registry.counter("things_total", "", &[("type", "a\"b\\\n")]).inc();
        refused.add(1.5);
        let gauge = registry.gauge("level", "Level.", &[]);
        let seconds = registry.histogram("seconds", "Seconds.", &[0.1, 1.0]);
        for value in [0.1, 0.5, 7.0] {
            seconds.observe(value);
        }
        registry.on_scrape(move || gauge.set(-3.0));
        assert_eq!(
            registry.text(),
            "# HELP istio_agent_level Level.\n\
             # TYPE istio_agent_level gauge\n\
             istio_agent_level -3\n\
             # HELP istio_agent_seconds Seconds.\n\
             # TYPE istio_agent_seconds histogram\n\
             istio_agent_seconds_bucket{le=\"0.1\"} 1\n\
             istio_agent_seconds_bucket{le=\"1\"} 2\n\
             istio_agent_seconds_bucket{le=\"+Inf\"} 3\n\
             istio_agent_seconds_sum 7.6\n\
             istio_agent_seconds_count 3\n\
             # HELP istio_agent_things_total Things that\\nhappened.\n\
             # TYPE istio_agent_things_total counter\n\
             istio_agent_things_total{type=\"a\\\"b\\\\\\n\"} 2.5\n"
        );
    }

    #[test]
    fn gauge_without_value_is_not_exposed() {
        let registry = Registry::default();
        let gauge = registry.gauge("level", "Level.", &[]);
        assert_eq!(registry.text(), "");
        gauge.set(f64::INFINITY);
        assert!(registry.text().ends_with("istio_agent_level +Inf\n"));
        gauge.clear();
        assert_eq!(registry.text(), "");
    }
}
