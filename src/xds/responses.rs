//! istiod's responses on their way to Envoy. One of the two directions of a stream; what Envoy does not read holds istiod back.
//!
//! A response passes as its bytes come in; it is held only when the agent wants it for itself or has to rewrite it. Its type is
//! known from its first resource, or, when it is small, from the whole message.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::{task::yield_now, time::Instant};

use super::{
    Kind,
    ecds::Step,
    ends::End,
    intercept,
    lastgood::Recorder,
    peek::{Peek, Text},
    session::Stream,
    types::{ECDS, Route},
};
use crate::grpc::{Code, Piece, Receiver, Sender, Status};

/// Responses up to this size are looked at whole before they go on.
const HELD: usize = 64 * 1024;

/// A longer response that has not told its type within so much goes on unseen.
const TYPELESS: usize = 1024 * 1024;

/// Sending that takes longer is logged.
const SLOW: Duration = Duration::from_secs(10);

/// The direction from istiod to Envoy.
pub(super) struct Responses<'a> {
    stream: &'a Stream<'a>,
    istiod: Receiver,
    envoy: &'a mut Sender,
    incoming: Incoming,
}

/// The response that comes in.
struct Incoming {
    peek: Peek,
    length: usize,
    held: Held,
}

/// Bytes of one message; not copied while they are one piece.
#[derive(Default)]
struct Held {
    first: Bytes,
    joined: BytesMut,
}

enum Next {
    Piece(Result<Option<Piece>, Status>),
    Extension(Step),
    Gone(Status),
}

impl<'a> Responses<'a> {
    pub(super) fn new(stream: &'a Stream<'a>, istiod: Receiver, envoy: &'a mut Sender) -> Responses<'a> {
        let incoming = Incoming { peek: Peek::response(stream.kind, 0), length: 0, held: Held::default() };
        Responses { stream, istiod, envoy, incoming }
    }

    /// Relays until one side ends.
    pub(super) async fn run(mut self) -> End {
        loop {
            if let Err(end) = self.step().await {
                return end;
            }
        }
    }

    async fn step(&mut self) -> Result<(), End> {
        match self.next().await {
            Next::Piece(Ok(Some(Piece::Begin(length)))) => self.response(length).await,
            Next::Piece(Ok(Some(Piece::Data(_)))) => Ok(()),
            Next::Piece(Ok(None)) => Err(End::Istiod(Ok(()))),
            Next::Piece(Err(status)) => Err(End::Istiod(Err(status))),
            Next::Extension(Step::ToEnvoy(response)) => {
                self.record_extensions(&response);
                self.envoy.send_raw(response).await.map_err(|status| End::Envoy(Err(status)))
            }
            Next::Extension(Step::ToIstiod(request)) => {
                self.answer(ECDS, request).await;
                Ok(())
            }
            Next::Gone(status) => Err(End::Envoy(Err(status))),
        }
    }

    async fn next(&mut self) -> Next {
        tokio::select! {
            biased;
            step = self.stream.next_extension() => Next::Extension(step),
            // Before Envoy's end, of which sending tells as well.
            piece = self.istiod.piece() => Next::Piece(piece),
            gone = self.stream.deserted(self.envoy) => Next::Gone(gone),
        }
    }

    /// Takes one response of istiod's.
    async fn response(&mut self, length: usize) -> Result<(), End> {
        self.incoming.restart(length);
        self.stream.proxy.metrics.responses.inc();
        while !self.incoming.is_decidable() {
            self.more().await?;
        }
        let peek = &self.incoming.peek;
        if self.incoming.is_complete() && peek.is_broken() {
            let message = "grpc: error unmarshalling response: the bytes are no discovery response";
            return Err(End::Istiod(Err(Status::new(Code::Internal, message))));
        }
        let type_url = peek.type_url().unwrap_or_default();
        let route = match self.stream.proxy.taken.route(type_url) {
            Route::Drop if type_url.is_empty() && !self.incoming.is_complete() => Route::Forward,
            route => route,
        };
        match route {
            Route::Forward => self.forward().await?,
            Route::Drop => {
                log::error!(target: "xdsproxy", "Skipping forwarding type url {type_url} to Envoy as it is not a valid Envoy type");
                self.skip().await?;
            }
            Route::Names | Route::Anchors | Route::Extensions => self.take(route).await?,
        }
        let peek = &self.incoming.peek;
        self.stream.entry.responded(peek, length);
        self.stream.served();
        log::debug!(
            target: "xdsproxy",
            "response for type url {} of {length} bytes (id {})",
            peek.type_url().unwrap_or_default(),
            self.stream.entry.id
        );
        Ok(())
    }

    async fn forward(&mut self) -> Result<(), End> {
        let envoy_gone = |status| End::Envoy(Err(status));
        let begun = Instant::now();
        let length = self.incoming.length;
        let mut left = length - self.incoming.held.len();
        let held = self.incoming.held.take();
        let recorded = self.recorded();
        self.record(&recorded, |recorder, type_url| {
            recorder.begin(type_url, length);
            recorder.piece(type_url, &held);
        });
        self.envoy.begin(length).map_err(envoy_gone)?;
        let waiting = self.istiod.hold();
        self.envoy.piece(held).await.map_err(envoy_gone)?;
        drop(waiting);
        while left > 0 {
            let data = self.data().await?;
            left -= data.len();
            self.incoming.peek.feed(&data);
            self.record(&recorded, |recorder, type_url| recorder.piece(type_url, &data));
            let _waiting = self.istiod.hold();
            self.envoy.piece(data).await.map_err(envoy_gone)?;
        }
        let nonce = self.incoming.peek.text(Text::Nonce).unwrap_or_default();
        self.record(&recorded, |recorder, type_url| recorder.end(type_url, nonce));
        let took = begun.elapsed();
        if took > SLOW {
            let delta = if self.stream.kind == Kind::Delta { "Delta" } else { "" };
            log::warn!(target: "xdsproxy", "sendDownstream{delta} took {took:?} (id {})", self.stream.entry.id);
        }
        Ok(())
    }

    /// Under which type the response at hand is kept; `None` when it is not. Extension configurations that istiod sent for Envoy
    /// itself are not kept: they may hold pull secrets.
    fn recorded(&self) -> Option<String> {
        drop(self.stream.recorder()?);
        self.incoming.peek.type_url().filter(|type_url| *type_url != ECDS).map(str::to_owned)
    }

    /// Keeps what passes.
    fn record(&self, recorded: &Option<String>, note: impl FnOnce(&mut Recorder, &str)) {
        if let (Some(type_url), Some(mut recorder)) = (recorded, self.stream.recorder()) {
            note(&mut recorder, type_url);
        }
    }

    /// Keeps extension configurations as the agent has rewritten them.
    fn record_extensions(&self, response: &Bytes) {
        if let Some(mut recorder) = self.stream.recorder() {
            let mut peek = Peek::response(self.stream.kind, response.len());
            peek.feed(response);
            recorder.begin(ECDS, response.len());
            recorder.piece(ECDS, response);
            recorder.end(ECDS, peek.text(Text::Nonce).unwrap_or_default());
        }
    }

    async fn skip(&mut self) -> Result<(), End> {
        let mut left = self.incoming.length - self.incoming.held.len();
        self.incoming.held.take();
        while left > 0 {
            let data = self.data().await?;
            left -= data.len();
            self.incoming.peek.feed(&data);
        }
        Ok(())
    }

    /// Takes a response that is the agent's own, or that it has to rewrite.
    async fn take(&mut self, route: Route) -> Result<(), End> {
        while !self.incoming.is_complete() {
            self.more().await?;
        }
        let whole = self.incoming.held.take();
        if route == Route::Extensions {
            self.stream.received_extensions(whole);
        } else {
            let (type_url, answer) = intercept::take(self.stream, route, &whole).await;
            self.answer(type_url, answer).await;
        }
        Ok(())
    }

    /// Leaves an answer to the other direction, which takes it before the next response is looked at; unless istiod reads nothing.
    async fn answer(&self, type_url: &'static str, answer: Bytes) {
        self.stream.answers.put(type_url, answer);
        yield_now().await;
    }

    /// Holds the next piece.
    async fn more(&mut self) -> Result<(), End> {
        let data = self.data().await?;
        self.incoming.peek.feed(&data);
        self.incoming.held.push(data);
        Ok(())
    }

    /// The next piece of the response at hand.
    async fn data(&mut self) -> Result<Bytes, End> {
        // While there are pieces, sending them tells as well that Envoy has gone.
        let piece = tokio::select! {
            biased;
            piece = self.istiod.piece() => piece,
            gone = self.stream.deserted(self.envoy) => return Err(End::Envoy(Err(gone))),
        };
        match piece {
            Ok(Some(Piece::Data(data))) => Ok(data),
            Ok(_) => Err(End::Istiod(Err(Status::new(Code::Internal, "the stream ended within a message")))),
            Err(status) => Err(End::Istiod(Err(status))),
        }
    }
}

impl Incoming {
    fn restart(&mut self, length: usize) {
        self.peek.restart(length);
        self.length = length;
        self.held = Held::default();
    }

    fn is_complete(&self) -> bool {
        self.held.len() == self.length
    }

    /// Whether enough has come in to know where the response goes.
    fn is_decidable(&self) -> bool {
        self.is_complete() || self.length > HELD && (self.peek.type_url().is_some() || self.held.len() >= TYPELESS)
    }
}

impl Held {
    fn len(&self) -> usize {
        self.first.len() + self.joined.len()
    }

    fn push(&mut self, data: Bytes) {
        if self.len() == 0 {
            self.first = data;
            return;
        }
        if self.joined.is_empty() {
            self.joined.extend_from_slice(&std::mem::take(&mut self.first));
        }
        self.joined.extend_from_slice(&data);
    }

    /// All of them; nothing stays behind that would keep their memory.
    fn take(&mut self) -> Bytes {
        let Held { first, joined } = std::mem::take(self);
        if joined.is_empty() { first } else { joined.freeze() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_leaves_no_memory_behind() {
        let mut held = Held::default();
        held.push(Bytes::from_static(b"one "));
        held.push(Bytes::from_static(b"two"));
        assert_eq!(held.len(), 7);
        assert_eq!(held.take(), &b"one two"[..]);
        assert_eq!((held.len(), held.joined.capacity()), (0, 0));
    }
}
