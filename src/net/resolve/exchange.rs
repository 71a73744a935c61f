//! One question to one server, over UDP or TCP. Called by the resolver and by `dns` when it forwards.
//!
//! Each exchange has a socket, and with it a port, of its own and a fresh random id; an answer counts only when it comes from
//! the server asked (the socket is connected) and carries that id and the question. Never looks at the answer's verdict.

use std::{
    cell::RefCell,
    collections::HashSet,
    io::{self, ErrorKind},
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    os::fd::AsRawFd,
};

use nix::sys::socket::{MsgFlags, recv};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, Interest},
    net::{TcpStream, UdpSocket},
    time::{Duration, Instant, timeout_at},
};

use super::frame;
use crate::base::random_u64;

/// Room for the largest datagram, and then some: musl maps so large an allocation, and only the pages in use take memory.
const DATAGRAM_ROOM: usize = 128 << 10;
/// A datagram that got no answer for this long is taken for lost, where there is time to send another.
const RESEND: Duration = Duration::from_secs(1);

/// What a socket waits for: a datagram, or a refusal by ICMP, which is an error of the socket without anything to read.
const NEWS: Interest = Interest::READABLE.add(Interest::ERROR);

thread_local! {
    /// Where datagrams arrive before they are copied at their true length: answers in flight then cost no 64 KiB each.
    static DATAGRAM: RefCell<Box<[u8]>> = RefCell::new(vec![0; DATAGRAM_ROOM].into_boxed_slice());

    /// Queries under way, by (port, id). A query that comes to us from such a port with that id is one of our own.
    static UNDER_WAY: RefCell<HashSet<(u16, u16)>> = RefCell::default();
}

/// A query under way, until it is dropped.
struct UnderWay((u16, u16));

impl UnderWay {
    fn new(local: SocketAddr, query: &[u8]) -> UnderWay {
        let mark = (local.port(), frame::id(query).unwrap_or_default());
        UNDER_WAY.with_borrow_mut(|marks| marks.insert(mark));
        UnderWay(mark)
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        UNDER_WAY.with_borrow_mut(|marks| marks.remove(&self.0));
    }
}

/// Whether a message that came from `peer` is one that we sent out ourselves: redirected back to us, it would go round for ever.
pub fn is_ours(peer: SocketAddr, message: &[u8]) -> bool {
    frame::id(message).is_some_and(|id| UNDER_WAY.with_borrow(|marks| marks.contains(&(peer.port(), id))))
}

/// Lends the buffer for datagrams, which all sockets of a thread share; not to be nested.
pub fn with_datagram<T>(work: impl FnOnce(&mut [u8]) -> T) -> T {
    DATAGRAM.with_borrow_mut(|buffer| work(buffer))
}

/// Asks over UDP: up to `sends` datagrams within `patience`, from one socket. The reply carries the id of `query`.
///
/// # Errors
/// `TimedOut` when no valid answer came, else what the socket says (connection refused: no server there); each names the server.
pub async fn udp(server: SocketAddr, query: &[u8], sends: u32, patience: Duration) -> io::Result<Vec<u8>> {
    ask_over_udp(server, query, sends, patience).await.map_err(|error| named(server, &error))
}

async fn ask_over_udp(server: SocketAddr, query: &[u8], sends: u32, patience: Duration) -> io::Result<Vec<u8>> {
    let (query, original) = with_fresh_id(query)?;
    let any: SocketAddr = match server {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any).await?;
    socket.connect(server).await?;
    let _under_way = UnderWay::new(socket.local_addr()?, &query);
    let (start, sends) = (Instant::now(), sends.max(1));
    let spacing = (patience / sends).min(RESEND);
    for send in 1..=sends {
        socket.send(&query).await?;
        let until = if send == sends { patience } else { spacing * send };
        match timeout_at(start + until, receive(&socket, &query)).await {
            Ok(Ok(mut reply)) => {
                frame::set_id(&mut reply, original);
                return Ok(reply);
            }
            Ok(Err(error)) => return Err(error),
            Err(_) => {}
        }
    }
    Err(silence())
}

/// Asks over TCP on a connection of its own. The reply carries the id of `query`.
///
/// # Errors
/// `TimedOut` after `patience`, `InvalidData` for an answer to something else, else what the connection says; each names the server.
pub async fn tcp(server: SocketAddr, query: &[u8], patience: Duration) -> io::Result<Vec<u8>> {
    ask_over_tcp(server, query, patience).await.map_err(|error| named(server, &error))
}

async fn ask_over_tcp(server: SocketAddr, query: &[u8], patience: Duration) -> io::Result<Vec<u8>> {
    let (query, original) = with_fresh_id(query)?;
    let exchange = async {
        let mut stream = TcpStream::connect(server).await?;
        stream.set_nodelay(true)?;
        let _under_way = UnderWay::new(stream.local_addr()?, &query);
        stream.write_all(&framed(&query)?).await?;
        let length = stream.read_u16().await?;
        let mut reply = vec![0; usize::from(length)];
        stream.read_exact(&mut reply).await?;
        io::Result::Ok(reply)
    };
    let mut reply = timeout_at(Instant::now() + patience, exchange).await.map_err(|_| silence())??;
    if !frame::answers(&query, &reply) {
        return Err(io::Error::new(ErrorKind::InvalidData, "answer to another question"));
    }
    frame::set_id(&mut reply, original);
    Ok(reply)
}

/// The message with its length in front, as TCP carries it (RFC 1035 §4.2.2).
///
/// # Errors
/// When it is longer than 65,535 bytes.
pub fn framed(message: &[u8]) -> io::Result<Vec<u8>> {
    let length = u16::try_from(message.len()).map_err(|_| io::Error::from(ErrorKind::InvalidInput))?;
    let mut framed = Vec::with_capacity(message.len() + 2);
    framed.extend_from_slice(&length.to_be_bytes());
    framed.extend_from_slice(message);
    Ok(framed)
}

/// The next datagram that answers `query`; strays and forgeries are passed over.
async fn receive(socket: &UdpSocket, query: &[u8]) -> io::Result<Vec<u8>> {
    loop {
        let received = socket.async_io(NEWS, || {
            with_datagram(|buffer| {
                let length = recv(socket.as_raw_fd(), buffer, MsgFlags::MSG_DONTWAIT)?;
                let reply = &buffer[..length];
                Ok(frame::answers(query, reply).then(|| reply.to_vec()))
            })
        });
        if let Some(reply) = received.await? {
            return Ok(reply);
        }
    }
}

/// A copy of the query with an id that nobody can guess, and the id it had.
fn with_fresh_id(query: &[u8]) -> io::Result<(Vec<u8>, u16)> {
    let original = frame::id(query).ok_or(ErrorKind::InvalidInput)?;
    let mut query = query.to_vec();
    frame::set_id(&mut query, random_u64() as u16);
    Ok((query, original))
}

fn silence() -> io::Error {
    io::Error::new(ErrorKind::TimedOut, "no answer")
}

fn named(server: SocketAddr, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{server}: {error}"))
}
