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

use std::{io, os::fd::AsRawFd, time::Duration};

use tokio::io::{AsyncRead, AsyncWrite, Interest, unix::AsyncFd};

/// So long a large buffer is kept without need: making it anew costs more than all that goes through it in a burst of small messages.
const LINGER: Duration = Duration::from_secs(1);

/// A connection of any kind, in both directions.
pub trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// A connection whose kind does not matter any more: the layers above are compiled once, for this type.
pub type BoxIo = Box<dyn Io>;

/// Registers the owner of a descriptor with the runtime; it keeps that one open as long as it lives.
fn registered<T: AsRawFd>(owner: T, interest: Interest) -> io::Result<AsyncFd<T>> {
    #[allow(deprecated, reason = "its successor is unsafe; every owner here keeps its one descriptor")]
    AsyncFd::with_interest(owner, interest)
}
