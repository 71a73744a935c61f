//! Whether somebody else's SDS server (SPIRE) is at a socket already.

use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::{io::AsyncReadExt, io::AsyncWriteExt, net::UnixStream, time::timeout};

/// How long a server may take to begin HTTP/2, as in Istio.
const PROBE: Duration = Duration::from_secs(1);
/// HTTP/2 client preface (RFC 9113, 3.4) and an empty SETTINGS frame.
const HELLO: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
/// The type of a SETTINGS frame, in the fourth byte of its header.
const SETTINGS: u8 = 4;

/// A socket that is in the way and cannot be removed.
#[derive(Debug)]
pub struct ProbeError {
    path: PathBuf,
    error: io::Error,
}

/// Whether a gRPC server answers at `path`. A socket without one is removed: a killed agent left it.
///
/// # Errors
/// When such a socket cannot be removed.
pub async fn is_served(path: &Path) -> Result<bool, ProbeError> {
    // As in Istio, a regular file is no socket, and is replaced later.
    if fs::metadata(path).map_or(true, |data| data.is_file()) {
        return Ok(false);
    }
    if answers(path).await {
        return Ok(true);
    }
    match fs::remove_file(path).or_else(|error| fs::remove_dir(path).map_err(|_| error)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(ProbeError { path: path.to_owned(), error }),
        _ => Ok(false),
    }
}

/// Whether a gRPC server answers at `path`; removes nothing, for it may be about to come.
pub(super) async fn answers(path: &Path) -> bool {
    matches!(timeout(PROBE, greet(path)).await, Ok(Ok(())))
}

/// Begins HTTP/2 and waits for the server's SETTINGS.
async fn greet(path: &Path) -> io::Result<()> {
    let mut stream = UnixStream::connect(path).await?;
    stream.write_all(HELLO).await?;
    let mut header = [0; 9];
    stream.read_exact(&mut header).await?;
    if header[3] == SETTINGS { Ok(()) } else { Err(io::ErrorKind::InvalidData.into()) }
}

impl fmt::Display for ProbeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no SDS server answers at {}, and it cannot be removed: {}", self.path.display(), self.error)
    }
}

impl std::error::Error for ProbeError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}
