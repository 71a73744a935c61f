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

/// Messages within one another that a table may list: a response, a resource of it, what that resource holds.
const DEPTH: usize = 3;

/// A message within the message.
#[derive(Clone, Copy)]
struct Level {
    table: &'static Table,
    /// Where it ends, from the beginning of the outermost message.
    end: usize,
}

#[derive(Clone, Copy)]
enum State {
    Tag,
    /// Within the length of this field.
    Length(u32),
    /// Within the value of a varint field.
    Number,
    Skip,
    Capture(Text),
    Broken,
}

/// The walk through one message.
pub struct Peek {
    /// Bytes that were fed so far.
    at: usize,
    state: State,
    /// Where `Skip` and `Capture` end.
    until: usize,
    /// Within a tag or a length: the bits so far, and how many.
    value: u64,
    bits: u32,
    levels: [Level; DEPTH],
    /// The one among them that `at` is in.
    innermost: usize,
    texts: [Seen; TEXTS],
}

/// A text, if it was seen; its memory stays for the next message.
#[derive(Debug, Default, PartialEq, Eq)]
struct Seen {
    seen: bool,
    bytes: Vec<u8>,
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

    /// Begins anew, with another message of the same kind.
    pub fn restart(&mut self, length: usize) {
        (self.at, self.state, self.value, self.bits, self.innermost) = (0, State::Tag, 0, 0, 0);
        self.levels[0].end = length;
        for text in &mut self.texts {
            text.seen = false;
        }
    }

    fn new(table: &'static Table, length: usize) -> Peek {
        Peek {
            at: 0,
            state: State::Tag,
            until: 0,
            value: 0,
            bits: 0,
            levels: [Level { table, end: length }; DEPTH],
            innermost: 0,
            texts: Default::default(),
        }
    }

    /// Walks through the next bytes of the message.
    pub fn feed(&mut self, mut bytes: &[u8]) {
        while let Some((&first, rest)) = bytes.split_first() {
            match self.state {
                State::Broken => return,
                State::Skip => bytes = &bytes[self.pass(bytes)..],
                State::Capture(text) => {
                    let passed = self.pass(bytes);
                    let taken = &mut self.texts[text as usize].bytes;
                    let room = LONGEST - taken.len();
                    taken.extend_from_slice(&bytes[..passed.min(room)]);
                    bytes = &bytes[passed..];
                }
                State::Tag | State::Length(_) | State::Number => {
                    self.at += 1;
                    self.byte(first);
                    bytes = rest;
                }
            }
            self.leave();
        }
    }

    /// A text that was seen so far; the last one when there were several, as protobuf has it.
    pub fn text(&self, text: Text) -> Option<&str> {
        let Seen { seen: true, bytes } = &self.texts[text as usize] else { return None };
        match std::str::from_utf8(bytes) {
            // Cut within a character; and a NACK is one whatever its text.
            Err(error) if error.error_len().is_none() || matches!(text, Text::Error) => {
                std::str::from_utf8(&bytes[..error.valid_up_to()]).ok()
            }
            whole => whole.ok(),
        }
    }

    /// The type of the message: what it says, or else what its first resource says.
    pub fn type_url(&self) -> Option<&str> {
        self.text(Text::TypeUrl).or_else(|| self.text(Text::ResourceType))
    }

    /// Whether the bytes are no protobuf message, or end within a field.
    pub fn is_broken(&self) -> bool {
        !matches!(self.state, State::Tag) || self.bits > 0
    }

    /// Goes on to the end of a skipped or captured value, as far as there are bytes; how many there were.
    fn pass(&mut self, bytes: &[u8]) -> usize {
        let passed = bytes.len().min(self.until - self.at);
        self.at += passed;
        if self.at == self.until {
            self.state = State::Tag;
        }
        passed
    }

    /// A byte of a varint; `at` is behind it.
    fn byte(&mut self, byte: u8) {
        let last = byte & 0x80 == 0;
        if let State::Number = self.state {
            if last {
                self.state = State::Tag;
            }
            return;
        }
        if self.bits > 63 {
            self.state = State::Broken;
            return;
        }
        self.value |= u64::from(byte & 0x7f) << self.bits;
        self.bits += 7;
        if last {
            let value = std::mem::take(&mut self.value);
            self.bits = 0;
            self.state = match self.state {
                State::Length(field) => self.length(field, value),
                _ => self.tag(value),
            };
        }
    }

    fn tag(&mut self, tag: u64) -> State {
        let Ok(field) = u32::try_from(tag >> 3) else { return State::Broken };
        let fixed = match tag & 7 {
            _ if field == 0 => return State::Broken,
            0 => return State::Number,
            2 => return State::Length(field),
            1 => 8,
            5 => 4,
            _ => return State::Broken,
        };
        if fixed > self.left() {
            return State::Broken;
        }
        self.until = self.at + fixed;
        State::Skip
    }

    fn length(&mut self, field: u32, length: u64) -> State {
        let Some(length) = usize::try_from(length).ok().filter(|length| *length <= self.left()) else {
            return State::Broken;
        };
        self.until = self.at + length;
        let state = match self.levels[self.innermost].table.iter().find(|(number, _)| *number == field) {
            Some((_, Take::Text(text))) => {
                // Empty, or the last of several.
                self.texts[*text as usize].see(length);
                State::Capture(*text)
            }
            Some((_, Take::Into(text, table))) if !self.texts[*text as usize].seen => {
                if matches!(text, Text::Error) {
                    self.texts[Text::Error as usize].see(0);
                }
                self.innermost += 1;
                self.levels[self.innermost] = Level { table, end: self.until };
                return State::Tag;
            }
            _ => State::Skip,
        };
        if length == 0 { State::Tag } else { state }
    }

    /// Bytes of the innermost message that are still to come.
    fn left(&self) -> usize {
        self.levels[self.innermost].end.saturating_sub(self.at)
    }

    /// Leaves the messages that are complete.
    fn leave(&mut self) {
        while self.innermost > 0 && self.levels[self.innermost].end == self.at {
            self.innermost -= 1;
            // A message that ends within one of its fields is broken.
            if self.is_broken() {
                self.state = State::Broken;
            }
        }
    }
}

impl Seen {
    /// A text of so many bytes begins.
    fn see(&mut self, length: usize) {
        self.seen = true;
        self.bytes.clear();
        self.bytes.reserve_exact(length.min(LONGEST));
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

    fn seen(peek: &Peek) -> Vec<Option<&[u8]>> {
        peek.texts.iter().map(|text| text.seen.then_some(&text.bytes[..])).collect()
    }

    /// Feeds in every way to cut in two, one after the other, and byte by byte: all must see the same.
    fn peek(make: impl Fn(usize) -> Peek, bytes: &[u8]) -> Peek {
        let mut whole = make(bytes.len());
        whole.feed(bytes);
        let mut parts = make(0);
        for cut in 0..bytes.len() {
            parts.restart(bytes.len());
            parts.feed(&bytes[..cut]);
            parts.feed(&bytes[cut..]);
            assert_eq!(seen(&parts), seen(&whole), "cut at {cut}");
            assert_eq!(parts.is_broken(), whole.is_broken(), "cut at {cut}");
        }
        let mut bytewise = make(bytes.len());
        bytes.chunks(1).for_each(|byte| bytewise.feed(byte));
        assert_eq!(seen(&bytewise), seen(&whole));
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

    #[test]
    fn a_refusal_is_one_whatever_its_text() {
        let text = |message: String, change: fn(&mut u8)| {
            let error_detail = Some(Status { message, ..Status::default() });
            let mut bytes = DeltaDiscoveryRequest { error_detail, ..Default::default() }.encode_to_vec();
            bytes.last_mut().map(change);
            let mut peek = Peek::request(Kind::Delta, bytes.len());
            peek.feed(&bytes);
            peek.text(Text::Error).map(str::len)
        };
        assert_eq!(text("x".repeat(LONGEST - 1) + "é", |_| {}), Some(LONGEST - 1), "cut within a character");
        assert_eq!(text("no UTF-8: ?".to_owned(), |last| *last = 0xff), Some(10));
        assert_eq!(text(String::new(), |_| {}), Some(0));
    }
}
