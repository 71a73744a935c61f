//! Queries over UDP: one loop per socket, which answers what it can at once and leaves the rest to tasks of their own.
//!
//! A socket bound to all addresses learns with each datagram which address it was sent to, and answers from there: the client
//! expects the answer from the address that it asked.

use std::{
    future::{Future, poll_fn},
    io::{self, ErrorKind, IoSlice, IoSliceMut},
    net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4, SocketAddrV6},
    os::fd::AsRawFd,
    pin::pin,
    sync::Arc,
    task::Poll,
    time::Duration,
};

use nix::{
    libc,
    sys::socket::{
        self, AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, SockaddrStorage,
        setsockopt, sockopt,
    },
};
use tokio::{
    io::Interest,
    net::UdpSocket,
    task::{JoinSet, yield_now},
    time::sleep,
};

use super::{
    message::Transport,
    service::{Service, Step},
};
use crate::{base::Drain, net::resolve::exchange};

/// Datagrams that are answered before other tasks have their turn.
const BATCH: usize = 64;
/// Pause after an error of the socket, none of which lasts.
const ERROR_PAUSE: Duration = Duration::from_millis(100);
/// Datagrams may wait in the kernel while the thread is busy elsewhere; it gives as much of this as net.core.rmem_max allows.
const RECEIVE_BUFFER: usize = 4 << 20;

/// A socket for queries.
#[derive(Debug)]
pub struct Socket {
    socket: UdpSocket,
    /// It is bound to all addresses.
    wildcard: bool,
}

/// Who asked, and at which of our addresses.
#[derive(Debug, Clone, Copy)]
struct Peer {
    address: SocketAddr,
    local: Option<Local>,
}

#[derive(Clone, Copy)]
enum Local {
    V4(libc::in_pktinfo),
    V6(libc::in6_pktinfo),
}

impl Socket {
    /// Binds a socket.
    ///
    /// # Errors
    /// When the address is taken, or is not ours.
    pub async fn bind(address: SocketAddr) -> io::Result<Socket> {
        let family = if address.is_ipv6() { AddressFamily::Inet6 } else { AddressFamily::Inet };
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let socket = socket::socket(family, SockType::Datagram, flags, None)?;
        if address.is_ipv6() {
            // As for TCP: [::] takes IPv4 as well, whatever net.ipv6.bindv6only says.
            setsockopt(&socket, sockopt::Ipv6V6Only, &false)?;
        }
        socket::bind(socket.as_raw_fd(), &SockaddrStorage::from(address))?;
        let socket = UdpSocket::from_std(socket.into())?;
        // Less than wished for is no reason not to serve.
        let _ = setsockopt(&socket, sockopt::RcvBuf, &RECEIVE_BUFFER);
        let wildcard = address.ip().is_unspecified();
        if wildcard {
            if address.is_ipv6() {
                setsockopt(&socket, sockopt::Ipv6RecvPacketInfo, &true)?;
            } else {
                setsockopt(&socket, sockopt::Ipv4PacketInfo, &true)?;
            }
        }
        Ok(Socket { socket, wildcard })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Answers queries until the drain.
    pub async fn serve(self, service: Arc<Service>, mut drain: Drain) {
        let socket = Arc::new(self);
        let mut forwards = JoinSet::new();
        let mut reply = Vec::new();
        let mut drained = pin!(drain.started());
        'wait: loop {
            // One look at everything that may have woken us: a `select!` would sign up anew at each of them for every wake-up.
            let readable = poll_fn(|context| {
                if drained.as_mut().poll(context).is_ready() {
                    return Poll::Ready(None);
                }
                while let Poll::Ready(Some(_)) = forwards.poll_join_next(context) {}
                socket.socket.poll_recv_ready(context).map(Some)
            });
            if readable.await.is_none() {
                return;
            }
            for _ in 0..BATCH {
                let taken = exchange::with_datagram(|datagram| {
                    let (length, peer) = socket.receive(datagram)?;
                    let step = service.take(&datagram[..length], peer.address, Transport::Udp, &mut reply);
                    io::Result::Ok((step, peer))
                });
                match taken {
                    Ok((Step::Silence, _)) => {}
                    Ok((Step::Reply, peer)) => socket.send(&reply, peer).await,
                    Ok((Step::Forward(pending), peer)) => {
                        let (service, socket) = (service.clone(), socket.clone());
                        forwards.spawn(async move {
                            let reply = service.forward(pending).await;
                            socket.send(&reply, peer).await;
                        });
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => continue 'wait,
                    Err(error) => {
                        log::debug!(target: "dns", "cannot receive: {error}");
                        sleep(ERROR_PAUSE).await;
                        continue 'wait;
                    }
                }
            }
            yield_now().await;
        }
    }

    fn receive(&self, buffer: &mut [u8]) -> io::Result<(usize, Peer)> {
        if !self.wildcard {
            return self.socket.try_recv_from(buffer).map(|(length, address)| (length, Peer { address, local: None }));
        }
        self.socket.try_io(Interest::READABLE, || {
            let mut parts = [IoSliceMut::new(buffer)];
            let mut control = nix::cmsg_space!(libc::in6_pktinfo);
            let message = socket::recvmsg::<SockaddrStorage>(
                self.socket.as_raw_fd(),
                &mut parts,
                Some(&mut control),
                MsgFlags::MSG_DONTWAIT,
            )?;
            let local = message.cmsgs()?.find_map(|control| match control {
                ControlMessageOwned::Ipv4PacketInfo(info) => Some(Local::V4(info)),
                ControlMessageOwned::Ipv6PacketInfo(info) => Some(Local::V6(info)),
                _ => None,
            });
            let address = message.address.as_ref().and_then(address_of).ok_or(ErrorKind::InvalidData)?;
            Ok((message.bytes, Peer { address, local }))
        })
    }

    /// Sends a reply. One that cannot be sent is lost, as datagrams are: the client asks again.
    async fn send(&self, reply: &[u8], peer: Peer) {
        let sent = match peer.local {
            None => match self.socket.try_send_to(reply, peer.address) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.socket.send_to(reply, peer.address).await,
                other => other,
            },
            Some(local) => {
                self.socket.async_io(Interest::WRITABLE, || self.send_from(local, reply, peer.address)).await
            }
        };
        if let Err(error) = sent {
            log::debug!(target: "dns", "reply to {}: {error}", peer.address);
        }
    }

    fn send_from(&self, local: Local, reply: &[u8], to: SocketAddr) -> io::Result<usize> {
        let to = SockaddrStorage::from(to);
        let mut local = local;
        let control = match &mut local {
            Local::V4(info) => {
                // The address asked is what the answer comes from; the route decides on the interface.
                info.ipi_spec_dst = info.ipi_addr;
                info.ipi_ifindex = 0;
                [ControlMessage::Ipv4PacketInfo(info)]
            }
            Local::V6(info) => [ControlMessage::Ipv6PacketInfo(info)],
        };
        let parts = [IoSlice::new(reply)];
        Ok(socket::sendmsg(self.socket.as_raw_fd(), &parts, &control, MsgFlags::MSG_DONTWAIT, Some(&to))?)
    }
}

fn address_of(storage: &SockaddrStorage) -> Option<SocketAddr> {
    if let Some(v4) = storage.as_sockaddr_in() {
        return Some(SocketAddrV4::new(v4.ip(), v4.port()).into());
    }
    storage.as_sockaddr_in6().map(|v6| SocketAddrV6::new(v6.ip(), v6.port(), v6.flowinfo(), v6.scope_id()).into())
}

impl std::fmt::Debug for Local {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ip: IpAddr = match self {
            Local::V4(info) => Ipv4Addr::from(u32::from_be(info.ipi_addr.s_addr)).into(),
            Local::V6(info) => info.ipi6_addr.s6_addr.into(),
        };
        ip.fmt(f)
    }
}
