//! Bytes on their way to a file: counted, hashed and bounded as they come, never whole in memory.
//!
//! Called by the fetchers and by `archive`. A spool that is dropped removes its file.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Seek, SeekFrom, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use ring::digest;

use crate::base::random_u64;

/// How much is hashed, written or unpacked before other tasks get a turn.
pub(super) const STEP: usize = 64 * 1024;
/// Names of unfinished files begin so; whatever a crash left of them is removed at start.
pub(super) const PREFIX: &str = ".fetch-";

/// Lets other tasks run after every [`STEP`] of work.
#[derive(Debug, Default)]
pub(super) struct Pace(usize);

/// A file that is being written.
pub(super) struct Spool {
    file: File,
    path: Scratch,
    hash: digest::Context,
    size: u64,
    limit: u64,
    pace: Pace,
}

/// A file that is complete.
#[derive(Debug)]
pub(super) struct Spooled {
    /// Positioned at its begin.
    pub(super) file: File,
    pub(super) path: Scratch,
    /// Lower-case hexadecimal SHA-256.
    pub(super) sha256: String,
    pub(super) size: u64,
}

/// A file's path; the file is removed with it unless it was renamed.
#[derive(Debug)]
pub(super) struct Scratch(PathBuf);

/// Why bytes were not taken.
#[derive(Debug)]
pub(super) enum Error {
    /// More than the limit.
    TooLarge(u64),
    Io(io::Error),
}

impl Pace {
    pub(super) async fn spend(&mut self, bytes: usize) {
        self.0 += bytes;
        if self.0 >= STEP {
            self.0 = 0;
            tokio::task::yield_now().await;
        }
    }
}

impl Spool {
    /// A new file in `folder`, readable by this user only, that takes at most `limit` bytes.
    pub(super) fn create(folder: &Path, limit: u64) -> Result<Spool, Error> {
        let path = folder.join(format!("{PREFIX}{:016x}", random_u64()));
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
        let hash = digest::Context::new(&digest::SHA256);
        Ok(Spool { file, path: Scratch(path), hash, size: 0, limit, pace: Pace::default() })
    }

    pub(super) async fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        for piece in bytes.chunks(STEP) {
            self.size += piece.len() as u64;
            if self.size > self.limit {
                return Err(Error::TooLarge(self.limit));
            }
            self.hash.update(piece);
            self.file.write_all(piece)?;
            self.pace.spend(piece.len()).await;
        }
        Ok(())
    }

    pub(super) fn finish(mut self) -> Result<Spooled, Error> {
        self.file.seek(SeekFrom::Start(0))?;
        Ok(Spooled { file: self.file, path: self.path, sha256: hex(self.hash.finish().as_ref()), size: self.size })
    }
}

impl Scratch {
    /// Moves the file to where it stays.
    pub(super) fn persist(mut self, to: &Path) -> io::Result<()> {
        fs::rename(&self.0, to)?;
        self.0 = PathBuf::new();
        Ok(())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if !self.0.as_os_str().is_empty() {
            // It may be gone with its folder.
            let _ = fs::remove_file(&self.0);
        }
    }
}

/// Lower-case hexadecimal digits.
pub(super) fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]).map(|digit| char::from(DIGITS[usize::from(digit)])).collect()
}

/// The SHA-256 of something short, in lower-case hexadecimal.
pub(super) fn sha256_hex(bytes: &[u8]) -> String {
    hex(digest::digest(&digest::SHA256, bytes).as_ref())
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Error {
        Error::Io(error)
    }
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Error::TooLarge(limit) => {
                write!(f, "larger than the limit of {limit} bytes (ISTIO_WASM_MAX_BINARY_SIZE_BYTES)")
            }
            Error::Io(error) => error.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wasm::testing::Folder;

    #[tokio::test]
    async fn counts_hashes_and_keeps_what_is_persisted() {
        let folder = Folder::new();
        let mut spool = Spool::create(folder.path(), 200_000).unwrap();
        spool.write(&[7; 150_000]).await.unwrap();
        let spooled = spool.finish().unwrap();
        assert_eq!((spooled.size, spooled.sha256), (150_000, sha256_hex(&[7; 150_000])));
        let kept = folder.path().join("kept");
        spooled.path.persist(&kept).unwrap();
        assert_eq!(folder.names(), ["kept"]);
        assert_eq!(fs::read(kept).unwrap(), [7; 150_000]);
    }

    #[tokio::test]
    async fn refuses_more_than_its_limit_and_leaves_nothing() {
        let folder = Folder::new();
        let mut spool = Spool::create(folder.path(), 10).unwrap();
        spool.write(b"0123456789").await.unwrap();
        assert!(matches!(spool.write(b"x").await, Err(Error::TooLarge(10))));
        drop(spool);
        assert!(folder.names().is_empty());
    }
}
