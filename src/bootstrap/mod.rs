//! Envoy's bootstrap: what the agent was told, put together into the JSON that Envoy reads at its start.
//!
//! `agent` makes a [`Config`] (pure, every error at once), learns the [`Surroundings`] while the other rooms start, then
//! writes the file with [`write()`] and takes Envoy's arguments from [`envoy_args`]. `check` prints [`Config::document`]. Values
//! are built as data and printed once; there is no text template, so no label or address can break the JSON.

mod argv;
mod clusters;
mod document;
mod files;
mod grpc;
mod higress;
mod json;
mod listeners;
mod metadata;
mod node;
mod overlay;
pub mod platform;
mod runtime;
mod stats;
mod tls;
mod tracing;

use std::net::IpAddr;

use serde_json::{Map, Value};

pub use argv::envoy_args;
pub use files::{Error, Written, write, write_grpc, write_to};
pub use overlay::{OverrideError, override_json};
pub use platform::Platform;

use crate::config::{
    AuthPolicy, ConfigError, Errors, ISTIO_VERSION, ProxyConfig, Role, Tracer, Vars, is_link_local, split_host_port,
};
use higress::Flavor;
use json::{Json, json};
use metadata::{Labels, Metadata};
use node::Node;
use stats::Stats;

/// The agent's SDS server, as a cluster of Envoy.
const SDS_CLUSTER: &str = "sds-grpc";
/// The agent's XDS server, as a cluster of Envoy.
const XDS_CLUSTER: &str = "xds-grpc";
const TOKEN_FILE: &str = "lightstep_access_token.txt";
const GRPC_BOOTSTRAP: &str = "etc/istio/proxy/grpc-bootstrap.json";
const DEFAULT_MAX_CONNECTIONS: i64 = i32::MAX as i64;

/// Everything the bootstrap is made of that is known from the configuration alone.
#[derive(Debug, Clone)]
pub struct Config {
    node_id: String,
    proxy: ProxyConfig,
    metadata: Metadata,
    labels: Labels,
    family: Family,
    ports: Ports,
    stats: Stats,
    /// Whose bootstrap is followed: Istio's or Higress's.
    flavor: Flavor,
    socket_file: String,
    host_ip: String,
    log_as_json: bool,
    delta_xds: bool,
    is_waypoint: bool,
    /// Envoy lacks Istio's extensions (`FOOTMAN_STOCK_ENVOY`).
    stock_envoy: bool,
    metrics_localhost_only: bool,
    status_proxy_protocol: bool,
    google_grpc_without_tls_13: bool,
    keep_fragments: bool,
    max_connections: i64,
    load_stats: Option<Value>,
    grpc: grpc::Target,
    own: Option<files::Own>,
    args: argv::Args,
    config_dir: std::path::PathBuf,
}

/// What shows only when the agent starts.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Surroundings {
    /// The cloud, as far as it answered.
    pub platform: Platform,
    /// Somebody else serves the workload's identity on its socket; the agent serves files only.
    pub external_sds: bool,
    /// A credential server answers on `./var/run/secrets/credential-uds/socket`.
    pub credential_socket: bool,
}

/// Ports of the listeners; 0 turns a secure one off.
#[derive(Debug, Clone, Copy)]
struct Ports {
    status: u16,
    prometheus: u16,
    secure_metrics: u16,
    secure_merged_metrics: u16,
}

/// Which addresses Envoy's own listeners and clusters use.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Family {
    localhost: &'static str,
    wildcard: &'static str,
    /// The same of the other family, in dual stack.
    additional: Option<(&'static str, &'static str)>,
    dns: &'static str,
}

impl Config {
    /// Reads what the bootstrap needs.
    ///
    /// # Errors
    /// Everything that is wrong, each with its source.
    pub fn from_vars(vars: &Vars) -> Result<Config, Errors> {
        let mut errors = Errors::default();
        let proxy = vars.proxy().clone();
        let ports = Ports::from_vars(vars, &mut errors);
        let mut metadata = Metadata::from_vars(vars, &mut errors);
        // `sds` refuses names that cannot be.
        let socket_file = vars.text_or("WORKLOAD_IDENTITY_SOCKET_FILE", "socket");
        let (own, template) = files::Own::from_vars(vars, &mut errors);
        let flavor = Flavor::from_vars(vars, template);
        own_metadata(&mut metadata, vars, ports, &socket_file, flavor);
        if let Some(annotations) = vars.annotations() {
            metadata.set_annotations(annotations);
        }
        let load_stats = load_stats(&metadata, &mut errors);
        let discovery = metadata.flag("METADATA_DISCOVERY")
            || metadata.text("METADATA_DISCOVERY").is_empty() && metadata.flag("ENABLE_HBONE");
        let delta_xds = vars.bool("ISTIO_DELTA_XDS", true);
        let is_waypoint = vars.role() == Role::Waypoint;
        if discovery && !delta_xds && !is_waypoint {
            vars.warn(
                "ISTIO_DELTA_XDS: metadata discovery needs delta xDS, which is turned off; Envoy goes without it",
            );
        }
        tls::check(vars, &metadata, &mut errors);
        if matches!(proxy.tracing.as_ref().and_then(|tracing| tracing.tracer.as_ref()), Some(Tracer::Lightstep(..))) {
            let origin = vars.proxy_origin("tracing");
            vars.warn(format!("{origin}: tracing.lightstep: Envoy 1.40 no longer has this tracer and will refuse it"));
        }
        let is_true = |name: &str| proxy.proxy_metadata.get(name).is_some_and(|value| value == "true");
        let config = Config {
            node_id: vars.node_id(),
            labels: Labels::from_vars(vars),
            family: Family::of(vars.ip_addresses(), vars.bool("ISTIO_DUAL_STACK", false)),
            stats: Stats::from_vars(vars, &metadata),
            flavor,
            host_ip: vars.text_or("HOST_IP", ""),
            log_as_json: vars.flags().bool("log_as_json"),
            delta_xds,
            is_waypoint,
            stock_envoy: vars.bool("FOOTMAN_STOCK_ENVOY", false),
            metrics_localhost_only: is_true("METRICS_LOCALHOST_ACCESS_ONLY"),
            status_proxy_protocol: vars.bool("ENVOY_STATUS_PORT_ENABLE_PROXY_PROTOCOL", false),
            google_grpc_without_tls_13: vars.text_or("COMPLIANCE_POLICY", "") == "fips-140-2",
            keep_fragments: !vars.bool("HTTP_STRIP_FRAGMENT_FROM_PATH_UNSAFE_IF_DISABLED", true),
            max_connections: max_connections(&proxy),
            grpc: grpc::Target::from_vars(vars),
            own,
            args: argv::Args::from_vars(vars, &mut errors),
            config_dir: vars.config_file(""),
            ports,
            metadata,
            socket_file,
            load_stats,
            proxy,
        };
        errors.into_result(config)
    }

    /// Envoy's bootstrap. Where the configuration names another file, this one is not used.
    pub fn document(&self, around: &Surroundings) -> Value {
        document::document(self, &Node::new(self, around)).into()
    }

    /// Whether Envoy finds its workloads' metadata by itself.
    fn metadata_discovery(&self, node: &Node) -> bool {
        !self.stock_envoy && (self.is_waypoint || self.delta_xds && node.metadata.flag("METADATA_DISCOVERY"))
    }

    /// Host and port of the statsd sink.
    fn statsd(&self) -> Option<(&str, u16)> {
        let (host, port) = split_host_port(&self.proxy.statsd_udp_address).ok()?;
        Some((host, port.parse().ok()?))
    }

    /// Where Envoy reads lightstep's access token from.
    fn token_path(&self) -> String {
        self.proxy.config_file(TOKEN_FILE).to_string_lossy().into_owned()
    }

    /// What makes the configuration unusable in these surroundings: Stackdriver's tracer gives no section, but Istio refuses it
    /// without a project.
    ///
    /// # Errors
    /// [`Error::NoProject`].
    pub fn fits(&self, around: &Surroundings) -> Result<(), Error> {
        let is_made = !matches!(self.own, Some(files::Own::InPlace(_)));
        let needs_project = is_made && matches!(self.tracer(), Some(Tracer::Stackdriver));
        if needs_project && !around.platform.metadata.contains_key("gcp_project") {
            return Err(Error::NoProject);
        }
        Ok(())
    }

    fn tracer(&self) -> Option<&Tracer> {
        self.proxy.tracing.as_ref()?.tracer.as_ref()
    }

    fn lightstep_token(&self) -> Option<&str> {
        match self.tracer()? {
            Tracer::Lightstep(_, token) => Some(token),
            _ => None,
        }
    }
}

impl Ports {
    fn from_vars(vars: &Vars, errors: &mut Errors) -> Ports {
        let mut port = |name: &str, default: u16| {
            let number = vars.int(name, default.into());
            u16::try_from(number).unwrap_or_else(|_| {
                errors.add(name, format!("{number} is not a port (0 to 65535)"));
                default
            })
        };
        Ports {
            status: port("ENVOY_STATUS_PORT", 15021),
            prometheus: port("ENVOY_PROMETHEUS_PORT", 15090),
            secure_metrics: port("ENVOY_SECURE_METRICS_PORT", 0),
            secure_merged_metrics: port("ENVOY_SECURE_MERGED_METRICS_PORT", 0),
        }
    }
}

impl Family {
    /// IPv4 unless all addresses are IPv6; both only in a dual-stack mesh, the first address's family first.
    fn of(addresses: &[IpAddr], dual_stack: bool) -> Family {
        const V4: (&str, &str) = ("127.0.0.1", "0.0.0.0");
        const V6: (&str, &str) = ("::1", "::");
        let v6 = addresses.iter().filter(|ip| ip.is_ipv6()).count();
        let (first, additional, dns) = match addresses.first() {
            Some(first) if v6 > 0 && v6 < addresses.len() && dual_stack => {
                if first.is_ipv6() && !is_link_local(*first) { (V6, Some(V4), "ALL") } else { (V4, Some(V6), "ALL") }
            }
            Some(_) if v6 == addresses.len() => (V6, None, "V6_ONLY"),
            _ => (V4, None, "V4_ONLY"),
        };
        Family { localhost: first.0, wildcard: first.1, additional, dns }
    }
}

/// What the agent itself says about the node; it takes the place of what environment and proxyMetadata say.
fn own_metadata(metadata: &mut Metadata, vars: &Vars, ports: Ports, socket_file: &str, flavor: Flavor) {
    let flags = vars.flags();
    if metadata.text("ISTIO_VERSION").is_empty() {
        metadata.set_text("ISTIO_VERSION", ISTIO_VERSION);
    }
    let mut addresses: Vec<String> = Vec::new();
    for ip in vars.ip_addresses().iter().map(ToString::to_string) {
        if !addresses.contains(&ip) {
            addresses.push(ip);
        }
    }
    metadata.set_text("INSTANCE_IPS", &addresses.join(","));
    let sts_port = flags.int("stsPort");
    if sts_port != 0 {
        metadata.set_text("STS_PORT", &sts_port.to_string());
    }
    for (name, port) in [
        ("ENVOY_STATUS_PORT", ports.status),
        ("ENVOY_PROMETHEUS_PORT", ports.prometheus),
        ("ENVOY_SECURE_METRICS_PORT", ports.secure_metrics),
        ("ENVOY_SECURE_MERGED_METRICS_PORT", ports.secure_merged_metrics),
    ] {
        metadata.set(name, (port != 0).then(|| port.into()));
    }
    let flag = |value: bool| value.then(|| Value::from("true"));
    metadata.set("EXIT_ON_ZERO_ACTIVE_CONNECTIONS", flag(vars.bool("EXIT_ON_ZERO_ACTIVE_CONNECTIONS", false)));
    metadata.set("ENVOY_SKIP_DEPRECATED_LOGS", flag(vars.bool("ENVOY_SKIP_DEPRECATED_LOGS", true)));
    let discovery = vars.text("PEER_METADATA_DISCOVERY").map(|_| {
        let on = vars.bool("PEER_METADATA_DISCOVERY", false);
        Value::from(if on { "true" } else { "false" })
    });
    metadata.set("METADATA_DISCOVERY", discovery);
    metadata.set_text("WORKLOAD_IDENTITY_SOCKET_FILE", socket_file);
    metadata.set("PROXY_CONFIG", Value::Object(proxy_document(vars, flavor)));
    for (key, variable) in
        [("NAME", "POD_NAME"), ("NAMESPACE", "POD_NAMESPACE"), ("SERVICE_ACCOUNT", "SERVICE_ACCOUNT")]
    {
        if let Some(value) = vars.text(variable) {
            metadata.set_text(key, value);
        }
    }
    metadata.set("PILOT_SAN", pilot_san(vars.proxy()).map(|name| Value::from(vec![name])));
    metadata.set_text("OUTLIER_LOG_PATH", flags.text("outlierLogPath"));
}

/// ProxyConfig as istiod reads it. Istio has no `exclusionRegexps`, so it has gone there as every unknown field has.
fn proxy_document(vars: &Vars, flavor: Flavor) -> Map<String, Value> {
    let mut document = vars.proxy_document();
    if flavor.is_istio()
        && let Some(Value::Object(matcher)) = document.get_mut("proxyStatsMatcher")
        && matcher.remove("exclusionRegexps").is_some()
    {
        let origin = vars.proxy_origin("proxyStatsMatcher");
        vars.warn(format!("{origin}: proxyStatsMatcher.exclusionRegexps: ignored, since only Higress has it"));
    }
    document
}

/// The name in istiod's certificate.
fn pilot_san(proxy: &ProxyConfig) -> Option<String> {
    if proxy.control_plane_auth_policy != AuthPolicy::MutualTls {
        return None;
    }
    let (host, _) = split_host_port(&proxy.discovery_address).ok()?;
    Some(if host == "localhost" { "istiod.istio-system.svc" } else { host }.to_owned())
}

/// From proxyMetadata, else from the runtime values, else no limit; anything but a positive number does not count.
fn max_connections(proxy: &ProxyConfig) -> i64 {
    [
        proxy.proxy_metadata.get("ISTIO_META_GLOBAL_DOWNSTREAM_MAX_CONNECTIONS"),
        proxy.runtime_values.get("overload.global_downstream_max_connections"),
    ]
    .into_iter()
    .flatten()
    .find_map(|text| text.parse().ok().filter(|number| *number > 0))
    .unwrap_or(DEFAULT_MAX_CONNECTIONS)
}

fn load_stats(metadata: &Metadata, errors: &mut Errors) -> Option<Value> {
    const KEY: &str = "LOAD_STATS_CONFIG_JSON";
    let text = metadata.raw_text(KEY).filter(|text| !text.is_empty())?;
    match serde_json::from_str(text) {
        Ok(value) => Some(value),
        Err(error) => {
            errors
                .0
                .push(ConfigError { source: format!("ISTIO_META_{KEY}"), message: format!("not valid JSON: {error}") });
            None
        }
    }
}

/// A `google.protobuf.Any` of Envoy's API.
fn any<'a>(kind: &str, mut fields: Json<'a>) -> Json<'a> {
    fields.insert("@type", format!("type.googleapis.com/{kind}"));
    fields
}

/// A string matcher by a regular expression.
fn safe_regex(text: &str) -> Json<'_> {
    json!({"safe_regex": {"regex": text}})
}

/// How an annotation is named in messages.
fn annotation(name: &str) -> String {
    format!("annotation {name}")
}

#[cfg(test)]
mod tests;
