//! istiod's responses on their way to Envoy. One of the two directions of a stream; what Envoy does not read holds istiod back.
//!
//! A response passes as its bytes come in; it is held only when the agent wants it for itself or has to rewrite it. Its type is
//! known from its first resource, or, when it is small, from the whole message.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::time::Instant;

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
}

/// A response that has begun to come in.
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
        Responses { stream, istiod, envoy }
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
                self.stream.answers.put(ECDS, request);
                Ok(())
            }
            Next::Gone(status) => Err(End::Envoy(Err(status))),
        }
    }

    async fn next(&mut self) -> Next {
        tokio::select! {
            biased;
            gone = self.envoy.closed() => Next::Gone(gone),
            step = self.stream.next_extension() => Next::Extension(step),
            piece = self.istiod.piece() => Next::Piece(piece),
        }
    }

    /// Takes one response of istiod's.
    async fn response(&mut self, length: usize) -> Result<(), End> {
        let mut incoming = Incoming { peek: Peek::response(self.stream.kind, length), length, held: Held::default() };
        self.stream.proxy.metrics.responses.inc();
        while !incoming.is_decidable() {
            self.more(&mut incoming).await?;
        }
        if incoming.is_complete() && incoming.peek.is_broken() {
            let message = "grpc: error unmarshalling response: the bytes are no discovery response";
            return Err(End::Istiod(Err(Status::new(Code::Internal, message))));
        }
        let type_url = incoming.peek.type_url().unwrap_or_default().to_owned();
        let route = match self.stream.proxy.taken.route(&type_url) {
            Route::Drop if type_url.is_empty() && !incoming.is_complete() => Route::Forward,
            route => route,
        };
        match route {
            Route::Forward => self.forward(&mut incoming).await?,
            Route::Drop => {
                log::error!(target: "xdsproxy", "Skipping forwarding type url {type_url} to Envoy as it is not a valid Envoy type");
                self.skip(&mut incoming).await?;
            }
            Route::Names | Route::Anchors | Route::Extensions => self.take(&mut incoming, route).await?,
        }
        self.stream.entry.responded(&incoming.peek, length);
        self.stream.served();
        log::debug!(target: "xdsproxy", "response for type url {type_url} of {length} bytes (id {})", self.stream.entry.id);
        Ok(())
    }

    async fn forward(&mut self, incoming: &mut Incoming) -> Result<(), End> {
        let envoy_gone = |status| End::Envoy(Err(status));
        let begun = Instant::now();
        let mut left = incoming.length - incoming.held.len();
        let type_url = incoming.peek.type_url().unwrap_or_default().to_owned();
        let held = incoming.held.take();
        self.record(&type_url, |recorder| {
            recorder.begin(&type_url, incoming.length);
            recorder.piece(&type_url, &held);
        });
        self.envoy.begin(incoming.length).map_err(envoy_gone)?;
        let waiting = self.istiod.hold();
        self.envoy.piece(held).await.map_err(envoy_gone)?;
        drop(waiting);
        while left > 0 {
            let data = self.data().await?;
            left -= data.len();
            incoming.peek.feed(&data);
            self.record(&type_url, |recorder| recorder.piece(&type_url, &data));
            let _waiting = self.istiod.hold();
            self.envoy.piece(data).await.map_err(envoy_gone)?;
        }
        let nonce = incoming.peek.text(Text::Nonce).unwrap_or_default();
        self.record(&type_url, |recorder| recorder.end(&type_url, nonce));
        let took = begun.elapsed();
        if took > SLOW {
            let delta = if self.stream.kind == Kind::Delta { "Delta" } else { "" };
            log::warn!(target: "xdsproxy", "sendDownstream{delta} took {took:?} (id {})", self.stream.entry.id);
        }
        Ok(())
    }

    /// Keeps what passes, when that is asked for. Extension configurations that istiod sent for Envoy itself are not kept: they may
    /// hold pull secrets.
    fn record(&self, type_url: &str, note: impl FnOnce(&mut Recorder)) {
        if let Some(mut recorder) = self.stream.recorder().filter(|_| type_url != ECDS) {
            note(&mut recorder);
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

    async fn skip(&mut self, incoming: &mut Incoming) -> Result<(), End> {
        let mut left = incoming.length - incoming.held.len();
        incoming.held.take();
        while left > 0 {
            let data = self.data().await?;
            left -= data.len();
            incoming.peek.feed(&data);
        }
        Ok(())
    }

    /// Takes a response that is the agent's own, or that it has to rewrite.
    async fn take(&mut self, incoming: &mut Incoming, route: Route) -> Result<(), End> {
        while !incoming.is_complete() {
            self.more(incoming).await?;
        }
        let whole = incoming.held.take();
        if route == Route::Extensions {
            self.stream.received_extensions(whole);
        } else {
            let (type_url, answer) = intercept::take(self.stream, route, &whole).await;
            self.stream.answers.put(type_url, answer);
        }
        Ok(())
    }

    /// Holds the next piece.
    async fn more(&mut self, incoming: &mut Incoming) -> Result<(), End> {
        let data = self.data().await?;
        incoming.peek.feed(&data);
        incoming.held.push(data);
        Ok(())
    }

    /// The next piece of the response at hand.
    async fn data(&mut self) -> Result<Bytes, End> {
        // While there are pieces, sending them tells as well that Envoy has gone.
        let piece = tokio::select! {
            biased;
            piece = self.istiod.piece() => piece,
            gone = self.envoy.closed() => return Err(End::Envoy(Err(gone))),
        };
        match piece {
            Ok(Some(Piece::Data(data))) => Ok(data),
            Ok(_) => Err(End::Istiod(Err(Status::new(Code::Internal, "the stream ended within a message")))),
            Err(status) => Err(End::Istiod(Err(status))),
        }
    }
}

impl Incoming {
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

    fn take(&mut self) -> Bytes {
        if self.joined.is_empty() { std::mem::take(&mut self.first) } else { self.joined.split().freeze() }
    }
}
