//! Bodies (RFC 9112 §6, §7): a pure decoder of the three framings, and the reader that the client hands out.

use bytes::{Buf, Bytes, BytesMut};
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    time::Instant,
};

use super::Error;
use crate::net::BoxIo;

/// How much is read at once.
pub(super) const READ: usize = 16 * 1024;
/// Longest chunk-size line with its extensions, which nobody uses.
const MAX_CHUNK_LINE: usize = 256;
/// Most bytes of trailer fields, which nobody reads.
const MAX_TRAILER: usize = 8 * 1024;

/// What of a body is still to come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Framing {
    /// That many bytes.
    Length(u64),
    /// Chunks and a trailer.
    Chunked(Chunk),
    /// Everything until the peer closes.
    UntilClose,
}

/// Where in the chunked coding the decoder is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Chunk {
    /// Before a size line.
    Size,
    /// In the data of a chunk.
    Data(u64),
    /// Before the CRLF after the data.
    DataEnd,
    /// In the trailer, of which so many bytes have passed.
    Trailer(usize),
    /// Behind the trailer.
    End,
}

/// One step of decoding.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// A piece of the body.
    Data(Bytes),
    /// More bytes are needed.
    More,
    /// The body is complete.
    End,
}

impl Framing {
    pub fn chunked() -> Framing {
        Framing::Chunked(Chunk::Size)
    }

    /// Whether the body is complete.
    pub fn is_ended(&self) -> bool {
        matches!(self, Framing::Length(0) | Framing::Chunked(Chunk::End))
    }

    /// Takes the next piece out of `buffer`, never more than belongs to the body.
    pub fn take(&mut self, buffer: &mut BytesMut) -> Result<Step, Error> {
        match self {
            Framing::Length(0) => Ok(Step::End),
            Framing::Length(left) => Ok(take_data(buffer, left)),
            Framing::UntilClose if buffer.is_empty() => Ok(Step::More),
            Framing::UntilClose => Ok(Step::Data(buffer.split().freeze())),
            Framing::Chunked(chunk) => chunk.take(buffer),
        }
    }
}

impl Chunk {
    fn take(&mut self, buffer: &mut BytesMut) -> Result<Step, Error> {
        loop {
            match self {
                Chunk::Size => {
                    let Some(line) = take_line(buffer, MAX_CHUNK_LINE)? else { return Ok(Step::More) };
                    *self = match chunk_size(&line)? {
                        0 => Chunk::Trailer(0),
                        size => Chunk::Data(size),
                    };
                }
                Chunk::Data(left) => {
                    let step = take_data(buffer, left);
                    if *left == 0 {
                        *self = Chunk::DataEnd;
                    }
                    return Ok(step);
                }
                Chunk::DataEnd => {
                    if buffer.len() < 2 {
                        return Ok(Step::More);
                    }
                    if !buffer.starts_with(b"\r\n") {
                        return Err(Error::Malformed("chunk longer than its size"));
                    }
                    buffer.advance(2);
                    *self = Chunk::Size;
                }
                Chunk::Trailer(passed) => {
                    let Some(line) = take_line(buffer, MAX_TRAILER - *passed)? else { return Ok(Step::More) };
                    *passed += line.len() + 2;
                    if line.is_empty() {
                        *self = Chunk::End;
                    } else if *passed >= MAX_TRAILER {
                        return Err(Error::TooLarge("trailer", MAX_TRAILER as u64));
                    }
                }
                Chunk::End => return Ok(Step::End),
            }
        }
    }
}

fn take_data(buffer: &mut BytesMut, left: &mut u64) -> Step {
    let size = usize::try_from(*left).map_or(buffer.len(), |left| left.min(buffer.len()));
    if size == 0 {
        return Step::More;
    }
    *left -= size as u64;
    Step::Data(buffer.split_to(size).freeze())
}

/// A line without its CRLF; `None` while it is incomplete.
fn take_line(buffer: &mut BytesMut, most: usize) -> Result<Option<BytesMut>, Error> {
    match memchr::memchr(b'\n', buffer) {
        Some(at) if at <= most => {
            let mut line = buffer.split_to(at + 1);
            if !line.ends_with(b"\r\n") {
                return Err(Error::Malformed("line ends without CR"));
            }
            line.truncate(at - 1);
            Ok(Some(line))
        }
        None if buffer.len() <= most => Ok(None),
        _ => Err(Error::TooLarge("chunk header or trailer", most as u64)),
    }
}

/// Hexadecimal size, then perhaps `;extension`.
fn chunk_size(line: &[u8]) -> Result<u64, Error> {
    let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
    let rest = line[digits..].trim_ascii_start();
    let text = std::str::from_utf8(&line[..digits]).unwrap_or_default();
    match u64::from_str_radix(text, 16) {
        Ok(size) if rest.is_empty() || rest[0] == b';' => Ok(size),
        _ => Err(Error::Malformed("chunk size")),
    }
}

/// The body of a response, read from its connection as it is asked for.
pub struct Body {
    io: BoxIo,
    buffer: BytesMut,
    framing: Framing,
    deadline: Option<Instant>,
}

impl Body {
    pub(super) fn new(io: BoxIo, buffer: BytesMut, framing: Framing, deadline: Option<Instant>) -> Body {
        Body { io, buffer, framing, deadline }
    }

    /// The next piece, of any size; `None` at the end. Cancel-safe.
    ///
    /// # Errors
    /// When the connection breaks, the framing is wrong or the request's deadline passes.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, Error> {
        loop {
            match self.framing.take(&mut self.buffer)? {
                Step::Data(data) => return Ok(Some(data)),
                Step::End => return Ok(None),
                Step::More => {}
            }
            match fill(&mut self.io, &mut self.buffer, self.deadline).await {
                // Over TLS old servers close without a goodbye (`Closed`), which Go's client takes for the end as well.
                Ok(0) | Err(Error::Closed) if self.framing == Framing::UntilClose => return Ok(None),
                Ok(0) => return Err(Error::Closed),
                read => drop(read?),
            }
        }
    }

    /// The whole body.
    ///
    /// # Errors
    /// As [`Body::chunk`], and when it is longer than `limit` bytes.
    pub async fn collect(&mut self, limit: usize) -> Result<Vec<u8>, Error> {
        let mut all = Vec::new();
        while let Some(piece) = self.chunk().await? {
            if all.len() + piece.len() > limit {
                return Err(Error::TooLarge("body", limit as u64));
            }
            all.extend_from_slice(&piece);
        }
        Ok(all)
    }

    /// How many bytes are still to come, when the peer said so.
    pub fn remaining(&self) -> Option<u64> {
        match self.framing {
            Framing::Length(left) => Some(left),
            _ => None,
        }
    }

    /// The connection behind a complete body, for the next request; `None` when it cannot carry one.
    pub(super) fn into_io(self) -> Option<BoxIo> {
        (self.framing.is_ended() && self.buffer.is_empty()).then_some(self.io)
    }
}

impl std::fmt::Debug for Body {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Body").field("framing", &self.framing).finish_non_exhaustive()
    }
}

/// Reads once into `buffer`; 0 at the end of the stream. Cancel-safe.
pub(super) async fn fill(
    io: &mut (impl AsyncRead + Unpin + ?Sized),
    buffer: &mut BytesMut,
    deadline: Option<Instant>,
) -> Result<usize, Error> {
    buffer.reserve(READ);
    let read = io.read_buf(buffer);
    match deadline {
        None => Ok(read.await?),
        Some(deadline) => Ok(tokio::time::timeout_at(deadline, read).await.map_err(|_| Error::Timeout)??),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds `input` in pieces of `size` and returns the body and what was left over.
    fn decode(mut framing: Framing, input: &[u8], size: usize) -> Result<(Vec<u8>, Vec<u8>), Error> {
        let (mut buffer, mut body, mut rest) = (BytesMut::new(), Vec::new(), input.chunks(size));
        loop {
            match framing.take(&mut buffer)? {
                Step::Data(data) => body.extend_from_slice(&data),
                Step::End => break,
                Step::More => match rest.next() {
                    Some(piece) => buffer.extend_from_slice(piece),
                    None => return Err(Error::Closed),
                },
            }
        }
        buffer.extend(rest.flatten());
        Ok((body, buffer.to_vec()))
    }

    #[test]
    fn decodes_chunks_however_they_are_split() {
        let input = b"3\r\nabc\r\n00a;x=y\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\nNEXT";
        for size in 1..input.len() {
            assert_eq!(
                decode(Framing::chunked(), input, size).unwrap(),
                (b"abc0123456789".to_vec(), b"NEXT".to_vec()),
                "{size}"
            );
        }
    }

    #[test]
    fn length_takes_no_more_than_its_own() {
        assert_eq!(decode(Framing::Length(3), b"abcNEXT", 7).unwrap(), (b"abc".to_vec(), b"NEXT".to_vec()));
        assert!(matches!(decode(Framing::Length(3), b"ab", 1), Err(Error::Closed)));
    }

    #[test]
    fn wrong_chunks_are_refused() {
        for input in [
            "\r\n\r\n",
            "x\r\n",
            "-1\r\n",
            "+1\r\na\r\n",
            "0x1\r\na\r\n",
            "1\na\n",
            "1\r\nabc\r\n",
            "1 1\r\n",
            "11111111111111111\r\n",
            "0\r\nA: b\n\n",
        ] {
            assert!(matches!(decode(Framing::chunked(), input.as_bytes(), 100), Err(Error::Malformed(_))), "{input:?}");
        }
        let long = format!("1;{}", "x".repeat(MAX_CHUNK_LINE));
        assert!(matches!(decode(Framing::chunked(), long.as_bytes(), 100), Err(Error::TooLarge(..))));
        let trailer = format!("0\r\n{}", "A: b\r\n".repeat(MAX_TRAILER / 6 + 1));
        assert!(matches!(decode(Framing::chunked(), trailer.as_bytes(), 100), Err(Error::TooLarge(..))));
    }
}
