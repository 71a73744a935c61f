//! Reads the few fields that the agent needs from a message that only passes through, piece by piece, without decoding it. Pure.
//!
//! A [`Peek`] walks the tags of the message and of the few messages inside that are listed in its table; everything else is
//! skipped by its length. It holds no more than the texts it looks for, each cut at [`LONGEST`].

use super::Kind;

/// Longer texts are cut: versions, nonces, ids and type URLs are some hundred bytes at most, error messages may be longer.
const LONGEST: usize = 1024;

/// A text that is looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Text {
    /// `version_info` or `system_version_info`.
    Version,
    /// `type_url` of the message itself.
    TypeUrl,
    /// `nonce` or `response_nonce`.
    Nonce,
    /// `error_detail.message`; there, perhaps empty, for every NACK.
    Error,
    /// `node.id`.
    NodeId,
    /// `node.user_agent_name`.
    UserAgent,
    /// `type_url` of the first resource that has one.
    ResourceType,
}

const TEXTS: usize = 7;

/// What to do at a length-delimited field.
enum Take {
    Text(Text),
    /// Look into the message, unless the text is known already.
    Into(Text, &'static Table),
}

type Table = [(u32, Take)];

static NODE: &Table = &[(1, Take::Text(Text::NodeId)), (6, Take::Text(Text::UserAgent))];
static ERROR: &Table = &[(2, Take::Text(Text::Error))];
static ANY: &Table = &[(1, Take::Text(Text::ResourceType))];
static RESOURCE: &Table = &[(2, Take::Into(Text::ResourceType, ANY))];
static SOTW_REQUEST: &Table = &[
    (1, Take::Text(Text::Version)),
    (2, Take::Into(Text::NodeId, NODE)),
    (4, Take::Text(Text::TypeUrl)),
    (5, Take::Text(Text::Nonce)),
    (6, Take::Into(Text::Error, ERROR)),
];
static DELTA_REQUEST: &Table = &[
    (1, Take::Into(Text::NodeId, NODE)),
    (2, Take::Text(Text::TypeUrl)),
    (6, Take::Text(Text::Nonce)),
    (7, Take::Into(Text::Error, ERROR)),
];
static SOTW_RESPONSE: &Table = &[
    (1, Take::Text(Text::Version)),
    (2, Take::Into(Text::ResourceType, ANY)),
    (4, Take::Text(Text::TypeUrl)),
    (5, Take::Text(Text::Nonce)),
];
static DELTA_RESPONSE: &Table = &[
    (1, Take::Text(Text::Version)),
    (2, Take::Into(Text::ResourceType, RESOURCE)),
    (4, Take::Text(Text::TypeUrl)),
    (5, Take::Text(Text::Nonce)),
];

/// A message within the message.
struct Level {
    table: &'static Table,
    /// Bytes of it that are still to come.
    left: usize,
}

enum State {
    /// Within a tag or a length: the bits so far.
    Tag(Varint),
    Length(u32, Varint),
    /// Within the value of a varint field.
    Number,
    Skip(usize),
    Capture(Text, usize),
    Broken,
}

#[derive(Default)]
struct Varint {
    value: u64,
    shift: u32,
}

/// The walk through one message.
pub struct Peek {
    levels: Vec<Level>,
    state: State,
    texts: [Option<Vec<u8>>; TEXTS],
}

impl Peek {
    /// A request of `length` bytes.
    pub fn request(kind: Kind, length: usize) -> Peek {
        Peek::new(if kind == Kind::Sotw { SOTW_REQUEST } else { DELTA_REQUEST }, length)
    }

    /// A response of `length` bytes.
    pub fn response(kind: Kind, length: usize) -> Peek {
        Peek::new(if kind == Kind::Sotw { SOTW_RESPONSE } else { DELTA_RESPONSE }, length)
    }

    fn new(table: &'static Table, length: usize) -> Peek {
        Peek {
            levels: vec![Level { table, left: length }],
            state: State::Tag(Varint::default()),
            texts: Default::default(),
        }
    }

    /// Walks through the next bytes of the message.
    pub fn feed(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let used = match &mut self.state {
                State::Broken => return,
                State::Skip(left) => {
                    let used = bytes.len().min(*left);
                    *left -= used;
                    used
                }
                State::Capture(text, left) => {
                    let used = bytes.len().min(*left);
                    let taken = self.texts[*text as usize].get_or_insert_default();
                    let room = LONGEST.saturating_sub(taken.len());
                    taken.extend_from_slice(&bytes[..used.min(room)]);
                    *left -= used;
                    used
                }
                State::Tag(_) | State::Length(..) | State::Number => {
                    self.byte(bytes[0]);
                    1
                }
            };
            bytes = &bytes[used..];
            self.advance(used);
        }
    }

    /// A text that was seen so far; the last one when there were several, as protobuf has it.
    pub fn text(&self, text: Text) -> Option<&str> {
        self.texts[text as usize].as_deref().and_then(|bytes| std::str::from_utf8(bytes).ok())
    }

    /// The type of the message: what it says, or else what its first resource says.
    pub fn type_url(&self) -> Option<&str> {
        self.text(Text::TypeUrl).or_else(|| self.text(Text::ResourceType))
    }

    /// Whether the bytes are no protobuf message, or end within a field.
    pub fn is_broken(&self) -> bool {
        !matches!(&self.state, State::Tag(varint) if varint.shift == 0)
    }

    fn byte(&mut self, byte: u8) {
        let state = std::mem::replace(&mut self.state, State::Broken);
        self.state = match state {
            State::Tag(varint) => match varint.push(byte) {
                Ok(Ok(tag)) => self.tag(tag),
                Ok(Err(varint)) => State::Tag(varint),
                Err(TooLong) => State::Broken,
            },
            State::Length(field, varint) => match varint.push(byte) {
                Ok(Ok(length)) => self.length(field, length),
                Ok(Err(varint)) => State::Length(field, varint),
                Err(TooLong) => State::Broken,
            },
            State::Number if byte & 0x80 != 0 => State::Number,
            _ => State::Tag(Varint::default()),
        };
    }

    fn tag(&mut self, tag: u64) -> State {
        let Ok(field) = u32::try_from(tag >> 3) else { return State::Broken };
        match tag & 7 {
            _ if field == 0 => State::Broken,
            0 => State::Number,
            1 => State::Skip(8),
            2 => State::Length(field, Varint::default()),
            5 => State::Skip(4),
            _ => State::Broken,
        }
    }

    fn length(&mut self, field: u32, length: u64) -> State {
        let Some(level) = self.levels.last() else { return State::Broken };
        // The byte at hand is counted in `left` until `advance`.
        let Some(length) = usize::try_from(length).ok().filter(|length| *length < level.left) else {
            return State::Broken;
        };
        match level.table.iter().find(|(number, _)| *number == field) {
            Some((_, Take::Text(text))) => {
                // Empty, or the last of several.
                self.texts[*text as usize] = Some(Vec::new());
                State::Capture(*text, length)
            }
            Some((_, Take::Into(text, table))) if self.texts[*text as usize].is_none() => {
                if matches!(text, Text::Error) {
                    self.texts[Text::Error as usize] = Some(Vec::new());
                }
                // One more than its length: the byte at hand is taken off every level.
                self.levels.push(Level { table, left: length + 1 });
                State::Tag(Varint::default())
            }
            _ => State::Skip(length),
        }
    }

    /// Takes bytes off every level and leaves those that are complete.
    fn advance(&mut self, used: usize) {
        for level in &mut self.levels {
            level.left = level.left.saturating_sub(used);
        }
        if matches!(self.state, State::Skip(0) | State::Capture(_, 0)) {
            self.state = State::Tag(Varint::default());
        }
        while self.levels.len() > 1 && self.levels.last().is_some_and(|level| level.left == 0) {
            self.levels.pop();
            // A message that ends within one of its fields is broken.
            if self.is_broken() {
                self.state = State::Broken;
            }
        }
    }
}

struct TooLong;

impl Varint {
    /// `Ok(Ok(value))` when complete.
    fn push(mut self, byte: u8) -> Result<Result<u64, Varint>, TooLong> {
        if self.shift > 63 {
            return Err(TooLong);
        }
        self.value |= u64::from(byte & 0x7f) << self.shift;
        self.shift += 7;
        Ok(if byte & 0x80 == 0 { Ok(self.value) } else { Err(self) })
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;
    use crate::proto::{
        envoy::{
            config::core::v3::Node,
            service::discovery::v3::{
                DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse, Resource,
            },
        },
        google::{protobuf::Any, rpc::Status},
    };

    fn any(type_url: &str, size: usize) -> Any {
        Any { type_url: type_url.to_owned(), value: vec![0x2a; size].into() }
    }

    /// Feeds in every way to cut in two, and byte by byte: all must see the same.
    fn peek(make: impl Fn(usize) -> Peek, bytes: &[u8]) -> Peek {
        let mut whole = make(bytes.len());
        whole.feed(bytes);
        for cut in 0..bytes.len() {
            let mut parts = make(bytes.len());
            parts.feed(&bytes[..cut]);
            parts.feed(&bytes[cut..]);
            assert_eq!(parts.texts, whole.texts, "cut at {cut}");
            assert_eq!(parts.is_broken(), whole.is_broken(), "cut at {cut}");
        }
        let mut bytewise = make(bytes.len());
        bytes.chunks(1).for_each(|byte| bytewise.feed(byte));
        assert_eq!(bytewise.texts, whole.texts);
        whole
    }

    #[test]
    fn requests() {
        let request = DiscoveryRequest {
            version_info: "v".into(),
            node: Some(Node { id: "sidecar~1".into(), user_agent_name: "envoy".into(), ..Node::default() }),
            resource_names: vec!["a".into(), "b".into()],
            type_url: "t".into(),
            response_nonce: "n".into(),
            error_detail: Some(Status { code: 13, message: "bad".into(), ..Status::default() }),
        };
        let seen = peek(|length| Peek::request(Kind::Sotw, length), &request.encode_to_vec());
        let texts = [Text::Version, Text::NodeId, Text::UserAgent, Text::TypeUrl, Text::Nonce, Text::Error];
        assert_eq!(texts.map(|text| seen.text(text).unwrap()), ["v", "sidecar~1", "envoy", "t", "n", "bad"]);
        assert!(!seen.is_broken());

        let request = DeltaDiscoveryRequest {
            type_url: "t".into(),
            initial_resource_versions: [("k".to_owned(), "v".to_owned())].into(),
            response_nonce: "n".into(),
            error_detail: Some(Status::default()),
            ..DeltaDiscoveryRequest::default()
        };
        let seen = peek(|length| Peek::request(Kind::Delta, length), &request.encode_to_vec());
        assert_eq!((seen.text(Text::Nonce), seen.text(Text::Error)), (Some("n"), Some("")));
        assert_eq!((seen.text(Text::NodeId), seen.type_url()), (None, Some("t")));
    }

    #[test]
    fn responses() {
        let response = DiscoveryResponse {
            version_info: "v".into(),
            resources: vec![any("first", 20), any("second", 3)],
            nonce: "n".into(),
            canary: true,
            ..DiscoveryResponse::default()
        };
        let seen = peek(|length| Peek::response(Kind::Sotw, length), &response.encode_to_vec());
        assert_eq!(seen.type_url(), Some("first"));
        assert_eq!(seen.text(Text::Nonce), Some("n"));

        let named = |name: &str, resource| Resource { name: name.into(), resource, ..Resource::default() };
        let response = DeltaDiscoveryResponse {
            type_url: "own".into(),
            resources: vec![named("gone", None), named("here", Some(any("type", 5)))],
            removed_resources: vec!["x".into()],
            ..DeltaDiscoveryResponse::default()
        };
        let seen = peek(|length| Peek::response(Kind::Delta, length), &response.encode_to_vec());
        assert_eq!((seen.text(Text::ResourceType), seen.type_url()), (Some("type"), Some("own")));
    }

    #[test]
    fn type_is_known_before_the_message_is_complete() {
        let response = DiscoveryResponse { resources: vec![any("first", 100_000)], ..DiscoveryResponse::default() };
        let bytes = response.encode_to_vec();
        let mut seen = Peek::response(Kind::Sotw, bytes.len());
        seen.feed(&bytes[..40]);
        assert_eq!(seen.type_url(), Some("first"));
    }

    #[test]
    fn broken_messages() {
        let make = |length| Peek::response(Kind::Sotw, length);
        for bytes in [
            &b"\x0a\x05abc"[..],
            b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
            b"\x0b",
            b"\x08",
            b"\x02\x01x",
            b"\x12\x02\x0a\x09",
        ] {
            assert!(peek(make, bytes).is_broken(), "{bytes:?}");
        }
        for bytes in [&b""[..], b"\x08\x01", b"\x0d\0\0\0\0", b"\x09\0\0\0\0\0\0\0\0", b"\x12\0", b"\x12\x02\x0a\0"] {
            assert!(!peek(make, bytes).is_broken(), "{bytes:?}");
        }
    }

    #[test]
    fn long_texts_are_cut() {
        let response = DiscoveryResponse { nonce: "n".repeat(5000), ..DiscoveryResponse::default() };
        let bytes = response.encode_to_vec();
        let mut seen = Peek::response(Kind::Sotw, bytes.len());
        seen.feed(&bytes);
        assert_eq!(seen.text(Text::Nonce).unwrap().len(), LONGEST);
    }
}
