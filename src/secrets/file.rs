//! Certificates and roots in files: what is read, how it is judged. Knows nothing of when; [`files`](super::files) does.

use std::{
    fmt, fs,
    io::{self, Read},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::SystemTime,
};

use bytes::Bytes;
use nix::libc::O_NONBLOCK;
use zeroize::Zeroizing;

use super::{bundle, certificate, key};
use crate::wires::{self, PrivateKey, TrustBundle, Workload};

/// The largest file that is read: several times any bundle of an operating system.
const MAX_SIZE: u64 = 4 << 20;
/// How often a pair is read again at once when its halves do not match: a link was swapped between the two reads.
const ATTEMPTS: u32 = 3;

/// Files that make up one secret.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// A certificate chain and its key.
    Pair {
        /// The chain, leaf first.
        chain: PathBuf,
        /// The key of the leaf.
        key: PathBuf,
    },
    /// Trust roots.
    Roots(PathBuf),
}

/// What files held when they were read last.
#[derive(Debug, Clone)]
pub enum Content {
    /// A certificate whose key matches.
    Pair(Arc<Workload>),
    /// At least one root.
    Roots(Arc<TrustBundle>),
}

/// What is at a place where a file may be.
#[derive(Debug, Clone, Default)]
pub(crate) enum Found<T> {
    /// Nothing: another source is asked.
    #[default]
    Missing,
    /// Something that cannot be used, and never could.
    Broken(Arc<str>),
    /// The newest that could be used.
    Good(T),
}

/// Why files give no secret.
#[derive(Debug)]
pub enum FileError {
    /// It cannot be read.
    Unreadable(PathBuf, io::Error),
    /// There is nothing in it.
    Empty(PathBuf),
    /// It holds something else.
    Content(PathBuf, &'static str),
    /// It holds no usable key.
    Key(PathBuf, key::KeyError),
    /// Certificate and key are of different pairs.
    Mismatch(PathBuf, PathBuf),
}

impl Source {
    /// The files, in the order in which they are watched.
    pub(crate) fn paths(&self) -> Vec<&Path> {
        match self {
            Source::Pair { chain, key } => vec![chain, key],
            Source::Roots(path) => vec![path],
        }
    }

    /// Reads the files once; exactly the bytes that were judged are returned.
    ///
    /// # Errors
    /// When they cannot be used.
    pub(crate) fn read(&self, now: SystemTime) -> Result<Content, FileError> {
        match self {
            Source::Roots(path) => read_roots(path).map(|roots| Content::Roots(Arc::new(roots))),
            Source::Pair { chain, key } => {
                let mut pair = read_pair(chain, key, now);
                for _ in 1..ATTEMPTS {
                    if !matches!(pair, Err(FileError::Mismatch(..))) {
                        break;
                    }
                    pair = read_pair(chain, key, now);
                }
                pair.map(|pair| Content::Pair(Arc::new(pair)))
            }
        }
    }
}

impl Content {
    /// How many bytes it holds.
    pub(crate) fn size(&self) -> usize {
        match self {
            Content::Pair(pair) => pair.chain.len() + pair.key.pem().len(),
            Content::Roots(roots) => roots.pem.len(),
        }
    }

    /// Whether the same bytes would be served.
    pub(crate) fn equals(&self, other: &Content) -> bool {
        match (self, other) {
            (Content::Pair(a), Content::Pair(b)) => a.chain == b.chain && a.key == b.key,
            (Content::Roots(a), Content::Roots(b)) => a == b,
            _ => false,
        }
    }
}

impl<T> Found<T> {
    /// Whether this place decides, so that no other source is asked.
    pub(crate) fn applies(&self) -> bool {
        !matches!(self, Found::Missing)
    }

    pub(crate) fn error(&self) -> Option<Arc<str>> {
        match self {
            Found::Broken(error) => Some(Arc::clone(error)),
            Found::Missing | Found::Good(_) => None,
        }
    }
}

impl FileError {
    /// Whether there is nothing at all, so that another source may be asked.
    pub(crate) fn is_missing(&self) -> bool {
        matches!(self, FileError::Unreadable(..) | FileError::Empty(_))
    }
}

fn read_roots(path: &Path) -> Result<TrustBundle, FileError> {
    let pem = bundle::normalize(&read(path)?);
    if pem.is_empty() {
        return Err(FileError::Content(path.to_owned(), "no certificate in it"));
    }
    Ok(TrustBundle { pem })
}

fn read_pair(chain: &Path, key: &Path, now: SystemTime) -> Result<Workload, FileError> {
    let (text, secret) = (read(chain)?, read(key)?);
    let first = certificate::ders(&text).into_iter().next();
    let leaf = first.and_then(|der| certificate::parse(&der));
    let leaf = leaf.ok_or_else(|| FileError::Content(chain.to_owned(), "no certificate in it"))?;
    let public = key::public_key(&secret).map_err(|error| FileError::Key(key.to_owned(), error))?;
    if public.is_some_and(|public| public != leaf.public_key) {
        return Err(FileError::Mismatch(chain.to_owned(), key.to_owned()));
    }
    Ok(Workload {
        chain: Bytes::copy_from_slice(&text),
        key: PrivateKey::from_pem(secret),
        leaf: leaf.leaf,
        source: wires::Source::Files,
        obtained: now,
    })
}

fn read(path: &Path) -> Result<Zeroizing<Vec<u8>>, FileError> {
    let unreadable = |error| FileError::Unreadable(path.to_owned(), error);
    // A pipe without a writer would block the only thread, already when it is opened.
    let file = fs::OpenOptions::new().read(true).custom_flags(O_NONBLOCK).open(path).map_err(unreadable)?;
    let data = file.metadata().map_err(unreadable)?;
    if !data.is_file() {
        return Err(unreadable(io::Error::other("not a regular file")));
    }
    // One allocation, so that no copy of a key is left behind by growth.
    let size = usize::try_from(data.len().min(MAX_SIZE)).unwrap_or_default();
    let mut bytes = Zeroizing::new(Vec::with_capacity(size + 1));
    file.take(MAX_SIZE).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.is_empty() {
        return Err(FileError::Empty(path.to_owned()));
    }
    Ok(bytes)
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FileError::Unreadable(path, error) => write!(f, "{}: {error}", path.display()),
            FileError::Empty(path) => write!(f, "{}: the file is empty", path.display()),
            FileError::Content(path, what) => write!(f, "{}: {what}", path.display()),
            FileError::Key(path, error) => write!(f, "{}: {error}", path.display()),
            FileError::Mismatch(chain, key) => {
                write!(
                    f,
                    "{} and {} do not belong together: the key is not the certificate's",
                    chain.display(),
                    key.display()
                )
            }
        }
    }
}

impl std::error::Error for FileError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            FileError::Unreadable(_, error) => Some(error),
            FileError::Key(_, error) => Some(error),
            FileError::Empty(_) | FileError::Content(..) | FileError::Mismatch(..) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secrets::testing::{Authority, Scratch};

    #[test]
    fn a_pair_is_what_was_judged() {
        let (scratch, ca) = (Scratch::new(), Authority::new("a"));
        let (chain, key) = ca.issue_pem("spiffe://td/ns/n/sa/s");
        let source = scratch.pair(&chain, &key);
        let Content::Pair(pair) = source.read(SystemTime::now()).unwrap() else { panic!("no pair") };
        assert_eq!((&pair.chain[..], pair.key.pem()), (chain.as_bytes(), key.as_bytes()));
        assert_eq!(pair.leaf.names, ["spiffe://td/ns/n/sa/s"]);
        assert!(source.read(SystemTime::now()).unwrap().equals(&Content::Pair(pair)));
    }

    #[test]
    fn says_what_is_wrong_and_where() {
        let (scratch, ca) = (Scratch::new(), Authority::new("a"));
        let (chain, key) = ca.issue_pem("spiffe://td/ns/n/sa/s");
        let (_, other) = ca.issue_pem("spiffe://td/ns/n/sa/s");
        for (chain, key, missing, words) in [
            (chain.as_str(), other.as_str(), false, "do not belong together"),
            (&chain, "", true, "tls.key: the file is empty"),
            ("words", &key, false, "tls.crt: no certificate in it"),
            (&chain, &key[..key.len() - 60], false, "tls.key: no private key in it"),
        ] {
            let error = scratch.pair(chain, key).read(SystemTime::now()).unwrap_err();
            assert!(error.to_string().contains(words) && error.is_missing() == missing, "{error}");
        }
        let error = Source::Roots("/no/such/root.pem".into()).read(SystemTime::now()).unwrap_err();
        assert!(error.is_missing() && error.to_string().contains("/no/such/root.pem"), "{error}");
        let error = Source::Roots("/dev/null".into()).read(SystemTime::now()).unwrap_err();
        assert!(error.to_string().contains("not a regular file"), "{error}");
    }

    #[test]
    fn a_pipe_that_nobody_writes_to_blocks_nobody() {
        let scratch = Scratch::new();
        nix::unistd::mkfifo(&scratch.path("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let (source, (done, read)) = (Source::Roots(scratch.path("pipe")), std::sync::mpsc::channel());
        std::thread::spawn(move || done.send(source.read(SystemTime::now())));
        let error = read.recv_timeout(std::time::Duration::from_secs(60)).expect("in time").unwrap_err();
        assert!(error.to_string().contains("not a regular file"), "{error}");
    }
}
