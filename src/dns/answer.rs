//! Local answers: a hit of the index written as a DNS message. Pure but for the dice of the shuffle.

use std::net::IpAddr;

use super::{
    message::{Query, Transport},
    table::{Hit, Index},
};
use crate::{
    base::random_u64,
    net::resolve::frame::{self, AA, HEADER, Section, TC, rcode},
};

/// Type codes (RFC 1035 §3.2.2, RFC 3596).
pub const A: u16 = 1;
/// An alias.
pub const CNAME: u16 = 5;
/// A name for an address.
pub const PTR: u16 = 12;
/// IPv6 address.
pub const AAAA: u16 = 28;
/// The Internet class.
pub const IN: u16 = 1;

/// Pointer to the name of the question (RFC 1035 §4.1.4).
const QUESTION_NAME: u16 = 0xc000 | HEADER as u16;
/// Length of a record with a pointer for its owner, without data.
const RECORD: usize = 12;

/// Writes local answers; what it needs for one is kept for the next.
#[derive(Debug)]
pub struct Writer {
    ttl: u32,
    addresses: Vec<IpAddr>,
    dice: u64,
}

impl Writer {
    /// A writer of records that live `ttl` seconds.
    pub fn new(ttl: u32) -> Writer {
        Writer { ttl, addresses: Vec::new(), dice: random_u64() | 1 }
    }

    /// The addresses of a hit for a query of type A or AAAA, in random order and as many as fit.
    ///
    /// A name without addresses of the family asked for has no records at all: it exists, there is just no such data.
    pub fn addresses(&mut self, query: &Query<'_>, transport: Transport, index: &Index, hit: Hit, out: &mut Vec<u8>) {
        let v4 = query.question.qtype == A;
        self.addresses.clear();
        self.addresses.extend(index.table().addresses(hit.entry).filter(|ip| ip.is_ipv4() == v4));
        self.shuffle();

        query.begin_reply(out, AA, rcode::NOERROR);
        let limit = query.limit(transport).saturating_sub(query.edns_room());
        let (mut owner, mut answers) = (QUESTION_NAME, 0);
        if let Some(form) = hit.alias.filter(|_| !self.addresses.is_empty()) {
            let at = out.len();
            self.record(out, QUESTION_NAME, CNAME);
            let entry = index.table().entry(hit.entry);
            if name(out, &index.view().pieces(&entry, form)) && out.len() <= limit {
                owner = 0xc000 | (at + RECORD) as u16;
                answers = 1;
            } else {
                // The alias is too long to be a name: the addresses stand under the name asked.
                out.truncate(at);
            }
        }
        for ip in &self.addresses {
            let length = if v4 { 4 } else { 16 };
            if out.len() + RECORD + length > limit {
                out[2] |= TC;
                break;
            }
            self.record(out, owner, query.question.qtype);
            match ip {
                IpAddr::V4(ip) => data(out, &ip.octets()),
                IpAddr::V6(ip) => data(out, &ip.octets()),
            }
            answers += 1;
        }
        frame::set_count(out, Section::Answer, answers);
        query.end_reply(out, 0);
    }

    /// The name of an address, for a query of type PTR.
    pub fn pointer(&mut self, query: &Query<'_>, host: &str, out: &mut Vec<u8>) {
        query.begin_reply(out, AA, rcode::NOERROR);
        let at = out.len();
        self.record(out, QUESTION_NAME, PTR);
        if name(out, &[host.as_bytes()]) {
            frame::set_count(out, Section::Answer, 1);
        } else {
            out.truncate(at);
        }
        query.end_reply(out, 0);
    }

    fn record(&self, out: &mut Vec<u8>, owner: u16, rtype: u16) {
        let ([o1, o2], [r1, r2], [c1, c2]) = (owner.to_be_bytes(), rtype.to_be_bytes(), IN.to_be_bytes());
        let [t1, t2, t3, t4] = self.ttl.to_be_bytes();
        out.extend_from_slice(&[o1, o2, r1, r2, c1, c2, t1, t2, t3, t4, 0, 0]);
    }

    /// Fisher and Yates with xorshift64*: clients that take the first address are spread over all.
    fn shuffle(&mut self) {
        for last in (1..self.addresses.len()).rev() {
            self.dice ^= self.dice >> 12;
            self.dice ^= self.dice << 25;
            self.dice ^= self.dice >> 27;
            let roll = self.dice.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32;
            self.addresses.swap(last, ((roll * (last as u64 + 1)) >> 32) as usize);
        }
    }
}

/// Ends a record with its data.
fn data(out: &mut Vec<u8>, data: &[u8]) {
    out.extend_from_slice(data);
    set_length(out, data.len());
}

fn set_length(out: &mut [u8], length: usize) {
    let at = out.len() - length - 2;
    out[at..at + 2].copy_from_slice(&(length as u16).to_be_bytes());
}

/// Ends a record with a name given as text in pieces, lower-case; whether it is one.
fn name(out: &mut Vec<u8>, pieces: &[&[u8]]) -> bool {
    let start = out.len();
    let mut label = start;
    out.push(0);
    for byte in pieces.iter().flat_map(|piece| piece.iter()) {
        if *byte == b'.' {
            label = out.len();
            out.push(0);
        } else {
            out.push(byte.to_ascii_lowercase());
            out[label] = out[label].saturating_add(1);
        }
        if out[label] > 63 {
            return false;
        }
    }
    out.push(0);
    let length = out.len() - start;
    set_length(out, length);
    out.len() - start <= frame::MAX_NAME && !has_empty_label(&out[start..])
}

fn has_empty_label(wire: &[u8]) -> bool {
    let mut at = 0;
    while wire[at] != 0 {
        at += 1 + usize::from(wire[at]);
    }
    at + 1 != wire.len()
}

#[cfg(test)]
mod tests {
    use std::{collections::HashSet, sync::Arc};

    use prost::Message as _;
    use simple_dns::{Packet, rdata::RData};

    use super::{
        super::{
            message::{self, Message},
            table::Builder,
            view::View,
        },
        *,
    };
    use crate::{
        proto::istio::networking::nds::v1::{NameTable as Wire, name_table::NameInfo},
        wires::NameTable,
    };

    /// An index of one host.
    fn index(host: &str, ips: &[String]) -> Index {
        let info = NameInfo { ips: ips.to_vec(), ..NameInfo::default() };
        let bytes = Wire { table: [(host.to_owned(), info)].into() }.encode_to_vec();
        Builder::new(Arc::new(NameTable::decode(&bytes).unwrap()), View::default(), false).finish()
    }

    /// The answer to a query for `name`, with EDNS of that size.
    fn answer(index: &Index, name: &str, qtype: u16, edns: Option<u16>, transport: Transport) -> Vec<u8> {
        let mut query = vec![0x12, 0x34, 1, 0x10, 0, 1, 0, 0, 0, 0, 0, u8::from(edns.is_some())];
        assert!(super::name(&mut query, &[name.as_bytes()]));
        query.extend_from_slice(&[0, qtype as u8, 0, 1]);
        if let Some(size) = edns {
            query.extend_from_slice(&[0, 0, 41]);
            query.extend_from_slice(&size.to_be_bytes());
            query.extend_from_slice(&[0; 6]);
        }
        // The name was written over what stood in front of it.
        query[10..12].copy_from_slice(&[0, u8::from(edns.is_some())]);
        let Message::Ask(query) = message::read(&query) else { panic!("no query") };
        let hit = index.lookup(name.as_bytes(), Some(b"search.example")).unwrap();
        let mut out = Vec::new();
        Writer::new(30).addresses(&query, transport, index, hit, &mut out);
        assert!(out.len() <= query.limit(transport));
        assert!(frame::is_whole(&out) && frame::answers(query.bytes, &out));
        out
    }

    fn v4(count: usize) -> Vec<String> {
        (0..count).map(|at| format!("10.0.{}.{}", at / 250, at % 250)).collect()
    }

    #[test]
    fn families_are_kept_apart() {
        let index = index("dual.example", &["2001:db8::1".into(), "1.2.3.4".into(), "::ffff:1.2.3.4".into()]);
        let of =
            |qtype| Packet::parse(&answer(&index, "dual.example", qtype, None, Transport::Udp)).unwrap().answers.len();
        assert_eq!((of(A), of(AAAA)), (1, 2));
    }

    #[test]
    fn alias_comes_first_and_owns_the_addresses() {
        let index = index("dual.example", &v4(3));
        let bytes = answer(&index, "dual.example.search.example", A, None, Transport::Udp);
        let packet = Packet::parse(&bytes).unwrap();
        assert!(matches!(&packet.answers[0].rdata, RData::CNAME(target) if target.0.to_string() == "dual.example"));
        assert!(packet.answers[1..].iter().all(|record| record.name.to_string() == "dual.example" && record.ttl == 30));
        assert_eq!(packet.answers.len(), 4);
        let none = answer(&index, "dual.example.search.example", AAAA, None, Transport::Udp);
        assert!(Packet::parse(&none).unwrap().answers.is_empty(), "no data, no alias");
    }

    #[test]
    fn as_many_as_fit() {
        let index = index("many.example", &v4(300));
        for (edns, transport, whole) in [
            (None, Transport::Udp, false),
            (Some(1232), Transport::Udp, false),
            (Some(8192), Transport::Udp, true),
            (None, Transport::Tcp, true),
        ] {
            let bytes = answer(&index, "many.example", A, edns, transport);
            let packet = Packet::parse(&bytes).unwrap();
            assert_eq!((bytes[2] & TC == 0, packet.answers.len() == 300), (whole, whole));
            assert_eq!(packet.opt().is_some(), edns.is_some());
            let limit = edns.map_or(512, usize::from);
            assert!(whole || bytes.len() + RECORD + 4 > limit, "one more would have fitted");
        }
    }

    #[test]
    fn every_address_leads_sometimes_and_none_is_lost() {
        let index = index("four.example", &v4(4));
        let mut writer = Writer::new(30);
        let mut firsts = HashSet::new();
        for _ in 0..200 {
            writer.addresses = v4(4).iter().map(|ip| ip.parse().unwrap()).collect();
            writer.shuffle();
            firsts.insert(writer.addresses[0]);
            assert_eq!(writer.addresses.iter().collect::<HashSet<_>>().len(), 4);
        }
        assert_eq!(firsts.len(), 4);
        assert!(index.lookup(b"four.example", None).is_some());
    }

    #[test]
    fn what_is_no_name_is_not_written() {
        for text in ["", ".", "a..b", ".a", "a.", &"a".repeat(64), &"a.".repeat(130)] {
            assert!(!name(&mut vec![0, 0], &[text.as_bytes()]), "{text:?}");
        }
        let mut out = vec![0, 0];
        assert!(name(&mut out, &[b"We", b"b.", b"ns1"]));
        assert_eq!(out, b"\x00\x09\x03web\x03ns1\x00");
    }

    #[test]
    fn alias_that_is_no_name_is_left_out() {
        let info = NameInfo {
            ips: v4(1),
            registry: "Kubernetes".into(),
            shortname: "web".into(),
            namespace: "ns1".into(),
            ..NameInfo::default()
        };
        let bytes = Wire { table: [("web..svc.cluster.local".to_owned(), info)].into() }.encode_to_vec();
        let table = Arc::new(NameTable::decode(&bytes).unwrap());
        let index = Builder::new(table, View::new("ns1", "ns1.svc.cluster.local"), false).finish();
        let bytes = answer(&index, "web.ns1.search.example", A, None, Transport::Udp);
        let packet = Packet::parse(&bytes).unwrap();
        assert_eq!(packet.answers.len(), 1);
        assert_eq!(packet.answers[0].name.to_string(), "web.ns1.search.example");
    }
}
