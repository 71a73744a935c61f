//! Whose bootstrap is followed where Istio's and Higress's differ (its fork's tools/packaging/common), and what Higress's has instead.
//!
//! Higress's images carry their own template in the place of Istio's, so the template tells whose image this is; only that is
//! read from it. `FOOTMAN_HIGRESS_BOOTSTRAP` decides where it is set.

use super::{
    Family,
    json::{Json, json},
    safe_regex,
};
use crate::config::{Vars, parse_bool};

const VARIABLE: &str = "FOOTMAN_HIGRESS_BOOTSTRAP";
/// The template of an image.
const STOCK: &str = "./var/lib/istio/envoy/envoy_bootstrap_tmpl.json";

/// Tags of Wasm plugins, of the web application firewall and of the AI plugins.
const TAGS: &[(&str, &str)] = &[
    ("wasm_runtime", r"^wasm\.envoy\.wasm\.(.*?\.)plugin"),
    ("thread_name", r"^wasm\..*?\.plugin\..*?\..*?\.(\w+\.)"),
    ("plugin_name", r"^wasm\..*?plugin\.(.*?\..*?\.)"),
    ("phase", r"(_phase=([a-z_]+))"),
    ("ruleid", r"(_ruleid=([0-9]+))"),
    ("ai_route", r"^wasmcustom\.route\.((.*?)\.)upstream"),
    ("ai_cluster", r"^wasmcustom\..*?\.upstream\.((.*?)\.)model"),
    // Tokens are counted by consumer; plugins of before know none.
    ("ai_model", r"^wasmcustom\..*?\.model\.((.*?)\.)(consumer|input_token|output_token)"),
    ("ai_consumer", r"^wasmcustom\..*?\.consumer\.((.*?)\.)metric"),
    ("http_conn_manager_prefix", r"^http\.(((outbound_([0-9]{1,3}\.{0,1}){4}_\d{0,5})|([^\.]+))\.)"),
    (
        "cluster_name",
        r"^cluster\.((.*?)\.)(http1\.|http2\.|health_check\.|zone\.|external\.|circuit_breakers\.|[^\.]+$)",
    ),
];
/// Those of the v3 gateway besides: routes that name an API, its environment, version and operation.
const V3_TAGS: &[(&str, &str)] = &[
    ("route", r"^vhost\..*?\.route\.((.*?)\.)upstream"),
    ("api_name", r"^vhost\..*?\.route\.((.*?)@)"),
    ("api_env", r"^vhost\..*?\.route\..*?@((.*?)@)"),
    ("api_version", r"^vhost\..*?\.route\..*?@.*?@((.*?)@)"),
    ("api_operation", r"^vhost\..*?\.route\..*?@.*?@.*?@((.*?))upstream"),
    ("vhost", r"^vhost\.((.*?)\.)(vcluster|route)"),
    ("vcluster", r"vcluster\.((.*?)\.)upstream"),
    ("response_code", r"(response_code=\.=(.+?);\.;)"),
];
/// Istio's that are kept.
const KEPT: &[&str] = &["response_code_class", "listener_address"];
const V3_KEPT: &[&str] = &[KEPT[0], KEPT[1], "http_conn_manager_listener_prefix", "wasm_filter"];
const RDS: &str = r"^http.*\.rds\..*";

/// Whose bootstrap is followed.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Flavor {
    kind: Kind,
    /// Every statistic is kept but those of a list, in place of none but those of a list.
    excludes: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
enum Kind {
    #[default]
    Istio,
    Higress,
    /// Without any tags: `LITE_METRICS`.
    Lite,
    V3,
}

impl Flavor {
    /// As the variable says, else as the template does: `template`, which is configured, or the image's.
    pub(super) fn from_vars(vars: &Vars, template: Option<String>) -> Flavor {
        let of = |kind, excludes| Flavor { kind, excludes };
        let chosen = match vars.text_or(VARIABLE, "").as_str() {
            "exclusion" => Some(of(Kind::Higress, true)),
            "v3-gateway" => Some(of(Kind::V3, true)),
            "" => None,
            text => Some(match parse_bool(text) {
                Some(true) => of(Kind::Higress, false),
                Some(false) => Flavor::default(),
                None => {
                    let values = "false, true, exclusion or v3-gateway";
                    vars.warn(format!("{VARIABLE}: {text:?} is not {values}; using false"));
                    Flavor::default()
                }
            }),
        };
        let of_image = || std::fs::read(vars.path(STOCK)).map(|text| String::from_utf8_lossy(&text).into_owned());
        let mut flavor = chosen.unwrap_or_else(|| {
            template.or_else(|| of_image().ok()).map(|text| Flavor::of_template(&text)).unwrap_or_default()
        });
        if flavor.kind == Kind::Higress && !vars.text_or("LITE_METRICS", "").is_empty() {
            flavor.kind = Kind::Lite;
        }
        if !flavor.is_istio() && !vars.proxy().proxy_stats_matcher.exclusions.is_empty() {
            flavor.excludes = true;
        }
        // For `check`, which shows what is in effect.
        vars.text_or(VARIABLE, flavor.name());
        flavor
    }

    /// By what only that template has.
    fn of_template(text: &str) -> Flavor {
        let kind = if text.contains("upstream_bind_config") {
            Kind::V3
        } else if text.contains("wasmcustom") {
            Kind::Higress
        } else if text.contains("\"stats_tags\": []") {
            Kind::Lite
        } else {
            return Flavor::default();
        };
        Flavor { kind, excludes: text.contains("exclusion_list") }
    }

    fn name(self) -> &'static str {
        match self.kind {
            Kind::Istio => "false",
            Kind::V3 => "v3-gateway",
            _ if self.excludes => "exclusion",
            _ => "true",
        }
    }

    pub(super) fn is_istio(self) -> bool {
        self.kind == Kind::Istio
    }

    /// The tags: Istio's (those before and those after the user's), the user's, and what Higress has instead.
    pub(super) fn tags<'a>(
        self,
        istio: [&'static [(&'static str, &'static str)]; 2],
        own: impl Iterator<Item = Json<'a>>,
    ) -> Vec<Json<'a>> {
        let tag = |(name, regex): &(&'static str, &'static str)| json!({"tag_name": *name, "regex": *regex});
        let kept = |names: &'static [&str]| move |tag: &&(&str, &str)| names.contains(&tag.0);
        let [earlier, later] = istio;
        let all = earlier.iter().chain(later);
        match self.kind {
            Kind::Istio => earlier.iter().map(tag).chain(own).chain(later.iter().map(tag)).collect(),
            Kind::Higress => TAGS.iter().map(tag).chain(own).chain(all.filter(kept(KEPT)).map(tag)).collect(),
            Kind::Lite => Vec::new(),
            Kind::V3 => {
                let first = TAGS.iter().chain(V3_TAGS).map(tag);
                first.chain(own).chain(all.filter(kept(V3_KEPT)).map(tag)).collect()
            }
        }
    }

    /// What is not kept, where Envoy keeps all the rest; `own` are the user's expressions.
    pub(super) fn exclusions(self, own: &[String]) -> Option<Vec<Json<'_>>> {
        let mut list: Vec<Json<'_>> = own.iter().map(|text| safe_regex(text)).collect();
        if self.kind != Kind::V3 {
            list.push(json!({"prefix": "vhost"}));
        }
        list.push(safe_regex(RDS));
        self.excludes.then_some(list)
    }

    /// The v3 gateway lets the kernel choose ports of outgoing connections late (IP_BIND_ADDRESS_NO_PORT), so that more fit.
    pub(super) fn upstream_bind(self, family: &Family) -> Option<Json<'static>> {
        let any = |address: &'static str| json!({"address": address, "port_value": 0});
        let option = json!({"description": "IP_BIND_ADDRESS_NO_PORT", "level": 0, "name": 24, "int_value": 1});
        let mut config = json!({"source_address": any(family.wildcard), "socket_options": [option]});
        if let Some((_, wildcard)) = family.additional {
            config.insert("extra_source_addresses", json!([{"address": any(wildcard)}]));
        }
        (self.kind == Kind::V3).then_some(config)
    }
}
