//! The way to istiod: address, trust roots, client certificate, token, headers, and one shared connection for every call.
//!
//! `xds` opens its streams and `secrets` sends its certificate requests through an [`Istiod`]. Roots, pair and token are read from
//! their files at each dial and each call, so that whatever kubelet or a person replaced counts from the next one on. Nothing is
//! retried here: the callers know how urgent they are.

mod config;
mod exchange;
mod google;
mod material;
mod probe;
mod proxy;
mod roll;
mod roots;
mod shared;
#[cfg(test)]
mod tests;
mod token;

pub use config::{Config, Endpoint, Tls};
pub use exchange::Exchange;
pub use google::{Google, escape};
pub use material::Pair;
pub use probe::{Step, probe};
pub use proxy::Proxy;
pub use roots::{RootSource, is_file_mounted};
pub use shared::Istiod;
pub use token::Token;
