//! What several tests of this room need.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::base::random_u64;

/// A folder of its own, removed at the end.
pub(super) struct Folder(PathBuf);

impl Folder {
    pub(super) fn new() -> Folder {
        let path = std::env::temp_dir().join(format!("footman-wasm-{:016x}", random_u64()));
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// The names in it, sorted.
    pub(super) fn names(&self) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A loadable module: the header and a custom section with `name` and `size` bytes.
pub(super) fn module(name: &str, size: usize) -> Vec<u8> {
    let mut content = vec![u8::try_from(name.len()).unwrap()];
    content.extend_from_slice(name.as_bytes());
    content.extend((0..size).map(|index| (index % 251) as u8));
    let mut out = b"\0asm\x01\0\0\0\0".to_vec();
    prost::encoding::encode_varint(content.len() as u64, &mut out);
    out.extend_from_slice(&content);
    out
}
