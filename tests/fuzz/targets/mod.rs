//! What is fuzzed: every parser of bytes that we did not write. A file per room; each target has seeds in `corpus/TARGET/`.
//!
//! A target must not panic, whatever the bytes; it may assert what holds for every input (round trips, bounds).

mod config;
mod dns;
mod secrets;
mod status;
mod wasm;
mod xds;

/// A target's name and the function itself.
pub type Target = (&'static str, fn(&[u8]));

/// Every target; `fuzz/Cargo.toml` names each as a `[[bin]]`, in the same order.
pub const ALL: &[Target] = &[
    ("go_duration", config::go_duration),
    ("proxy_config", config::proxy_config),
    ("mesh_yaml", config::mesh_yaml),
    ("downward_api", config::downward_api),
    ("bootstrap_override", config::bootstrap_override),
    ("dns_query", dns::dns_query),
    ("dns_answer", dns::dns_answer),
    ("dns_table", dns::dns_table),
    ("pem_bundle", secrets::pem_bundle),
    ("csr_answer", secrets::csr_answer),
    ("sds_requests", secrets::sds_requests),
    ("wasm_extension_config", wasm::extension_config),
    ("wasm_manifest", wasm::manifest),
    ("wasm_challenge", wasm::challenge),
    ("wasm_image_reference", wasm::image_reference),
    ("wasm_tar", wasm::tar),
    ("wasm_cache_index", wasm::cache_index),
    ("http1_request", status::http1_request),
    ("http1_response", status::http1_response),
    ("exposition", status::exposition),
    ("envoy_stats", status::envoy_stats),
    ("app_probers", status::app_probers),
    ("scrape_targets", status::scrape_targets),
    ("negotiation", status::negotiation),
    ("xds_response", xds::xds_response),
    ("xds_request", xds::xds_request),
    ("grpc_frames", xds::grpc_frames),
];
