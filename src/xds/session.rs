//! One ADS stream of Envoy's: finds its way to istiod, runs both directions, says how it ended.
//!
//! ```text
//!            ┌── requests ──▶            istiod's stream, opened for this one,
//!   Envoy ───┤                ─── istiod ─── never used for another
//!            └◀── responses ─            (many of them share one connection)
//! ```

use std::{
    future::{Future, pending, poll_fn},
    pin::pin,
    sync::{
        Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::Poll,
    time::Duration,
};

use bytes::Bytes;
use tokio::time::{Instant, sleep_until};

use super::{
    Kind, Proxy,
    ecds::{Ecds, Step},
    ends::{Class, End, classify, classify_envoy},
    lastgood::Recorder,
    outbox::Outbox,
    replay,
    requests::Requests,
    responses::Responses,
    streams::Entry,
};
use crate::{
    base::Drain,
    grpc::{Receiver, Sender, Status},
};

/// istiod has let a proxy in for good when it has served a stream for so long.
const HEALTHY: Duration = Duration::from_secs(30);

/// What both directions of a stream share.
pub(super) struct Stream<'a> {
    pub(super) proxy: &'a Proxy,
    pub(super) kind: Kind,
    pub(super) entry: &'a Entry,
    /// The agent's own answers to istiod.
    pub(super) answers: Outbox,
    /// Extension configurations; `None` when they pass unchanged.
    extensions: Option<Mutex<Ecds>>,
    /// Keeps what Envoy accepts; `None` when that is not asked for.
    recorder: Option<Mutex<Recorder>>,
    /// Since when istiod has sent something.
    served: OnceLock<Instant>,
    /// Envoy's next request is waited for.
    listening: AtomicBool,
}

impl Stream<'_> {
    /// Takes a response with extension configurations; what is to be sent comes out of [`next_extension`](Self::next_extension).
    pub(super) fn received_extensions(&self, response: Bytes) {
        if let Some(mut extensions) = self.extensions() {
            extensions.received(response);
        }
    }

    pub(super) fn extensions(&self) -> Option<MutexGuard<'_, Ecds>> {
        self.extensions.as_ref().map(|extensions| extensions.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The next extension configuration that is ready; cancel-safe.
    pub(super) async fn next_extension(&self) -> Step {
        if self.extensions.is_none() {
            return pending().await;
        }
        poll_fn(|cx| match self.extensions() {
            Some(mut extensions) => pin!(extensions.next()).poll(cx),
            None => Poll::Pending,
        })
        .await
    }

    /// What keeps the last good configuration.
    pub(super) fn recorder(&self) -> Option<MutexGuard<'_, Recorder>> {
        self.recorder.as_ref().map(|recorder| recorder.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Notes whether Envoy's next request is waited for.
    pub(super) fn listens(&self, yes: bool) {
        self.listening.store(yes, Ordering::Relaxed);
    }

    /// Waits until Envoy has gone; cancel-safe. Pending while its requests are waited for, which tell as well: to ask both has each
    /// response wake this stream twice.
    pub(super) async fn deserted(&self, envoy: &mut Sender) -> Status {
        poll_fn(|cx| match self.listening.load(Ordering::Relaxed) {
            // The other direction is polled before this one.
            true => Poll::Pending,
            false => envoy.poll_closed(cx),
        })
        .await
    }

    /// Notes that istiod has sent a response: it does not refuse this proxy.
    pub(super) fn served(&self) {
        // Each response comes here: the clock is asked by the first.
        if self.served.get().is_none() && self.served.set(Instant::now()).is_ok() {
            self.proxy.served();
        }
    }

    /// What this end says about istiod's will to serve this proxy. One that sends something and then fails, again and again, refuses too.
    fn judge(&self, end: &End) {
        if let End::Istiod(end @ Err(status)) = end
            && !self.is_healthy()
            && !status.is_transport()
            && (self.served.get().is_none() || classify(end) == Class::Unexpected)
        {
            self.proxy.refused(status);
        }
    }

    fn is_healthy(&self) -> bool {
        self.served.get().is_some_and(|since| since.elapsed() >= HEALTHY)
    }
}

impl Drop for Stream<'_> {
    /// However it ended: another stream of Envoy's may have taken its place.
    fn drop(&mut self) {
        if self.is_healthy() {
            self.proxy.refusals().healthy();
        }
    }
}

/// Serves one stream of Envoy's until it ends.
pub(super) async fn run(
    proxy: &Proxy,
    (kind, connection): (Kind, u64),
    (mut receiver, mut sender): (Receiver, Sender),
    mut drain: Drain,
) {
    let (entry, stopped) = proxy.streams.open(kind, connection);
    let end = tokio::select! {
        end = relay(proxy, kind, &entry, &mut receiver, &mut sender) => end,
        Ok(()) = stopped => End::Superseded,
        () = drain.started() => End::Shutdown,
    };
    report(proxy, &entry, &end);
    sender.close(&end.status());
}

async fn relay(proxy: &Proxy, kind: Kind, entry: &Entry, envoy: &mut Receiver, answers: &mut Sender) -> End {
    let opened = tokio::select! {
        gone = answers.closed() => return End::Envoy(Err(gone)),
        opened = open(proxy, kind) => opened,
    };
    let (requests, responses) = match opened {
        Ok(opened) => opened,
        Err(status) => return without(proxy, (kind, status), envoy, answers).await,
    };
    let delta = if kind == Kind::Delta { "delta " } else { "" };
    log::info!(target: "xdsproxy", "connected to {delta}upstream XDS server: {} (id {})", proxy.links.istiod.address(), entry.id);
    let rewrite = proxy.links.rewrite.clone();
    let stream = Stream {
        proxy,
        kind,
        entry,
        answers: Outbox::default(),
        extensions: rewrite.map(|rewrite| Mutex::new(Ecds::new(kind, rewrite))),
        recorder: proxy.last_good.as_ref().map(|store| Mutex::new(store.recorder(kind))),
        served: OnceLock::new(),
        listening: AtomicBool::new(false),
    };
    let end = tokio::select! {
        // The agent's own answer to one response leaves before the next response is taken; and see `Stream::deserted`.
        biased;
        end = Requests::new(&stream, envoy, requests).run() => end,
        end = Responses::new(&stream, responses, answers).run() => end,
    };
    stream.judge(&end);
    end
}

/// There is no way to istiod. At a start without it, Envoy gets what it had accepted last, when that is kept.
async fn without(proxy: &Proxy, (kind, status): (Kind, Status), envoy: &mut Receiver, answers: &mut Sender) -> End {
    match &proxy.last_good {
        Some(store) if !proxy.configured.load(Ordering::Relaxed) && store.age(kind).is_some() => {
            replay::run(proxy, (kind, store), envoy, answers).await
        }
        _ => End::Unreachable(status),
    }
}

/// Opens the stream to istiod; not before its time when istiod has just refused this proxy several times.
async fn open(proxy: &Proxy, kind: Kind) -> Result<(Sender, Receiver), Status> {
    let istiod = &proxy.links.istiod;
    let credentials = istiod.credentials().await;
    let earliest = proxy.refusals().earliest(credentials);
    if let Some(earliest) = earliest.filter(|earliest| *earliest > Instant::now()) {
        sleep_until(earliest).await;
    }
    istiod.stream(kind.method()).await
}

/// Counts and logs an end, where it is handled.
fn report(proxy: &Proxy, entry: &Entry, end: &End) {
    let (side, class) = match end {
        End::Envoy(end) => ("downstream", classify_envoy(end)),
        End::Istiod(end) => ("upstream", classify(end)),
        End::Unreachable(_) => ("upstream", Class::Unexpected),
        End::Superseded => return proxy.metrics.ended(Some(Class::Expected), Class::Expected),
        End::Shutdown => return,
    };
    let status = end.status();
    match end {
        End::Envoy(_) => proxy.metrics.ended(Some(class), Class::Expected),
        End::Unreachable(_) => proxy.metrics.ended(None, class),
        _ => proxy.metrics.ended(Some(Class::Expected), class),
    }
    if let End::Unreachable(_) = end {
        // `istiod` has logged why, once.
        proxy.metrics.failures.inc();
        log::debug!(target: "xdsproxy", "no upstream for stream {}: {status}", entry.id);
    } else if class == Class::Unexpected && proxy.is_news(&status) {
        let istiod = &proxy.links.istiod;
        let whose = match end {
            End::Istiod(_) => format!("; istiod {}{}", istiod.address(), istiod.token_doubt(&status)),
            _ => String::new(),
        };
        log::warn!(target: "xdsproxy", "{side} terminated with unexpected error {status} (id {}){whose}", entry.id);
    } else {
        log::debug!(target: "xdsproxy", "{side} terminated: {status} (id {})", entry.id);
    }
}
