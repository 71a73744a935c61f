//! Bytes to and from other machines and processes. Knows protocols, not peers: nothing of gRPC, Envoy or istiod.

pub mod dial;
pub mod files;
pub mod http1;
pub mod resolve;
