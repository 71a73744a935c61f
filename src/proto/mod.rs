//! The protobuf messages that build.rs made from `proto/`, by package: `proto::envoy::service::discovery::v3::DiscoveryRequest`.

#![allow(missing_docs, clippy::all, clippy::unwrap_used, clippy::expect_used)]

pub mod wire;

include!(concat!(env!("OUT_DIR"), "/proto.rs"));
