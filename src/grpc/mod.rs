//! gRPC over HTTP/2, client and server, by hand on `h2` (<https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md>).
//!
//! Unary and streaming calls; a message may be sent and received in pieces without being held whole. Flow control is the only
//! buffer: every send waits for the peer's window, every receive opens ours. No compression is offered, none is accepted. Istiod,
//! SDS, xDS, gRPC probes and the development control plane are built on it; it knows nothing of what they say.

mod client;
mod connection;
mod frame;
mod metadata;
mod server;
mod status;
mod stream;
#[cfg(test)]
mod tests;

pub use client::{Call, Client, USER_AGENT, decoded};
pub use connection::{Keepalive, Settings};
pub use frame::{Decoder, MAX_MESSAGE, Piece, framed, prefix};
pub use metadata::{Metadata, format_timeout, parse_timeout};
pub use server::{BoxFuture, Request, Service, listen, serve};
pub use status::{Code, Status};
pub use stream::{Receiver, Sender};
