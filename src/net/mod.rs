//! Bytes to and from other machines and processes. Knows protocols, not peers: nothing of gRPC, Envoy or istiod.

mod batch;
pub mod dial;
pub mod files;
pub mod http1;
pub mod http2;
pub mod resolve;
mod socket;
pub mod tls;
pub mod uds;

pub use batch::{Batched, Flusher};
pub use socket::Socket;

use std::{io, net::SocketAddr, os::fd::AsRawFd, time::Duration};

use nix::sys::socket::{setsockopt, sockopt};
use tokio::{
    io::{AsyncRead, AsyncWrite, Interest, unix::AsyncFd},
    net::{TcpListener, TcpSocket},
};

/// Connections that the kernel holds until they are accepted. One too many costs its client a second; tokio's own 128 are a burst.
const BACKLOG: u32 = 1024;
/// So long a large buffer is kept without need: making it anew costs more than all that goes through it in a burst of small messages.
const LINGER: Duration = Duration::from_secs(1);

/// A connection of any kind, in both directions.
pub trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// A connection whose kind does not matter any more: the layers above are compiled once, for this type.
pub type BoxIo = Box<dyn Io>;

/// Listens at an address; `[::]` takes IPv4 as well.
///
/// # Errors
/// When the address is taken, not permitted or not ours.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => {
            let socket = TcpSocket::new_v6()?;
            setsockopt(&socket, sockopt::Ipv6V6Only, &false)?;
            socket
        }
    };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Registers the owner of a descriptor with the runtime; it keeps that one open as long as it lives.
fn registered<T: AsRawFd>(owner: T, interest: Interest) -> io::Result<AsyncFd<T>> {
    #[allow(deprecated, reason = "its successor is unsafe; every owner here keeps its one descriptor")]
    AsyncFd::with_interest(owner, interest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_burst_of_connections_waits_in_the_kernel() {
        let listener = listen(([127, 0, 0, 1], 0).into()).unwrap();
        let address = listener.local_addr().unwrap();
        let connect = |_| std::net::TcpStream::connect_timeout(&address, Duration::from_millis(500));
        // Old kernels hold no more than 128.
        let most = std::fs::read_to_string("/proc/sys/net/core/somaxconn").unwrap().trim().parse().unwrap_or(128);
        let burst: io::Result<Vec<_>> = (0..300.min(most)).map(connect).collect();
        assert!(burst.is_ok(), "nobody has accepted any: {burst:?}");
    }
}
