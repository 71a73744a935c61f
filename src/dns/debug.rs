//! What the status server shows of names: `/debug/ndsz` as Istio's agent shows it, and a summary. Pure.

use std::net::{IpAddr, SocketAddr};

use serde_json::{Value, json};

use super::table::Index;
use crate::wires::NameEntry;

/// The table in force with every generated name, as proto3 JSON of `NameTable`, keys sorted.
pub fn ndsz(index: &Index) -> String {
    let mut members: Vec<(Vec<u8>, Member<'_>)> =
        index.table().iter().map(|entry| (entry.host.into(), Member { entry, generated: false })).collect();
    // Of entries with the same host the last one counts, and each before a generated one of that name.
    members.reverse();
    index.each_name(|name, entry| members.push((name, Member { entry: *entry, generated: true })));
    members.sort_by(|(a, _), (b, _)| a.cmp(b));
    members.dedup_by(|(later, _), (earlier, _)| later == earlier);
    let mut out = String::from("{");
    for (name, member) in &members {
        out.push_str(if out.len() == 1 { "\"table\":{" } else { "," });
        out.push_str(&quoted(&String::from_utf8_lossy(name)));
        out.push(':');
        out.push_str(&if member.generated { generated(&member.entry) } else { received(&member.entry) });
    }
    if out.len() > 1 {
        out.push('}');
    }
    out.push('}');
    out
}

struct Member<'a> {
    entry: NameEntry<'a>,
    generated: bool,
}

/// How many hosts and names, which servers, how many kept answers.
pub fn summary(index: Option<&Index>, servers: &[SocketAddr], kept: Option<usize>) -> Value {
    let servers: Vec<String> = servers.iter().map(SocketAddr::to_string).collect();
    json!({
        "tableReceived": index.is_some(),
        "hosts": index.map_or(0, |index| index.table().len()),
        "names": index.map_or(0, Index::names),
        "upstreams": servers,
        "cachedAnswers": kept,
    })
}

fn received(entry: &NameEntry<'_>) -> String {
    let mut fields = Vec::new();
    let list = |texts: Vec<&str>| texts.iter().map(|text| quoted(text)).collect::<Vec<_>>().join(",");
    let ips: Vec<&str> = entry.ips().collect();
    if !ips.is_empty() {
        fields.push(format!("\"ips\":[{}]", list(ips)));
    }
    for (key, text) in [("registry", entry.registry), ("shortname", entry.shortname), ("namespace", entry.namespace)] {
        if !text.is_empty() {
            fields.push(format!("\"{key}\":{}", quoted(text)));
        }
    }
    let alternatives: Vec<&str> = entry.alt_hosts().collect();
    if !alternatives.is_empty() {
        fields.push(format!("\"altHosts\":[{}]", list(alternatives)));
    }
    format!("{{{}}}", fields.join(","))
}

fn generated(entry: &NameEntry<'_>) -> String {
    let mut ips: Vec<IpAddr> = entry.ips().filter_map(|ip| ip.parse().ok()).collect();
    ips.sort_by_key(IpAddr::is_ipv6);
    let ips: Vec<String> = ips.iter().map(|ip| format!("\"{ip}\"")).collect();
    format!("{{\"ips\":[{}],\"registry\":\"Kubernetes\"}}", ips.join(","))
}

fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}
