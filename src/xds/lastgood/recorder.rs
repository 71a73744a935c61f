//! Writes recordings of what one stream carries, and has them [compacted](super::compact) as they grow.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Write},
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

use tokio::sync::oneshot;

use super::{
    ENDPOINTS, HEADER, KEPT, Store,
    compact::{Compacted, Scratch, compact, create, head},
};
use crate::xds::{Kind, types::short};

/// What has come while a recording was compacted: no more than this is copied between two messages.
const STEP: u64 = 64 * 1024;

/// How many responses of a type Envoy may leave unanswered before the oldest is forgotten.
const UNANSWERED: usize = 64;

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
    mid_response: bool,
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

impl Recorder {
    pub(super) fn new(store: Store, kind: Kind) -> Recorder {
        Recorder { store, kind, types: BTreeMap::new() }
    }

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
            recording.mid_response = true;
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
        recording.mid_response = false;
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
            true if recording.mid_response => recording.accepted.push(nonce.to_owned()),
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
            mid_response: false,
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

#[cfg(test)]
mod tests;
