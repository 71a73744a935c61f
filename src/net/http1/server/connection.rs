//! One connection of a client: requests in, answers out, one after the other.

use std::{
    future::poll_fn,
    io::{self, ErrorKind},
    mem::MaybeUninit,
    net::IpAddr,
    pin::Pin,
    task::ready,
};

use bytes::{Buf, BytesMut};
use tokio::{
    io::{AsyncRead, AsyncWriteExt, ReadBuf, ReadHalf},
    time::{Instant, timeout, timeout_at},
};

use super::{
    Limits, Reply, Request, Service, clean,
    encoding::accepts_gzip,
    percent_decode,
    reply::Output,
    slots::{Slot, Slots},
};
use crate::{
    base::Drain,
    net::{
        BoxIo,
        http1::{
            Error,
            body::{Framing, Step},
            parse::{self, RequestHead},
            url::clean_target,
        },
    },
};

/// Bytes that a client may send ahead of an answer; more wait in the kernel.
const AHEAD: usize = 16 * 1024;

/// How much of what a refused client still sends is read, so that it sees the answer instead of a reset.
const LINGER: usize = 256 * 1024;

struct Reader {
    io: ReadHalf<BoxIo>,
    buffer: BytesMut,
    closed: bool,
}

struct Connection<'a> {
    reader: Reader,
    output: Output,
    peer: Option<IpAddr>,
    service: &'a dyn Service,
    limits: &'a Limits,
    drain: Drain,
}

/// Serves one connection until either side ends it.
pub async fn serve(io: BoxIo, peer: Option<IpAddr>, service: &dyn Service, limits: &Limits, slot: Slot, drain: Drain) {
    let (reader, writer) = tokio::io::split(io);
    let reader = Reader { io: reader, buffer: BytesMut::new(), closed: false };
    let mut connection = Connection { reader, output: Output::new(writer, limits.stall), peer, service, limits, drain };
    if !connection.answer_all(&slot).await {
        return;
    }
    let Connection { mut reader, mut output, .. } = connection;
    let _ = timeout(limits.stall, output.writer.shutdown()).await;
    let waiting = slot.wait();
    tokio::select! {
        _ = timeout(limits.half_closed, reader.linger()) => {}
        () = waiting.evicted() => {}
    }
}

/// Serves one connection that is accepted elsewhere and counts against nobody's limit.
pub async fn serve_one(io: BoxIo, service: &dyn Service, limits: &Limits, drain: Drain) {
    if let Some(slot) = Slots::new(1).enter() {
        serve(io, None, service, limits, slot, drain).await;
    }
}

impl Connection<'_> {
    /// Answers one request after the other; whether the client is to be told the end in good order.
    async fn answer_all(&mut self, slot: &Slot) -> bool {
        loop {
            let next = {
                let waiting = slot.wait();
                tokio::select! {
                    biased;
                    next = self.reader.request_head(self.limits) => next,
                    () = self.drain.started() => return false,
                    () = waiting.evicted() => return false,
                }
            };
            self.output.begun = false;
            let answered = match next {
                Ok(Some(head)) => self.exchange(head).await,
                Ok(None) => return false,
                Err(error) => Err(error),
            };
            match answered {
                Ok(()) if self.output.keep_alive => {}
                Ok(()) => return true,
                Err(_) if self.output.begun => return true,
                Err(error) => return refuse(&error, &mut self.output).await.is_ok(),
            }
        }
    }

    /// One request and its answer.
    async fn exchange(&mut self, head: RequestHead) -> Result<(), Error> {
        let Connection { reader, output, peer, service, limits, drain } = self;
        output.old = head.minor == 0;
        output.head = head.method == "HEAD";
        output.gzip = accepts_gzip(&head.headers) && !output.head;
        output.keep_alive = false;
        let framing = parse::request_framing(&head)?;
        let (path, query) = Request::split_target(&head.target).ok_or(Error::Malformed("request target"))?;
        if head.minor == 1 && head.headers.has("expect") {
            if !head.headers.has_token("expect", "100-continue") {
                return Err(Error::Malformed("expectation"));
            }
            if !framing.is_ended() && reader.buffer.is_empty() {
                output.write(&mut &b"HTTP/1.1 100 Continue\r\n\r\n"[..]).await?;
            }
        }
        let skipped = timeout(limits.body_time, reader.skip_body(framing, limits.body)).await;
        skipped.map_err(|_| Error::Timeout)??;
        output.keep_alive = !drain.is_started()
            && !head.headers.has_token("connection", "close")
            && (head.minor == 1 || head.headers.has_token("connection", "keep-alive"));
        let cleaned = clean(&path);
        if cleaned != path {
            // Served as it stands, `/healthz/ready/../../drain` would pass a proxy that lets only `/healthz/ready` through.
            let query = query.map(|query| format!("?{query}")).unwrap_or_default();
            let location = clean_target(&(cleaned + &query)).ok_or(Error::Malformed("request target"))?;
            return Ok(Reply::new(output).header("Location", location).send(307, "", b"").await?);
        }
        let path = percent_decode(&path).ok_or(Error::Malformed("request target"))?;
        let request = Request { method: head.method, path, query, headers: head.headers, peer: *peer };
        tokio::select! {
            biased;
            answered = service.call(&request, Reply::new(output)) => answered?,
            () = reader.gone(limits) => return Err(Error::Closed),
        }
        if output.begun { Ok(()) } else { Err(Error::Io(ErrorKind::Other.into())) }
    }
}

/// Tells the client what is wrong with its request; the connection ends afterwards.
async fn refuse(error: &Error, output: &mut Output) -> io::Result<()> {
    let status = match error {
        Error::Malformed("version") => 505,
        Error::Malformed("expectation") => 417,
        Error::Malformed(parse::OTHER_CODING) => 501,
        Error::Malformed(_) | Error::Url(_) => 400,
        Error::TooLarge("body", _) => 413,
        Error::TooLarge(..) => 431,
        Error::Timeout => 408,
        Error::Io(error) if error.kind() == ErrorKind::Other => 500,
        Error::Closed | Error::Io(_) | Error::Connect(..) | Error::Tls(..) => {
            return Err(ErrorKind::NotConnected.into());
        }
    };
    output.keep_alive = false;
    let text = format!("{error}\n");
    Reply::new(output).send(status, "text/plain; charset=utf-8", text.as_bytes()).await
}

impl Reader {
    /// The next request's head; `None` when the client has no more requests.
    async fn request_head(&mut self, limits: &Limits) -> Result<Option<RequestHead>, Error> {
        let (mut scanned, mut deadline, mut has_line) = (0, None, false);
        if self.buffer.is_empty() {
            // An idle connection keeps no memory.
            self.buffer = BytesMut::new();
        }
        loop {
            self.buffer.advance(parse::blank_lines(&self.buffer));
            // A TLS handshake, for instance, has no line that would end.
            let is_text = self.buffer.first().is_none_or(|first| first.is_ascii_graphic() || *first == b'\r');
            if !is_text {
                return Err(Error::Malformed("request line"));
            }
            let new = scanned.min(self.buffer.len());
            if !has_line && let Some(end) = memchr::memchr(b'\n', &self.buffer[new..]) {
                has_line = true;
                if !parse::is_request_line(&self.buffer[..new + end]) {
                    return Err(Error::Malformed("request line"));
                }
            }
            if let Some(length) = parse::head_length(&self.buffer, scanned) {
                let head = parse::request(&self.buffer[..length]);
                self.buffer.advance(length);
                return head.map(Some);
            }
            scanned = self.buffer.len();
            if scanned > parse::MAX_HEAD {
                return Err(Error::TooLarge("request head", parse::MAX_HEAD as u64));
            }
            if scanned > 0 && deadline.is_none() {
                deadline = Some(Instant::now() + limits.head);
            }
            let until = deadline.unwrap_or_else(|| Instant::now() + limits.idle);
            match timeout_at(until, self.fill()).await {
                Ok(Ok(0)) | Ok(Err(_)) if scanned == 0 => return Ok(None),
                Ok(Ok(0)) => return Err(Error::Closed),
                Ok(read) => read.map(|_| ())?,
                Err(_) if scanned == 0 => return Ok(None),
                Err(_) => return Err(Error::Timeout),
            }
        }
    }

    async fn skip_body(&mut self, mut framing: Framing, limit: u64) -> Result<(), Error> {
        let mut skipped = 0;
        if matches!(framing, Framing::Length(length) if length > limit) {
            return Err(Error::TooLarge("body", limit));
        }
        loop {
            match framing.take(&mut self.buffer)? {
                Step::Data(data) => skipped += data.len() as u64,
                Step::End => return Ok(()),
                Step::More if self.fill().await? == 0 => return Err(Error::Closed),
                Step::More => {}
            }
            if skipped > limit {
                return Err(Error::TooLarge("body", limit));
            }
        }
    }

    /// Ends when nobody waits for the answer any more. What the client sends meanwhile is kept: it may be the next request.
    async fn gone(&mut self, limits: &Limits) {
        while self.buffer.len() < AHEAD {
            match self.fill().await {
                Ok(0) => return tokio::time::sleep(limits.half_closed).await,
                Ok(_) => {}
                Err(_) => return,
            }
        }
        std::future::pending().await
    }

    /// Reads until the client closes, or has sent too much.
    async fn linger(&mut self) {
        let mut read = 0;
        while read < LINGER && !self.closed {
            self.buffer.clear();
            match self.fill().await {
                Ok(more) => read += more,
                Err(_) => return,
            }
        }
    }

    /// Reads what is there; 0 at the end. A connection that waits holds no buffer meanwhile. Cancel-safe.
    async fn fill(&mut self) -> io::Result<usize> {
        let Reader { io, buffer, closed } = self;
        poll_fn(|context| {
            let mut space = [MaybeUninit::<u8>::uninit(); 4096];
            let mut read = ReadBuf::uninit(&mut space);
            ready!(Pin::new(&mut *io).poll_read(context, &mut read))?;
            buffer.extend_from_slice(read.filled());
            *closed |= read.filled().is_empty();
            std::task::Poll::Ready(Ok(read.filled().len()))
        })
        .await
    }
}
