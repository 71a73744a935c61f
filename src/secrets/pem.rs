//! PEM text (RFC 7468) as certificates come in it: with words around, CRLF, missing final newlines, broken blocks.
//!
//! Pure. Reads leniently, as Go's `encoding/pem`, which istiod's operators test their files with: a broken block is skipped,
//! what is valid around it counts.

use base64::{Engine, alphabet, engine};
use zeroize::Zeroizing;

const BEGIN: &str = "-----BEGIN ";
const END: &str = "-----END ";
const DASHES: &str = "-----";
/// Bytes of base64 text in one line, as everybody writes it.
const LINE: usize = 64;

/// One block of a PEM text.
pub struct Block<'a> {
    /// What the block says it is: `CERTIFICATE`, `EC PRIVATE KEY`.
    pub label: &'a str,
    /// The block as it stands in the text, from the first dash to the last.
    pub text: &'a str,
    /// What it contains.
    pub der: Zeroizing<Vec<u8>>,
}

/// The blocks of a text in their order; broken ones are left out.
pub fn blocks(text: &[u8]) -> Vec<Block<'_>> {
    let mut blocks = Vec::new();
    let mut rest = text;
    while let Some(start) = find(rest, BEGIN) {
        let at_line_start = start == 0 || rest[start - 1] == b'\n';
        match block(&rest[start..]).filter(|_| at_line_start) {
            Some(block) => {
                rest = &rest[start + block.text.len()..];
                blocks.push(block);
            }
            None => rest = &rest[start + BEGIN.len()..],
        }
    }
    blocks
}

/// A block of this label: lines of 64 characters, a final newline.
pub fn encode(label: &str, der: &[u8]) -> Zeroizing<String> {
    let body = Zeroizing::new(STANDARD.encode(der));
    let mut text = Zeroizing::new(String::with_capacity(body.len() + body.len() / LINE + 2 * label.len() + 40));
    for piece in [BEGIN, label, DASHES, "\n"] {
        text.push_str(piece);
    }
    for line in body.as_bytes().chunks(LINE) {
        text.extend(line.iter().map(|byte| char::from(*byte)));
        text.push('\n');
    }
    for piece in [END, label, DASHES, "\n"] {
        text.push_str(piece);
    }
    text
}

/// The block at the beginning of `text`; `None` when it is broken.
fn block(text: &[u8]) -> Option<Block<'_>> {
    let label_end = find(&text[BEGIN.len()..], DASHES)? + BEGIN.len();
    let label = std::str::from_utf8(&text[BEGIN.len()..label_end]).ok().filter(|label| !label.contains('\n'))?;
    let body_start = label_end + DASHES.len();
    // No further than to the next block, so that a text of many beginnings is not searched to its end for each.
    let next = find(&text[BEGIN.len()..], BEGIN).map_or(text.len(), |next| next + BEGIN.len());
    let body_end = find(text.get(body_start..next)?, END)? + body_start;
    let tail = text[body_end + END.len()..].strip_prefix(label.as_bytes())?;
    tail.strip_prefix(DASHES.as_bytes())?;
    let end = body_end + END.len() + label.len() + DASHES.len();
    let body = std::str::from_utf8(&text[body_start..body_end]).ok()?;
    Some(Block { label, text: std::str::from_utf8(&text[..end]).ok()?, der: decode(body)? })
}

/// The bytes of a block's body; `Name: value` lines of RFC 1421 before an empty line are not part of them.
fn decode(body: &str) -> Option<Zeroizing<Vec<u8>>> {
    let data = match body.split_once("\n\n").or_else(|| body.split_once("\r\n\r\n")) {
        Some((headers, data)) if headers.contains(':') => data,
        _ => body,
    };
    let compact = Zeroizing::new(data.chars().filter(|c| !c.is_ascii_whitespace()).collect::<String>());
    let der = Zeroizing::new(STANDARD.decode(compact.as_bytes()).ok()?);
    (!der.is_empty()).then_some(der)
}

fn find(text: &[u8], what: &str) -> Option<usize> {
    text.windows(what.len()).position(|window| window == what.as_bytes())
}

/// Go's `base64.StdEncoding`: padding required, stray bits in the last character ignored.
const STANDARD: engine::GeneralPurpose = engine::GeneralPurpose::new(
    &alphabet::STANDARD,
    engine::GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true),
);

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(text: &str) -> Vec<(&str, Vec<u8>)> {
        blocks(text.as_bytes()).into_iter().map(|block| (block.label, block.der.to_vec())).collect()
    }

    #[test]
    fn reads_what_it_writes() {
        let long = vec![7u8; 100];
        let text = encode("CERTIFICATE", &long);
        assert!(text.lines().all(|line| line.len() <= 64) && text.ends_with("-----END CERTIFICATE-----\n"));
        assert_eq!(labels(&text), [("CERTIFICATE", long)]);
    }

    #[test]
    fn broken_blocks_are_skipped() {
        let good = "-----BEGIN A-----\nAQI=\n-----END A-----";
        for (text, count) in [
            (good.to_owned(), 1),
            (format!("subject=x\n{good}\nwords\n{good}\n"), 2),
            (good.replace('\n', "\r\n"), 1),
            (format!("-----BEGIN A-----\n!!\n-----END A-----\n{good}"), 1),
            (format!("-----BEGIN A-----\nAQI=\n-----END B-----\n{good}"), 1),
            (format!("-----BEGIN A-----\nAQI=\n{good}"), 1),
            (format!("x{good}"), 0),
            ("-----BEGIN A-----\n-----END A-----\n".to_owned(), 0),
            ("-----BEGIN A-----\nProc-Type: 4\nX: y\n\nAQI=\n-----END A-----".to_owned(), 1),
            ("-----BEGIN A-----\nX: y\n-----BEGIN B-----\n\nAQI=\n-----END A-----".to_owned(), 0),
            ("-----BEGIN A-----BEGIN A-----\nAQI=\n-----END A-----".to_owned(), 0),
            (format!("{good}{good}"), 2),
            ("-----BEGIN A-----\nAQI=\n-----END A".to_owned(), 0),
            ("-----BEGIN ".to_owned(), 0),
            (String::new(), 0),
        ] {
            assert_eq!(labels(&text), vec![("A", vec![1, 2]); count], "{text:?}");
        }
    }

    #[test]
    fn text_of_a_block_is_the_block_alone() {
        let text = "one\n-----BEGIN A-----\nAQI=\n-----END A-----\ntwo";
        assert_eq!(blocks(text.as_bytes())[0].text, "-----BEGIN A-----\nAQI=\n-----END A-----");
    }
}
