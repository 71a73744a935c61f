//! The two halves of a call, the same for client and server: [`Sender`] waits for the peer's window, [`Receiver`] opens ours.

use std::{
    future::poll_fn,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::{Bytes, BytesMut};
use h2::{RecvStream, SendStream, client::ResponseFuture, server::SendResponse};
use http::{HeaderMap, HeaderValue, Response};
use prost::Message;

use super::{
    Code, MAX_MESSAGE, Metadata, Piece, Status,
    client::{Connection, Hold},
    frame::{Decoder, framed},
    prefix,
};

/// Pieces up to this size are copied behind the prefix of their message, so that a small message is one frame.
const JOINED: usize = 4 * 1024;

/// The sending half. Dropping it before [`finish`](Sender::finish) or [`close`](Sender::close) cancels the call.
pub struct Sender {
    half: Half,
    /// The prefix of a message whose first piece has not come yet.
    pending: Option<[u8; 5]>,
    _call: Option<Arc<()>>,
}

enum Half {
    /// A server that has not sent its headers.
    Unanswered(SendResponse<Bytes>),
    Open(SendStream<Bytes>),
    Ended,
}

/// The receiving half.
pub struct Receiver {
    /// The server's headers are still to come (client).
    head: Option<ResponseFuture>,
    body: Option<RecvStream>,
    metadata: Metadata,
    decoder: Decoder,
    /// The rest of the DATA frame at hand.
    frame: Bytes,
    /// How it ended.
    end: Option<Result<(), Status>>,
    /// Absent on a server, where the end of the stream is the end of the requests and carries no status.
    connection: Option<Arc<Connection>>,
    _call: Option<Arc<()>>,
}

impl Sender {
    pub(super) fn client(stream: SendStream<Bytes>, connection: &Connection) -> Sender {
        Sender { half: Half::Open(stream), pending: None, _call: Some(Arc::clone(&connection.calls)) }
    }

    pub(super) fn server(respond: SendResponse<Bytes>) -> Sender {
        Sender { half: Half::Unanswered(respond), pending: None, _call: None }
    }

    /// Sends one message.
    ///
    /// # Errors
    /// When the stream has ended; on a client the [`Receiver`] knows why.
    pub async fn send(&mut self, message: &impl Message) -> Result<(), Status> {
        self.data(framed(message)?, false).await
    }

    /// Sends one message that is encoded already.
    ///
    /// # Errors
    /// As [`send`](Sender::send).
    pub async fn send_raw(&mut self, message: Bytes) -> Result<(), Status> {
        self.begin(message.len())?;
        self.piece(message).await
    }

    /// Begins a message of `length` bytes, which [`piece`](Sender::piece) then sends; for an empty one call it with no bytes.
    ///
    /// # Errors
    /// When gRPC cannot express the length.
    pub fn begin(&mut self, length: usize) -> Result<(), Status> {
        if length > MAX_MESSAGE {
            return Err(Status::new(Code::ResourceExhausted, format!("message of {length} bytes is too large")));
        }
        self.pending = Some(prefix(length));
        Ok(())
    }

    /// Sends the next bytes of the message. Not cancel-safe: a dropped call may have sent part of them.
    ///
    /// # Errors
    /// As [`send`](Sender::send).
    pub async fn piece(&mut self, bytes: Bytes) -> Result<(), Status> {
        match self.pending.take() {
            None if bytes.is_empty() => Ok(()),
            None => self.data(bytes, false).await,
            Some(prefix) if bytes.len() <= JOINED => self.data([&prefix[..], &bytes].concat().into(), false).await,
            Some(prefix) => {
                self.data(Bytes::copy_from_slice(&prefix), false).await?;
                self.data(bytes, false).await
            }
        }
    }

    /// Client: no more requests.
    ///
    /// # Errors
    /// As [`send`](Sender::send).
    pub async fn finish(&mut self) -> Result<(), Status> {
        let ended = match &mut self.half {
            Half::Open(stream) => stream.send_data(Bytes::new(), true).map_err(|error| Status::from_h2(&error)),
            Half::Unanswered(_) | Half::Ended => Ok(()),
        };
        self.half = Half::Ended;
        ended
    }

    /// Server: ends the call with a status, after what was sent before.
    pub fn close(&mut self, status: &Status) {
        let mut trailers = HeaderMap::new();
        status.write_to(&mut trailers);
        // A failure means that the peer has gone: nobody is left to tell.
        match std::mem::replace(&mut self.half, Half::Ended) {
            Half::Unanswered(mut respond) => {
                let mut response = headers();
                response.headers_mut().extend(trailers);
                let _ = respond.send_response(response, true);
            }
            Half::Open(mut stream) => {
                let _ = stream.send_trailers(trailers);
            }
            Half::Ended => {}
        }
    }

    /// Ends the call at once, without a status.
    pub fn reset(&mut self) {
        match std::mem::replace(&mut self.half, Half::Ended) {
            Half::Unanswered(mut respond) => respond.send_reset(h2::Reason::CANCEL),
            Half::Open(mut stream) => stream.send_reset(h2::Reason::CANCEL),
            Half::Ended => {}
        }
    }

    /// Server: sends the headers now, for a client that waits for them before it sends.
    ///
    /// # Errors
    /// As [`send`](Sender::send).
    pub fn send_headers(&mut self) -> Result<(), Status> {
        self.open().map(|_| ())
    }

    /// Waits until the peer takes at least one more byte; cancel-safe.
    ///
    /// # Errors
    /// As [`send`](Sender::send).
    pub async fn room(&mut self) -> Result<(), Status> {
        let stream = self.open()?;
        stream.reserve_capacity(1);
        poll_fn(|cx| poll_room(stream, cx)).await.map(drop)
    }

    /// Waits until the peer has reset the stream or the connection is gone; cancel-safe. Pending for ever once the half is ended.
    pub async fn closed(&mut self) -> Status {
        poll_fn(|cx| self.poll_closed(cx)).await
    }

    /// As [`closed`](Sender::closed), to be polled. Whoever has, is woken when more may be sent, too.
    pub fn poll_closed(&mut self, cx: &mut Context<'_>) -> Poll<Status> {
        let reset = match &mut self.half {
            Half::Unanswered(respond) => ready!(respond.poll_reset(cx)),
            Half::Open(stream) => ready!(stream.poll_reset(cx)),
            Half::Ended => return Poll::Pending,
        };
        Poll::Ready(reset.map_or_else(|error| Status::from_h2(&error), Status::from_reset))
    }

    fn open(&mut self) -> Result<&mut SendStream<Bytes>, Status> {
        if let Half::Unanswered(respond) = &mut self.half {
            let stream = respond.send_response(headers(), false).map_err(|error| Status::from_h2(&error))?;
            self.half = Half::Open(stream);
        }
        match &mut self.half {
            Half::Open(stream) => Ok(stream),
            Half::Unanswered(_) | Half::Ended => Err(ended()),
        }
    }

    pub(super) async fn data(&mut self, mut bytes: Bytes, last: bool) -> Result<(), Status> {
        let stream = self.open()?;
        while !bytes.is_empty() {
            stream.reserve_capacity(bytes.len());
            let room = poll_fn(|cx| poll_room(stream, cx)).await?;
            let piece = bytes.split_to(room.min(bytes.len()));
            let last = last && bytes.is_empty();
            stream.send_data(piece, last).map_err(|error| Status::from_h2(&error))?;
        }
        if last {
            self.half = Half::Ended;
        }
        Ok(())
    }
}

fn poll_room(stream: &mut SendStream<Bytes>, cx: &mut Context<'_>) -> Poll<Result<usize, Status>> {
    loop {
        match stream.capacity() {
            0 => match ready!(stream.poll_capacity(cx)) {
                Some(Ok(_)) => {}
                Some(Err(error)) => return Poll::Ready(Err(Status::from_h2(&error))),
                None => return Poll::Ready(Err(reset(stream, cx))),
            },
            room => return Poll::Ready(Ok(room)),
        }
    }
}

/// Why a stream takes no more.
fn reset(stream: &mut SendStream<Bytes>, cx: &mut Context<'_>) -> Status {
    match stream.poll_reset(cx) {
        Poll::Ready(Ok(reason)) => Status::from_reset(reason),
        Poll::Ready(Err(error)) => Status::from_h2(&error),
        Poll::Pending => ended(),
    }
}

fn ended() -> Status {
    Status::new(Code::Internal, "the stream has ended")
}

fn headers() -> Response<()> {
    let mut response = Response::new(());
    response.headers_mut().insert(http::header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    response
}

impl Receiver {
    pub(super) fn client(head: ResponseFuture, connection: Arc<Connection>) -> Receiver {
        let call = Some(Arc::clone(&connection.calls));
        Receiver { head: Some(head), connection: Some(connection), _call: call, ..Receiver::empty() }
    }

    pub(super) fn server(body: RecvStream) -> Receiver {
        Receiver { body: Some(body), ..Receiver::empty() }
    }

    fn empty() -> Receiver {
        Receiver {
            head: None,
            body: None,
            metadata: Metadata::default(),
            decoder: Decoder::default(),
            frame: Bytes::new(),
            end: None,
            connection: None,
            _call: None,
        }
    }

    /// Client: waits for the server's headers. A call that failed before it was answered has empty ones.
    pub async fn metadata(&mut self) -> &Metadata {
        poll_fn(|cx| self.poll_head(cx)).await;
        &self.metadata
    }

    /// The next piece; `None` when the peer ended the stream: requests are over, or the status is OK. Cancel-safe.
    ///
    /// # Errors
    /// The status of the call, or why the stream broke.
    pub async fn piece(&mut self) -> Result<Option<Piece>, Status> {
        poll_fn(|cx| self.poll_piece(cx)).await
    }

    /// Client: says that what came last cannot be passed on at once, until the value is dropped.
    pub fn hold(&self) -> Option<Hold> {
        self.connection.as_ref().map(Connection::hold)
    }

    /// The next message, held whole, of at most `max` bytes; `None` as for [`piece`](Receiver::piece). Not cancel-safe.
    ///
    /// # Errors
    /// As [`piece`](Receiver::piece); `ResourceExhausted` for a larger message.
    pub async fn raw(&mut self, max: usize) -> Result<Option<Bytes>, Status> {
        match self.piece().await? {
            None => Ok(None),
            Some(Piece::Begin(length)) => self.rest(length, max).await.map(Some),
            Some(Piece::Data(_)) => Err(Status::new(Code::Internal, "a message is under way")),
        }
    }

    /// The next message, decoded.
    ///
    /// # Errors
    /// As [`raw`](Receiver::raw); `Internal` when the bytes are no such message.
    pub async fn message<M: Message + Default>(&mut self, max: usize) -> Result<Option<M>, Status> {
        match self.raw(max).await? {
            None => Ok(None),
            Some(bytes) => M::decode(bytes).map(Some).map_err(|error| {
                Status::new(Code::Internal, format!("grpc: failed to unmarshal the message: {error}"))
            }),
        }
    }

    /// As [`piece`](Receiver::piece), to be polled.
    pub fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Piece>, Status>> {
        ready!(self.poll_head(cx));
        loop {
            match self.decoder.next(&mut self.frame) {
                Ok(Some(piece)) => return Poll::Ready(Ok(Some(piece))),
                Ok(None) => {}
                Err(status) => self.fail(status),
            }
            if let Some(end) = &self.end {
                return Poll::Ready(end.clone().map(|()| None));
            }
            ready!(self.poll_frame(cx));
        }
    }

    /// The whole message of `length` bytes, of which [`Piece::Begin`] was just taken. Not cancel-safe.
    ///
    /// # Errors
    /// As [`raw`](Receiver::raw).
    pub async fn rest(&mut self, length: usize, max: usize) -> Result<Bytes, Status> {
        if length > max {
            let message = format!("grpc: received message larger than max ({length} vs. {max})");
            self.fail(Status::new(Code::ResourceExhausted, message.clone()));
            return Err(Status::new(Code::ResourceExhausted, message));
        }
        let mut whole = BytesMut::new();
        while whole.len() < length {
            let data = match self.piece().await? {
                Some(Piece::Data(data)) => data,
                Some(Piece::Begin(_)) | None => return Err(truncated()),
            };
            if data.len() == length {
                return Ok(data);
            }
            whole.extend_from_slice(&data);
        }
        Ok(whole.freeze())
    }

    fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(head) = &mut self.head else { return Poll::Ready(()) };
        let answer = ready!(Pin::new(head).poll(cx));
        self.head = None;
        match answer {
            Ok(response) => self.answered(response),
            Err(error) => self.broken(&error),
        }
        Poll::Ready(())
    }

    fn answered(&mut self, response: Response<RecvStream>) {
        let (parts, body) = response.into_parts();
        let content_type = parts.headers.get(http::header::CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
        if let Some(status) = Status::from_headers(&parts.headers) {
            self.end = Some(if status.code == Code::Ok { Ok(()) } else { Err(status) });
        } else if parts.status != http::StatusCode::OK {
            self.end = Some(Err(Status::from_http(parts.status)));
        } else if !content_type.starts_with(b"application/grpc") {
            let content_type = String::from_utf8_lossy(content_type);
            let message = format!("unexpected HTTP answer 200 (OK) with content-type {content_type:?}: no gRPC server");
            self.end = Some(Err(Status::new(Code::Unknown, message)));
        } else {
            self.body = Some(body);
        }
        self.metadata = Metadata::from_headers(parts.headers);
    }

    /// Takes the next DATA frame, or the end.
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(body) = &mut self.body else {
            self.end = Some(Err(truncated()));
            return Poll::Ready(());
        };
        match ready!(body.poll_data(cx)) {
            Some(Ok(frame)) => {
                // Taken is consumed: whoever asks for the next piece has passed on the last one.
                let _ = body.flow_control().release_capacity(frame.len());
                self.frame = frame;
            }
            Some(Err(error)) => self.broken(&error),
            None => match ready!(body.poll_trailers(cx)) {
                Ok(trailers) => self.finished(trailers),
                Err(error) => self.broken(&error),
            },
        }
        Poll::Ready(())
    }

    fn finished(&mut self, trailers: Option<HeaderMap>) {
        let status = match (&self.connection, trailers.as_ref().and_then(Status::from_headers)) {
            (None, _) => Status::ok(),
            (Some(_), Some(status)) => status,
            (Some(_), None) => Status::new(Code::Internal, "server closed the stream without sending trailers"),
        };
        if status.code != Code::Ok {
            self.fail(status);
        } else if !self.decoder.is_between_messages() {
            self.fail(truncated());
        } else {
            self.end = Some(Ok(()));
            self.body = None;
        }
    }

    fn broken(&mut self, error: &h2::Error) {
        let failure = self.connection.as_ref().and_then(|connection| connection.failure());
        self.fail(match failure {
            Some(failure) if error.is_io() => failure,
            _ => Status::from_h2(error),
        });
    }

    fn fail(&mut self, status: Status) {
        self.frame.clear();
        self.end = Some(Err(status));
        self.body = None;
    }
}

fn truncated() -> Status {
    Status::new(Code::Internal, "the stream ended within a message")
}
