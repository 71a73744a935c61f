//! One TLS connection as a stream of bytes, over rustls' unbuffered interface: the socket is read in large pieces into one buffer,
//! and records are deciphered where they lie. Called by the room's door alone; knows nothing of names, roots or protocols.

use std::{
    future::poll_fn,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use rustls::{
    ClientConfig, CommonState,
    client::UnbufferedClientConnection,
    pki_types::ServerName,
    unbuffered::{ConnectionState, EncodeError, EncryptError, UnbufferedStatus},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::Instant,
};

use crate::net::{BoxIo, LINGER};

/// Size of the read buffer while much comes in: four records. A handshake message that does not fit is refused by rustls before.
const LARGE: usize = 66 * 1024;

/// Its size while little comes in.
const SMALL: usize = 4 * 1024;

/// What is enciphered at a time: one record.
const RECORD: usize = 16 * 1024;

/// A connection to a server.
pub(super) struct Stream {
    io: BoxIo,
    session: UnbufferedClientConnection,
    /// What has come in, from `start` to `end`.
    input: Box<[u8]>,
    start: usize,
    end: usize,
    /// When a read last brought more than a small buffer holds.
    busy: Instant,
    /// Deciphered, not taken yet, from `taken` on.
    plain: Vec<u8>,
    taken: usize,
    /// Enciphered, not sent yet, from `sent` on.
    output: Vec<u8>,
    sent: usize,
    /// The server has said that nothing more follows.
    ended: bool,
    /// We have said so.
    closing: bool,
    /// rustls has nothing more to do before more comes in.
    settled: bool,
    /// What has gone wrong; rustls is not asked again then.
    failed: Option<rustls::Error>,
}

/// Where rustls stands.
#[derive(PartialEq, Eq)]
enum Step {
    /// It may go on at once.
    Done,
    /// It needs more of the handshake.
    Blocked,
    /// It takes what is to be sent, and needs more bytes to decipher any.
    Open,
    /// Both sides have ended.
    Closed,
}

impl Stream {
    /// Shakes hands over `io`.
    pub(super) async fn connect(io: BoxIo, config: Arc<ClientConfig>, name: ServerName<'static>) -> io::Result<Stream> {
        let mut stream = Stream {
            io,
            session: UnbufferedClientConnection::new(config, name).map_err(invalid)?,
            input: vec![0; SMALL].into_boxed_slice(),
            start: 0,
            end: 0,
            busy: Instant::now(),
            plain: Vec::new(),
            taken: 0,
            output: Vec::new(),
            sent: 0,
            ended: false,
            closing: false,
            settled: false,
            failed: None,
        };
        poll_fn(|cx| stream.poll_handshake(cx)).await?;
        Ok(stream)
    }

    /// What was agreed upon.
    pub(super) fn state(&self) -> &CommonState {
        &self.session
    }

    fn poll_handshake(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            match self.step(cx, None)? {
                Step::Done => {}
                Step::Open => return self.poll_send(cx),
                Step::Blocked | Step::Closed => {
                    ready!(self.poll_send(cx))?;
                    ready!(self.poll_fill(cx))?;
                }
            }
        }
    }

    /// Lets rustls go on. What it deciphers goes into `to` as far as there is room, the rest into `plain`.
    fn step(&mut self, cx: &mut Context<'_>, to: Option<&mut ReadBuf<'_>>) -> io::Result<Step> {
        if let Some(error) = &self.failed {
            return Err(invalid(error.clone()));
        }
        let UnbufferedStatus { mut discard, state } =
            self.session.process_tls_records(&mut self.input[self.start..self.end]);
        let step = match state {
            Ok(ConnectionState::ReadTraffic(mut traffic)) => {
                if let Some(record) = traffic.next_record() {
                    let record = record.map_err(invalid)?;
                    discard += record.discard;
                    let mut later = record.payload;
                    if let Some(to) = to {
                        let now = later.split_off(..later.len().min(to.remaining())).unwrap_or_default();
                        to.put_slice(now);
                    }
                    self.plain.extend_from_slice(later);
                }
                Step::Done
            }
            Ok(ConnectionState::EncodeTlsData(mut data)) => {
                append(&mut self.output, &mut |room| match data.encode(room) {
                    Err(EncodeError::InsufficientSize(size)) => Err(size.required_size),
                    written => Ok(written.unwrap_or(0)),
                });
                Step::Done
            }
            Ok(ConnectionState::TransmitTlsData(data)) => {
                // It stands in `output`, which keeps the order.
                data.done();
                Step::Done
            }
            Ok(ConnectionState::PeerClosed) => {
                self.ended = true;
                Step::Done
            }
            Ok(ConnectionState::WriteTraffic(_)) => Step::Open,
            Ok(ConnectionState::Closed) => Step::Closed,
            Ok(_) => Step::Blocked,
            Err(error) => {
                self.start += discard;
                self.failed = Some(error.clone());
                self.last_words(cx);
                return Err(invalid(error));
            }
        };
        self.start += discard;
        Ok(step)
    }

    /// Tells the server what is wrong, if it can be told at once.
    fn last_words(&mut self, cx: &mut Context<'_>) {
        let status = self.session.process_tls_records(&mut self.input[self.start..self.end]);
        if let Ok(ConnectionState::EncodeTlsData(mut alert)) = status.state {
            append(&mut self.output, &mut |room| match alert.encode(room) {
                Err(EncodeError::InsufficientSize(size)) => Err(size.required_size),
                written => Ok(written.unwrap_or(0)),
            });
            // The server may be gone; what is wrong is told to the caller anyway.
            let _ = self.poll_send(cx);
        }
    }

    /// Enciphers a record with these bytes, or our goodbye when there are none.
    fn encipher(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> io::Result<()> {
        self.settled = false;
        loop {
            match self.step(cx, None)? {
                Step::Done => {}
                Step::Open => break,
                Step::Blocked | Step::Closed => return Err(io::ErrorKind::BrokenPipe.into()),
            }
        }
        let status = self.session.process_tls_records(&mut self.input[self.start..self.end]);
        let Ok(ConnectionState::WriteTraffic(mut traffic)) = status.state else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        let mut exhausted = false;
        append(&mut self.output, &mut |room| {
            let written =
                if bytes.is_empty() { traffic.queue_close_notify(room) } else { traffic.encrypt(bytes, room) };
            match written {
                Err(EncryptError::InsufficientSize(size)) => Err(size.required_size),
                written => Ok(written.inspect_err(|_| exhausted = true).unwrap_or(0)),
            }
        });
        if exhausted { Err(io::Error::other("the keys of this connection are used up")) } else { Ok(()) }
    }

    /// Reads what the socket has. Its end before the server's goodbye is an error, `UnexpectedEof` between two records.
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.fit();
        let mut read = ReadBuf::new(&mut self.input[self.end..]);
        ready!(Pin::new(&mut self.io).poll_read(cx, &mut read))?;
        let count = read.filled().len();
        if count == 0 {
            let message = "peer closed connection without sending TLS close_notify";
            let within = self.start < self.end;
            let kind = if within { io::ErrorKind::ConnectionAborted } else { io::ErrorKind::UnexpectedEof };
            return Poll::Ready(Err(io::Error::new(kind, message)));
        }
        self.end += count;
        self.settled = false;
        if count >= SMALL {
            self.busy = Instant::now();
        }
        Poll::Ready(Ok(()))
    }

    /// Makes room behind what is there: a read that filled the small buffer is followed by more.
    fn fit(&mut self) {
        let (length, left) = (self.input.len(), self.end - self.start);
        let wanted = if length == SMALL && self.end == SMALL {
            LARGE
        } else if length == LARGE && left <= SMALL / 2 && self.busy.elapsed() >= LINGER {
            SMALL
        } else {
            length
        };
        if wanted == length {
            self.input.copy_within(self.start..self.end, 0);
        } else {
            let mut input = vec![0; wanted].into_boxed_slice();
            input[..left].copy_from_slice(&self.input[self.start..self.end]);
            self.input = input;
        }
        (self.start, self.end) = (0, left);
    }

    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.sent < self.output.len() {
            match ready!(Pin::new(&mut self.io).poll_write(cx, &self.output[self.sent..]))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => self.sent += written,
            }
        }
        self.output.clear();
        self.output.shrink_to(SMALL);
        self.sent = 0;
        Pin::new(&mut self.io).poll_flush(cx)
    }
}

impl AsyncRead for Stream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = buf.filled().len();
        loop {
            let plain = &this.plain[this.taken..];
            let taken = plain.len().min(buf.remaining());
            buf.put_slice(&plain[..taken]);
            this.taken += taken;
            if this.taken == this.plain.len() {
                this.plain.clear();
                this.taken = 0;
            }
            if buf.filled().len() > before || buf.remaining() == 0 || this.ended {
                return Poll::Ready(Ok(()));
            }
            if !this.settled {
                if this.step(cx, Some(buf))? == Step::Done {
                    continue;
                }
                this.settled = true;
                // An answer of rustls' own, to a change of keys for instance, waits for nobody.
                if let Poll::Ready(Err(error)) = this.poll_send(cx) {
                    return Poll::Ready(Err(error));
                }
            }
            ready!(this.poll_fill(cx))?;
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_send(cx))?;
        let piece = &buf[..buf.len().min(RECORD)];
        if !piece.is_empty() {
            self.encipher(cx, piece)?;
            // What the socket does not take now goes with the next call.
            if let Poll::Ready(Err(error)) = self.poll_send(cx) {
                return Poll::Ready(Err(error));
            }
        }
        Poll::Ready(Ok(piece.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_send(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.closing {
            self.closing = true;
            self.encipher(cx, &[])?;
        }
        ready!(self.poll_send(cx))?;
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

/// Appends what `write` writes; it says how much room it needs when there is less.
fn append(output: &mut Vec<u8>, write: &mut dyn FnMut(&mut [u8]) -> Result<usize, usize>) {
    let begin = output.len();
    loop {
        match write(&mut output[begin..]) {
            Ok(written) => return output.truncate(begin + written),
            Err(needed) => output.resize(begin + needed, 0),
        }
    }
}

fn invalid(error: rustls::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

#[cfg(test)]
mod tests;
