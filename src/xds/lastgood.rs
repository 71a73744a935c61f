//! The configuration that Envoy accepted last, kept on disk for a start without istiod (opt-in: `FOOTMAN_LAST_GOOD`).
//!
//! A file for each protocol and type: a header, then responses as they passed (`R`, length, bytes), each followed by `A` and its
//! length-prefixed nonce once Envoy has accepted it. It is written under another name and renamed at its first acceptance. In
//! state-of-the-world a response replaces the file, but for endpoints, of which istiod sends what has changed; in delta, and of these,
//! a file holds what one stream carried. Secrets are never written.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io::{self, BufReader, Read, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use super::{
    Kind,
    peek::{Peek, Text},
    types::{self, short},
};

/// The first line; another version is not read.
const HEADER: &[u8] = b"footman last good 1\n";

/// How much of a response is read at a time.
const CHUNK: usize = 16 * 1024;

/// How many responses of a type Envoy may leave unanswered before the oldest is forgotten.
const UNANSWERED: usize = 64;

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
    /// A type that needs more is not kept.
    pub max_bytes: u64,
}

/// Writes what one stream carries.
pub struct Recorder {
    store: Store,
    kind: Kind,
    types: BTreeMap<&'static str, Recording>,
}

struct Recording {
    file: File,
    written: u64,
    /// Responses that Envoy has not answered yet.
    unanswered: Vec<String>,
    published: bool,
    /// Too large, or the disk refused: nothing more of this type on this stream.
    given_up: bool,
}

impl Store {
    /// A recorder for a new stream.
    pub fn recorder(&self, kind: Kind) -> Recorder {
        Recorder { store: self.clone(), kind, types: BTreeMap::new() }
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
        let mut file = BufReader::new(File::open(&path)?);
        let mut header = [0; HEADER.len()];
        file.read_exact(&mut header)?;
        if header != HEADER {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not written by this version"));
        }
        let mut offset = HEADER.len() as u64;
        let (mut responses, mut accepted) = (Vec::new(), Vec::new());
        // A record that is not complete was being written when the agent ended.
        while let Ok((mark, length)) = record(&mut file) {
            offset += 9;
            if mark == b'R' {
                let mut peek = Peek::response(kind, usize::try_from(length).unwrap_or_default());
                if walk(&mut file, length, &mut peek).is_err() {
                    break;
                }
                let nonce = peek.text(Text::Nonce).unwrap_or_default().to_owned();
                responses.push((nonce, Stored { path: path.clone(), offset, length }));
            } else {
                let mut nonce = vec![0; usize::try_from(length.min(1024)).unwrap_or_default()];
                if file.read_exact(&mut nonce).is_err() {
                    break;
                }
                let position = responses.iter().position(|(of, _)| of.as_bytes() == nonce);
                accepted.extend(position.map(|position| responses.swap_remove(position).1));
            }
            offset += length;
        }
        Ok(accepted)
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

impl Stored {
    /// Its bytes, a chunk at a time.
    ///
    /// # Errors
    /// When the file cannot be read any more.
    pub fn chunks(&self) -> io::Result<impl Iterator<Item = io::Result<Vec<u8>>>> {
        use std::io::{Seek, SeekFrom};
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

impl Recorder {
    /// A response of that type and length goes to Envoy; its bytes follow.
    pub fn begin(&mut self, type_url: &str, length: usize) {
        let Some(kept) = KEPT.iter().find(|kept| **kept == type_url) else { return };
        let fresh = match self.types.get(kept) {
            None => true,
            Some(recording) => self.kind == Kind::Sotw && *kept != ENDPOINTS && !recording.given_up,
        };
        if fresh {
            let begun = Recording::begin(&self.store.folder, &self.fresh_path(kept));
            match begun {
                Ok(recording) => drop(self.types.insert(kept, recording)),
                Err(error) => {
                    log::warn!(target: "xdsproxy", "last good configuration: {}: {error}", self.store.folder.display());
                    return;
                }
            }
        }
        self.write(kept, &[&b"R"[..], &(length as u64).to_be_bytes()].concat());
    }

    /// The next bytes of it.
    pub fn piece(&mut self, type_url: &str, bytes: &[u8]) {
        if let Some(kept) = KEPT.iter().find(|kept| **kept == type_url) {
            self.write(kept, bytes);
        }
    }

    /// It is complete.
    pub fn end(&mut self, type_url: &str, nonce: &str) {
        if let Some(recording) = self.types.get_mut(type_url) {
            recording.unanswered.push(nonce.to_owned());
            if recording.unanswered.len() > UNANSWERED {
                recording.unanswered.remove(0);
            }
        }
    }

    /// Envoy has accepted a response.
    pub fn accepted(&mut self, type_url: &str, nonce: &str) {
        let Some(kept) = KEPT.iter().find(|kept| **kept == type_url) else { return };
        let Some(recording) = self.types.get_mut(kept) else { return };
        let Some(position) = recording.unanswered.iter().position(|sent| sent == nonce) else { return };
        recording.unanswered.remove(position);
        self.write(kept, &[&b"A"[..], &(nonce.len() as u64).to_be_bytes(), nonce.as_bytes()].concat());
        let (fresh, path) = (self.fresh_path(kept), self.store.path(self.kind, kept));
        if let Some(recording) = self.types.get_mut(kept)
            && !recording.published
            && !recording.given_up
        {
            recording.published = fs::rename(fresh, path).is_ok();
        }
    }

    fn write(&mut self, kept: &'static str, bytes: &[u8]) {
        let fresh = self.fresh_path(kept);
        let path = self.store.path(self.kind, kept);
        let Some(recording) = self.types.get_mut(kept).filter(|recording| !recording.given_up) else { return };
        recording.written += bytes.len() as u64;
        if recording.written > self.store.max_bytes || recording.file.write_all(bytes).is_err() {
            log::warn!(target: "xdsproxy", "last good configuration: {} is too large or cannot be written; not kept", short(kept));
            recording.given_up = true;
            // Half a history is none.
            let _ = fs::remove_file(if recording.published { path } else { fresh });
        }
    }

    fn fresh_path(&self, kept: &str) -> PathBuf {
        self.store.path(self.kind, kept).with_extension("new")
    }
}

impl Recording {
    fn begin(folder: &Path, path: &Path) -> io::Result<Recording> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        let _ = fs::remove_file(path);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        file.write_all(HEADER)?;
        Ok(Recording { file, written: HEADER.len() as u64, unanswered: Vec::new(), published: false, given_up: false })
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

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use prost::Message;

    use super::*;
    use crate::proto::envoy::service::discovery::v3::{DeltaDiscoveryResponse, DiscoveryResponse};

    struct Folder(Store);

    impl Folder {
        fn new(name: &str, max_bytes: u64) -> Folder {
            let folder = std::env::temp_dir().join(format!("footman-lastgood-{}-{name}", std::process::id()));
            let _ = fs::remove_dir_all(&folder);
            Folder(Store { folder, max_age: Duration::from_secs(60), max_bytes })
        }

        fn all(&self, kind: Kind, type_url: &str) -> Vec<Bytes> {
            let stored = self.0.accepted(kind, type_url).unwrap_or_default();
            stored.iter().map(|stored| stored.chunks().unwrap().flat_map(Result::unwrap).collect()).collect()
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0.folder);
        }
    }

    fn pass(recorder: &mut Recorder, type_url: &str, nonce: &str, response: &[u8]) {
        recorder.begin(type_url, response.len());
        response.chunks(7).for_each(|piece| recorder.piece(type_url, piece));
        recorder.end(type_url, nonce);
    }

    fn sotw(nonce: &str) -> Vec<u8> {
        DiscoveryResponse { nonce: nonce.into(), version_info: "v".repeat(50), ..Default::default() }.encode_to_vec()
    }

    #[test]
    fn only_what_was_accepted_is_kept() {
        let folder = Folder::new("sotw", 1000);
        let mut recorder = folder.0.recorder(Kind::Sotw);
        pass(&mut recorder, types::LDS, "1", &sotw("1"));
        assert_eq!(folder.0.age(Kind::Sotw), None);
        recorder.accepted(types::LDS, "1");
        pass(&mut recorder, types::LDS, "2", &sotw("2"));
        recorder.accepted(types::LDS, "stale");
        assert_eq!(folder.all(Kind::Sotw, types::LDS), [sotw("1")]);
        recorder.accepted(types::LDS, "2");
        assert_eq!(folder.all(Kind::Sotw, types::LDS), [sotw("2")]);
        assert!(folder.0.age(Kind::Sotw).is_some());
        assert_eq!(folder.0.age(Kind::Delta), None);
    }

    #[test]
    fn endpoints_add_up() {
        let folder = Folder::new("endpoints", 1000);
        let mut recorder = folder.0.recorder(Kind::Sotw);
        for nonce in ["1", "2"] {
            pass(&mut recorder, ENDPOINTS, nonce, &sotw(nonce));
            recorder.accepted(ENDPOINTS, nonce);
        }
        assert_eq!(folder.all(Kind::Sotw, ENDPOINTS), [sotw("1"), sotw("2")]);
    }

    #[test]
    fn delta_keeps_what_one_stream_carried() {
        let folder = Folder::new("delta", 1000);
        let response =
            |nonce: &str| DeltaDiscoveryResponse { nonce: nonce.into(), ..Default::default() }.encode_to_vec();
        let mut recorder = folder.0.recorder(Kind::Delta);
        for nonce in ["1", "2", "3"] {
            pass(&mut recorder, types::LDS, nonce, &response(nonce));
            if nonce != "2" {
                recorder.accepted(types::LDS, nonce);
            }
        }
        assert_eq!(folder.all(Kind::Delta, types::LDS), [response("1"), response("3")]);
        let mut recorder = folder.0.recorder(Kind::Delta);
        pass(&mut recorder, types::LDS, "4", &response("4"));
        assert_eq!(folder.all(Kind::Delta, types::LDS).len(), 2);
        recorder.accepted(types::LDS, "4");
        assert_eq!(folder.all(Kind::Delta, types::LDS), [response("4")]);
    }

    #[test]
    fn secrets_and_what_is_too_large_are_not_kept() {
        let folder = Folder::new("large", 100);
        let mut recorder = folder.0.recorder(Kind::Sotw);
        let secret = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret";
        pass(&mut recorder, secret, "1", &sotw("1"));
        recorder.accepted(secret, "1");
        pass(&mut recorder, types::LDS, "2", &[sotw("2"), vec![0x40; 100]].concat());
        recorder.accepted(types::LDS, "2");
        assert!(fs::read_dir(&folder.0.folder).unwrap().next().is_none());
    }

    #[test]
    fn file_of_another_version_is_not_read() {
        let folder = Folder::new("version", 100);
        fs::create_dir_all(&folder.0.folder).unwrap();
        fs::write(folder.0.path(Kind::Sotw, types::LDS), "footman last good 9\nR").unwrap();
        assert_eq!(folder.0.accepted(Kind::Sotw, types::LDS).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
