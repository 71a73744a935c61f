//! The answer to one request: whole, or streamed in pieces; compressed when the client wants that.

use std::{
    fmt::Write as _,
    io,
    time::{Duration, SystemTime},
};

use bytes::{Buf, Bytes};
use tokio::io::{AsyncWriteExt, WriteHalf};

use super::encoding::{self, Gzip};
use crate::{
    base::civil_date,
    net::{BoxIo, http1::Headers},
};

/// How answers go out over a connection, and whether it can carry another one.
pub(super) struct Output {
    pub writer: WriteHalf<BoxIo>,
    /// Longest time without progress of a write.
    pub stall: Duration,
    /// Whether the client is HTTP/1.0, without chunks.
    pub old: bool,
    /// Whether the request was HEAD.
    pub head: bool,
    /// Whether the client takes gzip.
    pub gzip: bool,
    /// Whether the connection stays open after this answer.
    pub keep_alive: bool,
    /// Whether the answer has begun; if not, the service forgot it.
    pub begun: bool,
}

/// The answer that is to be given, once.
pub struct Reply<'a> {
    output: &'a mut Output,
    headers: Headers,
}

/// A body under way. Dropped without [`Stream::finish`], it tells the client that it is incomplete.
pub struct Stream<'a> {
    output: &'a mut Output,
    status: u16,
    headers: Headers,
    /// What came before the head was sent: the first [`encoding::SMALLEST`] bytes decide about compression.
    start: Option<Vec<u8>>,
    gzip: Option<Gzip>,
    /// Whether the connection can carry another answer once this body is complete.
    reusable: bool,
}

impl<'a> Reply<'a> {
    pub(super) fn new(output: &'a mut Output) -> Reply<'a> {
        Reply { output, headers: Headers::default() }
    }

    /// With a field more.
    #[must_use]
    pub fn header(mut self, name: &str, value: impl Into<Bytes>) -> Reply<'a> {
        self.headers.add(name, value);
        self
    }

    /// As the last answer of its connection.
    #[must_use]
    pub fn last(self) -> Reply<'a> {
        self.output.keep_alive = false;
        self
    }

    /// A whole answer; `content_type` may be empty.
    ///
    /// # Errors
    /// When the client is gone or does not read.
    pub async fn send(mut self, status: u16, content_type: &str, body: &[u8]) -> io::Result<()> {
        let compress = self.output.gzip && body.len() >= encoding::SMALLEST && encoding::is_compressible(content_type);
        if compress {
            let mut stream = self.stream(status, content_type);
            for piece in body.chunks(crate::net::http1::body::READ) {
                stream.write(piece).await?;
            }
            return stream.finish().await;
        }
        if !content_type.is_empty() {
            self.headers.add("Content-Type", content_type.to_owned());
        }
        let bodiless = matches!(status, 100..=199 | 204 | 304);
        if !bodiless {
            self.headers.add("Content-Length", body.len().to_string());
        }
        if status == 101 {
            self.output.keep_alive = false;
        }
        let mut wire = self.output.head(status, &self.headers);
        if !bodiless && !self.output.head {
            wire.extend_from_slice(body);
        }
        self.output.write(&mut wire.as_slice()).await
    }

    /// An answer whose length is not known.
    pub fn stream(mut self, status: u16, content_type: &str) -> Stream<'a> {
        self.headers.add("Content-Type", content_type.to_owned());
        Stream {
            output: self.output,
            status,
            headers: self.headers,
            start: Some(Vec::new()),
            gzip: None,
            reusable: false,
        }
    }
}

impl Stream<'_> {
    /// Sends a piece.
    ///
    /// # Errors
    /// When the client is gone or does not read.
    pub async fn write(&mut self, piece: &[u8]) -> io::Result<()> {
        if let Some(start) = &mut self.start {
            start.extend_from_slice(piece);
            return if start.len() < encoding::SMALLEST { Ok(()) } else { self.begin().await };
        }
        match &mut self.gzip {
            None => self.output.chunk(piece).await,
            Some(gzip) => {
                let compressed = gzip.write(piece)?;
                self.output.chunk(&compressed).await
            }
        }
    }

    /// Ends the body.
    ///
    /// # Errors
    /// As [`Stream::write`].
    pub async fn finish(mut self) -> io::Result<()> {
        if self.start.is_some() {
            self.begin().await?;
        }
        if let Some(gzip) = self.gzip.take() {
            let rest = gzip.finish()?;
            self.output.chunk(&rest).await?;
        }
        if !self.output.old && !self.output.head {
            self.output.write(&mut &b"0\r\n\r\n"[..]).await?;
        }
        self.output.keep_alive = self.reusable;
        Ok(())
    }

    /// Sends the head and what was gathered.
    async fn begin(&mut self) -> io::Result<()> {
        let start = self.start.take().unwrap_or_default();
        let output = &mut *self.output;
        if output.gzip && !output.head && start.len() >= encoding::SMALLEST {
            self.headers.add("Content-Encoding", "gzip");
            self.gzip = Some(Gzip::new());
        }
        if output.old {
            output.keep_alive = false;
        } else {
            self.headers.add("Transfer-Encoding", "chunked");
        }
        let head = output.head(self.status, &self.headers);
        self.reusable = std::mem::replace(&mut output.keep_alive, false);
        output.write(&mut head.as_slice()).await?;
        let body = match &mut self.gzip {
            Some(gzip) => gzip.write(&start)?,
            None => start,
        };
        output.chunk(&body).await
    }
}

impl Output {
    pub fn new(writer: WriteHalf<BoxIo>, stall: Duration) -> Output {
        Output { writer, stall, old: false, head: false, gzip: false, keep_alive: false, begun: false }
    }

    /// Status line and fields.
    fn head(&mut self, status: u16, headers: &Headers) -> Vec<u8> {
        self.begun = true;
        let mut text = String::with_capacity(256);
        let _ = write!(text, "HTTP/1.{} {status} {}\r\nDate: ", u8::from(!self.old), reason(status));
        write_date(&mut text, SystemTime::now());
        text.push_str("\r\nVary: Accept-Encoding\r\n");
        if !self.keep_alive {
            text.push_str("Connection: close\r\n");
        } else if self.old {
            text.push_str("Connection: keep-alive\r\n");
        }
        let mut wire = text.into_bytes();
        headers.write(&mut wire);
        wire.extend_from_slice(b"\r\n");
        wire
    }

    /// A piece of a body of unknown length.
    async fn chunk(&mut self, piece: &[u8]) -> io::Result<()> {
        if self.head || piece.is_empty() {
            return Ok(());
        }
        if self.old {
            return self.write(&mut &*piece).await;
        }
        let size = format!("{:x}\r\n", piece.len());
        self.write(&mut size.as_bytes().chain(piece).chain(&b"\r\n"[..])).await
    }

    /// Writes all of `data`, as long as the client takes some of it now and then.
    pub async fn write(&mut self, data: &mut (impl Buf + Send)) -> io::Result<()> {
        while data.has_remaining() {
            let written = tokio::time::timeout(self.stall, self.writer.write_buf(data)).await;
            if written.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?? == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
        }
        Ok(())
    }
}

/// IMF-fixdate (RFC 9110 §5.6.7).
fn write_date(out: &mut String, now: SystemTime) {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let seconds = now.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil_date(days as i64);
    let (weekday, month) = (DAYS[(days % 7) as usize], MONTHS[(month - 1) as usize]);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let _ = write!(out, "{weekday}, {day:02} {month} {year} {hour:02}:{minute:02}:{second:02} GMT");
}

/// Reason phrases of the statuses that a person meets here; the phrase means nothing to clients (RFC 9112 §4).
fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        204 => "No Content",
        307 => "Temporary Redirect",
        400 => "Bad Request",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        413 => "Content Too Large",
        417 => "Expectation Failed",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        503 => "Service Unavailable",
        505 => "HTTP Version Not Supported",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_as_the_rfc_writes_them() {
        let mut date = String::new();
        write_date(&mut date, SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777));
        assert_eq!(date, "Sun, 06 Nov 1994 08:49:37 GMT");
    }
}
