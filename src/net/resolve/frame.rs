//! The frame of a DNS message (RFC 1035 §4): header fields, the question's bytes and where each record begins and ends.
//!
//! Called by the resolver here and by `dns`, which forwards and cuts messages byte for byte: that needs offsets, and must hold
//! for types and classes that nobody knows yet. What is *in* a record is simple-dns's business; nothing here looks inside or allocates.

/// Length of the header.
pub const HEADER: usize = 12;
/// Type code of the EDNS pseudo record (RFC 6891).
pub const OPT: u16 = 41;
/// Longest name on the wire, its final zero included (RFC 1035 §3.1).
pub const MAX_NAME: usize = 255;

/// Bit of the third header byte: this is a response.
pub const QR: u8 = 0x80;
/// Bit of the third header byte: authoritative answer.
pub const AA: u8 = 0x04;
/// Bit of the third header byte: truncated.
pub const TC: u8 = 0x02;
/// Bit of the third header byte: recursion desired.
pub const RD: u8 = 0x01;
/// Bit of the fourth header byte: authenticated data (RFC 4035 §3.2.3).
pub const AD: u8 = 0x20;
/// Bit of the fourth header byte: checking disabled.
pub const CD: u8 = 0x10;

/// Response codes that matter here (RFC 1035 §4.1.1).
pub mod rcode {
    /// No error.
    pub const NOERROR: u8 = 0;
    /// The server could not read the query.
    pub const FORMERR: u8 = 1;
    /// The server failed.
    pub const SERVFAIL: u8 = 2;
    /// The name does not exist.
    pub const NXDOMAIN: u8 = 3;
    /// The server does not do this kind of query.
    pub const NOTIMP: u8 = 4;
    /// The server does not want to answer.
    pub const REFUSED: u8 = 5;
}

/// The four counts of the header, by place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Section {
    /// Questions.
    Question = 0,
    /// Answers.
    Answer = 1,
    /// Authority.
    Authority = 2,
    /// Additional records.
    Additional = 3,
}

/// Those that hold records, in order.
const SECTIONS: [Section; 3] = [Section::Answer, Section::Authority, Section::Additional];

/// The only question of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Question {
    /// Where the question section ends; its name is `message[12..end - 4]`.
    pub end: usize,
    /// Query type.
    pub qtype: u16,
    /// Query class.
    pub qclass: u16,
}

/// One resource record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    /// The section it stands in.
    pub section: Section,
    /// Where its owner name begins.
    pub start: usize,
    /// Where its type begins, after the owner name.
    pub fixed: usize,
    /// The byte after its data.
    pub end: usize,
    /// Its type.
    pub rtype: u16,
}

/// The records of a message in order; ends early at the first that is broken.
#[derive(Debug, Clone)]
pub struct Records<'a> {
    message: &'a [u8],
    at: usize,
    left: [u16; 3],
    broken: bool,
}

/// A 16-bit field; `None` beyond the end.
pub fn u16_at(message: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes([*message.get(at)?, *message.get(at + 1)?]))
}

/// The id; `None` of less than two bytes.
pub fn id(message: &[u8]) -> Option<u16> {
    u16_at(message, 0)
}

/// Writes the id.
pub fn set_id(message: &mut [u8], id: u16) {
    if let Some(field) = message.get_mut(..2) {
        field.copy_from_slice(&id.to_be_bytes());
    }
}

/// One of the four counts; 0 in what is shorter than a header.
pub fn count(message: &[u8], section: Section) -> u16 {
    u16_at(message, 4 + 2 * section as usize).unwrap_or(0)
}

/// Writes one of the four counts.
pub fn set_count(message: &mut [u8], section: Section, count: u16) {
    let at = 4 + 2 * section as usize;
    if let Some(field) = message.get_mut(at..at + 2) {
        field.copy_from_slice(&count.to_be_bytes());
    }
}

/// The four lower bits of the response code; the upper ones stand in OPT.
pub fn rcode_of(message: &[u8]) -> u8 {
    message.get(3).map_or(0, |byte| byte & 0x0f)
}

/// The end of the name at `at`; a compression pointer ends it. `None` when it leaves the message or is no name.
pub fn name_end(message: &[u8], mut at: usize) -> Option<usize> {
    loop {
        let length = usize::from(*message.get(at)?);
        match length {
            0 => return Some(at + 1),
            1..=63 => at += 1 + length,
            0xc0.. => return (at + 2 <= message.len()).then_some(at + 2),
            _ => return None,
        }
    }
}

/// The question of a message that has exactly one, its name written out; `None` otherwise.
pub fn question(message: &[u8]) -> Option<Question> {
    if count(message, Section::Question) != 1 {
        return None;
    }
    let mut at = HEADER;
    loop {
        match usize::from(*message.get(at)?) {
            0 => break,
            // Nothing stands before the first name that a pointer could mean.
            length @ 1..=63 => at += 1 + length,
            _ => return None,
        }
    }
    let name_end = at + 1;
    if name_end - HEADER > MAX_NAME {
        return None;
    }
    Some(Question { end: name_end + 4, qtype: u16_at(message, name_end)?, qclass: u16_at(message, name_end + 2)? })
}

/// The records behind the question that ends at `question_end`.
pub fn records(message: &[u8], question_end: usize) -> Records<'_> {
    let left = SECTIONS.map(|section| count(message, section));
    Records { message, at: question_end, left, broken: false }
}

impl Records<'_> {
    /// Whether iteration ended because a record does not fit the message.
    pub fn is_broken(&self) -> bool {
        self.broken
    }

    fn read(&self, section: Section) -> Option<Record> {
        let fixed = name_end(self.message, self.at)?;
        let rtype = u16_at(self.message, fixed)?;
        let length = u16_at(self.message, fixed + 8)?;
        let end = fixed + 10 + usize::from(length);
        (end <= self.message.len()).then_some(Record { section, start: self.at, fixed, end, rtype })
    }
}

impl Iterator for Records<'_> {
    type Item = Record;

    fn next(&mut self) -> Option<Record> {
        if self.broken {
            return None;
        }
        let place = self.left.iter().position(|left| *left > 0)?;
        let section = SECTIONS[place];
        let record = self.read(section);
        match record {
            Some(record) => {
                self.left[place] -= 1;
                self.at = record.end;
            }
            None => self.broken = true,
        }
        record
    }
}

/// Whether `reply` answers `query`: a response with its id and its question, letter case aside.
///
/// A server that could not read the query, or would not, may leave the question out, even if the header still counts it; but then
/// it must say so by its response code.
pub fn answers(query: &[u8], reply: &[u8]) -> bool {
    if reply.len() < HEADER || reply[2] & QR == 0 || id(reply) != id(query) {
        return false;
    }
    if is_bare(reply) {
        return !matches!(rcode_of(reply), rcode::NOERROR | rcode::NXDOMAIN) && count(reply, Section::Answer) == 0;
    }
    match (question(query), question(reply)) {
        (Some(asked), Some(echoed)) => {
            asked.end == echoed.end
                && asked.qtype == echoed.qtype
                && asked.qclass == echoed.qclass
                && query[HEADER..asked.end - 4].eq_ignore_ascii_case(&reply[HEADER..asked.end - 4])
        }
        _ => false,
    }
}

/// Whether a message has no question: some servers refuse with a header alone, which counts one all the same.
pub fn is_bare(message: &[u8]) -> bool {
    message.len() == HEADER || count(message, Section::Question) == 0
}

/// Whether every record that the header counts is there.
pub fn is_whole(message: &[u8]) -> bool {
    extent(message).is_some_and(|(_, _, whole)| whole)
}

/// Leaves out what follows the last record. An answer that says itself that it is not all there may end anywhere: what is whole of
/// it stays. `false` of any other that lacks what its header counts.
pub fn trim(reply: &mut Vec<u8>) -> bool {
    let Some((end, counts, whole)) = extent(reply) else { return reply.len() == HEADER };
    if !whole && reply[2] & TC == 0 {
        return false;
    }
    reply.truncate(end);
    for (section, number) in SECTIONS.into_iter().zip(counts) {
        set_count(reply, section, number);
    }
    true
}

/// Where the last whole record ends, how many there are in each section, and whether those are all.
fn extent(message: &[u8]) -> Option<(usize, [u16; 3], bool)> {
    let mut end = match message.len() >= HEADER && count(message, Section::Question) == 0 {
        true => HEADER,
        false => question(message)?.end,
    };
    let (mut counts, mut records) = ([0; 3], records(message, end));
    for record in records.by_ref() {
        end = record.end;
        counts[record.section as usize - 1] += 1;
    }
    Some((end, counts, !records.is_broken()))
}

#[cfg(test)]
mod tests {
    use simple_dns::{CLASS, Name, Packet, PacketFlag, Question as Asked, RCODE, ResourceRecord, TYPE, rdata};

    use super::*;

    fn message(id: u16, name: &str, addresses: usize) -> Vec<u8> {
        let mut packet = Packet::new_query(id);
        let name = Name::new_unchecked(name);
        packet.questions.push(Asked::new(name.clone(), TYPE::A.into(), CLASS::IN.into(), false));
        for address in 0..addresses {
            let data = rdata::RData::A(rdata::A { address: address as u32 });
            packet.answers.push(ResourceRecord::new(name.clone(), CLASS::IN, 60, data));
        }
        if addresses > 0 {
            packet.set_flags(PacketFlag::RESPONSE);
        }
        packet.build_bytes_vec_compressed().unwrap()
    }

    #[test]
    fn walks_records_and_notices_a_missing_end() {
        let whole = message(7, "www.example.com", 3);
        let asked = question(&whole).unwrap();
        let ends: Vec<usize> = records(&whole, asked.end).map(|record| record.end).collect();
        assert_eq!(ends.len(), 3);
        assert_eq!(ends[2], whole.len());
        assert!(is_whole(&whole));
        for cut in 0..whole.len() {
            assert!(!is_whole(&whole[..cut]), "cut at {cut}");
        }
    }

    #[test]
    fn only_what_says_that_it_is_truncated_may_be() {
        let whole = message(7, "www.example.com", 3);
        let asked = question(&whole).unwrap();
        let ends: Vec<usize> = records(&whole, asked.end).map(|record| record.end).collect();
        let mut padded = [&whole[..], b"padding"].concat();
        assert!(trim(&mut padded) && padded == whole);
        for length in HEADER + 1..whole.len() {
            let mut cut = whole[..length].to_vec();
            assert!(!trim(&mut cut), "cut at {length}");
            cut[2] |= TC;
            assert_eq!(trim(&mut cut), length >= asked.end, "cut at {length}");
            if length >= asked.end {
                assert!(is_whole(&cut) && cut.len() == *ends.iter().rfind(|end| **end <= length).unwrap_or(&asked.end));
            }
        }
        assert!(trim(&mut whole[..HEADER].to_vec()) && !trim(&mut whole[..HEADER - 1].to_vec()));
    }

    #[test]
    fn an_answer_has_id_question_and_the_response_bit() {
        let query = message(7, "www.example.com", 0);
        assert!(answers(&query, &message(7, "WWW.example.COM", 1)));
        assert!(!answers(&query, &query), "a query is no answer");
        assert!(!answers(&query, &message(8, "www.example.com", 1)), "other id");
        assert!(!answers(&query, &message(7, "www.example.org", 1)), "other name");
        assert!(!answers(&query, &[]));
        let mut other_type = message(7, "www.example.com", 1);
        let end = question(&other_type).unwrap().end;
        other_type[end - 3] = 28;
        assert!(!answers(&query, &other_type));
    }

    #[test]
    fn only_a_failure_may_leave_the_question_out() {
        let query = message(7, "www.example.com", 0);
        for (code, taken) in [
            (RCODE::FormatError, true),
            (RCODE::ServerFailure, true),
            (RCODE::NoError, false),
            (RCODE::NameError, false),
        ] {
            let mut packet = Packet::new_reply(7);
            *packet.rcode_mut() = code;
            let mut bare = packet.build_bytes_vec().unwrap();
            assert_eq!(answers(&query, &bare), taken, "{code:?}");
            set_count(&mut bare, Section::Question, 1);
            assert_eq!(answers(&query, &bare), taken, "{code:?}, with a question that is not there");
        }
    }

    #[test]
    fn a_question_is_written_out_and_not_too_long() {
        let mut pointer = message(1, "a", 0);
        pointer[HEADER] = 0xc0;
        assert_eq!(question(&pointer), None);
        let mut long = vec![0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        for _ in 0..128 {
            long.extend_from_slice(b"\x01a");
        }
        long.extend_from_slice(&[0, 0, 1, 0, 1]);
        assert_eq!(question(&long), None);
    }
}
