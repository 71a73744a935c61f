//! The body of a scraped page, unpacked if the source compressed it although it was not asked to, in one piece or several.

use std::io::{self, Write};

use bytes::Bytes;
use flate2::write::MultiGzDecoder;

use crate::net::http1::{Body, Error, client::Response};

/// Compressed bytes that are unpacked at once: even at gzip's best rate, 1:1000, that is no more than 256 KiB.
const STEP: usize = 256;

/// A body in pieces of plain text.
pub struct Pieces {
    body: Body,
    gzip: Option<Gzip>,
}

struct Gzip {
    decoder: MultiGzDecoder<Vec<u8>>,
    /// Compressed bytes that are still to be unpacked.
    packed: Bytes,
    ended: bool,
}

impl Pieces {
    /// The pieces of an answer's body.
    pub fn new(response: Response) -> Pieces {
        let packed = response.headers.has_token("content-encoding", "gzip");
        let gzip = || Gzip { decoder: MultiGzDecoder::new(Vec::new()), packed: Bytes::new(), ended: false };
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

#[cfg(test)]
mod tests {
    use flate2::{Compression, write::GzEncoder};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::net::http1::client::Request;

    /// What comes of a body that is declared to be gzip.
    async fn unpacked(body: &[u8]) -> Result<Vec<u8>, Error> {
        let (near, mut far) = tokio::io::duplex(1 << 16);
        let head = format!("HTTP/1.1 200 X\r\nContent-Encoding: gzip\r\nContent-Length: {}\r\n\r\n", body.len());
        far.write_all(&[head.as_bytes(), body].concat()).await.unwrap();
        let request = Request::get("http://a/").unwrap();
        let mut pieces = Pieces::new(request.send_on(Box::new(near)).await.unwrap());
        let _ = far.read(&mut [0; 1024]).await.unwrap();
        let mut plain = Vec::new();
        while let Some(piece) = pieces.next().await? {
            plain.extend_from_slice(&piece);
        }
        Ok(plain)
    }

    #[tokio::test]
    async fn all_members_are_unpacked() {
        let gzip = |text: &str| {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
            encoder.write_all(text.as_bytes()).unwrap();
            encoder.finish().unwrap()
        };
        let body = [gzip("a 1\n"), gzip(&"b 2\n".repeat(1000))].concat();
        assert_eq!(unpacked(&body).await.unwrap(), format!("a 1\n{}", "b 2\n".repeat(1000)).into_bytes());
        assert!(unpacked(&body[..body.len() - 6]).await.is_err());
        assert!(unpacked(b"no gzip at all").await.is_err());
    }
}
