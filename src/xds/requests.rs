//! Envoy's requests on their way to istiod, byte for byte, with the agent's own between them. One of the two directions of a
//! stream; what istiod does not read holds Envoy back.

use std::{future::pending, time::Duration};

use bytes::Bytes;
use tokio::{sync::watch, time::sleep};

use super::{
    ends::End,
    message,
    peek::{Peek, Text},
    session::Stream,
    types::{ECDS, HEALTH, LDS, NDS, PCDS},
};
use crate::{
    grpc::{Code, Piece, Receiver, Sender, Status},
    wires::AppHealth,
};

/// Requests up to this size are looked at whole before they go on; Envoy's first one, with its node, is some 62 KB. Larger ones go
/// on as they come.
const HELD: usize = 64 * 1024;

/// How long responses that came before the connection broke may take to reach Envoy.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// The direction from Envoy to istiod.
pub(super) struct Requests<'a> {
    stream: &'a Stream<'a>,
    envoy: &'a mut Receiver,
    istiod: Sender,
    health: watch::Receiver<Option<AppHealth>>,
    /// The agent's own subscriptions have gone out.
    subscribed: bool,
}

enum Next {
    Piece(Result<Option<Piece>, Status>),
    Answer,
    Health,
    Lost(Status),
}

impl<'a> Requests<'a> {
    pub(super) fn new(stream: &'a Stream<'a>, envoy: &'a mut Receiver, istiod: Sender) -> Requests<'a> {
        let health = stream.proxy.links.health.clone();
        Requests { stream, envoy, istiod, health, subscribed: false }
    }

    /// Relays until one side ends.
    pub(super) async fn run(mut self) -> End {
        loop {
            let done = match self.next().await {
                Next::Piece(Ok(Some(Piece::Begin(length)))) => self.relay(length).await,
                Next::Piece(Ok(Some(Piece::Data(_)))) => Ok(()),
                Next::Piece(Ok(None)) => {
                    // Whether istiod still listens does not matter any more.
                    let _ = self.istiod.finish().await;
                    return End::Envoy(Ok(()));
                }
                Next::Piece(Err(status)) => return End::Envoy(Err(status)),
                Next::Answer => self.answer().await,
                Next::Health => self.report().await,
                Next::Lost(status) => return self.lost(status).await,
            };
            match done {
                Ok(()) => {}
                Err(Refused::Envoy(status)) => return End::Envoy(Err(status)),
                // istiod's side has ended: its own words tell why, and the other direction reads them.
                Err(Refused::Istiod) => return pending().await,
            }
        }
    }

    async fn next(&mut self) -> Next {
        let answers = &self.stream.answers;
        let health = &mut self.health;
        self.stream.listens(true);
        let next = tokio::select! {
            biased;
            lost = self.istiod.closed() => Next::Lost(lost),
            () = answers.filled() => Next::Answer,
            () = changed(health), if self.subscribed => Next::Health,
            piece = self.envoy.piece() => Next::Piece(piece),
        };
        self.stream.listens(false);
        next
    }

    /// The connection to istiod broke, or istiod wants no more requests.
    async fn lost(&self, status: Status) -> End {
        if status.code != Code::Unavailable {
            return pending().await;
        }
        sleep(LAST_WORDS).await;
        End::Istiod(Err(status))
    }

    /// Relays one request of Envoy's.
    async fn relay(&mut self, length: usize) -> Result<(), Refused> {
        let proxy = self.stream.proxy;
        proxy.metrics.received(length);
        if let Some(max) = proxy.max_request
            && length > max
        {
            let message = format!("grpc: received message larger than max ({length} vs. {max})");
            return Err(Refused::Envoy(Status::new(Code::ResourceExhausted, message)));
        }
        let mut peek = Peek::request(self.stream.kind, length);
        if length > HELD {
            self.pass(length, &mut peek).await?;
            self.stream.entry.identify(&peek);
        } else {
            let whole = self.envoy.rest(length, HELD).await.map_err(Refused::Envoy)?;
            peek.feed(&whole);
            if peek.is_broken() {
                let message = "grpc: error unmarshalling request: the bytes are no discovery request";
                return Err(Refused::Envoy(Status::new(Code::Internal, message)));
            }
            self.stream.entry.identify(&peek);
            let Some(whole) = self.rewritten(&peek, whole) else { return Ok(()) };
            self.istiod.send_raw(whole).await?;
        }
        self.sent(&peek).await
    }

    /// Passes a long request on as it comes.
    async fn pass(&mut self, length: usize, peek: &mut Peek) -> Result<(), Refused> {
        self.istiod.begin(length)?;
        let mut left = length;
        while left > 0 {
            let Some(Piece::Data(data)) = self.envoy.piece().await.map_err(Refused::Envoy)? else {
                return Err(Refused::Envoy(Status::new(Code::Internal, "the request ended within a message")));
            };
            left -= data.len();
            peek.feed(&data);
            self.istiod.piece(data).await?;
        }
        Ok(())
    }

    /// What istiod is to see of a request; `None` for nothing: an answer to a response that the agent made.
    fn rewritten(&self, peek: &Peek, whole: Bytes) -> Option<Bytes> {
        match self.stream.extensions() {
            Some(mut extensions) if peek.type_url() == Some(ECDS) => extensions.request(whole),
            _ => Some(whole),
        }
    }

    async fn sent(&mut self, peek: &Peek) -> Result<(), Refused> {
        self.stream.proxy.metrics.requests.inc();
        self.stream.entry.requested(peek);
        let type_url = peek.type_url().unwrap_or_default();
        log::debug!(target: "xdsproxy", "request for type url {type_url} (id {})", self.stream.entry.id);
        if type_url == LDS && !self.subscribed {
            self.subscribed = true;
            self.subscribe().await?;
        }
        let nonce = peek.text(Text::Nonce).unwrap_or_default();
        let refusal = peek.text(Text::Error);
        if let Some(error) = refusal {
            log::warn!(target: "xdsproxy", "Envoy refused {type_url} ({nonce}): {error}");
        }
        match self.stream.recorder() {
            Some(mut recorder) if refusal.is_some() => recorder.refused(type_url, nonce),
            Some(mut recorder) => recorder.accepted(type_url, nonce),
            None => {}
        }
        Ok(())
    }

    /// The agent's own subscriptions, and the application's health.
    async fn subscribe(&mut self) -> Result<(), Refused> {
        let taken = self.stream.proxy.taken;
        for (type_url, wanted) in [(NDS, taken.names), (PCDS, taken.anchors)] {
            if wanted {
                self.own(type_url, message::subscribe(self.stream.kind, type_url)).await?;
            }
        }
        self.report().await
    }

    async fn report(&mut self) -> Result<(), Refused> {
        let health = self.health.borrow_and_update().clone();
        let Some(health) = health else { return Ok(()) };
        self.own(HEALTH, message::health(self.stream.kind, &health)).await?;
        if let AppHealth::Leaving(told) = health {
            told.done();
        }
        Ok(())
    }

    /// Sends the answer that has waited longest, taken only when istiod reads: until then a newer one may replace it.
    async fn answer(&mut self) -> Result<(), Refused> {
        self.istiod.room().await?;
        match self.stream.answers.take() {
            Some((type_url, request)) => self.own(type_url, request).await,
            None => Ok(()),
        }
    }

    async fn own(&mut self, type_url: &str, request: Bytes) -> Result<(), Refused> {
        self.istiod.send_raw(request).await?;
        self.stream.proxy.metrics.requests.inc();
        self.stream.entry.requested_own(type_url);
        log::debug!(target: "xdsproxy", "own request for type url {type_url} (id {})", self.stream.entry.id);
        Ok(())
    }
}

/// Which side stops a request.
enum Refused {
    Envoy(Status),
    Istiod,
}

impl From<Status> for Refused {
    /// Every other failure of this direction is one of sending.
    fn from(_: Status) -> Refused {
        Refused::Istiod
    }
}

/// Waits for news; for ever once there will be none.
async fn changed(health: &mut watch::Receiver<Option<AppHealth>>) {
    if health.changed().await.is_err() {
        pending().await
    }
}
