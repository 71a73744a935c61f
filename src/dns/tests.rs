//! The index against a slow, obvious reference, and Istio's own lookup cases.

use std::{collections::BTreeMap, sync::Arc};

use proptest::prelude::*;
use prost::Message;

use super::*;
use crate::proto::istio::networking::nds::v1::{NameTable as Wire, name_table::NameInfo};

const SEARCH: &str = "ns1.svc.cluster.local";

fn view() -> View {
    View::new("ns1", "ns1.svc.cluster.local")
}

fn external(ips: &[&str]) -> NameInfo {
    NameInfo { ips: strings(ips), registry: "External".into(), ..NameInfo::default() }
}

fn kubernetes(short: &str, namespace: &str, ips: &[&str], alternatives: &[&str]) -> NameInfo {
    NameInfo {
        ips: strings(ips),
        registry: "Kubernetes".into(),
        shortname: short.into(),
        namespace: namespace.into(),
        alt_hosts: strings(alternatives),
    }
}

fn strings(texts: &[&str]) -> Vec<String> {
    texts.iter().map(ToString::to_string).collect()
}

fn built(table: &BTreeMap<String, NameInfo>) -> Index {
    let bytes = Wire { table: table.clone() }.encode_to_vec();
    let mut builder = Builder::new(Arc::new(NameTable::decode(&bytes).unwrap()), view(), true);
    while builder.step(2) {}
    builder.finish()
}

/// Istio's test table (pkg/dns/client/dns_test.go), as the specification has it.
fn istios() -> BTreeMap<String, NameInfo> {
    [
        ("www.google.com", external(&["1.1.1.1"])),
        ("productpage.ns1.svc.cluster.local", kubernetes("productpage", "ns1", &["9.9.9.9"], &[])),
        ("example.ns2.svc.cluster.local", kubernetes("example", "ns2", &["10.10.10.10"], &[])),
        ("details.ns2.svc.cluster.remote", kubernetes("details", "ns2", &["11.11.11.11"], &[])),
        (
            "svc-with-alt.ns1.svc.cluster.local",
            kubernetes("svc-with-alt", "ns1", &["15.15.15.15"], &["svc-with-alt.ns1.svc.clusterset.local"]),
        ),
        ("*.b.wildcard", external(&["11.11.11.11"])),
        ("*.wildcard", external(&["10.10.10.10"])),
        ("x.b.wildcard", external(&["12.12.12.12"])),
        ("example.localhost.", external(&["3.3.3.3"])),
        ("broken.example", external(&["not-an-address", "10.0.0.0/8"])),
        ("x.mysvc.cluster.local", kubernetes("x", "ns1", &["4.4.4.4"], &[])),
        ("Upper.Example", external(&["5.5.5.5"])),
        ("foo", external(&["6.6.6.6"])),
    ]
    .map(|(host, info)| (host.to_owned(), info))
    .into()
}

/// (host that answers, alias in the answer) of a name.
fn looked_up(index: &Index, name: &str) -> Option<(String, Option<String>)> {
    let hit = index.lookup(name.as_bytes(), Some(SEARCH.as_bytes()))?;
    let entry = index.table().entry(hit.entry);
    let alias = hit
        .alias
        .map(|form| String::from_utf8(index.view().pieces(&entry, form).concat()).unwrap().to_ascii_lowercase());
    Some((entry.host.to_owned(), alias))
}

#[test]
fn names_of_istios_table() {
    let index = built(&istios());
    let direct = |host: &str| Some((host.to_owned(), None));
    let aliased = |host: &str, alias: &str| Some((host.to_owned(), Some(alias.to_owned())));
    let productpage = "productpage.ns1.svc.cluster.local";
    for (name, wanted) in [
        ("www.google.com", direct("www.google.com")),
        ("google.com", None),
        ("www.google.com.ns1.svc.cluster.local", aliased("www.google.com", "www.google.com")),
        ("www.google.com.svc.cluster.local", None),
        ("productpage", direct(productpage)),
        ("productpage.ns1", direct(productpage)),
        ("productpage.ns1.svc", direct(productpage)),
        ("productpage.ns1.svc.cluster.local", direct(productpage)),
        ("productpage.ns1.svc.cluster", None),
        ("productpage.ns1.ns1.svc.cluster.local", aliased(productpage, productpage)),
        ("productpage.ns1.svc.ns1.svc.cluster.local", aliased(productpage, productpage)),
        ("productpage.ns1.svc.cluster.local.ns1.svc.cluster.local", None),
        ("example", None),
        ("example.ns2", direct("example.ns2.svc.cluster.local")),
        ("details.ns2", None),
        ("details.ns2.svc.cluster.remote", direct("details.ns2.svc.cluster.remote")),
        ("svc-with-alt.ns1.svc.clusterset.local", direct("svc-with-alt.ns1.svc.cluster.local")),
        (
            "svc-with-alt.ns1.svc.clusterset.local.ns1.svc.cluster.local",
            aliased("svc-with-alt.ns1.svc.cluster.local", "svc-with-alt.ns1.svc.clusterset.local"),
        ),
        ("foo.wildcard", direct("*.wildcard")),
        ("a.b.wildcard", direct("*.b.wildcard")),
        ("p.q.b.wildcard", direct("*.b.wildcard")),
        ("x.b.wildcard", direct("x.b.wildcard")),
        ("b.wildcard", direct("*.wildcard")),
        ("wildcard", None),
        ("xwildcard", None),
        ("*.wildcard", direct("*.wildcard")),
        ("foo.wildcard.ns1.svc.cluster.local", direct("*.wildcard")),
        ("a.b.wildcard.ns1.svc.cluster.local", direct("*.b.wildcard")),
        ("wildcard.ns1.svc.cluster.local", None),
        ("example.localhost", direct("example.localhost.")),
        ("broken.example", None),
        ("x", None),
        ("upper.example", direct("Upper.Example")),
        ("foo.ns1.svc.cluster.local", aliased("foo", "foo")),
        ("ns1.svc.cluster.local", None),
        ("", None),
    ] {
        assert_eq!(looked_up(&index, name), wanted, "{name}");
    }
}

#[test]
fn real_names_win_over_expanded_ones_and_kubernetes_over_others() {
    let table = [
        ("foo", external(&["1.1.1.1"])),
        ("foo.ns1.svc.cluster.local", kubernetes("foo", "ns1", &["2.2.2.2"], &[])),
        ("foo.ns1", external(&["3.3.3.3"])),
        ("bar", external(&["1.1.1.1"])),
        ("bar.ns1.svc.cluster.local", external(&["4.4.4.4"])),
    ]
    .map(|(host, info)| (host.to_owned(), info));
    let index = built(&table.into());
    for (name, host) in [
        ("foo.ns1.svc.cluster.local", "foo.ns1.svc.cluster.local"),
        ("foo", "foo.ns1.svc.cluster.local"),
        ("foo.ns1", "foo.ns1.svc.cluster.local"),
        ("bar.ns1.svc.cluster.local", "bar.ns1.svc.cluster.local"),
        ("bar", "bar"),
    ] {
        assert_eq!(looked_up(&index, name), Some((host.to_owned(), None)), "{name}");
    }
}

#[test]
fn an_index_is_made_in_slices() {
    let bytes = Wire { table: istios() }.encode_to_vec();
    let table = Arc::new(NameTable::decode(&bytes).unwrap());
    let mut builder = Builder::new(table.clone(), view(), false);
    let steps = std::iter::from_fn(|| builder.step(5).then_some(())).count();
    assert_eq!(steps + 1, 2 * table.len().div_ceil(5), "counted, then added");
    assert_eq!(builder.finish().names(), built(&istios()).names());
}

#[test]
fn names_of_addresses() {
    let mut table = istios();
    table.insert("alias.example".into(), external(&["9.9.9.9", "2001:db8::1"]));
    let index = built(&table);
    let host = |ip: &str| index.host_of(ip.parse().unwrap());
    assert_eq!(host("9.9.9.9"), Some("productpage.ns1.svc.cluster.local"), "Kubernetes first");
    assert_eq!(host("2001:db8::1"), Some("alias.example"));
    assert_eq!(host("3.3.3.3"), Some("example.localhost"));
    assert_eq!(host("11.11.11.11"), Some("details.ns2.svc.cluster.remote"), "no wildcards");
    assert_eq!(host("8.8.8.8"), None);
}

#[test]
fn views() {
    for (namespace, domain, in_domain) in [
        ("ns1", "ns1.svc.cluster.local", true),
        ("ns1", "svc.cluster.local", true),
        ("ns1", "ns1", false),
        ("ns1", "", false),
        ("", "svc.cluster.local", true),
        ("", ".svc.cluster.local", true),
        ("ns1", ".svc.cluster.local.", true),
        ("ns1", "ns1.svc.other.local", false),
    ] {
        let table = [("a.ns2.svc.cluster.local".to_owned(), kubernetes("a", "ns2", &["1.1.1.1"], &[]))];
        let bytes = Wire { table: table.into() }.encode_to_vec();
        let table = NameTable::decode(&bytes).unwrap();
        let mut forms = 0;
        View::new(namespace, domain).forms(&table.entry(0), |_| forms += 1);
        assert_eq!(forms, if in_domain { 3 } else { 1 }, "{namespace} {domain}");
    }
}

#[test]
fn ndsz_is_json_with_generated_names() {
    let index = built(&istios());
    let json: serde_json::Value = serde_json::from_str(&debug::ndsz(&index)).unwrap();
    let table = &json["table"];
    assert_eq!(table["www.google.com"], serde_json::json!({"ips": ["1.1.1.1"], "registry": "External"}));
    assert_eq!(table["www.google.com."], serde_json::json!({"ips": ["1.1.1.1"], "registry": "Kubernetes"}));
    assert_eq!(table["svc-with-alt.ns1.svc.cluster.local"]["altHosts"][0], "svc-with-alt.ns1.svc.clusterset.local");
    assert_eq!(table["svc-with-alt.ns1.svc.clusterset.local."]["ips"][0], "15.15.15.15");
    assert_eq!(table["broken.example"]["ips"][1], "10.0.0.0/8");
    assert!(table.get("broken.example.").is_none());
    let keys: Vec<&String> = table.as_object().unwrap().keys().collect();
    assert!(keys.is_sorted());
    assert_eq!(debug::ndsz(&built(&BTreeMap::new())), "{}");
}

/// The specification written down (C.6 to C.8), as slowly as it reads.
mod reference {
    use super::*;

    fn lower(text: &str) -> String {
        text.to_ascii_lowercase()
    }

    fn forms(host: &str, info: &NameInfo) -> Vec<(String, bool)> {
        let full = lower(host.strip_suffix('.').unwrap_or(host));
        let mut forms = vec![(full.clone(), true)];
        if info.registry == "Kubernetes" && (full.ends_with(".svc.cluster.local") || full == "svc.cluster.local") {
            if !info.shortname.is_empty() {
                if !info.namespace.is_empty() {
                    forms.push((lower(&format!("{}.{}.svc", info.shortname, info.namespace)), false));
                    forms.push((lower(&format!("{}.{}", info.shortname, info.namespace)), false));
                }
                if info.namespace == "ns1" {
                    forms.push((lower(&info.shortname), false));
                }
            }
            forms.extend(info.alt_hosts.iter().map(|alternative| (lower(alternative), true)));
        }
        forms
    }

    pub fn lookup(table: &BTreeMap<String, NameInfo>, name: &str) -> Option<(String, Option<String>)> {
        // name -> (is Kubernetes first, host, alias)
        let mut real: BTreeMap<String, (bool, String)> = BTreeMap::new();
        let mut expanded: BTreeMap<String, (bool, String, Option<String>)> = BTreeMap::new();
        let mut targets: BTreeMap<String, bool> = BTreeMap::new();
        let valid = |info: &NameInfo| info.ips.iter().any(|ip| ip.parse::<IpAddr>().is_ok());
        for (host, info) in table.iter().filter(|(_, info)| valid(info)) {
            for (form, absolute) in forms(host, info) {
                let claim = (info.registry != "Kubernetes", host.clone());
                let wins = real.get(&form).is_none_or(|held| claim < *held);
                if wins {
                    real.insert(form.clone(), claim);
                    targets.insert(form, absolute);
                }
            }
        }
        for (form, (other, host)) in &real {
            if form != SEARCH && !form.ends_with(&format!(".{SEARCH}")) {
                let full = lower(host.strip_suffix('.').unwrap_or(host));
                let alias = if targets[form] { form.clone() } else { full };
                let alias = (!form.starts_with('*')).then_some(alias);
                expanded.insert(format!("{form}.{SEARCH}"), (*other, host.clone(), alias));
            }
        }
        if let Some((_, host)) = real.get(name) {
            return Some((host.clone(), None));
        }
        if let Some((_, host, alias)) = expanded.get(name) {
            return Some((host.clone(), alias.clone()));
        }
        let mut rest = name;
        while let Some((_, parent)) = rest.split_once('.') {
            let wildcard = format!("*.{parent}");
            if let Some((_, host)) = real.get(&wildcard) {
                return Some((host.clone(), None));
            }
            if wildcard != format!("*.{SEARCH}")
                && let Some((_, host, _)) = expanded.get(&wildcard)
            {
                return Some((host.clone(), None));
            }
            rest = parent;
        }
        None
    }
}

fn label() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["a", "b", "web", "ns1", "ns2", "svc", "cluster", "local", "X"])
}

fn name() -> impl Strategy<Value = String> {
    let free = prop::collection::vec(label(), 1..5).prop_map(|labels| labels.join("."));
    let service = (label(), label()).prop_map(|(short, namespace)| format!("{short}.{namespace}.svc.cluster.local"));
    prop_oneof![free, service]
}

fn host() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => name(),
        2 => name().prop_map(|name| format!("*.{name}")),
        1 => name().prop_map(|name| format!("{name}.")),
    ]
}

fn info() -> impl Strategy<Value = NameInfo> {
    let ips = prop::sample::select(vec![vec!["1.2.3.4"], vec!["::1", "1.1.1.1"], vec!["no"], vec![]]);
    let registry = prop::sample::select(vec!["Kubernetes", "External"]);
    let text = || prop_oneof![1 => Just(""), 4 => label()];
    (ips, registry, text(), text(), prop::collection::vec(name(), 0..2)).prop_map(
        |(ips, registry, short, namespace, alternatives)| NameInfo {
            registry: registry.into(),
            alt_hosts: alternatives,
            ..kubernetes(short, namespace, &ips, &[])
        },
    )
}

fn question() -> impl Strategy<Value = String> {
    let asked = (prop::option::of(label()), name(), any::<bool>()).prop_map(|(prefix, name, expanded)| {
        let prefix = prefix.map(|prefix| format!("{prefix}.")).unwrap_or_default();
        let suffix = if expanded { format!(".{SEARCH}") } else { String::new() };
        format!("{prefix}{name}{suffix}")
    });
    asked.prop_map(|name| name.to_ascii_lowercase())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn index_agrees_with_the_reference(
        table in prop::collection::btree_map(host(), info(), 0..24),
        questions in prop::collection::vec(question(), 1..40),
    ) {
        let index = built(&table);
        let own = table.keys().map(|host| host.trim_end_matches('.').to_ascii_lowercase());
        for name in questions.into_iter().chain(own) {
            prop_assert_eq!(looked_up(&index, &name), reference::lookup(&table, &name), "{}", name);
        }
    }
}
