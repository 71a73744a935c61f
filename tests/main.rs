//! The integration tests: one binary, a file per room.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking, its helpers too")]
#![allow(missing_docs, reason = "nobody links against a test")]

mod architecture;
mod captures;
mod check;
mod cli;
mod crates;
mod dns;
mod envoy;
mod fuzz;
mod golden;
mod identity;
mod lifecycle;
mod status;
#[allow(dead_code, reason = "benches use it as well, and other parts of it")]
mod support;
mod wasm;
mod wasm_envoy;
mod xds;
mod xds_envoy;
