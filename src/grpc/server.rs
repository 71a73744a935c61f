//! The answering side: connections of a Unix socket, their calls handed to one [`Service`].

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::Poll,
    time::Duration,
};

use bytes::Bytes;
use h2::{RecvStream, server::SendResponse};
use http::{HeaderValue, Method, Response, StatusCode, header};
use tokio::task::JoinSet;

use super::{
    Code, Metadata, Receiver, Sender, Settings, Status,
    connection::{CONNECTION_WINDOW, HEADER_LIST, SMALL_FRAMES, Turn},
    parse_timeout,
};
use crate::{
    base::{Drain, apart},
    net::{Batched, BoxIo, uds},
};

/// So long a peer may take to begin HTTP/2.
const HANDSHAKE: Duration = Duration::from_secs(20);

/// The pause after `accept` failed, for example because descriptors have run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The number of the next connection.
static NEXT_CONNECTION: AtomicU64 = AtomicU64::new(1);

/// A future that is ready to be spawned.
pub type BoxFuture<T = ()> = Pin<Box<dyn Future<Output = T> + Send>>;

/// What answers calls.
pub trait Service: Send + Sync + 'static {
    /// Answers one call; it ends with [`Sender::close`]. Paths that are not served are answered with [`Request::unimplemented`].
    fn call(&self, request: Request, receiver: Receiver, sender: Sender) -> BoxFuture;
}

/// The beginning of a call.
#[derive(Debug, Clone)]
pub struct Request {
    /// `/package.Service/Method`.
    pub path: String,
    /// What the client sent with it.
    pub metadata: Metadata,
    /// How long the client waits; the call is dropped after that.
    pub deadline: Option<Duration>,
    /// The number of its connection, unique in this process.
    pub connection: u64,
}

impl Request {
    /// The answer for a path that nobody serves.
    pub fn unimplemented(&self) -> Status {
        let (service, method) = self.path.trim_start_matches('/').rsplit_once('/').unwrap_or((&self.path, ""));
        Status::new(Code::Unimplemented, format!("unknown method {method} for service {service}"))
    }
}

/// Serves every connection of `listener` until `drain` starts; then no new ones, and calls end as their handlers end them.
pub async fn listen(listener: uds::Listener, service: Arc<dyn Service>, settings: Settings, mut drain: Drain) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok(stream) => {
                    let (service, drain) = (Arc::clone(&service), drain.clone());
                    connections.spawn(apart(|| serve(Box::new(stream), service, settings, drain)));
                }
                Err(error) => {
                    log::warn!("accept on {}: {error}", listener.path().display());
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
            Some(_) = connections.join_next() => {}
            () = drain.started() => break,
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

/// Serves one connection until the peer ends it and all handlers have ended. Once `drain` starts, no new calls are taken.
pub async fn serve(io: BoxIo, service: Arc<dyn Service>, settings: Settings, mut drain: Drain) {
    let (io, flusher) = Batched::new(io);
    let handshake = h2::server::Builder::new()
        .initial_window_size(settings.stream_window)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buffer_size(settings.send_buffer)
        .max_header_list_size(HEADER_LIST)
        .max_concurrent_streams(settings.max_streams)
        .data_frame_budget(SMALL_FRAMES)
        .handshake::<_, Bytes>(io);
    let Ok(Ok(mut h2)) = tokio::time::timeout(HANDSHAKE, handshake).await else { return };
    let connection = NEXT_CONNECTION.fetch_add(1, Ordering::Relaxed);
    let mut turn = Turn::new(flusher, settings.keepalive, h2.ping_pong());
    let mut calls = JoinSet::new();
    let mut started = std::pin::pin!(drain.started());
    let mut draining = false;
    loop {
        let accepted = poll_fn(|cx| {
            while let Poll::Ready(Some(_)) = calls.poll_join_next(cx) {}
            if !draining && started.as_mut().poll(cx).is_ready() {
                draining = true;
                h2.graceful_shutdown();
            }
            turn.begin(cx, false);
            let accepted = h2.poll_accept(cx);
            match turn.poll(cx, true) {
                Poll::Ready(_) => Poll::Ready(None),
                Poll::Pending => accepted,
            }
        });
        let Some(Ok((request, respond))) = accepted.await else { break };
        if let Some(call) = begin(request, respond, &*service, connection) {
            calls.spawn(call);
        }
    }
    // Handlers learn from their streams that the connection is gone.
    drop((h2, turn));
    while calls.join_next().await.is_some() {}
}

/// Hands a call to the service; `None` when it is answered already because it is no gRPC call.
fn begin(
    request: http::Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    service: &dyn Service,
    connection: u64,
) -> Option<BoxFuture> {
    let (parts, body) = request.into_parts();
    let content_type = parts.headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    let refused = if parts.method != Method::POST {
        Some(StatusCode::METHOD_NOT_ALLOWED)
    } else if !content_type.starts_with(b"application/grpc") {
        Some(StatusCode::UNSUPPORTED_MEDIA_TYPE)
    } else {
        None
    };
    if let Some(status) = refused {
        let mut response = Response::new(());
        *response.status_mut() = status;
        // A failure means that the peer has gone.
        let _ = respond.send_response(response, true);
        return None;
    }
    let timeout = parts.headers.get("grpc-timeout").and_then(|value| parse_timeout(value.to_str().ok()?));
    let request = Request {
        path: parts.uri.path().to_owned(),
        metadata: Metadata::from_headers(parts.headers),
        deadline: timeout,
        connection,
    };
    let call = service.call(request, Receiver::server(body), Sender::server(respond));
    match timeout {
        None => Some(call),
        // Dropping the call resets its stream; the client has given up by its own clock.
        Some(timeout) => Some(Box::pin(async move { drop(tokio::time::timeout(timeout, call).await) })),
    }
}
