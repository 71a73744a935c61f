//! A connection in turns: many small writes in one large one, and no more read than is passed on meanwhile.
//!
//! `h2` writes a frame at a time and flushes after each. [`Batched`] keeps what was written until its [`Flusher`] is asked at the
//! end of a turn or [`CAPACITY`] is reached. Its buffer is bounded and hands on back-pressure: full on a blocked socket is `Pending`.

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

use super::{BoxIo, LINGER};

/// Size of a full buffer: four of the largest HTTP/2 frames or TLS records that are usual, with what comes between them. Half of
/// what musl's allocator would map anew each time.
const CAPACITY: usize = 66 * 1024;

/// What one turn reads: three such frames. Whoever they are for has them before more come in, so that a burst is not held in memory,
/// and their buffers are used again while the processor still has them in its cache.
const TURN: usize = 48 * 1024;

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
    /// When a piece last passed that is more than a quiet buffer holds; `None` once all large buffers are gone.
    large: Option<Instant>,
    /// What may still be read in this turn.
    readable: usize,
    /// Whoever began this turn will begin another one when more is to be read.
    paused: bool,
    /// When bytes last came in, for keepalive.
    heard: Option<Instant>,
}

impl Batched {
    /// Wraps `io`.
    pub fn new(io: BoxIo) -> (Batched, Flusher) {
        let gathered = Arc::new(Mutex::new(Gathered {
            io,
            out: Vec::new(),
            sent: 0,
            large: None,
            readable: TURN,
            paused: false,
            heard: None,
        }));
        (Batched(Arc::clone(&gathered)), Flusher(gathered))
    }
}

impl Flusher {
    /// Begins a turn. In a pause no more is read than was left over by the turn before.
    pub fn begin(&self, paused: bool) {
        let mut gathered = lock(&self.0);
        gathered.paused = paused;
        if !paused {
            gathered.readable = TURN;
        }
    }

    /// Ends the turn: sends what was gathered; `Pending` while the socket takes no more.
    pub fn poll_flush(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        lock(&self.0).poll_send(cx)
    }

    /// When large buffers will have been kept long enough: a turn then gives them back.
    pub fn lingers(&self) -> Option<Instant> {
        lock(&self.0).large.map(|large| large + LINGER)
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
        if self.out.len() > QUIET {
            self.large = Some(Instant::now());
        } else if self.large.is_some_and(|large| large.elapsed() >= LINGER) {
            self.large = None;
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
        if gathered.readable == 0 {
            if !gathered.paused {
                cx.waker().wake_by_ref();
            }
            return Poll::Pending;
        }
        let before = buf.filled().len();
        ready!(Pin::new(&mut gathered.io).poll_read(cx, buf))?;
        let read = buf.filled().len() - before;
        gathered.readable = gathered.readable.saturating_sub(read);
        if read > 0 {
            gathered.heard = Some(Instant::now());
        }
        if read >= QUIET {
            gathered.large = gathered.heard;
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

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicUsize, Ordering},
        task::{Wake, Waker},
    };

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

    /// Counts how often it was woken.
    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[tokio::test]
    async fn a_turn_reads_so_much_and_a_pause_nothing() {
        let (near, mut far) = tokio::io::duplex(TURN * 3);
        let (mut batched, flusher) = Batched::new(Box::new(near));
        far.write_all(&vec![7; TURN * 2]).await.unwrap();
        let wakes = Arc::new(Wakes::default());
        let waker = Waker::from(Arc::clone(&wakes));
        let mut turn = |paused| {
            flusher.begin(paused);
            let mut total = 0;
            loop {
                let mut bytes = vec![0; TURN / 3];
                let mut buf = ReadBuf::new(&mut bytes);
                match Pin::new(&mut batched).poll_read(&mut Context::from_waker(&waker), &mut buf) {
                    Poll::Ready(read) => read.unwrap(),
                    Poll::Pending => return (total, wakes.0.swap(0, Ordering::Relaxed)),
                }
                total += buf.filled().len();
            }
        };
        assert_eq!(turn(false), (TURN, 1), "it goes on in the next turn");
        assert_eq!(turn(true), (0, 0));
        assert_eq!(turn(false), (TURN, 1));
        assert_eq!(turn(false), (0, 0), "nothing more has come");
    }

    #[tokio::test(start_paused = true)]
    async fn large_buffer_lingers() {
        let (near, far) = tokio::io::duplex(CAPACITY * 2);
        let (mut batched, flusher) = Batched::new(Box::new(near));
        let mut write = async |bytes: &[u8]| {
            batched.write_all(bytes).await.unwrap();
            std::future::poll_fn(|cx| flusher.poll_flush(cx)).await.unwrap();
            lock(&flusher.0).out.capacity()
        };
        assert!(write(&[7; 10]).await < QUIET);
        assert!(flusher.lingers().is_none());
        assert_eq!(write(&[7; QUIET + 1]).await, CAPACITY);
        assert_eq!(write(&[7; 10]).await, CAPACITY);
        tokio::time::sleep_until(flusher.lingers().unwrap()).await;
        assert_eq!(write(&[7; 10]).await, 0);
        assert!(flusher.lingers().is_none());
        drop(far);
    }
}
