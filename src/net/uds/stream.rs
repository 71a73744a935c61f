//! One connection of a Unix socket, woken by what comes in and by nothing else. Made by [`Listener::accept`](super::Listener::accept).
//!
//! The kernel reports room to write each time the peer has read something, not only after there was none as it does for TCP: whoever
//! listens for both, as tokio's own type does, is woken twice for each message. Room is listened for here only while it is missing.

use std::{
    io::{self, Read, Write},
    net::Shutdown,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf, unix::AsyncFd};

use crate::net::registered;

/// A connection.
#[derive(Debug)]
pub struct Stream {
    socket: AsyncFd<UnixStream>,
    /// The same socket once more, from the beginning: descriptors may have run out when it is needed.
    twin: Option<OwnedFd>,
    /// The twin, while the kernel takes no more bytes.
    full: Option<AsyncFd<OwnedFd>>,
}

impl Stream {
    pub(super) fn new(socket: UnixStream) -> io::Result<Stream> {
        socket.set_nonblocking(true)?;
        let twin = Some(socket.as_fd().try_clone_to_owned()?);
        Ok(Stream { socket: registered(socket, Interest::READABLE)?, twin, full: None })
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            let mut ready = ready!(self.socket.poll_read_ready(cx))?;
            let room = buf.initialize_unfilled();
            let Ok(read) = ready.try_io(|socket| socket.get_ref().read(room)) else { continue };
            let (read, asked) = (read?, room.len());
            if 0 < read && read < asked {
                // Nothing is left: another read would only say so.
                ready.clear_ready();
            }
            buf.advance(read);
            return Poll::Ready(Ok(()));
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            let ready = match &self.full {
                Some(full) => Some(ready!(full.poll_write_ready(cx))?),
                None => None,
            };
            match self.socket.get_ref().write(buf) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => match ready {
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
                    return Poll::Ready(written);
                }
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.socket.get_ref().shutdown(Shutdown::Write))
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use nix::libc::{EPOLLIN, EPOLLOUT};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    fn pair() -> (Stream, UnixStream) {
        let (near, far) = UnixStream::pair().unwrap();
        (Stream::new(near).unwrap(), far)
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
        let mut far = Stream::new(far).unwrap();
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

    #[tokio::test]
    async fn a_peer_that_has_gone_fails_the_write() {
        let (mut near, far) = pair();
        drop(far);
        assert_eq!(near.write(b"lost").await.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}
