//! footman: the agent that lives beside an Envoy proxy.
//!
//! The modules below are the rooms of the house, in rank order: `use crate::x` is allowed only towards a lower rank
//! (ARCHITECTURE.md; `tests/architecture.rs` holds it). The binary enters through [`cli`]; `examples/` and `tests/` reuse the
//! lower rooms.

// rank 0
pub mod base;
pub mod proto;
// rank 1
pub mod net;
pub mod process;
pub mod telemetry;
pub mod wires;
// rank 2
pub mod config;
pub mod grpc;
// rank 3
pub mod envoy;
pub mod istiod;
pub mod probe;
// rank 4
pub mod bootstrap;
pub mod dns;
pub mod health;
pub mod secrets;
pub mod wasm;
pub mod xds;
// rank 5
pub mod sds;
pub mod status;
// rank 6
pub mod agent;
// rank 7
pub mod cli;
