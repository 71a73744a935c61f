//! What clients, servers and istiod send to the DNS proxy.

use std::sync::{Arc, LazyLock};

use footman::{
    dns::{
        answer::{A, AAAA, Writer},
        cache::{self, Cache, Cached},
        debug, fit,
        message::{self, Message, PLAIN_LIMIT, Query, Transport},
        table::{Builder, Index, MAX_TEXT},
        view::View,
    },
    net::resolve::frame,
    proto::istio::networking::nds::v1::{NameTable as Wire, name_table::NameInfo},
    wires::NameTable,
};
use prost::Message as _;
use tokio::time::Instant;

/// A query for `www.example`, with EDNS.
const QUERY: &[u8] = b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x01\x03www\x07example\x00\x00\x01\x00\x01\
                       \x00\x00\x29\x04\xd0\x00\x00\x00\x00\x00\x00";

/// Names that seeds and mutations of them ask for.
static INDEX: LazyLock<Index> = LazyLock::new(|| {
    let many: Vec<String> = (0..200).map(|last| format!("10.0.0.{last}")).collect();
    let info = |ips: &[String]| NameInfo { ips: ips.to_vec(), ..NameInfo::default() };
    let table = [
        ("www.example", info(&many)),
        ("*.example", info(&["2001:db8::1".to_owned(), "1.2.3.4".to_owned()])),
        ("www", info(&many[..1])),
    ];
    let wire = Wire { table: table.map(|(host, info)| (host.to_owned(), info)).into() };
    index(NameTable::decode(&wire.encode_to_vec()).expect("made by prost"))
});

fn index(table: NameTable) -> Index {
    Builder::new(Arc::new(table), View::new("ns1", "ns1.svc.cluster.local"), true).finish()
}

/// What a client sends: whatever it is, a reply is one to it, whole, and no larger than it may be.
pub fn dns_query(data: &[u8]) {
    let mut out = Vec::new();
    let query = match message::read(data) {
        Message::Drop => return,
        Message::Refuse(code, opcode) => {
            message::refuse(data, code, opcode, &mut out);
            assert!(out.len() == frame::HEADER && frame::id(&out) == frame::id(data));
            return;
        }
        Message::Ask(query) => query,
    };
    query.reply(&mut out, frame::rcode::SERVFAIL);
    is_reply(&query, &out, PLAIN_LIMIT);
    let mut buffer = [0; MAX_TEXT];
    let Some(name) = query.name(&mut buffer) else { return };
    let Some(hit) = INDEX.lookup(name, Some(b"search.example")) else { return };
    if !matches!(query.question.qtype, A | AAAA) {
        return;
    }
    for transport in [Transport::Udp, Transport::Tcp] {
        Writer::new(30).addresses(&query, transport, &INDEX, hit, &mut out);
        is_reply(&query, &out, query.limit(transport));
    }
}

fn is_reply(query: &Query<'_>, out: &[u8], limit: usize) {
    assert!(out.len() <= limit, "larger than allowed");
    assert!(frame::is_whole(out) && frame::answers(query.bytes, out), "not an answer to the query");
}

/// What a server sends: an answer is taken only with the question's id and question, and passed on no larger than allowed.
pub fn dns_answer(data: &[u8]) {
    let Message::Ask(query) = message::read(QUERY) else { unreachable!() };
    if !frame::answers(QUERY, data) || !frame::is_whole(data) {
        return;
    }
    assert_eq!(frame::id(data), frame::id(QUERY));
    // As the agent's own lookups read it.
    let _ = simple_dns::Packet::parse(data);
    for limit in [PLAIN_LIMIT, 1232, 65_535] {
        let fitted = fit::fit(data.to_vec(), limit);
        assert!(fitted.len() <= limit && frame::is_whole(&fitted) && frame::answers(QUERY, &fitted));
    }
    let (mut cache, now) = (Cache::new(cache::Policy { size: 100_000, stale: Default::default() }), Instant::now());
    cache.put(&query, data, now);
    if let Cached::Fresh(kept) = cache.get(&query, now) {
        assert!(kept.len() == data.len() && frame::answers(QUERY, &kept));
    }
}

/// What istiod sends: taken and refused as prost takes and refuses it, and every host is found.
pub fn dns_table(data: &[u8]) {
    let table = NameTable::decode(data);
    assert_eq!(table.is_ok(), Wire::decode(data).is_ok());
    let Ok(table) = table else { return };
    let index = index(table);
    let json = debug::ndsz(&index);
    assert!(serde_json::from_str::<serde_json::Value>(&json).is_ok());
    index.each_name(|name, _| {
        let name = name[..name.len() - 1].to_ascii_lowercase();
        if !name.is_empty() && name.iter().filter(|byte| **byte == b'.').count() < 127 {
            assert!(index.lookup(&name, None).is_some());
        }
    });
}
