//! Wasm.
mod oci;
mod resource;
mod settings;
mod standin;
mod structs;
