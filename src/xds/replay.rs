//! Serves one stream of Envoy's from the last good configuration while istiod has not been reached since the agent started.
//!
//! Each type is answered once, with what Envoy had accepted; Envoy's acknowledgements go nowhere. When istiod is there the stream
//! ends, and Envoy comes back to it at once.

use std::{
    collections::BTreeSet,
    time::{Duration, SystemTime},
};

use tokio::time::sleep;

use super::{Kind, Proxy, ends::End, lastgood::Store, peek::Peek, types::short};
use crate::{
    base::{Backoff, Policy},
    grpc::{Code, MAX_MESSAGE, Piece, Receiver, Sender, Status},
};

/// How often istiod is tried meanwhile: it replaces what is served as soon as it is there.
const ATTEMPTS: Policy =
    Policy { initial: Duration::from_secs(1), factor: 1.5, max: Duration::from_secs(10), jitter: 0.2 };

/// Serves until istiod is back or Envoy ends the stream.
pub(super) async fn run(
    proxy: &Proxy,
    (kind, store): (Kind, &Store),
    envoy: &mut Receiver,
    answers: &mut Sender,
) -> End {
    let age = store.age(kind).unwrap_or_default();
    log::warn!(target: "xdsproxy", "istiod {} is away: serving the configuration that Envoy accepted {} s ago", proxy.links.istiod.address(), age.as_secs());
    proxy.links.gate.note("istiod is away: serving the configuration that Envoy accepted", SystemTime::now() - age);
    tokio::select! {
        end = serve((kind, store), envoy, answers) => end,
        () = back(proxy) => {
            log::info!(target: "xdsproxy", "istiod {} is back: it replaces the last good configuration", proxy.links.istiod.address());
            End::Istiod(Err(Status::transport("transport is closing: istiod is back")))
        }
    }
}

async fn serve((kind, store): (Kind, &Store), envoy: &mut Receiver, answers: &mut Sender) -> End {
    let mut answered = BTreeSet::new();
    loop {
        let piece = tokio::select! {
            gone = answers.closed() => return End::Envoy(Err(gone)),
            piece = envoy.piece() => piece,
        };
        let request = match piece {
            Ok(Some(Piece::Begin(length))) => envoy.rest(length, MAX_MESSAGE).await,
            Ok(_) => return End::Envoy(Ok(())),
            Err(status) => return End::Envoy(Err(status)),
        };
        let request = match request {
            Ok(request) => request,
            Err(status) => return End::Envoy(Err(status)),
        };
        let mut peek = Peek::request(kind, request.len());
        peek.feed(&request);
        let type_url = peek.type_url().unwrap_or_default();
        if answered.insert(type_url.to_owned())
            && let Err(status) = answer(kind, store, type_url, answers).await
        {
            return End::Envoy(Err(status));
        }
    }
}

/// Sends what is kept of a type; nothing when nothing is.
async fn answer(kind: Kind, store: &Store, type_url: &str, answers: &mut Sender) -> Result<(), Status> {
    let unreadable =
        |error: std::io::Error| Status::new(Code::Unavailable, format!("last good configuration: {error}"));
    for stored in store.accepted(kind, type_url).unwrap_or_default() {
        log::debug!(target: "xdsproxy", "{} from the last good configuration: {} bytes", short(type_url), stored.length);
        answers.begin(usize::try_from(stored.length).unwrap_or(usize::MAX))?;
        for chunk in stored.chunks().map_err(unreadable)? {
            answers.piece(chunk.map_err(unreadable)?.into()).await?;
        }
    }
    Ok(())
}

async fn back(proxy: &Proxy) {
    let mut backoff = Backoff::new(ATTEMPTS);
    loop {
        sleep(backoff.next_delay()).await;
        if proxy.links.istiod.connect().await.is_ok() {
            return;
        }
    }
}
