//! Runs the [`Worker`](super::worker): sends the requests that it asks for, hands it files, trust anchors and time, publishes
//! its snapshots, counts and logs.

use std::{future::Future, pin::Pin, sync::Arc, time::Duration};

use tokio::{sync::watch, time::Instant};

use super::{
    answer::{self, Issued},
    authority::{Authority, Cause, Failure, Order},
    csr::{self, KeyStyle},
    file::{Content, Found, Source},
    files::{Files, Table},
    metrics::Metrics,
    worker::{Now, PERMANENT, Worker},
};
use crate::{
    base::{Clock, Drain, Gate, random_unit},
    wires::{Snapshot, TrustBundle},
};

/// So often the wall clock is looked at: a machine that slept across a renewal notices this late at most.
const LOOK: Duration = Duration::from_secs(15);

/// How the identity is asked for.
pub(crate) struct Wish {
    pub identity: String,
    pub key: KeyStyle,
    pub validity: Duration,
}

/// The task that owns the workload's identity.
pub struct Task {
    pub(crate) worker: Worker,
    pub(crate) wish: Wish,
    pub(crate) authority: Option<Arc<dyn Authority>>,
    pub(crate) files: Files,
    pub(crate) pair: Option<Source>,
    pub(crate) roots: Option<Source>,
    pub(crate) anchors: watch::Receiver<Option<Arc<TrustBundle>>>,
    pub(crate) snapshot: watch::Sender<Snapshot>,
    pub(crate) metrics: Metrics,
    pub(crate) gate: Gate,
    pub(crate) clock: Clock,
}

/// What a request brought, and how long the CA took, the way there included.
type Attempt = Pin<Box<dyn Future<Output = Result<(Issued, Duration), Failure>> + Send>>;

impl Task {
    /// Keeps the identity until `drain` starts.
    pub async fn run(mut self, mut drain: Drain) {
        let mut leases = Vec::new();
        for source in [&self.pair, &self.roots].into_iter().flatten() {
            leases.extend(self.files.lease_optional(source.clone()).await);
        }
        let mut table = self.files.table();
        self.look_at_files(&table.borrow_and_update());
        let mut anchors = self.anchors.clone();
        let mut attempt: Option<Attempt> = None;
        let mut reached = self.authority.as_ref().and_then(|authority| authority.reached());
        loop {
            if let Some(deadline) = self.worker.poll(self.now()) {
                attempt = Some(self.attempt(deadline));
            }
            self.publish();
            let rest = self.worker.rest(self.now()).map_or(LOOK, |rest| rest.min(LOOK));
            tokio::select! {
                result = ended(&mut attempt) => {
                    attempt = None;
                    // By this very request, perhaps.
                    reached.iter_mut().for_each(watch::Receiver::mark_unchanged);
                    self.take(result);
                }
                () = changed(&mut reached) => self.worker.reached(self.now()),
                Ok(()) = table.changed() => self.look_at_files(&table.borrow_and_update()),
                Ok(()) = anchors.changed() => {
                    let bundle = anchors.borrow_and_update().clone();
                    if let Some(bundle) = bundle {
                        self.worker.anchors(bundle, self.now());
                    }
                }
                () = tokio::time::sleep(rest) => {}
                () = drain.started() => return,
            }
        }
    }

    /// One request with a key of its own.
    fn attempt(&self, deadline: Duration) -> Attempt {
        let made = csr::request(&self.wish.identity, self.wish.key);
        let (authority, clock, metrics) = (self.authority.clone(), self.clock, self.metrics.clone());
        let (identity, validity) = (self.wish.identity.clone(), self.wish.validity);
        metrics.requests.inc();
        Box::pin(async move {
            let unusable = |message: String| Failure { cause: Cause::Unusable, message, pushback: None };
            let request = made.map_err(|error| unusable(format!("failed to generate the request: {error}")))?;
            let authority = authority.ok_or_else(|| unusable("there is no CA".to_owned()))?;
            let begun = Instant::now();
            let order = Order { csr: request.csr.clone(), validity, deadline };
            let answer = match tokio::time::timeout(deadline, authority.sign(&order)).await {
                Ok(answer) => answer,
                Err(_) => Err(Failure {
                    cause: Cause::Timeout,
                    message: format!("create certificate: no answer in {} s", deadline.as_secs()),
                    pushback: None,
                }),
            };
            let took = begun.elapsed();
            metrics.latency.add(took.as_secs_f64() * 1000.0);
            let answer = answer?;
            match answer::check(request, &answer.chain, answer.roots, &identity, clock.now()) {
                Ok(issued) => Ok((issued, took)),
                Err(refusal) => Err(unusable(refusal.to_string())),
            }
        })
    }

    fn take(&mut self, result: Result<(Issued, Duration), Failure>) {
        let now = self.now();
        match result {
            Ok((issued, took)) => {
                for warning in &issued.warnings {
                    log::warn!(target: "cache", "{warning}");
                }
                let leaf = &issued.workload.leaf;
                let (serial, end) = (leaf.serial.clone(), answer::rfc3339(leaf.not_after));
                self.worker.issued(issued, now, random_unit());
                let next = self.worker.snapshot(now).renewal.map_or_else(String::new, answer::rfc3339);
                let took = took.as_secs_f64() * 1000.0;
                log::info!(target: "cache", "certificate {serial} obtained, the CA took {took:.1} ms; valid until {end}, renewed at {next}");
            }
            Err(failure) => {
                self.metrics.failed.inc();
                let known = self.snapshot.borrow().error.as_deref() == Some(failure.message.as_str());
                self.worker.failed(&failure, now);
                let pause = self.worker.rest(now).unwrap_or_default();
                let level = if known { log::Level::Debug } else { log::Level::Warn };
                log::log!(target: "cache", level, "failed to generate workload certificate: {failure}; next attempt in {:.1} s", pause.as_secs_f64());
                self.metrics.retries.inc();
            }
        }
    }

    fn look_at_files(&mut self, table: &Table) {
        let found = |source: &Option<Source>| {
            source.as_ref().and_then(|source| table.get(source)).map_or(Found::Missing, |state| state.found())
        };
        let pair = match found(&self.pair) {
            Found::Good(Content::Pair(pair)) => Found::Good(pair),
            Found::Broken(error) => Found::Broken(error),
            Found::Good(Content::Roots(_)) | Found::Missing => Found::Missing,
        };
        let roots = match found(&self.roots) {
            Found::Good(Content::Roots(roots)) => Found::Good(roots),
            Found::Broken(error) => Found::Broken(error),
            Found::Good(Content::Pair(_)) | Found::Missing => Found::Missing,
        };
        self.worker.files(pair, roots);
    }

    /// Publishes what there is to serve, when it is news.
    fn publish(&self) {
        let now = self.now();
        let next = self.worker.snapshot(now);
        if let Some(end) = self.worker.expires() {
            self.metrics.expires(end, self.clock);
        }
        let lost = self.snapshot.borrow().workload.is_some() && next.workload.is_none();
        if lost {
            log::error!(target: "cache", "the workload certificate has expired and there is no other: {}", next.error.as_deref().unwrap_or("not renewed"));
        }
        let refused = self.worker.refusals() >= PERMANENT;
        self.metrics.refused.set(if refused { 1.0 } else { 0.0 });
        match (&next.workload, &next.error) {
            (None, Some(error)) if refused => self.gate.shut(error),
            _ => self.gate.open(),
        }
        self.snapshot.send_if_modified(|old| {
            let news = !same(&old.workload, &next.workload)
                || !same(&old.bundle, &next.bundle)
                || old.error != next.error
                || old.renewal != next.renewal;
            if news {
                *old = next;
            }
            news
        });
    }

    fn now(&self) -> Now {
        Now { wall: self.clock.now(), steady: Instant::now() }
    }
}

/// Waits until somebody has reached the authority.
async fn changed(reached: &mut Option<watch::Receiver<u64>>) {
    let closed = match reached {
        Some(reached) => reached.changed().await.is_err(),
        None => true,
    };
    if closed {
        std::future::pending().await
    }
}

async fn ended(attempt: &mut Option<Attempt>) -> Result<(Issued, Duration), Failure> {
    match attempt {
        Some(attempt) => attempt.await,
        None => std::future::pending().await,
    }
}

fn same<T>(a: &Option<Arc<T>>, b: &Option<Arc<T>>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => Arc::ptr_eq(a, b),
        (None, None) => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests;
