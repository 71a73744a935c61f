//! Statistics: which of them Envoy keeps, how it reads tags out of their names, how often it flushes them.

use std::{net::IpAddr, time::Duration};

use serde_json::{Map, Value};

use super::{
    annotation,
    higress::Flavor,
    json::{Json, Object, json},
    metadata::Metadata,
    safe_regex,
};
use crate::config::{Vars, parse_go_duration};

/// How Envoy flushes when no annotation says otherwise.
const DEFAULT_FLUSH: Duration = Duration::from_secs(5);
/// Envoy refuses shorter intervals,
const SHORTEST: Duration = Duration::from_millis(1);
/// and flush intervals of five minutes or more.
const TOO_LONG: Duration = Duration::from_secs(300);

/// Tags and the expressions that find them, before and after those of the user.
const TAGS: &[(&str, &str)] = &[
    ("cluster_name", r"^cluster(\.(.+);)"),
    ("http_conn_manager_prefix", r"^http\.(((?:[_.[:digit:]\w]*|[_\[\]aAbBcCdDeEfF[:digit:]\w\:]*));\.)"),
    ("thread_name", r"^server(\.(.+))\.watchdog"),
    ("tcp_prefix", r"^tcp\.((.*?)\.)\w+?$"),
    ("response_code", r"_rq(_(\d{3}))$"),
    ("response_code_class", r"_rq(_(\dxx))$"),
    (
        "http_conn_manager_listener_prefix",
        r"^listener(?=\.).*?\.http\.(((?:[_.[:digit:]]*|[_\[\]aAbBcCdDeEfF[:digit:]]*))\.)",
    ),
    ("listener_address", r"^listener\.(((?:[_.[:digit:]]*|[_\[\]aAbBcCdDeEfF[:digit:]]*))\.)"),
    ("mongo_prefix", r"^mongo\.(.+?)\.(collection|cmd|cx_|op_|delays_|decoding_)(.*?)$"),
];
const LATER_TAGS: &[(&str, &str)] = &[
    ("cache", r"(cache\.(.+?)\.)"),
    ("component", r"(component\.(.+?)\.)"),
    ("tag", r"(tag\.(.+?);\.)"),
    ("wasm_filter", r"(wasm_filter\.(.+?)\.)"),
    ("authz_enforce_result", r"rbac(\.(allowed|denied))"),
    ("authz_dry_run_action", r"(\.istio_dry_run_(allow|deny)_)"),
    ("authz_dry_run_result", r"(\.shadow_(allowed|denied))"),
];
const REQUIRED_PREFIXES: &[&str] = &["cluster_manager", "listener_manager", "server", "cluster.xds-grpc", "wasm"];
const REQUIRED_SUFFIXES: &[&str] = &["rbac.allowed", "rbac.denied", "shadow_allowed", "shadow_denied"];
const REQUIRED_REGEXP: &str = r"vhost\..*\.route\..*";

/// What annotations (the pod's, and those that metadata brings) and ProxyConfig say about statistics.
#[derive(Debug, Clone, Default)]
pub(super) struct Stats {
    flush: Option<Duration>,
    eviction: Option<Duration>,
    tags: Vec<String>,
    prefixes: Vec<String>,
    suffixes: Vec<String>,
    regexps: Vec<String>,
    buckets: Vec<(String, Value)>,
    exclusions: Vec<String>,
    counts_connections: bool,
}

impl Stats {
    pub(super) fn from_vars(vars: &Vars, metadata: &Metadata) -> Stats {
        let matcher = &vars.proxy().proxy_stats_matcher;
        let addresses = vars.ip_addresses();
        let list = |name: &str, configured: &[String]| {
            let items: Vec<String> = match metadata.annotation(name).filter(|text| !text.is_empty()) {
                Some(text) => text.split(',').map(str::to_owned).collect(),
                None => configured.to_vec(),
            };
            expanded(items, addresses)
        };
        let flush = flush(vars, metadata);
        Stats {
            flush,
            eviction: eviction(vars, metadata, flush.unwrap_or(DEFAULT_FLUSH)),
            tags: tags(vars, metadata),
            prefixes: list("sidecar.istio.io/statsInclusionPrefixes", &matcher.prefixes),
            suffixes: list("sidecar.istio.io/statsInclusionSuffixes", &matcher.suffixes),
            regexps: list("sidecar.istio.io/statsInclusionRegexps", &matcher.regexps),
            buckets: buckets(vars, metadata),
            exclusions: expanded(matcher.exclusions.clone(), addresses),
            counts_connections: vars.bool("EXIT_ON_ZERO_ACTIVE_CONNECTIONS", false),
        }
    }

    /// Puts the sections into the bootstrap.
    pub(super) fn add_to<'a>(&'a self, bootstrap: &mut Object<'a>, metadata_discovery: bool, flavor: Flavor) {
        for (name, interval) in [("stats_flush_interval", self.flush), ("stats_eviction_interval", self.eviction)] {
            if let Some(interval) = interval {
                bootstrap.insert(name, seconds(interval));
            }
        }
        let own =
            self.tags.iter().map(|name| json!({"tag_name": name.as_str(), "regex": format!(r"({name}=\.=(.*?);\.;)")}));
        let (list, patterns) = match flavor.exclusions(&self.exclusions) {
            None => ("inclusion_list", self.patterns(metadata_discovery)),
            Some(patterns) => ("exclusion_list", patterns),
        };
        let mut config = json!({
            "use_all_default_tags": false,
            "stats_tags": flavor.tags([TAGS, LATER_TAGS], own),
            "stats_matcher": {list: {"patterns": patterns}}
        });
        if !self.buckets.is_empty() {
            let settings = self
                .buckets
                .iter()
                .map(|(prefix, buckets)| json!({"match": {"prefix": prefix.as_str()}, "buckets": buckets}));
            config.insert("histogram_bucket_settings", settings.collect::<Vec<_>>());
        }
        bootstrap.insert("stats_config", config);
    }

    fn patterns(&self, metadata_discovery: bool) -> Vec<Json<'_>> {
        let mut patterns = vec![prefix("reporter=")];
        if metadata_discovery {
            patterns.push(prefix("workload_discovery"));
        }
        patterns.extend(self.prefixes.iter().map(|text| prefix(text)));
        patterns.extend(REQUIRED_PREFIXES.iter().map(|text| prefix(text)));
        patterns.extend(self.suffixes.iter().map(|text| suffix(text)));
        patterns.extend(REQUIRED_SUFFIXES.iter().map(|text| suffix(text)));
        if self.counts_connections {
            patterns.push(suffix("downstream_cx_active"));
        }
        patterns.extend(self.regexps.iter().map(|text| safe_regex(text)));
        patterns.extend([safe_regex(REQUIRED_REGEXP), prefix("component"), prefix("istio")]);
        patterns
    }
}

fn prefix(text: &str) -> Json<'_> {
    json!({"prefix": text})
}

fn suffix(text: &str) -> Json<'_> {
    json!({"suffix": text})
}

/// Empty items go, since Envoy refuses them; `{pod_ip}` stands for each different address in turn.
fn expanded(items: Vec<String>, addresses: &[IpAddr]) -> Vec<String> {
    let mut distinct: Vec<IpAddr> = Vec::new();
    addresses.iter().for_each(|ip| {
        if !distinct.contains(ip) {
            distinct.push(*ip)
        }
    });
    let mut out = Vec::new();
    for item in items.into_iter().filter(|item| !item.is_empty()) {
        if item.contains("{pod_ip}") {
            out.extend(distinct.iter().map(|ip| item.replace("{pod_ip}", &ip.to_string())));
        } else {
            out.push(item);
        }
    }
    out
}

fn tags(vars: &Vars, metadata: &Metadata) -> Vec<String> {
    let annotated =
        metadata.annotation("sidecar.istio.io/extraStatTags").unwrap_or_default().split(',').map(str::to_owned);
    let mut tags: Vec<String> = Vec::new();
    for tag in vars.proxy().extra_stat_tags.iter().cloned().chain(annotated) {
        if !tag.is_empty() && !tags.contains(&tag) {
            tags.push(tag);
        }
    }
    tags
}

fn flush(vars: &Vars, metadata: &Metadata) -> Option<Duration> {
    const NAME: &str = "sidecar.istio.io/statsFlushInterval";
    let text = metadata.annotation(NAME)?;
    let interval = parse_go_duration(text);
    if interval.is_some_and(|interval| interval.is_zero()) {
        return None;
    }
    let fitting = interval.filter(|interval| (SHORTEST..TOO_LONG).contains(interval));
    if fitting.is_none() {
        vars.warn(format!("{}: {text:?} is not a duration from 1ms to below 5m; ignored", annotation(NAME)));
    }
    fitting
}

fn eviction(vars: &Vars, metadata: &Metadata, flush: Duration) -> Option<Duration> {
    const NAME: &str = "sidecar.istio.io/statsEvictionInterval";
    let text = metadata.annotation(NAME)?;
    let is_multiple = |interval: &Duration| interval.as_nanos().is_multiple_of(flush.as_nanos());
    let fitting = parse_go_duration(text).filter(|interval| *interval >= SHORTEST && is_multiple(interval));
    if fitting.is_none() {
        let flush = seconds(flush);
        vars.warn(format!("{}: {text:?} is not a multiple of the flush interval {flush}; ignored", annotation(NAME)));
    }
    fitting
}

fn buckets(vars: &Vars, metadata: &Metadata) -> Vec<(String, Value)> {
    const NAME: &str = "sidecar.istio.io/statsHistogramBuckets";
    let Some(text) = metadata.annotation(NAME).filter(|text| !text.is_empty()) else { return Vec::new() };
    let numbers =
        |value: &Value| value.is_null() || value.as_array().is_some_and(|list| list.iter().all(Value::is_number));
    match serde_json::from_str::<Map<String, Value>>(text) {
        Ok(map) if map.values().all(numbers) => {
            let list = |value: Value| if value.is_null() { Value::Array(Vec::new()) } else { value };
            let mut buckets: Vec<(String, Value)> =
                map.into_iter().map(|(prefix, value)| (prefix, list(value))).collect();
            buckets.sort_by(|(one, _), (other, _)| one.cmp(other));
            buckets
        }
        _ => {
            vars.warn(format!("{}: not a JSON object of lists of numbers; ignored", annotation(NAME)));
            Vec::new()
        }
    }
}

/// A duration in proto-JSON's form.
fn seconds(interval: Duration) -> String {
    crate::config::proto_text(i64::try_from(interval.as_nanos()).unwrap_or(i64::MAX))
}
