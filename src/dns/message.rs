//! A client's message: what it asks, and the replies that need no records. Pure.
//!
//! Queries are looked at in place, because they are forwarded byte for byte and their letter case comes back in the answer.

use super::table::MAX_TEXT;
use crate::net::resolve::frame::{self, HEADER, OPT, QR, RD, Section, rcode};

/// What a client without EDNS can take over UDP (RFC 1035 §4.2.1).
pub const PLAIN_LIMIT: usize = 512;
/// Largest datagram over IPv4, whatever a client says that it can take.
const UDP_LIMIT: usize = 65_507;
/// Largest message over TCP.
pub const TCP_LIMIT: usize = 65_535;
/// The size we say we can take ourselves, in the OPT record of local answers.
const OUR_SIZE: u16 = 4096;
/// Length of an OPT record without options.
const OPT_LENGTH: usize = 11;
/// Fourth header byte: recursion is available, for every name is answered here or by the servers behind us.
const RA: u8 = 0x80;

const OPCODE: u8 = 0x78;
const QUERY: u8 = 0;
const NOTIFY: u8 = 4;

/// How a message came, and so how its answer goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// One datagram each way.
    Udp,
    /// A stream of messages with their lengths.
    Tcp,
}

/// A message that asks something.
#[derive(Debug, Clone, Copy)]
pub struct Query<'a> {
    /// The message, without whatever follows its last record.
    pub bytes: &'a [u8],
    /// Its question.
    pub question: frame::Question,
    /// Its EDNS record.
    pub edns: Option<Edns>,
}

/// What the OPT record of a query says (RFC 6891 §6.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Edns {
    /// UDP payload size that the client can take.
    pub size: u16,
    /// EDNS version; only 0 exists.
    pub version: u8,
    /// DNSSEC records are wanted.
    pub dnssec_ok: bool,
}

/// What becomes of a message.
#[derive(Debug, Clone, Copy)]
pub enum Message<'a> {
    /// No reply at all: a stub, or a response that somebody wants reflected.
    Drop,
    /// A reply that is only a header, with this response code and opcode.
    Refuse(u8, u8),
    /// A query.
    Ask(Query<'a>),
}

/// Sorts a message by the rules that miekg/dns applies (spec: C.4), and so every Istio agent.
pub fn read(bytes: &[u8]) -> Message<'_> {
    if bytes.len() < HEADER || bytes[2] & QR != 0 {
        return Message::Drop;
    }
    let opcode = (bytes[2] & OPCODE) >> 3;
    if opcode != QUERY && opcode != NOTIFY {
        return Message::Refuse(rcode::NOTIMP, opcode);
    }
    match Query::read(bytes) {
        Some(query) => Message::Ask(query),
        None => Message::Refuse(rcode::FORMERR, QUERY),
    }
}

impl<'a> Query<'a> {
    fn read(bytes: &'a [u8]) -> Option<Query<'a>> {
        let count = |section| frame::count(bytes, section);
        if count(Section::Answer) > 1 || count(Section::Authority) > 1 || count(Section::Additional) > 2 {
            return None;
        }
        let question = frame::question(bytes)?;
        let (mut end, mut edns) = (question.end, None);
        let mut records = frame::records(bytes, question.end);
        for record in records.by_ref() {
            end = record.end;
            if record.rtype == OPT && record.section == Section::Additional {
                let size = frame::u16_at(bytes, record.fixed + 2)?;
                let flags = bytes.get(record.fixed + 6)?;
                edns = Some(Edns { size, version: *bytes.get(record.fixed + 5)?, dnssec_ok: flags & 0x80 != 0 });
            }
        }
        (!records.is_broken()).then_some(Query { bytes: &bytes[..end], question, edns })
    }

    /// How large an answer may be.
    pub fn limit(&self, transport: Transport) -> usize {
        match (transport, self.edns) {
            (Transport::Tcp, _) => TCP_LIMIT,
            (Transport::Udp, Some(edns)) => usize::from(edns.size).clamp(PLAIN_LIMIT, UDP_LIMIT),
            (Transport::Udp, None) => PLAIN_LIMIT,
        }
    }

    /// The name as lower-case text without a final dot; `None` when a label holds what would make it another name as text.
    pub fn name<'b>(&self, buffer: &'b mut [u8; MAX_TEXT]) -> Option<&'b [u8]> {
        // The text is the wire form from its second byte on, with a dot for each further length.
        let wire = &self.bytes[HEADER..self.question.end - 5];
        let text = &mut buffer[..wire.len().saturating_sub(1)];
        text.copy_from_slice(wire.get(1..).unwrap_or_default());
        text.make_ascii_lowercase();
        let mut at = 0;
        while at < wire.len() {
            let next = at + 1 + usize::from(wire[at]);
            if wire[at + 1..next].contains(&b'.') {
                return None;
            }
            if let Some(length) = text.get_mut(next - 1) {
                *length = b'.';
            }
            at = next;
        }
        Some(text)
    }

    /// Begins a reply: header with the flags that are copied, and the question letter by letter. Counts of records are 0.
    pub fn begin_reply(&self, out: &mut Vec<u8>, flags: u8, code: u8) {
        out.clear();
        out.extend_from_slice(&self.bytes[..self.question.end]);
        out[2] = QR | flags | self.bytes[2] & (OPCODE | RD);
        out[3] = RA | self.bytes[3] & frame::CD | code;
        for section in [Section::Answer, Section::Authority, Section::Additional] {
            frame::set_count(out, section, 0);
        }
    }

    /// Room that the EDNS record of a local reply takes.
    pub fn edns_room(&self) -> usize {
        self.edns.map_or(0, |_| OPT_LENGTH)
    }

    /// Adds an EDNS record when the client sent one (RFC 6891 §6.1.1); `extended` are the upper bits of the response code.
    pub fn end_reply(&self, out: &mut Vec<u8>, extended: u8) {
        let Some(edns) = self.edns else { return };
        out.push(0);
        out.extend_from_slice(&OPT.to_be_bytes());
        out.extend_from_slice(&OUR_SIZE.to_be_bytes());
        out.extend_from_slice(&[extended, 0, if edns.dnssec_ok { 0x80 } else { 0 }, 0, 0, 0]);
        frame::set_count(out, Section::Additional, 1);
    }

    /// A whole reply without records.
    pub fn reply(&self, out: &mut Vec<u8>, code: u8) {
        self.begin_reply(out, 0, code);
        self.end_reply(out, 0);
    }

    /// Whether the client speaks an EDNS version that does not exist; if so, the reply that says it (RFC 6891 §6.1.3).
    pub fn refuses_version(&self, out: &mut Vec<u8>) -> bool {
        let refused = self.edns.is_some_and(|edns| edns.version > 0);
        if refused {
            self.begin_reply(out, 0, rcode::NOERROR);
            self.end_reply(out, 1);
        }
        refused
    }
}

/// A reply that is only a header.
pub fn refuse(query: &[u8], code: u8, opcode: u8, out: &mut Vec<u8>) {
    out.clear();
    out.extend_from_slice(&query[..2]);
    out.extend_from_slice(&[QR | opcode << 3 | query[2] & RD, code, 0, 0, 0, 0, 0, 0, 0, 0]);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A query for `www.Example.` with `additional` raw records.
    fn query(additional: &[&[u8]]) -> Vec<u8> {
        let mut bytes = vec![0x12, 0x34, 1, 0x10, 0, 1, 0, 0, 0, 0, 0, additional.len() as u8];
        bytes.extend_from_slice(b"\x03www\x07Example\x00\x00\x01\x00\x01");
        additional.iter().for_each(|record| bytes.extend_from_slice(record));
        bytes
    }

    const EDNS: &[u8] = b"\x00\x00\x29\x05\x00\x00\x00\x80\x00\x00\x00";

    fn asked(bytes: &[u8]) -> Query<'_> {
        match read(bytes) {
            Message::Ask(query) => query,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn understands_name_and_edns() {
        let bytes = query(&[EDNS]);
        let query = asked(&bytes);
        assert_eq!(query.name(&mut [0; MAX_TEXT]), Some(&b"www.example"[..]));
        assert_eq!(query.edns, Some(Edns { size: 1280, version: 0, dnssec_ok: true }));
        assert_eq!((query.limit(Transport::Udp), query.limit(Transport::Tcp)), (1280, 65_535));
        let mut tiny = EDNS.to_vec();
        tiny[4] = 7;
        tiny[3] = 0;
        let bytes = self::query(&[&tiny]);
        assert_eq!(asked(&bytes).limit(Transport::Udp), 512);
        let mut huge = EDNS.to_vec();
        huge[3..5].fill(0xff);
        let bytes = self::query(&[&huge]);
        assert_eq!(asked(&bytes).limit(Transport::Udp), 65_507);
    }

    #[test]
    fn what_follows_the_last_record_is_left_out() {
        let mut bytes = query(&[EDNS]);
        let length = bytes.len();
        bytes.extend_from_slice(b"noise");
        assert_eq!(asked(&bytes).bytes.len(), length);
    }

    #[test]
    fn sorts_out_what_is_no_query() {
        let plain = query(&[]);
        let with = |at: usize, byte: u8| {
            let mut bytes = plain.clone();
            bytes[at] = byte;
            bytes
        };
        assert!(matches!(read(&plain[..11]), Message::Drop));
        assert!(matches!(read(&with(2, 0x80)), Message::Drop));
        assert!(matches!(read(&with(2, 2 << 3)), Message::Refuse(rcode::NOTIMP, 2)));
        assert!(matches!(read(&with(2, 4 << 3)), Message::Ask(_)), "NOTIFY is a query like others");
        for (at, count) in [(5, 0), (5, 2), (7, 2), (9, 2), (11, 3), (7, 1), (11, 1)] {
            assert!(matches!(read(&with(at, count)), Message::Refuse(rcode::FORMERR, 0)), "count {count} at {at}");
        }
        for cut in HEADER..plain.len() {
            assert!(matches!(read(&plain[..cut]), Message::Refuse(rcode::FORMERR, 0)), "cut at {cut}");
        }
    }

    #[test]
    fn a_refusal_is_a_header_with_id_and_rd() {
        let mut out = Vec::new();
        refuse(&query(&[]), rcode::NOTIMP, 5, &mut out);
        assert_eq!(out, [0x12, 0x34, 0xa9, 4, 0, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn a_dot_within_a_label_makes_no_other_name() {
        let mut bytes = query(&[]);
        bytes[14] = b'.';
        assert_eq!(asked(&bytes).name(&mut [0; MAX_TEXT]), None);
    }

    #[test]
    fn longest_name_fits() {
        let mut bytes = vec![0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        (0..127).for_each(|_| bytes.extend_from_slice(b"\x01A"));
        bytes.extend_from_slice(&[0, 0, 1, 0, 1]);
        let text = asked(&bytes).name(&mut [0; MAX_TEXT]).map(<[u8]>::len);
        assert_eq!(text, Some(253));
    }

    #[test]
    fn replies_keep_id_question_and_flags() {
        let bytes = query(&[EDNS]);
        let mut out = Vec::new();
        asked(&bytes).reply(&mut out, rcode::SERVFAIL);
        assert_eq!(out[..12], [0x12, 0x34, 0x81, 0x92, 0, 1, 0, 0, 0, 0, 0, 1]);
        assert_eq!(out[12..29], bytes[12..29]);
        assert!(frame::is_whole(&out) && frame::answers(&bytes, &out));
    }

    #[test]
    fn unknown_edns_version_is_told_so() {
        let mut record = EDNS.to_vec();
        record[6] = 1;
        let bytes = query(&[&record]);
        let mut out = Vec::new();
        assert!(asked(&bytes).refuses_version(&mut out));
        assert_eq!((frame::rcode_of(&out), out[out.len() - 6]), (0, 1), "BADVERS is 16");
        assert!(!asked(&query(&[EDNS])).refuses_version(&mut out));
    }
}
