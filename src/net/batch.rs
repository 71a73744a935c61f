//! Fewer system calls: many small reads from one large one, many small writes in one large one.
//!
//! `h2` writes a frame at a time and flushes after each, rustls reads a record at a time. [`Batched`] keeps what was written until
//! its [`Flusher`] is asked at the end of a turn or [`CAPACITY`] is reached; [`ReadAhead`] reads the socket in large pieces. Both
//! hold a bounded buffer and hand on back-pressure: a full buffer on a blocked socket is `Pending`.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, ready},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::Instant,
};

use super::BoxIo;

/// Size of a full buffer: four HTTP/2 frames or TLS records, and half of what musl's allocator would map anew each time.
const CAPACITY: usize = 64 * 1024;

/// Size of a buffer that sees little traffic.
const QUIET: usize = 4 * 1024;

/// A connection that gathers writes until its [`Flusher`] sends them.
pub struct Batched(Arc<Mutex<Gathered>>);

/// The other handle of a [`Batched`]: whoever drives the connection flushes it once a turn.
pub struct Flusher(Arc<Mutex<Gathered>>);

struct Gathered {
    io: BoxIo,
    /// Written by the layer above, not yet by the socket, from `sent` on.
    out: Vec<u8>,
    sent: usize,
    /// When bytes last came in, for keepalive.
    heard: Option<Instant>,
}

impl Batched {
    /// Wraps `io`.
    pub fn new(io: BoxIo) -> (Batched, Flusher) {
        let gathered = Arc::new(Mutex::new(Gathered { io, out: Vec::new(), sent: 0, heard: None }));
        (Batched(Arc::clone(&gathered)), Flusher(gathered))
    }
}

impl Flusher {
    /// Sends what was gathered; `Pending` while the socket takes no more.
    pub fn poll_flush(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        lock(&self.0).poll_send(cx)
    }

    /// When bytes last came in; `None` before the first.
    pub fn heard(&self) -> Option<Instant> {
        lock(&self.0).heard
    }
}

impl Gathered {
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.sent < self.out.len() {
            let written = ready!(Pin::new(&mut self.io).poll_write(cx, &self.out[self.sent..]))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.sent += written;
        }
        // The buffer of a burst is kept until so little is written that the burst must be over: making it anew each time costs
        // more than the copy into it.
        if self.out.len() <= QUIET && self.out.capacity() > QUIET {
            self.out = Vec::new();
        }
        self.sent = 0;
        self.out.clear();
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.out.len() >= CAPACITY { self.poll_send(cx) } else { Poll::Ready(Ok(())) }
    }

    fn take(&mut self, bytes: &[u8]) -> usize {
        let taken = bytes.len().min(CAPACITY.saturating_sub(self.out.len()));
        if self.out.len() + taken > QUIET && self.out.capacity() < CAPACITY {
            self.out.reserve_exact(CAPACITY - self.out.len());
        }
        self.out.extend_from_slice(&bytes[..taken]);
        taken
    }
}

impl AsyncRead for Batched {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut gathered = lock(&self.0);
        let before = buf.filled().len();
        ready!(Pin::new(&mut gathered.io).poll_read(cx, buf))?;
        if buf.filled().len() > before {
            gathered.heard = Some(Instant::now());
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Batched {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let mut gathered = lock(&self.0);
        ready!(gathered.poll_room(cx))?;
        Poll::Ready(Ok(gathered.take(buf)))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut gathered = lock(&self.0);
        ready!(gathered.poll_room(cx))?;
        Poll::Ready(Ok(bufs.iter().map(|buf| gathered.take(buf)).sum()))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// Does nothing: the [`Flusher`] does it, once for many frames.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut gathered = lock(&self.0);
        ready!(gathered.poll_send(cx))?;
        Pin::new(&mut gathered.io).poll_shutdown(cx)
    }
}

fn lock(gathered: &Mutex<Gathered>) -> MutexGuard<'_, Gathered> {
    gathered.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A connection that is read in large pieces. The buffer grows while reads fill it and shrinks when they do not.
pub struct ReadAhead<T> {
    io: T,
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
}

impl<T> ReadAhead<T> {
    /// Wraps `io`.
    pub fn new(io: T) -> ReadAhead<T> {
        ReadAhead { io, buffer: vec![0; QUIET].into_boxed_slice(), start: 0, end: 0 }
    }

    /// Fits the empty buffer to what the last read brought.
    fn fit(&mut self) {
        let length = self.buffer.len();
        let wanted = if self.end == length {
            CAPACITY
        } else if self.end <= QUIET / 2 {
            QUIET
        } else {
            length
        };
        if wanted != length {
            self.buffer = vec![0; wanted].into_boxed_slice();
        }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for ReadAhead<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.start == this.end {
            this.fit();
            let mut read = ReadBuf::new(&mut this.buffer);
            ready!(Pin::new(&mut this.io).poll_read(cx, &mut read))?;
            this.end = read.filled().len();
            this.start = 0;
        }
        let piece = &this.buffer[this.start..this.end];
        let taken = piece.len().min(buf.remaining());
        buf.put_slice(&piece[..taken]);
        this.start += taken;
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for ReadAhead<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn writes_wait_for_the_flusher() {
        let (near, mut far) = tokio::io::duplex(1024);
        let (mut batched, flusher) = Batched::new(Box::new(near));
        batched.write_all(b"one ").await.unwrap();
        batched.write_all(b"two").await.unwrap();
        batched.flush().await.unwrap();
        let mut read = [0; 7];
        let early = std::future::poll_fn(|cx| {
            let mut buf = ReadBuf::new(&mut read);
            Poll::Ready(Pin::new(&mut far).poll_read(cx, &mut buf).is_pending())
        });
        assert!(early.await);
        std::future::poll_fn(|cx| flusher.poll_flush(cx)).await.unwrap();
        far.read_exact(&mut read).await.unwrap();
        assert_eq!(&read, b"one two");
    }

    #[tokio::test]
    async fn full_buffer_holds_the_writer_back() {
        let (near, mut far) = tokio::io::duplex(1000);
        let (mut batched, _flusher) = Batched::new(Box::new(near));
        let all = vec![7; CAPACITY * 3];
        let writer = async {
            batched.write_all(&all).await.unwrap();
            batched.shutdown().await.unwrap();
            drop((batched, _flusher));
        };
        let mut read = Vec::new();
        let (_, got) = tokio::join!(writer, far.read_to_end(&mut read));
        assert_eq!(got.unwrap(), all.len());
        assert_eq!(read, all);
    }

    #[tokio::test]
    async fn reads_ahead_and_fits_its_buffer() {
        let (mut near, far) = tokio::io::duplex(CAPACITY * 2);
        let mut ahead = ReadAhead::new(far);
        near.write_all(&vec![1; CAPACITY]).await.unwrap();
        let mut first = vec![0; QUIET + 1];
        ahead.read_exact(&mut first).await.unwrap();
        assert_eq!(ahead.buffer.len(), CAPACITY);
        let mut rest = vec![0; CAPACITY - first.len()];
        ahead.read_exact(&mut rest).await.unwrap();
        near.write_all(b"x").await.unwrap();
        assert_eq!(ahead.read_u8().await.unwrap(), b'x');
        near.write_all(b"y").await.unwrap();
        assert_eq!(ahead.read_u8().await.unwrap(), b'y');
        assert_eq!(ahead.buffer.len(), QUIET);
    }
}
