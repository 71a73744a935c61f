//! A connected socket that wakes its reader no more than there is reason to: for what comes in, not for room to write, and in a burst
//! not for each piece of it. Made by [`uds`](super::uds) for what Envoy sends, and for istiod's connection.
//!
//! The kernel reports room to write each time the peer of a Unix socket has read something, not only after there was none as it does
//! for TCP: whoever listens for both, as tokio's own types do, is woken twice for each message. Room is listened for here only while
//! it is missing.
//!
//! A wake-up costs more than a small message does. A [`patient`](Socket::patient) socket in which little comes in again and again is
//! looked at every [`PERIOD`] instead, until it is empty or busy with larger reads: what network drivers do with their interrupts.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use nix::{
    errno::Errno,
    sys::socket::{MsgFlags, Shutdown, recv, send, shutdown},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, Interest, ReadBuf, unix::AsyncFd},
    time::{Instant, Sleep, sleep_until},
};

use super::registered;

/// How often a patient socket is looked at in a burst. Tokio's clock has ticks of 1 ms: it is once or twice as long.
const PERIOD: Duration = Duration::from_millis(1);

/// A burst is more than one small read a period, for so long: about a hundred of them in a row go without delay.
const BURST: Duration = Duration::from_millis(100);

/// A read of more than so many bytes is no small one: it is worth a wake-up, and more of them are best taken at once.
const SMALL: usize = 16 * 1024;

/// A connection.
#[derive(Debug)]
pub struct Socket {
    socket: Arc<OwnedFd>,
    /// Reports what comes in; `None` while it is looked for from time to time.
    input: Option<AsyncFd<Arc<OwnedFd>>>,
    pace: Option<Pace>,
    /// The same socket once more, from the beginning: descriptors may have run out when it is needed.
    twin: Option<OwnedFd>,
    /// The twin, while the kernel takes no more bytes.
    full: Option<AsyncFd<OwnedFd>>,
}

/// How fast small reads follow one another.
#[derive(Debug)]
struct Pace {
    /// When they would have ended at one a period.
    even: Instant,
    /// The next look; over until a look has found all there was.
    look: Pin<Box<Sleep>>,
}

impl Socket {
    /// Takes over a connected socket.
    ///
    /// # Errors
    /// Without a descriptor that is free, or room in the runtime's epoll instance.
    pub fn new(socket: impl Into<OwnedFd>) -> io::Result<Socket> {
        let socket = Arc::new(socket.into());
        let twin = Some(socket.try_clone()?);
        let input = Some(registered(Arc::clone(&socket), Interest::READABLE)?);
        Ok(Socket { socket, input, pace: None, twin, full: None })
    }

    /// As [`new`](Socket::new); in a burst of small pieces its reader has each up to two periods later, many at once.
    ///
    /// # Errors
    /// As [`new`](Socket::new).
    pub fn patient(socket: impl Into<OwnedFd>) -> io::Result<Socket> {
        let now = Instant::now();
        let pace = Some(Pace { even: now, look: Box::pin(sleep_until(now)) });
        Ok(Socket { pace, ..Socket::new(socket)? })
    }
}

impl Socket {
    /// All that had come was read: decides how to learn of more.
    fn emptied(&mut self, read: usize) -> io::Result<()> {
        let Some(pace) = &mut self.pace else { return Ok(()) };
        if pace.emptied(read, self.input.is_none()) {
            self.input = None;
        } else if self.input.is_none() {
            self.input = Some(registered(Arc::clone(&self.socket), Interest::READABLE)?);
        }
        Ok(())
    }
}

impl Pace {
    /// Notes a read that has emptied the socket; whether the next one waits for its time.
    fn emptied(&mut self, read: usize, was_waiting: bool) -> bool {
        let now = Instant::now();
        if read > SMALL {
            self.even = now;
            return false;
        }
        self.even = self.even.max(now) + PERIOD;
        if !was_waiting && self.even <= now + BURST {
            return false;
        }
        // However long the burst lasts, after it a quick read is free each period again.
        self.even = now + BURST;
        self.look.as_mut().reset(now + PERIOD);
        true
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsyncRead for Socket {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        loop {
            let mut report = None;
            match (&this.input, &mut this.pace) {
                (Some(input), _) => report = Some(ready!(input.poll_read_ready(cx))?),
                (None, Some(pace)) => ready!(pace.look.as_mut().poll(cx)),
                (None, None) => {}
            }
            let room = buf.initialize_unfilled();
            let asked = room.len();
            let read = match recv(this.socket.as_raw_fd(), room, MsgFlags::MSG_DONTWAIT) {
                Err(Errno::EAGAIN) => {
                    match report {
                        Some(mut report) => report.clear_ready(),
                        None => this.input = Some(registered(Arc::clone(&this.socket), Interest::READABLE)?),
                    }
                    continue;
                }
                read => read?,
            };
            buf.advance(read);
            if 0 < read && read < asked {
                // Nothing is left: another read would only say so.
                if let Some(mut report) = report {
                    report.clear_ready();
                }
                this.emptied(read)?;
            }
            return Poll::Ready(Ok(()));
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            let ready = match &self.full {
                Some(full) => Some(ready!(full.poll_write_ready(cx))?),
                None => None,
            };
            match send(self.socket.as_raw_fd(), buf, MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL) {
                Err(Errno::EAGAIN) => match ready {
                    Some(mut ready) => ready.clear_ready(),
                    None => {
                        let twin = self.twin.take().ok_or(io::ErrorKind::BrokenPipe)?;
                        self.full = Some(registered(twin, Interest::WRITABLE)?);
                    }
                },
                written => {
                    if let Some(full) = self.full.take() {
                        self.twin = Some(full.into_inner());
                    }
                    return Poll::Ready(Ok(written?));
                }
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        match shutdown(self.socket.as_raw_fd(), Shutdown::Write) {
            // The peer has reset it: there is nothing left to end.
            Err(Errno::ENOTCONN) => Poll::Ready(Ok(())),
            ended => Poll::Ready(Ok(ended?)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        os::unix::net::UnixStream,
    };

    use nix::libc::{EPOLLIN, EPOLLOUT};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    fn pair() -> (Socket, UnixStream) {
        let (near, far) = UnixStream::pair().unwrap();
        (Socket::new(near).unwrap(), far)
    }

    /// What the runtime's epoll instance was told to report of a descriptor (proc(5), `/proc/pid/fdinfo`).
    fn reported(descriptor: &impl AsRawFd) -> i32 {
        let wanted = descriptor.as_raw_fd().to_string();
        let instances = std::fs::read_dir("/proc/self/fdinfo").unwrap();
        // One that is closed meanwhile is another test's.
        let texts = instances.filter_map(|file| std::fs::read_to_string(file.unwrap().path()).ok());
        let mut flags = 0;
        for text in texts {
            for line in text.lines() {
                let words: Vec<_> = line.split_whitespace().collect();
                if let ["tfd:", descriptor, "events:", events, ..] = words[..]
                    && descriptor == wanted
                {
                    flags |= u32::from_str_radix(events, 16).unwrap().cast_signed();
                }
            }
        }
        flags
    }

    #[tokio::test]
    async fn all_bytes_pass_a_peer_that_reads_late() {
        let (mut near, far) = pair();
        let mut far = Socket::new(far).unwrap();
        let sent: Vec<u8> = (0..3_000_000_u32).map(|number| number.to_le_bytes()[1]).collect();
        let (mut written, mut got) = (0, Vec::new());
        // Until the kernel takes no more.
        while let Some(count) = std::future::poll_fn(|cx| match Pin::new(&mut near).poll_write(cx, &sent[written..]) {
            Poll::Ready(count) => Poll::Ready(Some(count.unwrap())),
            Poll::Pending => Poll::Ready(None),
        })
        .await
        {
            written += count;
        }
        assert_eq!(reported(near.full.as_ref().unwrap()) & (EPOLLIN | EPOLLOUT), EPOLLOUT);
        let write = async {
            near.write_all(&sent[written..]).await.unwrap();
            near.shutdown().await.unwrap();
        };
        let ((), read) = tokio::join!(write, far.read_to_end(&mut got));
        assert_eq!((read.unwrap(), got == sent), (sent.len(), true));
        assert!(near.full.is_none(), "room is not listened for any more");
    }

    #[tokio::test]
    async fn only_what_comes_in_is_reported() {
        let (mut near, mut far) = pair();
        let mut bytes = [0; 8];
        near.write_all(b"request").await.unwrap();
        far.read_exact(&mut bytes[..7]).unwrap();
        assert_eq!(reported(&near.socket) & (EPOLLIN | EPOLLOUT), EPOLLIN);
        far.write_all(b"answer").unwrap();
        assert_eq!(near.read(&mut bytes).await.unwrap(), 6);
        far.write_all(b"one more").unwrap();
        assert_eq!(near.read(&mut bytes).await.unwrap(), 8);
        drop(far);
        assert_eq!(near.read(&mut bytes).await.unwrap(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn in_a_burst_a_patient_socket_is_looked_at_from_time_to_time() {
        let (near, mut far) = UnixStream::pair().unwrap();
        let mut near = Socket::patient(near).unwrap();
        let begun = Instant::now();
        let mut bytes = vec![0; SMALL * 2];
        for _ in 0..BURST.as_millis() / PERIOD.as_millis() {
            far.write_all(b"small").unwrap();
            assert_eq!(near.read(&mut bytes).await.unwrap(), 5);
            assert_eq!(reported(&near.as_fd()) & EPOLLIN, EPOLLIN);
        }
        far.write_all(b"small").unwrap();
        assert_eq!(near.read(&mut bytes).await.unwrap(), 5);
        assert_eq!((reported(&near.as_fd()), begun.elapsed()), (0, Duration::ZERO), "nobody has waited so far");

        // What comes within a period is read at once.
        far.write_all(b"one ").unwrap();
        far.write_all(b"two").unwrap();
        assert_eq!(near.read(&mut bytes).await.unwrap(), 7);
        assert!((PERIOD..=2 * PERIOD).contains(&begun.elapsed()), "{:?}", begun.elapsed());
        assert_eq!(reported(&near.as_fd()), 0);

        // After a look in vain, what comes is reported again.
        let looked = Instant::now();
        tokio::time::timeout(2 * PERIOD, near.read(&mut bytes)).await.unwrap_err();
        assert_eq!((reported(&near.as_fd()) & EPOLLIN, looked.elapsed()), (EPOLLIN, 2 * PERIOD));
        for left in [EPOLLIN, EPOLLIN, 0] {
            far.write_all(b"slow").unwrap();
            assert_eq!(near.read(&mut bytes).await.unwrap(), 4);
            assert_eq!((reported(&near.as_fd()) & EPOLLIN, looked.elapsed()), (left, 2 * PERIOD));
        }

        // And so is much at a time, of which the end waits for nobody.
        far.write_all(&bytes[..=SMALL]).unwrap();
        assert_eq!(near.read(&mut bytes).await.unwrap(), SMALL + 1);
        assert_eq!(reported(&near.as_fd()) & EPOLLIN, EPOLLIN);
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_is_seen_in_a_burst_and_no_byte_is_lost() {
        let (near, mut far) = UnixStream::pair().unwrap();
        let mut near = Socket::patient(near).unwrap();
        let mut bytes = [0; 3];
        while near.input.is_some() {
            far.write_all(b"ab").unwrap();
            assert_eq!(near.read(&mut bytes).await.unwrap(), 2);
        }
        far.write_all(b"four bytes are more than three").unwrap();
        drop(far);
        let mut rest = Vec::new();
        near.read_to_end(&mut rest).await.unwrap();
        assert_eq!(rest, b"four bytes are more than three");
    }

    #[tokio::test]
    async fn a_connection_that_was_reset_can_be_shut_down() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let near = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut near = Socket::new(near).unwrap();
        near.write_all(b"unread").await.unwrap();
        let (mut far, _) = listener.accept().unwrap();
        far.read_exact(&mut [0; 1]).unwrap();
        drop(far);
        near.read(&mut [0; 1]).await.unwrap_err();
        near.shutdown().await.unwrap();
    }

    #[tokio::test]
    async fn a_peer_that_has_gone_fails_the_write() {
        let (mut near, far) = pair();
        drop(far);
        assert_eq!(near.write(b"lost").await.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}
