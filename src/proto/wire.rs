//! Surgery on encoded protobuf messages: one field is taken out or put in, every other byte stays as it came.
//!
//! Called where a message is mostly somebody else's: the Wasm rewrite, ECDS responses. A message field that occurs several times
//! means the concatenation of its occurrences (protobuf encoding, "Last One Wins"), so reading joins them and replacing leaves one.

use bytes::BufMut;
use prost::{
    DecodeError,
    encoding::{DecodeContext, WireType, decode_key, decode_varint, encode_key, encode_varint, skip_field},
};

/// One field as it stands in the message.
#[derive(Debug, Clone, Copy)]
pub struct Field<'a> {
    /// Its number in the `.proto`.
    pub number: u32,
    /// Key and value.
    pub whole: &'a [u8],
    /// The value of a length-delimited field without its length; empty for other kinds.
    pub content: &'a [u8],
}

/// The top-level fields in order; ends after the first error.
pub fn fields(message: &[u8]) -> impl Iterator<Item = Result<Field<'_>, DecodeError>> {
    let mut rest = message;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let field = next_field(&mut rest);
        if field.is_err() {
            rest = &[];
        }
        Some(field)
    })
}

fn next_field<'a>(rest: &mut &'a [u8]) -> Result<Field<'a>, DecodeError> {
    let start = *rest;
    let (number, kind) = decode_key(rest)?;
    let mut content = &start[..0];
    if kind == WireType::LengthDelimited {
        let mut at = *rest;
        let length = usize::try_from(decode_varint(&mut at)?).unwrap_or(usize::MAX);
        content = at.get(..length).unwrap_or_default();
    }
    skip_field(kind, number, rest, DecodeContext::default())?;
    Ok(Field { number, whole: &start[..start.len() - rest.len()], content })
}

/// The contents of message field `number`, its occurrences joined; `None` when it does not occur.
pub fn message_field(message: &[u8], number: u32) -> Result<Option<Vec<u8>>, DecodeError> {
    let mut found: Option<Vec<u8>> = None;
    for field in fields(message) {
        let field = field?;
        if field.number == number {
            found.get_or_insert_default().extend_from_slice(field.content);
        }
    }
    Ok(found)
}

/// `message` with `value` as the only occurrence of length-delimited field `number`, where the first one was (or at the end);
/// with `None` the field is taken out.
pub fn replace(message: &[u8], number: u32, value: Option<&[u8]>) -> Result<Vec<u8>, DecodeError> {
    let mut out = Vec::with_capacity(message.len() + value.map_or(0, <[u8]>::len) + 10);
    let mut left = value;
    for field in fields(message) {
        let field = field?;
        if field.number != number {
            out.extend_from_slice(field.whole);
        } else if let Some(value) = left.take() {
            put(&mut out, number, value);
        }
    }
    if let Some(value) = left {
        put(&mut out, number, value);
    }
    Ok(out)
}

/// `message` with boolean field `number` true.
pub fn set_true(message: &[u8], number: u32) -> Result<Vec<u8>, DecodeError> {
    let mut out = replace(message, number, None)?;
    encode_key(number, WireType::Varint, &mut out);
    out.put_u8(1);
    Ok(out)
}

/// `message` without those occurrences of field `number` for which `keep` is false.
pub fn retain(message: &[u8], number: u32, keep: impl Fn(&[u8]) -> bool) -> Result<Vec<u8>, DecodeError> {
    let mut out = Vec::with_capacity(message.len());
    for field in fields(message) {
        let field = field?;
        if field.number != number || keep(field.content) {
            out.extend_from_slice(field.whole);
        }
    }
    Ok(out)
}

/// Appends length-delimited field `number`.
pub fn put(out: &mut Vec<u8>, number: u32, value: &[u8]) {
    encode_key(number, WireType::LengthDelimited, out);
    encode_varint(value.len() as u64, out);
    out.extend_from_slice(value);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 1: varint 5, 2: "a", 9: fixed32, 2: "b".
    const MESSAGE: &[u8] = b"\x08\x05\x12\x01a\x4d\x01\x02\x03\x04\x12\x01b";

    #[test]
    fn occurrences_are_joined() {
        assert_eq!(message_field(MESSAGE, 2).unwrap().unwrap(), b"ab");
        assert_eq!(message_field(MESSAGE, 3).unwrap(), None);
    }

    #[test]
    fn replaces_at_the_first_place_and_keeps_the_rest() {
        assert_eq!(replace(MESSAGE, 2, Some(b"xyz")).unwrap(), b"\x08\x05\x12\x03xyz\x4d\x01\x02\x03\x04");
        assert_eq!(replace(MESSAGE, 2, None).unwrap(), b"\x08\x05\x4d\x01\x02\x03\x04");
        assert_eq!(replace(b"\x08\x05", 2, Some(b"n")).unwrap(), b"\x08\x05\x12\x01n");
    }

    #[test]
    fn retains_by_content() {
        assert_eq!(retain(MESSAGE, 2, |content| content == b"b").unwrap(), b"\x08\x05\x4d\x01\x02\x03\x04\x12\x01b");
    }

    #[test]
    fn sets_a_flag_once() {
        assert_eq!(set_true(b"\x28\x00\x12\x01a", 5).unwrap(), b"\x12\x01a\x28\x01");
    }

    #[test]
    fn cut_messages_are_errors() {
        for cut in [&b"\x12\x05a"[..], b"\x12", b"\x4d\x01", b"\x08", b"\x00\x01"] {
            assert!(replace(cut, 9, None).is_err(), "{cut:?}");
        }
    }
}
