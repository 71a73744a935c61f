//! Compiles `proto/` to Rust with protox: no protoc is needed on the machine that builds.

use std::{error::Error, path::PathBuf};

/// Every file below `proto/`; a file that is missing here is not compiled.
const FILES: &[&str] = &[
    "envoy/service/discovery.proto",
    "envoy/core.proto",
    "envoy/tls.proto",
    "envoy/wasm.proto",
    "envoy/rbac.proto",
    "istio/ca.proto",
    "istio/nds.proto",
    "istio/mesh.proto",
    "xds/typed_struct.proto",
    "udpa/typed_struct.proto",
    "grpc/health.proto",
    "google/meshca.proto",
    "google/privateca.proto",
    "google/status.proto",
    "google/wellknown.proto",
];

#[allow(clippy::disallowed_methods, reason = "cargo tells build scripts where to write by the environment")]
fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    // What the linker reads (scripts/build-musl).
    println!("cargo:rerun-if-changed=scripts/musl");
    println!("cargo:rerun-if-env-changed=FOOTMAN_REVISION");
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    let descriptors = protox::compile(FILES, ["proto"])?;
    prost_build::Config::new()
        .bytes([".google.protobuf.Any.value", ".envoy.config.core.v3.DataSource.inline_bytes"])
        .btree_map(["."])
        .compile_well_known_types()
        .include_file("proto.rs")
        .out_dir(&out)
        .compile_fds(descriptors)?;
    Ok(())
}
