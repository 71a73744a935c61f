//! Makes a forwarded answer fit what its client can take: compressed if that is enough, else cut at a whole record. Pure.
//!
//! An answer that fits is not touched. Cutting works on the bytes as they came, so that records of any kind stay what they are.

use simple_dns::Packet;

use super::{
    answer::{A, AAAA, CNAME, IN, PTR},
    message::PLAIN_LIMIT,
};
use crate::net::resolve::frame::{self, HEADER, OPT, Record, Section, TC};

const NS: u16 = 2;
const SOA: u16 = 6;
const MX: u16 = 15;
const TXT: u16 = 16;
/// Types whose data may be written anew with compressed names: those of RFC 1035 (RFC 3597 §4), and those without names.
const COMPRESSIBLE: [u16; 8] = [A, NS, CNAME, SOA, PTR, MX, TXT, AAAA];

/// `reply` in at most `limit` bytes; records that do not fit are left out from the end, and the reply is marked as truncated.
pub fn fit(mut reply: Vec<u8>, limit: usize) -> Vec<u8> {
    let limit = limit.max(PLAIN_LIMIT);
    if reply.len() <= limit {
        return reply;
    }
    if let Some(compressed) = compress(&reply)
        && compressed.len() < reply.len()
    {
        reply = compressed;
    }
    if reply.len() > limit {
        cut(&mut reply, limit);
    }
    reply
}

/// The same message with its names compressed; `None` when it holds anything that might change by being written anew.
fn compress(reply: &[u8]) -> Option<Vec<u8>> {
    let question = frame::question(reply)?;
    let (mut opt, mut end) = (None, question.end);
    for record in frame::records(reply, question.end) {
        end = record.end;
        if record.rtype == OPT {
            opt = Some(record);
        } else if !COMPRESSIBLE.contains(&record.rtype) || frame::u16_at(reply, record.fixed + 2) != Some(IN) {
            return None;
        }
    }
    // The EDNS record is put back as it was: simple-dns does not keep its flags.
    let mut bare = reply[..end].to_vec();
    if let Some(opt) = opt {
        bare.drain(opt.start..opt.end);
        frame::set_count(&mut bare, Section::Additional, frame::count(reply, Section::Additional) - 1);
    }
    let mut compressed = Packet::parse(&bare).ok()?.build_bytes_vec_compressed().ok()?;
    compressed[..4].copy_from_slice(&reply[..4]);
    if let Some(opt) = opt {
        put_back(&mut compressed, &reply[opt.start..opt.end]);
    }
    Some(compressed)
}

/// Leaves out whole records from the end, but for EDNS, and marks the reply.
fn cut(reply: &mut Vec<u8>, limit: usize) {
    let start = frame::question(reply).map_or(HEADER, |question| question.end);
    let records: Vec<Record> = frame::records(reply, start).collect();
    let opt = records.iter().find(|record| record.rtype == OPT).map(|opt| reply[opt.start..opt.end].to_vec());
    let room = limit.saturating_sub(opt.as_ref().map_or(0, Vec::len));
    let mut counts = [0u16; 4];
    let mut end = start;
    for record in records.iter().take_while(|record| record.rtype != OPT && record.end <= room) {
        counts[record.section as usize] += 1;
        end = record.end;
    }
    reply.truncate(end);
    for section in [Section::Answer, Section::Authority, Section::Additional] {
        frame::set_count(reply, section, counts[section as usize]);
    }
    reply[2] |= TC;
    if let Some(opt) = opt.filter(|opt| end + opt.len() <= limit) {
        put_back(reply, &opt);
    }
}

fn put_back(reply: &mut Vec<u8>, opt: &[u8]) {
    reply.extend_from_slice(opt);
    let count = frame::count(reply, Section::Additional);
    frame::set_count(reply, Section::Additional, count.saturating_add(1));
}

#[cfg(test)]
mod tests {
    use simple_dns::{
        CLASS, Name, PacketFlag, Question, ResourceRecord, TYPE,
        rdata::{self, RData},
    };

    use super::*;

    /// An answer of `count` records: addresses, or texts that no compression makes smaller.
    fn answer(count: u32, text: bool, edns: bool) -> Vec<u8> {
        let mut packet = Packet::new_reply(7);
        packet.set_flags(PacketFlag::RECURSION_AVAILABLE | PacketFlag::AUTHENTIC_DATA);
        let name = Name::new_unchecked("a-rather-long-name.of.example");
        packet.questions.push(Question::new(name.clone(), TYPE::A.into(), CLASS::IN.into(), false));
        let long = "x".repeat(200);
        for address in 0..count {
            let data = match text {
                true => RData::TXT(rdata::TXT::new().with_string(&long).unwrap()),
                false => RData::A(rdata::A { address }),
            };
            packet.answers.push(ResourceRecord::new(name.clone(), CLASS::IN, 60, data));
        }
        let mut bytes = packet.build_bytes_vec().unwrap();
        if edns {
            put_back(&mut bytes, b"\x00\x00\x29\x10\x00\x00\x00\x80\x00\x00\x04\x00\x0a\x00\x00");
        }
        bytes
    }

    #[test]
    fn what_fits_is_not_touched() {
        let bytes = answer(5, false, true);
        assert_eq!(fit(bytes.clone(), bytes.len()), bytes);
    }

    #[test]
    fn names_are_compressed_when_that_is_enough() {
        let bytes = answer(60, false, true);
        let fitted = fit(bytes.clone(), 1232);
        assert!(bytes.len() > 1232 && fitted.len() <= 1232);
        assert_eq!(fitted[..12], bytes[..12], "flags and counts stay");
        assert_eq!(Packet::parse(&fitted).unwrap().answers, Packet::parse(&bytes).unwrap().answers);
        assert!(fitted.ends_with(&bytes[bytes.len() - 15..]), "EDNS with its flags and options");
    }

    #[test]
    fn otherwise_it_is_cut_at_a_whole_record_and_marked() {
        for (text, edns, limit) in [(true, true, 512), (true, false, 1232), (false, false, 512), (false, true, 600)] {
            let bytes = answer(100, text, edns);
            let fitted = fit(bytes.clone(), limit);
            assert!(fitted.len() <= limit && frame::is_whole(&fitted), "limit {limit}");
            assert!(fitted[2] & TC != 0);
            let (whole, kept) = (Packet::parse(&bytes).unwrap(), Packet::parse(&fitted).unwrap());
            assert_eq!(kept.answers, whole.answers[..kept.answers.len()]);
            assert_eq!(kept.opt().is_some(), edns);
            let next = if text { 213 } else { 16 };
            assert!(fitted.len() + next > limit, "one more record would have fitted");
        }
    }

    #[test]
    fn unknown_records_are_kept_as_they_are() {
        let mut bytes = answer(3, true, false);
        let at = frame::records(&bytes, frame::question(&bytes).unwrap().end).nth(1).unwrap().fixed;
        bytes[at..at + 4].copy_from_slice(&[0xff, 0x78, 0x12, 0x34]);
        let fitted = fit(bytes.clone(), 560);
        let question = frame::question(&fitted).unwrap();
        let second = frame::records(&fitted, question.end).nth(1).unwrap();
        assert_eq!(second.rtype, 0xff78);
        assert_eq!(fitted[question.end..second.end], bytes[question.end..second.end]);
    }

    #[test]
    fn what_cannot_be_cut_shrinks_to_its_question() {
        let mut bytes = answer(1, false, false);
        bytes.resize(3000, 0);
        assert!(fit(bytes, 512).len() <= 512);
    }
}
