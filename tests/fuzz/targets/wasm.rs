//! What registries, web servers and disks give the Wasm room.

pub use footman::wasm::fuzz::{cache_index, challenge, extension_config, image_reference, manifest, tar};
