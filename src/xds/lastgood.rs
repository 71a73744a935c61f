//! The configuration that Envoy accepted last, kept on disk for a start without istiod (opt-in: `FOOTMAN_LAST_GOOD`).
//!
//! A file for each protocol and type: a header, then responses as they passed (`R`, length, bytes), each followed by `A` and its
//! length-prefixed nonce once Envoy has accepted it. It is written under another name and renamed at its first acceptance. In
//! state-of-the-world a response replaces the file, but for endpoints, of which istiod sends what has changed; in delta, and of these,
//! a file holds what one stream carried, compacted as it grows (`compact.rs`). Secrets are never written.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, BufReader, Read, Seek, SeekFrom, Write},
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use tokio::sync::oneshot;

use super::{
    Kind,
    peek::{Peek, Text},
    types::{self, short},
};

mod compact;
use compact::{Compacted, Scratch, compact, create, head};

/// The first line; another version is not read.
const HEADER: &[u8] = b"footman last good 1\n";

/// What has come while a recording was compacted: no more than this is copied between two messages.
const STEP: u64 = 64 * 1024;

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
    /// A type that needs more is not kept; a recording is compacted half way there, for which the disk needs half as much again.
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
    /// Bytes of a response come: no record may stand between them.
    within: bool,
    /// Responses that Envoy has not answered yet.
    unanswered: Vec<String>,
    /// Those that it has accepted meanwhile.
    accepted: Vec<String>,
    published: bool,
    /// From this size on it is compacted.
    compact_at: u64,
    /// The recording without what is overtaken, while it is made.
    compaction: Option<oneshot::Receiver<io::Result<Compacted>>>,
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

impl Recorder {
    /// A response of that type and length goes to Envoy; its bytes follow.
    pub fn begin(&mut self, type_url: &str, length: usize) {
        let Some(kept) = KEPT.iter().find(|kept| **kept == type_url) else { return };
        let grows = self.kind == Kind::Delta || *kept == ENDPOINTS;
        let fresh = self.types.get(kept).is_none_or(|recording| !grows && !recording.given_up);
        if fresh {
            let compact_at = if grows { self.store.max_bytes / 2 } else { u64::MAX };
            let begun = Recording::begin(&self.store.folder, &self.fresh_path(kept), compact_at);
            match begun {
                Ok(recording) => drop(self.types.insert(kept, recording)),
                Err(error) => {
                    log::warn!(target: "xdsproxy", "last good configuration: {}: {error}", self.store.folder.display());
                    return;
                }
            }
        }
        self.write(kept, &head(b'R', length as u64));
        if let Some(recording) = self.types.get_mut(kept) {
            recording.within = true;
        }
    }

    /// The next bytes of it.
    pub fn piece(&mut self, type_url: &str, bytes: &[u8]) {
        if let Some(kept) = KEPT.iter().find(|kept| **kept == type_url) {
            self.write(kept, bytes);
        }
    }

    /// It is complete.
    pub fn end(&mut self, type_url: &str, nonce: &str) {
        let Some(recording) = self.types.get_mut(type_url) else { return };
        recording.within = false;
        recording.unanswered.push(nonce.to_owned());
        if recording.unanswered.len() > UNANSWERED {
            recording.unanswered.remove(0);
        }
        let accepted = std::mem::take(&mut recording.accepted);
        if !accepted.is_empty() {
            self.write_accepted(type_url, &accepted);
        }
    }

    /// Envoy has accepted a response.
    pub fn accepted(&mut self, type_url: &str, nonce: &str) {
        let Some(recording) = self.types.get_mut(type_url) else { return };
        match recording.answered(nonce) {
            true if recording.within => recording.accepted.push(nonce.to_owned()),
            true => self.write_accepted(type_url, &[nonce.to_owned()]),
            false => {}
        }
    }

    fn write_accepted(&mut self, type_url: &str, nonces: &[String]) {
        let Some(kept) = KEPT.iter().find(|kept| **kept == type_url) else { return };
        for nonce in nonces {
            self.write(kept, &[&head(b'A', nonce.len() as u64)[..], nonce.as_bytes()].concat());
        }
        let (fresh, path) = (self.fresh_path(kept), self.store.path(self.kind, kept));
        if let Some(recording) = self.types.get_mut(kept).filter(|recording| !recording.given_up) {
            recording.published = recording.published || fs::rename(&fresh, &path).is_ok();
            if recording.written > recording.compact_at && recording.compaction.is_none() {
                recording.compact(if recording.published { &path } else { &fresh }, self.kind, kept);
            }
        }
    }

    /// Envoy has refused a response.
    pub fn refused(&mut self, type_url: &str, nonce: &str) {
        if let Some(recording) = self.types.get_mut(type_url) {
            recording.answered(nonce);
        }
    }

    fn write(&mut self, kept: &'static str, bytes: &[u8]) {
        let (fresh, path) = (self.fresh_path(kept), self.store.path(self.kind, kept));
        let Some(recording) = self.types.get_mut(kept).filter(|recording| !recording.given_up) else { return };
        let current = if recording.published { path } else { fresh };
        let written = recording.file.write_all(bytes);
        recording.written += bytes.len() as u64;
        recording.take_compacted(&current, self.store.max_bytes);
        // A compaction may be about to help, but a disk that is too slow for it must not be filled.
        let limit = self.store.max_bytes + recording.compaction.as_ref().map_or(0, |_| self.store.max_bytes / 2);
        let too_large = (recording.written > limit).then(|| format!("more than {} bytes", self.store.max_bytes));
        if let Some(why) = written.err().map(|error| error.to_string()).or(too_large) {
            log::warn!(target: "xdsproxy", "last good configuration: {} is not kept: {}: {why}", short(kept), current.display());
            recording.given_up = true;
            recording.compaction = None;
            // Half a history is none.
            let _ = fs::remove_file(current);
        }
    }

    fn fresh_path(&self, kept: &str) -> PathBuf {
        self.store.path(self.kind, kept).with_extension("new")
    }
}

impl Recording {
    fn begin(folder: &Path, path: &Path, compact_at: u64) -> io::Result<Recording> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        Ok(Recording {
            file: create(path)?,
            written: HEADER.len() as u64,
            within: false,
            unanswered: Vec::new(),
            accepted: Vec::new(),
            published: false,
            compact_at,
            compaction: None,
            given_up: false,
        })
    }

    /// Whether a response was unanswered; it is no more.
    fn answered(&mut self, nonce: &str) -> bool {
        let position = self.unanswered.iter().position(|sent| sent == nonce);
        position.map(|position| self.unanswered.remove(position)).is_some()
    }

    /// Begins to compact what there is.
    fn compact(&mut self, current: &Path, kind: Kind, type_url: &'static str) {
        let (from, end) = (File::open(current), self.written);
        let (unanswered, scratch) = (self.unanswered.clone(), Scratch::beside(current));
        self.compaction = Some(apart(move || compact(from?, end, (kind, type_url), &unanswered, scratch)));
    }

    /// Goes on with the compacted recording, in place of the `current` one, once it is there.
    fn take_compacted(&mut self, current: &Path, max_bytes: u64) {
        let Some(Ok(compacted)) = self.compaction.as_mut().map(oneshot::Receiver::try_recv) else { return };
        let behind = compacted.as_ref().map_or(0, |compacted| self.written - compacted.read);
        let (source, end) = (File::open(current), self.written);
        let caught_up = move || {
            let mut compacted = compacted?;
            compacted.catch_up(source?, end)?;
            Ok(compacted)
        };
        if behind > STEP {
            self.compaction = Some(apart(caught_up));
            return;
        }
        self.compaction = None;
        match caught_up().and_then(|compacted| fs::rename(&compacted.scratch.0, current).map(|()| compacted)) {
            Ok(Compacted { file, written, .. }) => {
                (self.file, self.written) = (file, written);
                // It has to grow by half of what may be added at least.
                self.compact_at = written.midpoint(max_bytes);
            }
            Err(error) => {
                log::warn!(target: "xdsproxy", "last good configuration: {} cannot be compacted: {error}", current.display());
                self.compact_at = u64::MAX;
            }
        }
    }
}

/// Does it on a thread that ends again. What nobody waits for any more is dropped, and its file with it.
fn apart<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> oneshot::Receiver<T> {
    let (done, result) = oneshot::channel();
    tokio::task::spawn_blocking(move || drop(done.send(work())));
    result
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
    use crate::proto::{
        envoy::service::discovery::v3::{DeltaDiscoveryResponse, DiscoveryResponse, Resource},
        google::protobuf::Any,
    };

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

    fn delta(nonce: &str, resources: &[(&str, u32)], removed: &str) -> Vec<u8> {
        let resource = |(name, version): &(&str, u32)| Resource {
            name: (*name).to_owned(),
            version: version.to_string(),
            resource: Some(Any { type_url: types::LDS.into(), value: vec![7; 100].into() }),
            ..Resource::default()
        };
        DeltaDiscoveryResponse {
            nonce: nonce.into(),
            type_url: types::LDS.into(),
            resources: resources.iter().map(resource).collect(),
            removed_resources: removed.split_terminator(' ').map(str::to_owned).collect(),
            ..Default::default()
        }
        .encode_to_vec()
    }

    /// Waits until the compaction that runs is done; the next write will take it.
    async fn compacted(recorder: &mut Recorder, type_url: &str) {
        let recording = recorder.types.get_mut(type_url).unwrap();
        let result = recording.compaction.take().unwrap().await.unwrap();
        let (done, compaction) = oneshot::channel();
        recording.compaction = Some(compaction);
        assert!(done.send(result).is_ok());
    }

    #[tokio::test]
    async fn a_recording_is_compacted_before_it_is_too_large() {
        let folder = Folder::new("compact", 10_000);
        let (mut recorder, mut compactions) = (folder.0.recorder(Kind::Delta), 0);
        pass(&mut recorder, types::LDS, "0", &delta("0", &[("stays", 1), ("goes", 1), ("changes", 0)], ""));
        recorder.accepted(types::LDS, "0");
        pass(&mut recorder, types::LDS, "unanswered", &delta("unanswered", &[("late", 1)], ""));
        pass(&mut recorder, types::LDS, "refused", &delta("refused", &[("stays", 666); 10], ""));
        recorder.refused(types::LDS, "refused");
        pass(&mut recorder, types::LDS, "1", &delta("1", &[], "goes unknown"));
        for version in 2..100 {
            let nonce = version.to_string();
            let response = delta(&nonce, &[("changes", version), (&nonce, 1)], &(version - 1).to_string());
            // Envoy answers while the next response is on its way; a compaction that it begins ends at any later time.
            let (one, two) = response.split_at(version as usize);
            recorder.begin(types::LDS, response.len());
            recorder.piece(types::LDS, one);
            recorder.accepted(types::LDS, &(version - 1).to_string());
            if version == 60 {
                recorder.accepted(types::LDS, "unanswered");
            }
            if version % 3 == 0 && recorder.types[types::LDS].compaction.is_some() {
                compacted(&mut recorder, types::LDS).await;
                compactions += 1;
            }
            recorder.piece(types::LDS, two);
            recorder.end(types::LDS, &nonce);
        }
        recorder.accepted(types::LDS, "99");
        let mut state = BTreeMap::new();
        for response in folder.all(Kind::Delta, types::LDS) {
            let response = DeltaDiscoveryResponse::decode(response).unwrap();
            assert_eq!(response.type_url, types::LDS);
            response.removed_resources.iter().for_each(|name| drop(state.remove(name)));
            state.extend(response.resources.into_iter().map(|resource| (resource.name, resource.version)));
        }
        let expected = [("99", "1"), ("changes", "99"), ("late", "1"), ("stays", "1")];
        assert!(state.iter().map(|(name, version)| (&name[..], &version[..])).eq(expected), "{state:?}");
        assert!(compactions > 3);
        let refused = fs::read(folder.0.path(Kind::Delta, types::LDS)).unwrap();
        assert!(!refused.windows(3).any(|three| three == b"666"), "it was kept");
        let files: Vec<_> = fs::read_dir(&folder.0.folder).unwrap().map(Result::unwrap).collect();
        assert!(files.iter().map(|file| file.metadata().unwrap().len()).sum::<u64>() < 10_000, "{files:?}");
    }

    #[tokio::test]
    async fn what_comes_during_a_compaction_is_copied_apart_and_an_end_leaves_nothing_behind() {
        let folder = Folder::new("compact-rest", 400_000);
        let mut recorder = folder.0.recorder(Kind::Delta);
        let accept = |recorder: &mut Recorder, nonce: &str, size: usize| {
            let response = [&delta(nonce, &[(nonce, 1)], "")[..], &[0x7a, 0xa0, 0x8d, 6], &vec![0; size]].concat();
            pass(recorder, types::LDS, nonce, &response);
            recorder.accepted(types::LDS, nonce);
        };
        accept(&mut recorder, "1", 100_000);
        accept(&mut recorder, "2", 100_000);
        let first = recorder.types.get_mut(types::LDS).unwrap().compaction.take().unwrap().await.unwrap();
        accept(&mut recorder, "3", 100_000);
        let (done, compaction) = oneshot::channel();
        assert!(done.send(first).is_ok());
        recorder.types.get_mut(types::LDS).unwrap().compaction = Some(compaction);
        // Too much for one step.
        recorder.piece(types::LDS, b"");
        compacted(&mut recorder, types::LDS).await;
        recorder.piece(types::LDS, b"");
        assert_eq!(folder.all(Kind::Delta, types::LDS).len(), 2, "the first two in one");
        assert!(recorder.types[types::LDS].compaction.is_none());

        accept(&mut recorder, "4", 100_000);
        accept(&mut recorder, "5", 100_000);
        compacted(&mut recorder, types::LDS).await;
        drop(recorder);
        let files: Vec<_> = fs::read_dir(&folder.0.folder).unwrap().map(|file| file.unwrap().file_name()).collect();
        assert_eq!(files, ["delta-Listener"]);
    }

    #[tokio::test]
    async fn endpoints_are_compacted_by_the_name_of_their_cluster() {
        let folder = Folder::new("compact-endpoints", 2000);
        let mut recorder = folder.0.recorder(Kind::Sotw);
        for number in 0..60_u8 {
            // A ClusterLoadAssignment: its name, and something.
            let value = [&[0x0a, 1, b'a' + number % 3, 0x7a, 50][..], &[number; 50]].concat();
            let any = Any { type_url: ENDPOINTS.into(), value: value.into() };
            let nonce = number.to_string();
            let response = DiscoveryResponse { nonce: nonce.clone(), resources: vec![any], ..Default::default() };
            pass(&mut recorder, ENDPOINTS, &nonce, &response.encode_to_vec());
            recorder.accepted(ENDPOINTS, &nonce);
            if recorder.types[ENDPOINTS].compaction.is_some() {
                compacted(&mut recorder, ENDPOINTS).await;
            }
        }
        let last = folder.all(Kind::Sotw, ENDPOINTS).into_iter().flat_map(|response| {
            DiscoveryResponse::decode(response).unwrap().resources.into_iter().map(|any| (any.value[2], any.value[5]))
        });
        assert_eq!(last.collect::<BTreeMap<_, _>>(), BTreeMap::from([(b'a', 57), (b'b', 58), (b'c', 59)]));
    }

    #[tokio::test]
    async fn what_cannot_be_compacted_is_kept_until_it_is_too_large() {
        let folder = Folder::new("uncompacted", 1000);
        let mut recorder = folder.0.recorder(Kind::Delta);
        // No protobuf message.
        pass(&mut recorder, types::LDS, "", &[0x0f; 500]);
        recorder.accepted(types::LDS, "");
        compacted(&mut recorder, types::LDS).await;
        pass(&mut recorder, types::LDS, "2", &delta("2", &[("some", 2)], ""));
        recorder.accepted(types::LDS, "2");
        assert_eq!(folder.all(Kind::Delta, types::LDS).len(), 2);
        pass(&mut recorder, types::LDS, "3", &delta("3", &[("more", 2), ("than", 2), ("can be", 2)], ""));
        assert!(fs::read_dir(&folder.0.folder).unwrap().next().is_none());
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
