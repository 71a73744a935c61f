//! Why a plugin has no module.

use std::{fmt, io, time::Duration};

use super::spool;

/// What went wrong, with the thing concerned in the text. No text holds a credential.
#[derive(Debug, Clone)]
pub(super) enum Error {
    /// The configuration is at fault: only another one helps.
    Config(String),
    /// The module, or its manifest, could not be had.
    Fetch { stage: Stage, text: String, retryable: bool, after: Option<Duration> },
    /// What was fetched is not what the checksum says.
    Mismatch { url: String, actual: String, expected: String },
    /// What was fetched is no module.
    Invalid { url: String, why: Option<String> },
    /// The cache's disk is at fault.
    Storage(String),
}

/// Where a fetch failed; Istio counts them apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    Manifest,
    Download,
}

impl Error {
    /// A failure that may pass.
    pub(super) fn fetch(stage: Stage, text: String) -> Error {
        Error::Fetch { stage, text, retryable: true, after: None }
    }

    /// From a spool: too much, or a disk that does not take it.
    pub(super) fn from_spool(url: &str, error: spool::Error) -> Error {
        match error {
            spool::Error::TooLarge(_) => Error::Invalid { url: url.to_owned(), why: Some(error.to_string()) },
            spool::Error::Io(error) => Error::storage("module", &error),
        }
    }

    /// A disk that does not take it.
    pub(super) fn storage(what: &str, error: &io::Error) -> Error {
        let hint = match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => " (the disk is full)",
            io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied => {
                " (the folder must be writable: mount an emptyDir there)"
            }
            _ => "",
        };
        Error::Storage(format!("could not write Wasm {what}: {error}{hint}"))
    }

    /// Whether the same configuration may succeed later.
    pub(super) fn is_curable(&self) -> bool {
        !matches!(self, Error::Config(_))
    }

    /// Whether the cause passes by itself: another attempt soon makes sense.
    pub(super) fn is_retryable(&self) -> bool {
        matches!(self, Error::Fetch { retryable: true, .. })
    }

    /// How long the server asked to be left alone.
    pub(super) fn after(&self) -> Option<Duration> {
        match self {
            Error::Fetch { after, .. } => *after,
            _ => None,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Config(text) | Error::Fetch { text, .. } | Error::Storage(text) => f.write_str(text),
            Error::Mismatch { url, actual, expected } => {
                write!(f, "module downloaded from {url} has checksum {actual}, which does not match: {expected}")
            }
            Error::Invalid { url, why: None } => write!(f, "fetched Wasm binary from {url} is invalid"),
            Error::Invalid { url, why: Some(why) } => write!(f, "fetched Wasm binary from {url} is invalid: {why}"),
        }
    }
}

impl std::error::Error for Error {}
