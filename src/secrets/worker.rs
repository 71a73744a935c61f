//! What happens to the workload's identity, as a state machine without I/O: certificates come from an authority or from files,
//! are renewed in time, and the last good one stays until the next one is there.
//!
//! ```text
//!                 wanted and due                  Issued
//!   Resting ───────────────────────▶ Asking ───────────────────▶ Resting until its renewal
//!      ▲                               │ Failure
//!      └──── backoff, ≥ 1 s, ≤ 60 s ◀──┘   (the old certificate stays while it is valid)
//! ```
//!
//! [`task`](super::task) feeds it with answers, files, trust anchors and time, sends the requests it asks for and publishes its
//! snapshots. Time is passed in, by two clocks: certificates live by wall time; a wall clock that is set back must not delay a
//! renewal, and a machine that slept must not miss one.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use tokio::time::Instant;

use super::{
    answer::Issued,
    authority::{Cause, Failure},
    bundle, certificate,
    file::Found,
    rotate::Reserve,
};
use crate::{
    base::{Backoff, Policy},
    wires::{Snapshot, TrustBundle, Workload},
};

/// Certificate requests are at least this far apart, whatever happens.
const SPACING: Duration = Duration::from_secs(1);
/// How long the first attempt waits for an answer; doubled after each timeout, because a CA that needs longer would else never
/// be heard (cert-manager/istio-csr#217).
const DEADLINE: Duration = Duration::from_secs(10);
const MAX_DEADLINE: Duration = Duration::from_secs(60);
/// From this refusal in a row on it counts as permanent: shown in readiness and metrics, still tried again.
pub(crate) const PERMANENT: u32 = 5;

/// The time by both clocks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Now {
    pub wall: SystemTime,
    pub steady: Instant,
}

/// A time that has come when either clock says so.
#[derive(Debug, Clone, Copy)]
struct Due {
    wall: SystemTime,
    steady: Instant,
}

pub(crate) struct Worker {
    reserve: Reserve,
    /// Whether there is anybody to ask for certificates.
    has_authority: bool,
    issued: Option<Issued>,
    /// An older certificate that lives longer than the newest.
    elder: Option<Issued>,
    files: Files,
    anchors: Option<Arc<TrustBundle>>,
    /// Whether the certificate at hand was compared with `anchors`: a bundle causes one request at most.
    anchors_compared: bool,
    bundle: Option<Arc<TrustBundle>>,
    asking: bool,
    next: Due,
    last_request: Option<Instant>,
    failures: Failures,
}

/// What the well-known files hold.
#[derive(Default)]
struct Files {
    pair: Found<Arc<Workload>>,
    roots: Found<Arc<TrustBundle>>,
    /// A pair whose files are gone, until the authority has given another one.
    former: Option<Arc<Workload>>,
}

struct Failures {
    /// Backoff by cause: a CA that refuses and one that is away are waited for differently often.
    away: Backoff,
    refused: Backoff,
    timeouts: u32,
    refusals: u32,
    /// Whether the last one says that the authority is away, and not for how long.
    is_away: bool,
    last: Option<Arc<str>>,
}

impl Worker {
    pub(crate) fn new(reserve: Reserve, has_authority: bool, now: Now) -> Worker {
        Worker {
            reserve,
            has_authority,
            issued: None,
            elder: None,
            files: Files::default(),
            anchors: None,
            anchors_compared: true,
            bundle: None,
            asking: false,
            next: Due::at(now),
            last_request: None,
            failures: Failures {
                away: Backoff::new(Policy::ISTIOD),
                refused: Backoff::new(Policy::ISTIOD),
                timeouts: 0,
                refusals: 0,
                is_away: false,
                last: None,
            },
        }
    }

    /// The deadline of a request that is to be sent now, if one is. The caller sends it and reports its end.
    pub(crate) fn poll(&mut self, now: Now) -> Option<Duration> {
        if self.asking || !self.wants_authority() || !self.request_in(now).is_zero() {
            return None;
        }
        self.asking = true;
        self.last_request = Some(now.steady);
        Some((DEADLINE * 2u32.saturating_pow(self.failures.timeouts)).min(MAX_DEADLINE))
    }

    /// How long until [`poll`](Self::poll) or [`snapshot`](Self::snapshot) may say something else.
    pub(crate) fn rest(&self, now: Now) -> Option<Duration> {
        let request = (!self.asking && self.wants_authority()).then(|| self.request_in(now));
        let ends = [&self.issued, &self.elder].into_iter().flatten();
        let left =
            ends.filter_map(|issued| issued.expires.duration_since(now.wall).ok()).filter(|left| !left.is_zero());
        left.chain(request).min()
    }

    /// The request brought a certificate.
    pub(crate) fn issued(&mut self, issued: Issued, now: Now, unit: f64) {
        self.asking = false;
        self.failures.reset();
        // A certificate of the future begins to live when it is valid; one that is half over lives from now on.
        let begin = issued.workload.leaf.not_before.max(now.wall);
        let delay = self.reserve.delay(begin, issued.expires, now.wall, unit);
        self.files.former = None;
        let newest = issued.expires;
        let older = [self.issued.replace(issued), self.elder.take()].into_iter().flatten();
        self.elder = older.filter(|older| older.expires > newest).max_by_key(|older| older.expires);
        self.merge();
        self.schedule(delay, now);
        if !std::mem::replace(&mut self.anchors_compared, true) && !self.chains_to_anchors(now) {
            self.schedule(Duration::ZERO, now);
        }
    }

    /// The request failed.
    pub(crate) fn failed(&mut self, failure: &Failure, now: Now) {
        self.asking = false;
        let mut delay = self.failures.count(failure);
        if let Some(pushback) = failure.pushback {
            delay = delay.max(pushback);
        } else if let Some(left) = self.issued.as_ref().and_then(|issued| issued.expires.duration_since(now.wall).ok())
        {
            // The last attempt before the end of the certificate is worth more than an even pace.
            delay = delay.min(left);
        }
        self.schedule(delay, now);
    }

    /// Somebody has reached the authority just now, which was away: whoever has no certificate waits no longer.
    pub(crate) fn reached(&mut self, now: Now) {
        if self.failures.is_away && !self.asking && self.snapshot(now).workload.is_none() {
            self.schedule(Duration::ZERO, now);
        }
    }

    /// istiod announced other trust anchors.
    pub(crate) fn anchors(&mut self, anchors: Arc<TrustBundle>, now: Now) {
        if self.anchors.as_ref().is_some_and(|old| **old == *anchors) {
            return;
        }
        self.anchors = Some(anchors);
        self.merge();
        self.anchors_compared = !self.asking;
        if self.anchors_compared && !self.chains_to_anchors(now) {
            log::info!(target: "cache", "the certificate does not chain to the new trust bundle: asking for another one");
            self.schedule(Duration::ZERO, now);
        }
    }

    /// The well-known files hold this now.
    pub(crate) fn files(&mut self, pair: Found<Arc<Workload>>, roots: Found<Arc<TrustBundle>>) {
        if let (Found::Good(old), Found::Missing) = (&self.files.pair, &pair) {
            self.files.former = Some(Arc::clone(old));
        }
        (self.files.pair, self.files.roots) = (pair, roots);
        self.merge();
    }

    /// What there is to serve.
    pub(crate) fn snapshot(&self, now: Now) -> Snapshot {
        let issued = [&self.issued, &self.elder].into_iter().flatten().find(|issued| issued.expires > now.wall);
        let workload = match &self.files.pair {
            Found::Good(pair) => Some(Arc::clone(pair)),
            Found::Broken(_) => None,
            Found::Missing => issued.map(|issued| Arc::clone(&issued.workload)).or_else(|| self.files.former.clone()),
        };
        let broken = [self.files.pair.error(), self.files.roots.error()].into_iter().flatten().next();
        let error = broken.or_else(|| self.failures.last.clone()).or_else(|| self.unserved());
        let renewal = (self.wants_authority() && self.issued.is_some()).then_some(self.next.wall);
        Snapshot { workload, bundle: self.bundle.clone(), error, renewal }
    }

    /// How many refusals there were in a row.
    pub(crate) fn refusals(&self) -> u32 {
        self.failures.refusals
    }

    /// The end of the last certificate that the authority signed, also after it.
    pub(crate) fn expires(&self) -> Option<SystemTime> {
        self.issued.as_ref().map(|issued| issued.workload.leaf.not_after)
    }

    fn unserved(&self) -> Option<Arc<str>> {
        // Istio's words: people search for them.
        (!self.has_authority && !self.files_suffice()).then(|| {
            "attempted to fetch secret, but ca client is nil: certificates come from files here, and there are none"
                .into()
        })
    }

    fn wants_authority(&self) -> bool {
        self.has_authority && !self.files_suffice()
    }

    fn files_suffice(&self) -> bool {
        self.files.pair.applies() && self.files.roots.applies()
    }

    fn schedule(&mut self, delay: Duration, now: Now) {
        self.next = Due::at(now).after(delay.max(self.spacing(now)));
    }

    /// How long until the next request.
    fn request_in(&self, now: Now) -> Duration {
        self.next.left(now).max(self.spacing(now))
    }

    /// How long until requests would be far enough apart.
    fn spacing(&self, now: Now) -> Duration {
        self.last_request.map_or(Duration::ZERO, |last| (last + SPACING).saturating_duration_since(now.steady))
    }

    fn chains_to_anchors(&self, now: Now) -> bool {
        let (Some(issued), Some(anchors)) = (&self.issued, &self.anchors) else { return true };
        let roots = certificate::ders(&anchors.pem);
        roots.is_empty() || bundle::chains_to(&certificate::ders(&issued.workload.chain), &roots, now.wall)
    }

    /// Merges the trust roots anew; the bundle stays the same one while its bytes do.
    fn merge(&mut self) {
        let roots = match &self.files.roots {
            Found::Good(roots) => Some(&roots.pem),
            Found::Broken(_) => None,
            Found::Missing => self.issued.as_ref().map(|issued| &issued.roots),
        };
        let Some(roots) = roots else { return };
        let none = Bytes::new();
        let anchors = self.anchors.as_ref().map_or(&none, |anchors| &anchors.pem);
        let pem = bundle::merge(&[roots, anchors]);
        if self.bundle.as_ref().is_none_or(|bundle| bundle.pem != pem) {
            self.bundle = Some(Arc::new(TrustBundle { pem }));
        }
    }
}

impl Failures {
    fn reset(&mut self) {
        self.away.reset();
        self.refused.reset();
        (self.timeouts, self.refusals, self.is_away, self.last) = (0, 0, false, None);
    }

    /// Notes a failure; how long to wait after it.
    fn count(&mut self, failure: &Failure) -> Duration {
        self.last = Some(failure.message.as_str().into());
        self.is_away = failure.cause == Cause::Unavailable && failure.pushback.is_none();
        self.timeouts = if failure.cause == Cause::Timeout { self.timeouts.saturating_add(1) } else { 0 };
        self.refusals = if failure.cause == Cause::Refused { self.refusals.saturating_add(1) } else { 0 };
        match failure.cause {
            Cause::Unavailable | Cause::Timeout => self.away.next_delay(),
            Cause::Refused | Cause::Unusable => self.refused.next_delay(),
        }
    }
}

impl Due {
    fn at(now: Now) -> Due {
        Due { wall: now.wall, steady: now.steady }
    }

    fn after(self, delay: Duration) -> Due {
        Due { wall: self.wall + delay, steady: self.steady + delay }
    }

    fn left(&self, now: Now) -> Duration {
        let wall = self.wall.duration_since(now.wall).unwrap_or_default();
        wall.min(self.steady.saturating_duration_since(now.steady))
    }
}

#[cfg(test)]
mod tests;
