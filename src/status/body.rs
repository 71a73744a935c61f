//! The body of a scraped page, unpacked if the source compressed it although it was not asked to.

use std::io::{self, Write};

use bytes::Bytes;
use flate2::write::GzDecoder;

use crate::net::http1::{Body, Error, client::Response};

/// Compressed bytes that are unpacked at once: even at gzip's best rate, 1:1000, that is no more than 256 KiB.
const STEP: usize = 256;

/// A body in pieces of plain text.
pub struct Pieces {
    body: Body,
    gzip: Option<Gzip>,
}

struct Gzip {
    decoder: GzDecoder<Vec<u8>>,
    /// Compressed bytes that are still to be unpacked.
    packed: Bytes,
    ended: bool,
}

impl Pieces {
    /// The pieces of an answer's body.
    pub fn new(response: Response) -> Pieces {
        let packed = response.headers.has_token("content-encoding", "gzip");
        let gzip = || Gzip { decoder: GzDecoder::new(Vec::new()), packed: Bytes::new(), ended: false };
        Pieces { body: response.body, gzip: packed.then(gzip) }
    }

    /// The next piece; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        let Some(gzip) = &mut self.gzip else { return self.body.chunk().await };
        loop {
            if !gzip.packed.is_empty() {
                let step = gzip.packed.split_to(gzip.packed.len().min(STEP));
                gzip.decoder.write_all(&step).map_err(corrupt)?;
            } else if gzip.ended {
                return Ok(None);
            } else if let Some(piece) = self.body.chunk().await? {
                gzip.packed = piece;
            } else {
                gzip.ended = true;
                gzip.decoder.try_finish().map_err(corrupt)?;
            }
            let plain = std::mem::take(gzip.decoder.get_mut());
            if !plain.is_empty() {
                return Ok(Some(plain.into()));
            }
        }
    }
}

fn corrupt(_: io::Error) -> Error {
    Error::Malformed("gzip")
}
