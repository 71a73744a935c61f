//! Queries over TCP (RFC 7766): several on one connection, each answered when its answer is there, in whatever order.
//!
//! A connection that asks nothing is closed, one that asks faster than the servers behind us answer is read no further, and so is
//! one that does not take its answers.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::JoinSet,
    time::{Instant, sleep, sleep_until, timeout},
};

use super::{
    message::Transport,
    service::{Service, Step},
};
use crate::{base::Drain, net::resolve::exchange::framed};

/// Queries of one connection that may wait for servers.
const MAX_PENDING: usize = 128;
/// How long a new connection may take to ask; Istio's 2 s are short for a busy client.
const FIRST: Duration = Duration::from_secs(5);
/// How long a connection may rest between queries, and how long one may take to arrive or to be taken (miekg/dns: 8 s).
const IDLE: Duration = Duration::from_secs(8);
/// Answers gathered before they are written.
const WRITE_AT: usize = 16 << 10;
/// What is read at once from a connection.
const READ: usize = 2048;
/// Pause after a failed accept, which mostly means that there are no descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Accepts connections until the drain: `most` at a time, more wait in the kernel until one ends.
pub async fn serve(listener: TcpListener, most: usize, service: Arc<Service>, mut drain: Drain) {
    let room = Arc::new(Semaphore::new(most));
    let mut connections = JoinSet::new();
    loop {
        let accept = async {
            let room = room.clone().acquire_owned().await;
            (listener.accept().await, room)
        };
        let (accepted, room) = tokio::select! {
            () = drain.started() => return,
            Some(_) = connections.join_next() => continue,
            accepted = accept => accepted,
        };
        match accepted {
            Ok((stream, peer)) => {
                let service = service.clone();
                connections.spawn(async move {
                    if let Err(error) = Connection::new(stream, peer).run(service).await {
                        log::debug!(target: "dns", "{peer}: {error}");
                    }
                    drop(room);
                });
            }
            Err(error) => {
                log::debug!(target: "dns", "cannot accept a connection: {error}");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

struct Connection {
    stream: TcpStream,
    peer: SocketAddr,
    /// Bytes read and not yet taken for a message.
    unread: Vec<u8>,
    /// Answers not yet written, with their lengths.
    unsent: Vec<u8>,
    pending: JoinSet<Vec<u8>>,
}

impl Connection {
    fn new(stream: TcpStream, peer: SocketAddr) -> Connection {
        Connection { stream, peer, unread: Vec::new(), unsent: Vec::new(), pending: JoinSet::new() }
    }

    async fn run(mut self, service: Arc<Service>) -> io::Result<()> {
        self.stream.set_nodelay(true)?;
        let mut deadline = Instant::now() + FIRST;
        let mut open = true;
        while open || !self.pending.is_empty() {
            let reading = open && self.pending.len() < MAX_PENDING;
            self.unread.reserve(READ);
            tokio::select! {
                read = self.stream.read_buf(&mut self.unread), if reading => {
                    open = read? > 0;
                    if self.take(&service).await? {
                        deadline = Instant::now() + IDLE;
                    }
                }
                Some(reply) = self.pending.join_next() => {
                    self.answer(&reply.map_err(io::Error::other)?)?;
                    deadline = Instant::now() + IDLE;
                    // What was read ahead while there was no room for it.
                    self.take(&service).await?;
                }
                () = sleep_until(deadline), if self.pending.is_empty() => return Ok(()),
            }
            self.flush().await?;
        }
        Ok(())
    }

    /// Takes every whole message that was read; whether there was one.
    async fn take(&mut self, service: &Arc<Service>) -> io::Result<bool> {
        let (mut at, mut reply) = (0, Vec::new());
        while self.pending.len() < MAX_PENDING
            && let Some(message) = message(&self.unread[at..])
        {
            match service.take(message, self.peer, Transport::Tcp, &mut reply) {
                Step::Silence => {}
                Step::Reply => self.unsent.extend(framed(&reply)?),
                Step::Forward(pending) => {
                    let service = service.clone();
                    self.pending.spawn(async move { service.forward(pending).await });
                }
            }
            at += 2 + message.len();
            if self.unsent.len() >= WRITE_AT {
                self.flush().await?;
            }
        }
        self.unread.drain(..at);
        Ok(at > 0)
    }

    fn answer(&mut self, reply: &[u8]) -> io::Result<()> {
        self.unsent.extend(framed(reply)?);
        Ok(())
    }

    async fn flush(&mut self) -> io::Result<()> {
        if !self.unsent.is_empty() {
            timeout(IDLE, self.stream.write_all(&self.unsent)).await??;
            self.unsent.clear();
        }
        Ok(())
    }
}

/// The message at the beginning of `bytes`, when all of it is there.
fn message(bytes: &[u8]) -> Option<&[u8]> {
    let (length, rest) = bytes.split_first_chunk::<2>()?;
    rest.get(..usize::from(u16::from_be_bytes(*length)))
}
