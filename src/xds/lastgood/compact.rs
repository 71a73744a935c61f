//! A recording without what later responses have overtaken: of each resource the last version, and none that was removed. Reads and
//! writes files as large as the store allows, so it runs on a thread of its own; it holds a number for each name, and one resource.

use std::{
    collections::HashMap,
    fs::{self, File, OpenOptions},
    hash::{BuildHasher, RandomState},
    io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use prost::encoding::{decode_varint, encode_varint};

use super::{HEADER, history};
use crate::{proto::wire::message_field, xds::Kind};

/// The nonce of the one response that takes the place of all accepted ones; istiod's are longer.
const NONCE: &str = "compact";

/// Field of a response: its resources, the same number in both protocols.
const RESOURCES: u64 = 2;
/// Field of a delta response: names of resources that are gone.
const REMOVED: u64 = 6;

/// What has become of a recording.
pub(super) struct Compacted {
    pub(super) file: File,
    /// Its length.
    pub(super) written: u64,
    /// How much of the recording it stands for: the rest is still to be copied.
    pub(super) read: u64,
    pub(super) scratch: Scratch,
}

/// A file that goes away unless it gets another name.
pub(super) struct Scratch(pub(super) PathBuf);

impl Scratch {
    /// A name that no other compaction of this process has.
    pub(super) fn beside(path: &Path) -> Scratch {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        Scratch(path.with_extension(format!("compact-{}", NUMBER.fetch_add(1, Ordering::Relaxed))))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

impl Compacted {
    /// Copies what was added to the recording, up to `end`.
    pub(super) fn catch_up(&mut self, mut recording: File, end: u64) -> io::Result<()> {
        recording.seek(SeekFrom::Start(self.read))?;
        self.written += io::copy(&mut recording.take(end - self.read), &mut self.file)?;
        self.read = end;
        Ok(())
    }
}

/// A new, empty recording at `path`, in place of what is there.
pub(super) fn create(path: &Path) -> io::Result<File> {
    let _ = fs::remove_file(path);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(HEADER)?;
    Ok(file)
}

/// Writes what counts of the recording `from`, up to `end`, to a new file: what was accepted as one response, and those with the
/// nonces of which Envoy has said nothing yet, as they are.
pub(super) fn compact(
    from: File,
    end: u64,
    (kind, type_url): (Kind, &str),
    unanswered: &[String],
    scratch: Scratch,
) -> io::Result<Compacted> {
    let mut source = BufReader::new(from);
    let history = history(kind, &mut source.by_ref().take(end), &scratch.0)?;
    let mut live = Live { kind, hasher: RandomState::new(), places: HashMap::new() };
    for response in &history.accepted {
        live.read(&mut source, response.offset, response.length)?;
    }
    let mut places: Vec<_> = live.places.into_values().collect();
    places.sort_unstable();

    let mut last = Vec::new();
    for (key, text) in [(0x22, type_url), (0x2a, NONCE)] {
        last.push(key);
        encode_varint(text.len() as u64, &mut last);
        last.extend_from_slice(text.as_bytes());
    }
    let length = places.iter().map(|(_, length)| length).sum::<u64>() + last.len() as u64;
    let mut file = BufWriter::new(create(&scratch.0)?);
    file.write_all(&head(b'R', length))?;
    for place in places {
        copy(&mut source, place, &mut file)?;
    }
    file.write_all(&last)?;
    file.write_all(&[&head(b'A', NONCE.len() as u64)[..], NONCE.as_bytes()].concat())?;
    for (_, response) in history.unanswered.iter().filter(|(nonce, _)| unanswered.contains(nonce)) {
        file.write_all(&head(b'R', response.length))?;
        copy(&mut source, (response.offset, response.length), &mut file)?;
    }
    let mut file = file.into_inner()?;
    Ok(Compacted { written: file.stream_position()?, file, read: end, scratch })
}

/// The head of a record.
pub(super) fn head(mark: u8, length: u64) -> [u8; 9] {
    let mut head = [mark; 9];
    head[1..].copy_from_slice(&length.to_be_bytes());
    head
}

fn copy(source: &mut BufReader<File>, (offset, length): (u64, u64), to: &mut impl Write) -> io::Result<()> {
    source.seek(SeekFrom::Start(offset))?;
    io::copy(&mut source.take(length), to).map(drop)
}

/// Where the last version of each resource stands in a recording, key and length included.
struct Live {
    kind: Kind,
    hasher: RandomState,
    /// By the hash of its name: 64 bits with a secret, of which no two names are the same.
    places: HashMap<u64, (u64, u64)>,
}

impl Live {
    /// Takes in a response.
    fn read(&mut self, source: &mut BufReader<File>, offset: u64, length: u64) -> io::Result<()> {
        source.seek(SeekFrom::Start(offset))?;
        let mut response = source.take(length);
        let mut content = Vec::new();
        while response.limit() > 0 {
            let begin = offset + length - response.limit();
            let key = varint(&mut response)?;
            let size = match key & 7 {
                0 => varint(&mut response).map(|_| 0)?,
                1 => 8,
                2 => varint(&mut response)?,
                5 => 4,
                _ => return Err(io::ErrorKind::InvalidData.into()),
            };
            content.clear();
            response.by_ref().take(size).read_to_end(&mut content)?;
            let end = offset + length - response.limit();
            match key >> 3 {
                RESOURCES => {
                    let name = self.name(&content).unwrap_or_default();
                    self.places.insert(self.hasher.hash_one(name), (begin, end - begin));
                }
                REMOVED if self.kind == Kind::Delta => {
                    self.places.remove(&self.hasher.hash_one(&content));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// What a resource is called: in delta the envelope says it, and else this is about endpoints, whose first field it is.
    fn name(&self, resource: &[u8]) -> Option<Vec<u8>> {
        match self.kind {
            Kind::Delta => message_field(resource, 3).ok()?,
            Kind::Sotw => message_field(&message_field(resource, 2).ok()??, 1).ok()?,
        }
    }
}

fn varint(source: &mut impl Read) -> io::Result<u64> {
    let mut bytes = Vec::with_capacity(10);
    while bytes.len() < 10 && bytes.last().is_none_or(|last| last & 0x80 != 0) {
        let mut byte = [0];
        source.read_exact(&mut byte)?;
        bytes.push(byte[0]);
    }
    decode_varint(&mut &bytes[..]).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}
