//! The client: one request on one connection.
//!
//! Called for Envoy's admin port, application probes and scrapes, Wasm modules and platform metadata. Follows no redirects, keeps no
//! pool; [`Response::into_connection`] gives the connection back to callers that reuse it.

use std::{borrow::Cow, io, sync::Arc, time::Duration};

use bytes::{Buf, Bytes, BytesMut};
use rustls::ClientConfig;
use tokio::{
    io::AsyncWriteExt,
    time::{Instant, timeout_at},
};

use super::{Body, Error, Headers, Url, body, parse};
use crate::net::{BoxIo, dial, tls};

/// How long connecting with TLS may take when the request has no deadline.
const CONNECT: Duration = Duration::from_secs(10);

/// Most requests in a row for whoever follows redirects; Go's client stops there.
pub const MAX_REQUESTS: usize = 10;

/// One request.
#[derive(Debug, Clone)]
pub struct Request {
    /// The method, in capitals.
    pub method: Cow<'static, str>,
    /// Where it goes.
    pub url: Url,
    /// Its fields; `Host`, `Content-Length` and `Connection` are made when they are not there.
    pub headers: Headers,
    /// Its body.
    pub body: Bytes,
    /// When everything, connecting and the whole body of the response included, must be done.
    pub deadline: Option<Instant>,
    /// Whether the connection may be used again.
    pub keep_alive: bool,
}

/// The head of the answer, with its body still to be read.
#[derive(Debug)]
pub struct Response {
    /// 100–999; interim answers (1xx) are passed over.
    pub status: u16,
    /// Its fields.
    pub headers: Headers,
    /// Its body.
    pub body: Body,
    reusable: bool,
}

impl Request {
    /// A GET.
    ///
    /// # Errors
    /// [`Error::Url`].
    pub fn get(url: &str) -> Result<Request, Error> {
        Ok(Request::new("GET", Url::parse(url)?))
    }

    /// A POST.
    ///
    /// # Errors
    /// [`Error::Url`].
    pub fn post(url: &str, body: impl Into<Bytes>) -> Result<Request, Error> {
        Ok(Request { body: body.into(), ..Request::new("POST", Url::parse(url)?) })
    }

    /// Any method.
    pub fn new(method: impl Into<Cow<'static, str>>, url: Url) -> Request {
        Request {
            method: method.into(),
            url,
            headers: Headers::default(),
            body: Bytes::new(),
            deadline: None,
            keep_alive: false,
        }
    }

    /// With a field more.
    #[must_use]
    pub fn header(mut self, name: &str, value: impl Into<Bytes>) -> Request {
        self.headers.add(name, value);
        self
    }

    /// With everything done within `timeout` from now.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Request {
        self.deadline = Instant::now().checked_add(timeout);
        self
    }

    /// Connects to where the URL points, with TLS by `tls` for `https`, sends the request and reads the head of the answer.
    ///
    /// # Errors
    /// When no address accepts, TLS fails, the answer is no HTTP/1.x, or the deadline passes.
    pub async fn send(&self, tls: Option<&Arc<ClientConfig>>) -> Result<Response, Error> {
        let url = &self.url;
        let deadline = self.deadline.unwrap_or_else(|| Instant::now() + CONNECT);
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::TimedOut => Error::Timeout,
            _ => Error::Connect(error),
        };
        let tcp = dial::tcp(&url.host, url.port, deadline).await.map_err(failed)?;
        if !url.tls {
            return self.send_on(Box::new(tcp)).await;
        }
        let config = tls.ok_or_else(|| Error::Url(format!("{url}: TLS is not expected here")))?.clone();
        let handshake = tls::connect(Box::new(tcp), config, &url.host);
        let stream = timeout_at(deadline, handshake).await.map_err(|_| Error::Timeout)?;
        self.send_on(stream.map_err(|error| Error::Tls(url.peer(), error))?).await
    }

    /// Sends it over `io`, which is connected already (with TLS, when the URL says so), and reads the head of the answer.
    ///
    /// # Errors
    /// When the connection breaks, the answer is no HTTP/1.x, or the deadline passes.
    pub async fn send_on(&self, io: BoxIo) -> Result<Response, Error> {
        match self.deadline {
            None => self.exchange(io).await,
            Some(deadline) => tokio::time::timeout_at(deadline, self.exchange(io)).await.unwrap_or(Err(Error::Timeout)),
        }
    }

    async fn exchange(&self, mut io: BoxIo) -> Result<Response, Error> {
        let mut wire = self.head();
        wire.extend_from_slice(&self.body);
        // A server that answers without reading all of the body closes; its answer counts, not our failed write.
        let written = match io.write_all(&wire).await {
            Ok(()) => io.flush().await,
            failed => failed,
        };
        drop(wire);
        let mut buffer = BytesMut::new();
        let head = loop {
            match read_head(&mut io, &mut buffer).await {
                Ok(head) if head.status >= 200 || head.status == 101 => break head,
                Ok(_) => {}
                Err(error) => return Err(written.err().map_or(error, Error::from)),
            }
        };
        let framing = parse::response_framing(&head, &self.method)?;
        let tunnel = self.method == "CONNECT" && matches!(head.status, 200..=299);
        let close = head.headers.has_token("connection", "close")
            || (head.minor == 0 && !head.headers.has_token("connection", "keep-alive"));
        let body = Body::new(io, buffer, framing, self.deadline);
        Ok(Response {
            status: head.status,
            headers: head.headers,
            body,
            reusable: tunnel || (self.keep_alive && !close),
        })
    }

    /// Request line and fields as they go over the wire.
    fn head(&self) -> Vec<u8> {
        let mut wire = Vec::with_capacity(512);
        for part in [&*self.method, " ", &*self.url.target, " HTTP/1.1\r\n"] {
            wire.extend_from_slice(part.as_bytes());
        }
        let mut made = Headers::default();
        if !self.headers.has("host") {
            made.add("Host", self.url.authority());
        }
        let needs_length = !self.body.is_empty() || matches!(&*self.method, "POST" | "PUT" | "PATCH");
        if needs_length && !self.headers.has("content-length") {
            made.add("Content-Length", self.body.len().to_string());
        }
        if !self.keep_alive && !self.headers.has("connection") {
            made.add("Connection", "close");
        }
        made.write(&mut wire);
        self.headers.write(&mut wire);
        wire.extend_from_slice(b"\r\n");
        wire
    }
}

impl Response {
    /// The connection, for another [`Request::send_on`]; `None` unless both sides keep it and the body was read to its end.
    pub fn into_connection(self) -> Option<BoxIo> {
        if self.reusable { self.body.into_io() } else { None }
    }
}

/// Reads one head, bounded by [`parse::MAX_HEAD`]; what follows it stays in `buffer`.
async fn read_head(io: &mut BoxIo, buffer: &mut BytesMut) -> Result<parse::ResponseHead, Error> {
    let mut scanned = 0;
    loop {
        if let Some(length) = parse::head_length(buffer, scanned) {
            let head = parse::response(&buffer[..length]);
            buffer.advance(length);
            return head;
        }
        scanned = buffer.len();
        if scanned > parse::MAX_HEAD {
            return Err(Error::TooLarge("response head", parse::MAX_HEAD as u64));
        }
        if body::fill(io, buffer, None).await? == 0 {
            return Err(Error::Closed);
        }
    }
}

#[cfg(test)]
mod tests;
