//! HTTP/1.1 and 1.0 (RFC 9110, RFC 9112), client and server, over httparse.
//!
//! The server carries the status port; the client asks Envoy's admin port, applications, registries and metadata servers. Bodies
//! are never held whole: they pass piece by piece. Every limit is a constant of the file that keeps it. Nothing here follows
//! redirects, retries, or decides what a status means.

mod body;
pub mod client;
mod headers;
mod parse;
pub mod server;
mod url;

use std::{fmt, io};

pub use body::Body;
pub use headers::Headers;
pub use url::{Url, basic};

use super::tls;

/// Why a message could not be read or written.
#[derive(Debug)]
pub enum Error {
    /// The URL cannot be used; the text says why.
    Url(String),
    /// No connection; the text names the peer.
    Connect(io::Error),
    /// No TLS with the peer named.
    Tls(String, tls::Error),
    /// The connection broke.
    Io(io::Error),
    /// The peer closed the connection before its message was complete.
    Closed,
    /// The peer does not speak HTTP/1.x, or not correctly.
    Malformed(&'static str),
    /// A head or body is larger than the limit named.
    TooLarge(&'static str, u64),
    /// The deadline passed.
    Timeout,
}

impl Error {
    /// Whether another attempt may succeed: everything but a wrong URL and an answer that is too large.
    pub fn is_retryable(&self) -> bool {
        !matches!(self, Error::Url(_) | Error::TooLarge(..))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Url(text) => f.write_str(text),
            Error::Connect(error) => write!(f, "connect to {error}"),
            Error::Tls(peer, error) => write!(f, "TLS with {peer}: {error}"),
            Error::Io(error) => error.fmt(f),
            Error::Closed => f.write_str("connection closed before the message was complete"),
            Error::Malformed(what) => write!(f, "malformed HTTP: {what}"),
            Error::TooLarge(what, limit) => write!(f, "{what} larger than {limit} bytes"),
            Error::Timeout => f.write_str("timed out"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Connect(error) | Error::Io(error) => Some(error),
            Error::Tls(_, error) => Some(error),
            _ => None,
        }
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Error {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Error::Closed,
            io::ErrorKind::TimedOut => Error::Timeout,
            _ => Error::Io(error),
        }
    }
}
