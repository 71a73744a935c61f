//! The calling side: one HTTP/2 connection, any number of calls on it.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::Bytes;
use h2::client::SendRequest;
use http::{HeaderValue, Method, Request, Uri, header};
use prost::Message;
use tokio::sync::watch;

use super::{
    Code, MAX_MESSAGE, Metadata, Receiver, Sender, Settings, Status,
    connection::{CONNECTION_WINDOW, HEADER_LIST, SMALL_FRAMES, Turn},
    format_timeout, framed,
};
use crate::net::{Batched, BoxIo};

/// What calls say that bring no `user-agent` of their own.
pub const USER_AGENT: &str = concat!("footman/", env!("CARGO_PKG_VERSION"));

/// A connection to a server; clones share it. It ends when all clones and calls are gone, or the server ends it.
#[derive(Clone)]
pub struct Client {
    requests: SendRequest<Bytes>,
    connection: Arc<Connection>,
}

/// What calls know of their connection.
#[derive(Debug, Default)]
pub(super) struct Connection {
    failure: Mutex<Option<Status>>,
    ended: AtomicBool,
    /// The server has said something: it speaks, presumably HTTP/2.
    greeted: watch::Sender<bool>,
    /// Held by the halves of every call: a peer without calls owes no signs of life.
    pub(super) calls: Arc<()>,
    /// How many messages are held up, and whom to wake when one no longer is.
    held: Mutex<(usize, Option<Waker>)>,
}

/// While it lives, little more is read of what the server sends: what has come in of a message cannot be passed on yet.
pub struct Hold(Arc<Connection>);

/// What to call, and how.
#[derive(Debug, Clone, Default)]
pub struct Call<'a> {
    /// `/package.Service/Method`.
    pub path: &'a str,
    /// `:authority`.
    pub authority: &'a str,
    /// Sent with the request.
    pub metadata: Metadata,
    /// Unary calls end after so long with `DeadlineExceeded`; told to the server in any case.
    pub deadline: Option<Duration>,
    /// The largest answer to a unary call; 0 for as much as gRPC allows.
    pub max_message: usize,
}

impl Client {
    /// Opens a connection over `io`. The second value drives it and must be polled (spawned) until it ends.
    ///
    /// # Errors
    /// When the connection preface cannot be written.
    pub async fn handshake(
        io: BoxIo,
        settings: Settings,
    ) -> Result<(Client, impl Future<Output = Result<(), Status>> + Send + 'static), Status> {
        let (io, flusher) = Batched::new(io);
        let (requests, mut h2) = h2::client::Builder::new()
            .initial_window_size(settings.stream_window)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_send_buffer_size(settings.send_buffer)
            .max_header_list_size(HEADER_LIST)
            .data_frame_budget(SMALL_FRAMES)
            .enable_push(false)
            .handshake::<_, Bytes>(io)
            .await
            .map_err(|error| Status::from_h2(&error))?;
        let connection = Arc::new(Connection::default());
        let client = Client { requests, connection: Arc::clone(&connection) };
        let mut turn = Turn::new(flusher, settings.keepalive, h2.ping_pong());
        let drive = async move {
            let end = poll_fn(|cx| {
                turn.begin(cx, connection.is_held(cx));
                let ended = Pin::new(&mut h2).poll(cx);
                connection.greeted.send_if_modified(|greeted| {
                    !*greeted && {
                        *greeted = turn.has_heard();
                        *greeted
                    }
                });
                let active = Arc::strong_count(&connection.calls) > 1;
                match (ended, turn.poll(cx, active)) {
                    (Poll::Ready(ended), _) => Poll::Ready(ended.map_err(|error| Status::from_h2(&error))),
                    (Poll::Pending, Poll::Ready(failure)) => Poll::Ready(Err(failure)),
                    (Poll::Pending, Poll::Pending) => Poll::Pending,
                }
            })
            .await;
            connection.end(end.as_ref().err());
            // Only now do the calls learn that their connection is gone: they will ask why.
            drop(h2);
            end
        };
        Ok((client, drive))
    }

    /// Whether new calls can be made: false once the server has said goodbye or the connection is gone.
    pub fn is_usable(&mut self) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        !self.connection.ended.load(Ordering::Relaxed)
            && !matches!(self.requests.poll_ready(&mut cx), Poll::Ready(Err(_)))
    }

    /// Waits for the server's first word; a server that accepts connections and says nothing is no server.
    ///
    /// # Errors
    /// When the connection ends before.
    pub async fn greeted(&self) -> Result<(), Status> {
        let mut greeted = self.connection.greeted.subscribe();
        // The sender lives as long as `self`: there is no error.
        let _ = greeted.wait_for(|greeted| *greeted).await;
        match self.connection.failure() {
            Some(failure) => Err(failure),
            None => Ok(()),
        }
    }

    /// Begins a call in which both sides may send any number of messages.
    ///
    /// # Errors
    /// When the connection takes no more calls; [`Status::is_unprocessed`] tells that the server has not seen it.
    pub async fn stream(&self, call: &Call<'_>) -> Result<(Sender, Receiver), Status> {
        let request = request(call)?;
        let mut ready = self.requests.clone().ready().await.map_err(|error| self.refused(&error))?;
        let (response, stream) = ready.send_request(request, false).map_err(|error| self.refused(&error))?;
        let sender = Sender::client(stream, &self.connection);
        Ok((sender, Receiver::client(response, Arc::clone(&self.connection))))
    }

    /// One request, one answer.
    ///
    /// # Errors
    /// The status of the call; `DeadlineExceeded` after [`Call::deadline`].
    pub async fn unary<Q: Message, R: Message + Default>(&self, call: &Call<'_>, request: &Q) -> Result<R, Status> {
        decoded(self.unary_framed(call, framed(request)?).await?)
    }

    /// The same of a request that has its frame already; the answer is not decoded. Most of a call is the same for all messages.
    ///
    /// # Errors
    /// As [`unary`](Client::unary).
    pub async fn unary_framed(&self, call: &Call<'_>, framed: Bytes) -> Result<Bytes, Status> {
        let exchange = async {
            let (mut sender, mut receiver) = self.stream(call).await?;
            // A server may answer before it has read everything; its answer is what counts.
            let _ = sender.data(framed, true).await;
            let max = if call.max_message == 0 { MAX_MESSAGE } else { call.max_message };
            let answer = receiver.raw(max).await?;
            let answer =
                answer.ok_or_else(|| Status::new(Code::Internal, "the server ended the call without answer"))?;
            match receiver.raw(max).await? {
                None => Ok(answer),
                Some(_) => Err(Status::new(Code::Internal, "the server sent a second answer")),
            }
        };
        match call.deadline {
            None => exchange.await,
            Some(deadline) => tokio::time::timeout(deadline, exchange)
                .await
                .unwrap_or_else(|_| Err(Status::new(Code::DeadlineExceeded, "context deadline exceeded"))),
        }
    }

    /// A call that was refused before it was sent.
    fn refused(&self, error: &h2::Error) -> Status {
        let status = self.connection.failure().unwrap_or_else(|| Status::from_h2(error));
        status.unprocessed()
    }
}

/// The message of an answer.
///
/// # Errors
/// When the bytes are no such message.
pub fn decoded<R: Message + Default>(answer: Bytes) -> Result<R, Status> {
    R::decode(answer).map_err(|error| Status::new(Code::Internal, format!("malformed answer: {error}")))
}

impl Connection {
    /// Why the connection failed.
    pub(super) fn failure(&self) -> Option<Status> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn hold(self: &Arc<Self>) -> Hold {
        self.held().0 += 1;
        Hold(Arc::clone(self))
    }

    fn is_held(&self, cx: &Context<'_>) -> bool {
        let mut held = self.held();
        let is_held = held.0 > 0;
        held.1 = is_held.then(|| cx.waker().clone());
        is_held
    }

    fn held(&self) -> MutexGuard<'_, (usize, Option<Waker>)> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self, failure: Option<&Status>) {
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = failure.cloned();
        self.ended.store(true, Ordering::Relaxed);
        self.greeted.send_replace(true);
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut held = self.0.held();
        held.0 -= 1;
        if let Some(waker) = held.1.take() {
            waker.wake();
        }
    }
}

fn request(call: &Call<'_>) -> Result<Request<()>, Status> {
    let invalid = |what: &str| Status::new(Code::Internal, format!("invalid {what}"));
    let uri = Uri::builder()
        .scheme("http")
        .authority(if call.authority.is_empty() { "localhost" } else { call.authority })
        .path_and_query(call.path)
        .build()
        .map_err(|_| invalid(&format!("authority {:?} or method {:?}", call.authority, call.path)))?;
    let mut request = Request::new(());
    *request.method_mut() = Method::POST;
    *request.uri_mut() = uri;
    let headers = request.headers_mut();
    headers.insert(header::TE, HeaderValue::from_static("trailers"));
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    if call.metadata.get("user-agent").is_none() {
        headers.insert(header::USER_AGENT, HeaderValue::from_static(USER_AGENT));
    }
    if let Some(deadline) = call.deadline {
        let timeout = HeaderValue::try_from(format_timeout(deadline)).map_err(|_| invalid("timeout"))?;
        headers.insert("grpc-timeout", timeout);
    }
    call.metadata.append_to(headers);
    Ok(request)
}
