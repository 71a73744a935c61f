//! Compression of answers: which coding the client wants, and gzip piece by piece.

use std::io::{self, Write};

use flate2::{Compression, write::GzEncoder};

use crate::net::http1::Headers;

/// Bodies below this many bytes go as they are: compressing them costs more than it saves.
pub(super) const SMALLEST: usize = 1024;

/// Level 1 to 9. Low: on metrics, level 6 takes three times the CPU for a tenth fewer bytes.
const LEVEL: u32 = 2;

/// What bodies pass through.
pub(super) struct Gzip(GzEncoder<Vec<u8>>);

impl Gzip {
    pub fn new() -> Gzip {
        Gzip(GzEncoder::new(Vec::new(), Compression::new(LEVEL)))
    }

    /// Compresses `piece`; gives what came out so far, often nothing.
    pub fn write(&mut self, piece: &[u8]) -> io::Result<Vec<u8>> {
        self.0.write_all(piece)?;
        Ok(std::mem::take(self.0.get_mut()))
    }

    /// The rest.
    pub fn finish(self) -> io::Result<Vec<u8>> {
        self.0.finish()
    }
}

/// Whether the client takes gzip (RFC 9110 §12.5.3). Codings that are not listed count as refused, `*` means nothing, as with
/// Istio's agent.
pub(super) fn accepts_gzip(headers: &Headers) -> bool {
    headers.all("accept-encoding").filter_map(|value| std::str::from_utf8(value).ok()).flat_map(|v| v.split(',')).any(
        |coding| {
            let mut parts = coding.split(';').map(str::trim);
            let gzip = parts.next().is_some_and(|name| name.eq_ignore_ascii_case("gzip"));
            let quality = parts.find_map(|part| part.strip_prefix("q=").or(part.strip_prefix("Q=")));
            gzip && quality.is_none_or(|q| q.trim().parse::<f32>().is_ok_and(|q| q > 0.0))
        },
    )
}

/// Whether compressing that content type is of use.
pub(super) fn is_compressible(content_type: &str) -> bool {
    !["audio/", "video/", "image/", "application/zip", "application/gzip", "application/zstd"]
        .iter()
        .any(|prefix| content_type.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quality_decides() {
        for (accept, wanted) in [
            ("gzip", true),
            ("GZIP; q=0.1", true),
            ("deflate, gzip;q=1.0, zstd;q=0.5", true),
            ("gzip, zstd", true),
            ("gzip;q=7", true),
            ("", false),
            ("identity", false),
            ("gzip;q=0", false),
            ("gzip;q=x", false),
            ("*", false),
            ("br, lz4", false),
            ("xgzip", false),
        ] {
            let mut headers = Headers::default();
            headers.add("Accept-Encoding", accept);
            assert_eq!(accepts_gzip(&headers), wanted, "{accept}");
        }
        assert!(!accepts_gzip(&Headers::default()));
    }
}
