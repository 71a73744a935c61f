//! The configuration that Envoy accepted last, kept on disk for a start without istiod (opt-in: `FOOTMAN_LAST_GOOD`).
//!
//! A file for each protocol and type: a header, then responses as they passed (`R`, length, bytes), each followed by `A` and its
//! length-prefixed nonce once Envoy has accepted it. It is written under another name and renamed at its first acceptance. In
//! state-of-the-world a response replaces the file, but for endpoints, of which istiod sends what has changed; in delta, and of these,
//! a file holds what one stream carried, compacted as it grows (`compact.rs`). Secrets are never written.

use std::{
    fs::{self, File},
    io::{self, BufReader, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use super::{
    Kind,
    peek::{Peek, Text},
    types::{self, short},
};

mod compact;
mod recorder;
pub use recorder::Recorder;

/// The first line; another version is not read.
const HEADER: &[u8] = b"footman last good 1\n";

/// How much of a response is read at a time.
const CHUNK: usize = 16 * 1024;

const ENDPOINTS: &str = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment";

/// What is kept: everything that Envoy needs to serve, and no secrets.
const KEPT: [&str; 6] = [
    "type.googleapis.com/envoy.config.cluster.v3.Cluster",
    ENDPOINTS,
    types::LDS,
    "type.googleapis.com/envoy.config.route.v3.RouteConfiguration",
    "type.googleapis.com/envoy.config.route.v3.ScopedRouteConfiguration",
    types::ECDS,
];

/// Where it is kept, and for how long it is good.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Store {
    /// The folder; made when missing, for its owner only.
    pub folder: PathBuf,
    /// What was accepted longer ago is not served.
    pub max_age: Duration,
    /// A type that needs more is not kept; a recording is compacted half way there, for which the disk needs half as much again.
    pub max_bytes: u64,
}

impl Store {
    /// A recorder for a new stream.
    pub fn recorder(&self, kind: Kind) -> Recorder {
        Recorder::new(self.clone(), kind)
    }

    /// How long ago something was accepted last; `None` when there is nothing, or all of it is too old.
    pub fn age(&self, kind: Kind) -> Option<Duration> {
        let accepted = KEPT.iter().filter_map(|type_url| fs::metadata(self.path(kind, type_url)).ok()?.modified().ok());
        let age = SystemTime::now().duration_since(accepted.max()?).unwrap_or_default();
        Some(age).filter(|age| *age <= self.max_age)
    }

    /// The accepted responses of a type, in order.
    ///
    /// # Errors
    /// When there are none, or the file is none of ours.
    pub fn accepted(&self, kind: Kind, type_url: &str) -> io::Result<Vec<Stored>> {
        let path = self.path(kind, type_url);
        history(kind, &mut BufReader::new(File::open(&path)?), &path).map(|history| history.accepted)
    }

    fn path(&self, kind: Kind, type_url: &str) -> PathBuf {
        self.folder.join(format!("{}-{}", kind.name(), short(type_url)))
    }
}

/// One response on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    path: PathBuf,
    offset: u64,
    /// Its length in bytes.
    pub length: u64,
}

/// What a recording tells.
struct History {
    /// In the order in which Envoy has accepted them.
    accepted: Vec<Stored>,
    /// With their nonces.
    unanswered: Vec<(String, Stored)>,
}

fn history(kind: Kind, file: &mut impl Read, path: &Path) -> io::Result<History> {
    let mut header = [0; HEADER.len()];
    file.read_exact(&mut header)?;
    if header != HEADER {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "not written by this version"));
    }
    let mut offset = HEADER.len() as u64;
    let (mut unanswered, mut accepted) = (Vec::new(), Vec::new());
    // A record that is not complete was being written when the agent ended.
    while let Ok((mark, length)) = record(file) {
        offset += 9;
        if mark == b'R' {
            let mut peek = Peek::response(kind, usize::try_from(length).unwrap_or_default());
            if walk(file, length, &mut peek).is_err() {
                break;
            }
            let nonce = peek.text(Text::Nonce).unwrap_or_default().to_owned();
            unanswered.push((nonce, Stored { path: path.to_owned(), offset, length }));
        } else {
            let mut nonce = vec![0; usize::try_from(length.min(1024)).unwrap_or_default()];
            if file.read_exact(&mut nonce).is_err() {
                break;
            }
            let position = unanswered.iter().position(|(of, _)| of.as_bytes() == nonce);
            accepted.extend(position.map(|position| unanswered.remove(position).1));
        }
        offset += length;
    }
    Ok(History { accepted, unanswered })
}

impl Stored {
    /// Its bytes, a chunk at a time.
    ///
    /// # Errors
    /// When the file cannot be read any more.
    pub fn chunks(&self) -> io::Result<impl Iterator<Item = io::Result<Vec<u8>>>> {
        let mut file = File::open(&self.path)?;
        file.seek(SeekFrom::Start(self.offset))?;
        let mut left = self.length;
        Ok(std::iter::from_fn(move || {
            let size = usize::try_from(left).unwrap_or(CHUNK).min(CHUNK);
            left -= size as u64;
            let mut chunk = vec![0; size];
            (size > 0).then(|| file.read_exact(&mut chunk).map(|()| chunk))
        }))
    }
}

fn record(file: &mut impl Read) -> io::Result<(u8, u64)> {
    let mut head = [0; 9];
    file.read_exact(&mut head)?;
    let [mark, length @ ..] = head;
    if mark == b'R' || mark == b'A' {
        Ok((mark, u64::from_be_bytes(length)))
    } else {
        Err(io::ErrorKind::InvalidData.into())
    }
}

fn walk(file: &mut impl Read, mut left: u64, peek: &mut Peek) -> io::Result<()> {
    let mut chunk = [0; 4096];
    while left > 0 {
        let size = usize::try_from(left).unwrap_or(chunk.len()).min(chunk.len());
        file.read_exact(&mut chunk[..size])?;
        peek.feed(&chunk[..size]);
        left -= size as u64;
    }
    Ok(())
}
