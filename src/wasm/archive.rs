//! Modules in boxes: gzip and tar around a module, and `plugin.wasm` in an image's layer.
//!
//! Reads files that are complete and writes new ones, in small steps; names in an archive are compared and never become paths. Every
//! output is bounded, so that neither a bomb nor a header that claims terabytes costs more than the limit.

use std::{
    fmt,
    fs::File,
    io::{self, BufReader, Read, Seek, SeekFrom},
    path::Path,
};

use flate2::read::MultiGzDecoder;
use tar::{EntryType, Header, PaxExtensions};

use super::spool::{self, Pace, Spool, Spooled};

/// How many boxes may be around a module: a tar.gz, gzipped once more on its way.
const MAX_DEPTH: usize = 3;
/// Longest name in an archive; Linux takes no longer path.
const MAX_NAME: u64 = 4096;
/// The module's name in an image (Istio's convention).
const PLUGIN: &[u8] = b"plugin.wasm";
const BLOCK: usize = 512;
const BUFFER: usize = 16 * 1024;

/// Why no module came out.
#[derive(Debug)]
pub(super) enum Error {
    /// A layer that is no gzip-compressed tar.
    NotTarGz(String),
    /// A layer without it.
    NoPlugin,
    /// The output is too large, or cannot be written.
    Spool(spool::Error),
}

/// Removes gzip and tar from around a module; a tar gives its first file. What cannot be unpacked comes back as it is.
pub(super) async fn unbox(mut boxed: Spooled, folder: &Path, limit: u64) -> Result<Spooled, spool::Error> {
    for _ in 0..MAX_DEPTH {
        let mut start = [0; BLOCK];
        let length = read_full(&mut boxed.file, &mut start)?;
        boxed.file.seek(SeekFrom::Start(0))?;
        let start = &start[..length];
        let mut source = BufReader::new(boxed.file.try_clone()?);
        let unpacked = if start.starts_with(b"\0asm") {
            break;
        } else if length > 2 && start.starts_with(&[0x1f, 0x8b]) {
            copy(&mut MultiGzDecoder::new(source), Spool::create(folder, limit)?).await
        } else if length > 262 && &start[257..262] == b"ustar" {
            extract(&mut source, &|_| true, Spool::create(folder, limit)?).await
        } else {
            break;
        };
        match unpacked {
            Ok(inner) => boxed = inner,
            Err(Error::Spool(error)) => return Err(error),
            // Not what it seemed to be: its own bytes are judged.
            Err(_) => break,
        }
    }
    boxed.file.seek(SeekFrom::Start(0))?;
    Ok(boxed)
}

/// Takes the first file named `plugin.wasm`, in whatever directory, out of a layer that is a tar.gz.
pub(super) async fn plugin(layer: Spooled, folder: &Path, limit: u64) -> Result<Spooled, Error> {
    let mut stream = MultiGzDecoder::new(BufReader::new(layer.file)).take(limit.saturating_add(1));
    let base_name = |name: &[u8]| name.rsplit(|byte| *byte == b'/').next() == Some(PLUGIN);
    let out = Spool::create(folder, limit).map_err(Error::Spool)?;
    match extract(&mut stream, &base_name, out).await {
        Err(Error::NotTarGz(_)) if stream.limit() == 0 => Err(Error::Spool(spool::Error::TooLarge(limit))),
        extracted => extracted,
    }
}

/// Copies all of `source`.
async fn copy(source: &mut (dyn Read + Send), mut out: Spool) -> Result<Spooled, Error> {
    let mut buffer = vec![0; BUFFER];
    loop {
        match source.read(&mut buffer) {
            Ok(0) => return out.finish().map_err(Error::Spool),
            Ok(length) => out.write(&buffer[..length]).await.map_err(Error::Spool)?,
            Err(error) => return Err(broken(&error)),
        }
    }
}

/// Copies the first regular file whose name is `wanted` out of a tar.
async fn extract(
    tar: &mut (dyn Read + Send),
    wanted: &(dyn Fn(&[u8]) -> bool + Sync),
    out: Spool,
) -> Result<Spooled, Error> {
    let (mut buffer, mut pace) = (vec![0; BUFFER], Pace::default());
    let mut long_name = None;
    while let Some(header) = next_header(tar)? {
        let kind = header.entry_type();
        let size = header.entry_size().map_err(|error| broken(&error))?;
        let padding = size.next_multiple_of(BLOCK as u64) - size;
        let mut content = (&mut *tar).take(size);
        let mut name = None;
        match kind {
            EntryType::GNULongName | EntryType::XHeader if size > MAX_NAME => {
                return Err(Error::NotTarGz("a name in the archive is too long".to_owned()));
            }
            EntryType::GNULongName => name = Some(read_all(&mut content)?),
            EntryType::XHeader => name = pax_path(&read_all(&mut content)?).or(long_name.take()),
            EntryType::Regular | EntryType::Continuous
                if wanted(long_name.as_deref().unwrap_or(&header.path_bytes()).trim_ascii_end()) =>
            {
                return take(&mut content, size, &mut buffer, out).await;
            }
            _ => {}
        }
        // Names of this entry stand before it.
        long_name = name.map(|mut name| {
            name.retain(|byte| *byte != 0);
            name
        });
        let mut skipped = content.limit() + padding;
        while skipped > 0 {
            let step = usize::try_from(skipped).unwrap_or(BUFFER).min(BUFFER);
            tar.read_exact(&mut buffer[..step]).map_err(|error| broken(&error))?;
            skipped -= step as u64;
            pace.spend(step).await;
        }
    }
    Err(Error::NoPlugin)
}

async fn take(content: &mut (dyn Read + Send), size: u64, buffer: &mut [u8], mut out: Spool) -> Result<Spooled, Error> {
    let mut left = size;
    while left > 0 {
        let length = content.read(buffer).map_err(|error| broken(&error))?;
        if length == 0 {
            return Err(broken(&io::ErrorKind::UnexpectedEof.into()));
        }
        left -= length as u64;
        out.write(&buffer[..length]).await.map_err(Error::Spool)?;
    }
    out.finish().map_err(Error::Spool)
}

/// The next header, checked; `None` at the archive's end.
fn next_header(tar: &mut dyn Read) -> Result<Option<Header>, Error> {
    let mut block = [0; BLOCK];
    match read_full(tar, &mut block).map_err(|error| broken(&error))? {
        0 => return Ok(None),
        BLOCK => {}
        _ => return Err(broken(&io::ErrorKind::UnexpectedEof.into())),
    }
    if block.iter().all(|byte| *byte == 0) {
        return Ok(None);
    }
    let header = Header::from_byte_slice(&block).clone();
    // The checksum's own field (148–155) counts as blanks.
    let sum: u32 = block[..148].iter().chain(&block[156..]).map(|byte| u32::from(*byte)).sum::<u32>() + 8 * 32;
    match header.cksum() {
        Ok(expected) if expected == sum => Ok(Some(header)),
        _ => Err(Error::NotTarGz("archive/tar: invalid tar header".to_owned())),
    }
}

fn pax_path(records: &[u8]) -> Option<Vec<u8>> {
    PaxExtensions::new(records)
        .flatten()
        .find(|record| record.key_bytes() == b"path")
        .map(|record| record.value_bytes().to_vec())
}

fn read_all(content: &mut dyn Read) -> Result<Vec<u8>, Error> {
    let mut all = Vec::new();
    content.read_to_end(&mut all).map_err(|error| broken(&error))?;
    Ok(all)
}

/// Reads until `buffer` is full or the source ends.
fn read_full(source: &mut dyn Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut length = 0;
    while length < buffer.len() {
        match source.read(&mut buffer[length..])? {
            0 => break,
            read => length += read,
        }
    }
    Ok(length)
}

fn broken(error: &io::Error) -> Error {
    Error::NotTarGz(error.to_string())
}

/// Walks all of an archive in memory, looking for what is not there. It never waits, so one poll is enough.
pub(super) fn fuzz_tar(data: &[u8]) {
    use std::{future::Future, pin::pin, task};
    let folder = std::env::temp_dir();
    let Ok(out) = Spool::create(&folder, data.len() as u64) else { return };
    let mut rest = data;
    let walk = pin!(extract(&mut rest, &|name| name == b"never", out));
    drop(walk.poll(&mut task::Context::from_waker(task::Waker::noop())));
}

/// Whether the file begins as a module does: magic and version, 8 bytes.
pub(super) fn is_module(file: &mut File) -> io::Result<bool> {
    let mut start = [0; 8];
    file.seek(SeekFrom::Start(0))?;
    let length = read_full(file, &mut start)?;
    file.seek(SeekFrom::Start(0))?;
    Ok(length == 8 && start.starts_with(b"\0asm"))
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NotTarGz(why) => write!(f, "failed to parse layer as tar.gz: {why}"),
            Error::NoPlugin => f.write_str("plugin.wasm not found in the archive"),
            Error::Spool(error) => error.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests;
