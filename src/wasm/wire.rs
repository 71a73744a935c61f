//! Surgery on encoded protobuf messages: one field is taken out or put in, every other byte stays as it came.
//!
//! Called by `resource` on messages that prost has already accepted. A message field that occurs several times means the
//! concatenation of its occurrences (protobuf encoding, "Last One Wins"), so reading joins them and replacing leaves one.

use bytes::{Buf, BufMut};
use prost::encoding::{WireType, decode_key, decode_varint, encode_key, encode_varint, skip_field};
use prost::{DecodeError, encoding::DecodeContext};

/// One field as it stands in the message.
struct Field<'a> {
    number: u32,
    /// Key and value.
    whole: &'a [u8],
    /// The value of a length-delimited field without its length; empty for other kinds.
    content: &'a [u8],
}

/// The contents of message field `number`, its occurrences joined; `None` when it does not occur.
pub(super) fn message_field(message: &[u8], number: u32) -> Result<Option<Vec<u8>>, DecodeError> {
    let mut found: Option<Vec<u8>> = None;
    each_field(message, |field| {
        if field.number == number {
            found.get_or_insert_default().extend_from_slice(field.content);
        }
    })?;
    Ok(found)
}

/// `message` with `value` as the only occurrence of length-delimited field `number`, where the first one was (or at the end);
/// with `None` the field is taken out.
pub(super) fn replace(message: &[u8], number: u32, value: Option<&[u8]>) -> Result<Vec<u8>, DecodeError> {
    let mut out = Vec::with_capacity(message.len() + value.map_or(0, <[u8]>::len) + 10);
    let mut left = value;
    each_field(message, |field| {
        if field.number != number {
            out.extend_from_slice(field.whole);
        } else if let Some(value) = left.take() {
            put(&mut out, number, value);
        }
    })?;
    if let Some(value) = left {
        put(&mut out, number, value);
    }
    Ok(out)
}

/// `message` with boolean field `number` true.
pub(super) fn set_true(message: &[u8], number: u32) -> Result<Vec<u8>, DecodeError> {
    let mut out = replace(message, number, None)?;
    encode_key(number, WireType::Varint, &mut out);
    out.put_u8(1);
    Ok(out)
}

/// `message` without those occurrences of field `number` for which `keep` is false.
pub(super) fn retain(message: &[u8], number: u32, keep: impl Fn(&[u8]) -> bool) -> Result<Vec<u8>, DecodeError> {
    let mut out = Vec::with_capacity(message.len());
    each_field(message, |field| {
        if field.number != number || keep(field.content) {
            out.extend_from_slice(field.whole);
        }
    })?;
    Ok(out)
}

/// Appends length-delimited field `number`.
pub(super) fn put(out: &mut Vec<u8>, number: u32, value: &[u8]) {
    encode_key(number, WireType::LengthDelimited, out);
    encode_varint(value.len() as u64, out);
    out.extend_from_slice(value);
}

fn each_field<'a>(message: &'a [u8], mut visit: impl FnMut(Field<'a>)) -> Result<(), DecodeError> {
    let mut rest = message;
    while rest.has_remaining() {
        let start = rest;
        let (number, kind) = decode_key(&mut rest)?;
        let mut content = &start[..0];
        if kind == WireType::LengthDelimited {
            let mut at = rest;
            let length = usize::try_from(decode_varint(&mut at)?).unwrap_or(usize::MAX);
            content = at.get(..length).unwrap_or_default();
        }
        skip_field(kind, number, &mut rest, DecodeContext::default())?;
        visit(Field { number, whole: &start[..start.len() - rest.len()], content });
    }
    Ok(())
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
