//! Doors to the parsers of what others wrote, for the fuzz targets: each takes any bytes and asserts what holds for all of them.

use std::path::Path;

use bytes::Bytes;

use super::{
    archive, cache, oci,
    resource::{self, Local, Resource},
};

/// An ECDS resource: a plugin that was made local is not to be fetched any more.
///
/// # Panics
/// When it is.
pub fn extension_config(data: &[u8]) {
    let Ok(Resource::Remote(remote)) = resource::recognise(&Bytes::copy_from_slice(data)) else {
        return;
    };
    let local = Local { path: "/module.wasm".to_owned(), aot: false };
    if let Ok(patched) = remote.with_code(&local) {
        assert!(matches!(resource::recognise(&patched), Ok(Resource::Other)), "still remote");
    }
}

/// A manifest or an index of a registry.
pub fn manifest(data: &[u8]) {
    oci::fuzz_manifest(data);
}

/// The values of `WWW-Authenticate`, a line each.
pub fn challenge(data: &[u8]) {
    oci::fuzz_challenge(data);
}

/// An image reference: what was read reads the same again.
///
/// # Panics
/// When it does not.
pub fn image_reference(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(reference) = oci::Reference::from_url(text) {
        let again = oci::Reference::from_url(&format!("oci://{reference}"));
        assert_eq!(again.as_ref(), Ok(&reference), "{text}");
    }
}

/// A tar archive, as it comes out of an image's layer.
pub fn tar(data: &[u8]) {
    archive::fuzz_tar(data);
}

/// The cache's index on disk.
pub fn cache_index(data: &[u8]) {
    cache::fuzz_index(data, Path::new("/cache"));
}
