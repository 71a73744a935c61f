//! The effective ProxyConfig: defaults, mesh file, PROXY_CONFIG and annotation laid over one another by Istio's rules, then
//! read into plain fields.

use std::{
    collections::BTreeMap,
    path::{Component, Path, PathBuf},
    time::Duration,
};

use serde_json::{Map, Value as Json};

use super::{
    Origin,
    decode::Placed,
    duration,
    schema::{Field, PROXY_CONFIG},
};

/// What Istio calls ProxyConfig, as far as the agent itself uses it. Field names and meanings are Istio's.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ProxyConfig {
    /// Directory of the generated bootstrap and of the XDS socket.
    pub config_path: String,
    /// Envoy.
    pub binary_path: String,
    /// What Envoy calls its cluster.
    pub cluster_name: ClusterName,
    /// `--drain-time-s`.
    pub drain_duration: Duration,
    /// How long Envoy may drain before it is ended; `None` where null was written, which ends it at once.
    pub termination_drain_duration: Option<Duration>,
    /// istiod, `host:port`.
    pub discovery_address: String,
    /// Statsd sink, `ip:port`; empty for none.
    pub statsd_udp_address: String,
    /// Metrics service, if any.
    pub envoy_metrics_service: Option<RemoteService>,
    /// Access-log service, if any.
    pub envoy_access_log_service: Option<RemoteService>,
    /// Port of Envoy's admin interface.
    pub proxy_admin_port: u16,
    /// How istiod is talked to.
    pub control_plane_auth_policy: AuthPolicy,
    /// A bootstrap that is handed to Envoy as it is; empty for none.
    pub custom_config_file: String,
    /// A bootstrap template in place of the built-in one; empty for none.
    pub proxy_bootstrap_template_path: String,
    /// Envoy's worker threads; `None` and 0 leave it to Envoy.
    pub concurrency: Option<u32>,
    /// Tracing.
    pub tracing: Option<Tracing>,
    /// Additional variables for the proxy.
    pub proxy_metadata: BTreeMap<String, String>,
    /// Envoy's runtime values.
    pub runtime_values: BTreeMap<String, String>,
    /// Port of the agent's status server; 0 for none.
    pub status_port: u16,
    /// Tags that telemetry adds to metrics.
    pub extra_stat_tags: Vec<String>,
    /// Statistics that Envoy keeps beyond the usual ones.
    pub proxy_stats_matcher: StatsMatcher,
    /// How the application of a VM is probed.
    pub readiness_probe: Option<ReadinessProbe>,
    /// Hardware that does private-key operations for Envoy.
    pub private_key_provider: Option<PrivateKeyProvider>,
    /// More roots that workloads trust, PEM.
    pub ca_certificates_pem: Vec<String>,
    /// How often Envoy flushes its log files.
    pub file_flush_interval: Option<Duration>,
    /// From how many KiB on Envoy flushes its log files; 0 leaves it to Envoy.
    pub file_flush_min_size_kb: u32,
    /// Whether the metrics listener compresses.
    pub stats_compression: bool,
}

/// `clusterName`, a oneof.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClusterName {
    /// `serviceCluster`.
    Service(String),
    /// `tracingServiceName: APP_LABEL_AND_NAMESPACE`, and numbers nobody knows.
    AppLabelAndNamespace,
    /// `tracingServiceName: CANONICAL_NAME_ONLY`.
    CanonicalName,
    /// `tracingServiceName: CANONICAL_NAME_AND_NAMESPACE`.
    CanonicalNameAndNamespace,
}

impl Default for ClusterName {
    fn default() -> ClusterName {
        ClusterName::Service("istio-proxy".to_owned())
    }
}

/// `controlPlaneAuthPolicy`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum AuthPolicy {
    /// Plaintext.
    None,
    /// TLS.
    #[default]
    MutualTls,
}

/// `RemoteService`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RemoteService {
    /// `host:port`; empty turns the service off.
    pub address: String,
    /// TLS towards it.
    pub tls: Option<ClientTls>,
    /// Keepalive: probes, then time and interval in whole seconds; 0 leaves one out.
    pub tcp_keepalive: Option<[u64; 3]>,
}

/// `ClientTLSSettings`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ClientTls {
    /// The mode.
    pub mode: TlsMode,
    /// File with the certificate.
    pub client_certificate: String,
    /// File with its key.
    pub private_key: String,
    /// File with the roots.
    pub ca_certificates: String,
    /// Kubernetes secret in place of files.
    pub credential_name: String,
    /// Names of which the peer must have one.
    pub subject_alt_names: Vec<String>,
    /// Server name indication.
    pub sni: String,
    /// Whether the peer's certificate is not verified.
    pub insecure_skip_verify: bool,
}

/// Modes of [`ClientTls`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TlsMode {
    /// No TLS.
    #[default]
    Disable,
    /// The server has a certificate.
    Simple,
    /// Both have, from files.
    Mutual,
    /// Both have, the workload's own.
    IstioMutual,
}

/// `Tracing`, as far as the bootstrap uses it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Tracing {
    /// The tracer.
    pub tracer: Option<Tracer>,
    /// TLS towards it.
    pub tls: Option<ClientTls>,
}

/// The tracers.
#[derive(Debug, Clone, PartialEq)]
pub enum Tracer {
    /// Address of the collector.
    Zipkin(String),
    /// Address and access token.
    Lightstep(String, String),
    /// Address of the agent.
    Datadog(String),
    /// Google's; gives nothing in Istio's bootstrap, but needs a project.
    Stackdriver,
    /// Gives nothing in Istio's bootstrap.
    OpenCensus,
}

/// `ProxyStatsMatcher`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StatsMatcher {
    /// Prefixes of names.
    pub prefixes: Vec<String>,
    /// Suffixes of names.
    pub suffixes: Vec<String>,
    /// RE2 expressions.
    pub regexps: Vec<String>,
}

/// `ReadinessProbe`; the numbers as written, 0 or less where the default applies.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReadinessProbe {
    /// Seconds before the first check.
    pub initial_delay_seconds: i64,
    /// Seconds a check may take.
    pub timeout_seconds: i64,
    /// Seconds between checks.
    pub period_seconds: i64,
    /// Successes in a row that make it healthy.
    pub success_threshold: i64,
    /// Failures in a row that make it unhealthy.
    pub failure_threshold: i64,
    /// The check itself; `None` where none was configured.
    pub check: Option<HealthCheck>,
}

/// Kinds of checks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HealthCheck {
    /// An HTTP request; healthy from 200 to 399.
    Http {
        /// Path, with or without the first slash.
        path: String,
        /// Port.
        port: u16,
        /// Host to connect to; empty for the application's own.
        host: String,
        /// `HTTP` or `HTTPS`; empty for HTTP.
        scheme: String,
        /// Request headers.
        headers: Vec<(String, String)>,
    },
    /// A TCP connection.
    Tcp {
        /// Host to connect to; empty for the application's own.
        host: String,
        /// Port.
        port: u16,
    },
    /// A command; healthy when it exits with 0.
    Exec(Vec<String>),
    /// gRPC health checking.
    Grpc {
        /// Port.
        port: u16,
        /// Service asked for.
        service: String,
    },
}

/// `PrivateKeyProvider`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrivateKeyProvider {
    /// `cryptomb` or `qat`.
    pub provider: &'static str,
    /// How long requests are gathered.
    pub poll_delay: Duration,
    /// Whether software takes over where the hardware is missing.
    pub fallback: bool,
}

impl ProxyConfig {
    /// A file in the folder `configPath`, its path cleaned of `.`, `..` and doubled slashes as Go's `filepath.Join` does.
    pub fn config_file(&self, name: &str) -> PathBuf {
        clean(&Path::new(&self.config_path).join(name))
    }
}

fn clean(path: &Path) -> PathBuf {
    let mut cleaned = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir if matches!(cleaned.components().next_back(), Some(Component::Normal(_))) => {
                cleaned.pop();
            }
            Component::ParentDir if cleaned.has_root() => {}
            _ => cleaned.push(part),
        }
    }
    cleaned
}

/// The layers laid over one another: for each field of the schema its value and where it came from.
#[derive(Debug, Clone)]
pub(super) struct Layers {
    fields: Vec<Option<Placed>>,
    /// Where each key of proxyMetadata came from.
    metadata: BTreeMap<String, Origin>,
}

const DEFAULTS: &[(&str, &str)] = &[
    ("configPath", "./etc/istio/proxy"),
    ("binaryPath", "/usr/local/bin/envoy"),
    ("serviceCluster", "istio-proxy"),
    ("drainDuration", "45s"),
    ("terminationDrainDuration", "5s"),
    ("controlPlaneAuthPolicy", "MUTUAL_TLS"),
    ("discoveryAddress", "istiod.istio-system.svc:15012"),
];
const DEFAULT_NUMBERS: &[(&str, i64)] = &[("proxyAdminPort", 15000), ("statNameLength", 189), ("statusPort", 15020)];

/// The parts of proxyHeaders that a layer without them takes from the layer below.
const INHERITED_HEADERS: &[&str] = &["forwardedClientCert", "requestId", "attemptCount", "server", "envoyDebugHeaders"];

impl Layers {
    /// Istio's defaults.
    pub(super) fn new() -> Layers {
        let mut layers = Layers { fields: PROXY_CONFIG.iter().map(|_| None).collect(), metadata: BTreeMap::new() };
        DEFAULTS.iter().for_each(|(name, value)| layers.set(name, (*value).into(), Origin::Default));
        DEFAULT_NUMBERS.iter().for_each(|(name, value)| layers.set(name, (*value).into(), Origin::Default));
        layers
    }

    /// Lays a decoded document over what is there.
    pub(super) fn lay(&mut self, document: Vec<(usize, Placed)>) {
        for (index, mut placed) in document {
            let field = &PROXY_CONFIG[index];
            match field.name {
                "proxyMetadata" => {
                    if let Json::Object(keys) = &placed.value {
                        self.metadata.extend(keys.keys().map(|key| (key.clone(), placed.origin.clone())));
                    }
                    let lower = self.fields[index].take().map(|lower| lower.value);
                    placed.value = over(lower, placed.value, |_| true);
                }
                "proxyHeaders" => {
                    let lower = self.fields[index].take().map(|lower| lower.value);
                    placed.value = over(lower, placed.value, |key| INHERITED_HEADERS.contains(&key));
                }
                _ => {}
            }
            self.set(field.name, placed.value, placed.origin);
        }
    }

    /// Sets one field.
    pub(super) fn set(&mut self, name: &str, value: Json, origin: Origin) {
        let Some(index) = index_of(name) else { return };
        if PROXY_CONFIG[index].oneof != 0 {
            PROXY_CONFIG
                .iter()
                .zip(&mut self.fields)
                .filter(|(field, _)| field.oneof != 0)
                .for_each(|(_, v)| *v = None);
        }
        self.fields[index] = Some(Placed { value, origin });
    }

    /// The value of a field.
    pub(super) fn get(&self, name: &str) -> Option<&Json> {
        self.placed(name).map(|placed| &placed.value)
    }

    /// Where the value of a field came from.
    pub(super) fn origin(&self, name: &str) -> Origin {
        self.placed(name).map_or(Origin::Default, |placed| placed.origin.clone())
    }

    fn placed(&self, name: &str) -> Option<&Placed> {
        self.fields[index_of(name)?].as_ref()
    }

    /// Every field that is set: name, value, origin; the keys of proxyMetadata each for itself.
    pub(super) fn settings(&self) -> Vec<(String, String, Origin)> {
        let mut settings = Vec::new();
        for (field, placed) in self.set_fields() {
            if let ("proxyMetadata", Json::Object(keys)) = (field.name, &placed.value) {
                for (key, value) in keys {
                    let origin = self.metadata.get(key).unwrap_or(&placed.origin);
                    settings.push((format!("proxyMetadata.{key}"), plain(value), origin.clone()));
                }
            } else {
                settings.push((field.name.to_owned(), plain(&without_token(&placed.value)), placed.origin.clone()));
            }
        }
        settings
    }

    /// Proto-JSON of the whole, as metadata `PROXY_CONFIG` carries it: plain fields at zero are left out.
    pub(super) fn document(&self) -> Map<String, Json> {
        self.set_fields()
            .filter(|(field, placed)| !field.is_zero(&placed.value))
            .map(|(field, placed)| (field.name.to_owned(), placed.value.clone()))
            .collect()
    }

    fn set_fields(&self) -> impl Iterator<Item = (&'static Field, &Placed)> {
        PROXY_CONFIG.iter().zip(&self.fields).filter_map(|(field, placed)| Some((field, placed.as_ref()?)))
    }

    /// The plain fields.
    pub(super) fn read(&self) -> ProxyConfig {
        let all = Reader(self);
        ProxyConfig {
            config_path: all.text("configPath"),
            binary_path: all.text("binaryPath"),
            cluster_name: self.cluster_name(),
            drain_duration: all.duration("drainDuration").unwrap_or_default(),
            termination_drain_duration: all.duration("terminationDrainDuration"),
            discovery_address: all.text("discoveryAddress"),
            statsd_udp_address: all.text("statsdUdpAddress"),
            envoy_metrics_service: self.metrics_service(),
            envoy_access_log_service: self.get("envoyAccessLogService").map(remote_service),
            proxy_admin_port: all.port("proxyAdminPort"),
            control_plane_auth_policy: match all.text("controlPlaneAuthPolicy").as_str() {
                "NONE" => AuthPolicy::None,
                _ => AuthPolicy::MutualTls,
            },
            custom_config_file: all.text("customConfigFile"),
            proxy_bootstrap_template_path: all.text("proxyBootstrapTemplatePath"),
            concurrency: self.get("concurrency").and_then(Json::as_i64).map(|n| u32::try_from(n).unwrap_or(0)),
            tracing: self.get("tracing").map(tracing),
            proxy_metadata: all.texts_by_key("proxyMetadata"),
            runtime_values: all.texts_by_key("runtimeValues"),
            status_port: all.port("statusPort"),
            extra_stat_tags: all.texts("extraStatTags"),
            proxy_stats_matcher: self.get("proxyStatsMatcher").map(stats_matcher).unwrap_or_default(),
            readiness_probe: self.get("readinessProbe").map(readiness_probe),
            private_key_provider: self.get("privateKeyProvider").and_then(private_key_provider),
            ca_certificates_pem: all.texts("caCertificatesPem"),
            file_flush_interval: all.duration("fileFlushInterval"),
            file_flush_min_size_kb: all.int("fileFlushMinSizeKb").try_into().unwrap_or(0),
            stats_compression: self.get("statsCompression").and_then(Json::as_bool).unwrap_or(true),
        }
    }

    fn cluster_name(&self) -> ClusterName {
        if let Some(Json::String(name)) = self.get("serviceCluster") {
            return ClusterName::Service(name.clone());
        }
        match self.get("tracingServiceName").and_then(Json::as_str) {
            Some("CANONICAL_NAME_ONLY") => ClusterName::CanonicalName,
            Some("CANONICAL_NAME_AND_NAMESPACE") => ClusterName::CanonicalNameAndNamespace,
            _ => ClusterName::AppLabelAndNamespace,
        }
    }

    /// The deprecated `envoyMetricsServiceAddress` counts where the message is not set.
    fn metrics_service(&self) -> Option<RemoteService> {
        let address = Reader(self).text("envoyMetricsServiceAddress");
        match self.get("envoyMetricsService") {
            Some(service) => Some(remote_service(service)),
            None if address.is_empty() => None,
            None => Some(RemoteService { address, ..RemoteService::default() }),
        }
    }
}

fn index_of(name: &str) -> Option<usize> {
    PROXY_CONFIG.iter().position(|field| field.name == name)
}

/// The members of `upper`, and those members of `lower` that `inherited` names and `upper` lacks.
fn over(lower: Option<Json>, upper: Json, inherited: impl Fn(&str) -> bool) -> Json {
    match (lower, upper) {
        (Some(Json::Object(lower)), Json::Object(mut upper)) => {
            let rest: Vec<_> =
                lower.into_iter().filter(|(key, _)| inherited(key) && !upper.contains_key(key)).collect();
            upper.extend(rest);
            Json::Object(upper)
        }
        (_, upper) => upper,
    }
}

/// Text as it is, everything else as JSON.
fn plain(value: &Json) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Lightstep's access token is a secret.
fn without_token(value: &Json) -> Json {
    let mut value = value.clone();
    if let Some(token) = value.pointer_mut("/lightstep/accessToken") {
        *token = "…".into();
    }
    value
}

/// Reads members of a canonical message; absent ones have their zero.
struct Reader<S>(S);

trait Members {
    fn member(&self, name: &str) -> Option<&Json>;
}

impl Members for &Layers {
    fn member(&self, name: &str) -> Option<&Json> {
        self.get(name)
    }
}

impl Members for &Json {
    fn member(&self, name: &str) -> Option<&Json> {
        self.get(name)
    }
}

impl<S: Members> Reader<S> {
    fn member(&self, name: &str) -> Option<&Json> {
        self.0.member(name)
    }

    fn text(&self, name: &str) -> String {
        self.member(name).and_then(Json::as_str).unwrap_or_default().to_owned()
    }

    fn int(&self, name: &str) -> i64 {
        self.member(name).and_then(Json::as_i64).unwrap_or_default()
    }

    fn port(&self, name: &str) -> u16 {
        self.int(name).try_into().unwrap_or(0)
    }

    /// Negative durations count as none at all.
    fn duration(&self, name: &str) -> Option<Duration> {
        let nanos = duration::go_nanos(self.member(name)?.as_str()?)?;
        Some(Duration::from_nanos(nanos.try_into().unwrap_or(0)))
    }

    fn texts(&self, name: &str) -> Vec<String> {
        let items = self.member(name).and_then(Json::as_array).into_iter().flatten();
        items.filter_map(Json::as_str).map(str::to_owned).collect()
    }

    fn texts_by_key(&self, name: &str) -> BTreeMap<String, String> {
        let entries = self.member(name).and_then(Json::as_object).into_iter().flatten();
        entries.map(|(key, value)| (key.clone(), value.as_str().unwrap_or_default().to_owned())).collect()
    }
}

fn remote_service(value: &Json) -> RemoteService {
    let keepalive = value.get("tcpKeepalive").map(|keepalive| {
        let keepalive = Reader(keepalive);
        let seconds = |name| keepalive.duration(name).unwrap_or_default().as_secs();
        [keepalive.int("probes").try_into().unwrap_or(0), seconds("time"), seconds("interval")]
    });
    RemoteService {
        address: Reader(value).text("address"),
        tls: value.get("tlsSettings").map(client_tls),
        tcp_keepalive: keepalive,
    }
}

pub(super) fn client_tls(value: &Json) -> ClientTls {
    let all = Reader(value);
    ClientTls {
        mode: match all.text("mode").as_str() {
            "SIMPLE" => TlsMode::Simple,
            "MUTUAL" => TlsMode::Mutual,
            "ISTIO_MUTUAL" => TlsMode::IstioMutual,
            _ => TlsMode::Disable,
        },
        client_certificate: all.text("clientCertificate"),
        private_key: all.text("privateKey"),
        ca_certificates: all.text("caCertificates"),
        credential_name: all.text("credentialName"),
        subject_alt_names: all.texts("subjectAltNames"),
        sni: all.text("sni"),
        insecure_skip_verify: value.get("insecureSkipVerify").and_then(Json::as_bool).unwrap_or(false),
    }
}

fn tracing(value: &Json) -> Tracing {
    let address = |value: &Json| Reader(value).text("address");
    let tracer = if let Some(zipkin) = value.get("zipkin") {
        Some(Tracer::Zipkin(address(zipkin)))
    } else if let Some(lightstep) = value.get("lightstep") {
        Some(Tracer::Lightstep(address(lightstep), Reader(lightstep).text("accessToken")))
    } else if let Some(datadog) = value.get("datadog") {
        Some(Tracer::Datadog(address(datadog)))
    } else if value.get("stackdriver").is_some() {
        Some(Tracer::Stackdriver)
    } else {
        value.get("openCensusAgent").map(|_| Tracer::OpenCensus)
    };
    Tracing { tracer, tls: value.get("tlsSettings").map(client_tls) }
}

fn stats_matcher(value: &Json) -> StatsMatcher {
    let all = Reader(value);
    StatsMatcher {
        prefixes: all.texts("inclusionPrefixes"),
        suffixes: all.texts("inclusionSuffixes"),
        regexps: all.texts("inclusionRegexps"),
    }
}

fn readiness_probe(value: &Json) -> ReadinessProbe {
    let all = Reader(value);
    let check = if let Some(http) = value.get("httpGet") {
        let headers = http.get("httpHeaders").and_then(Json::as_array).into_iter().flatten();
        let header = |header: &Json| (Reader(header).text("name"), Reader(header).text("value"));
        let http = Reader(http);
        Some(HealthCheck::Http {
            path: http.text("path"),
            port: http.port("port"),
            host: http.text("host"),
            scheme: http.text("scheme"),
            headers: headers.map(header).collect(),
        })
    } else if let Some(tcp) = value.get("tcpSocket") {
        let tcp = Reader(tcp);
        Some(HealthCheck::Tcp { host: tcp.text("host"), port: tcp.port("port") })
    } else if let Some(exec) = value.get("exec") {
        Some(HealthCheck::Exec(Reader(exec).texts("command")))
    } else {
        let grpc = value.get("grpc").map(Reader);
        grpc.map(|grpc| HealthCheck::Grpc { port: grpc.port("port"), service: grpc.text("service") })
    };
    ReadinessProbe {
        initial_delay_seconds: all.int("initialDelaySeconds"),
        timeout_seconds: all.int("timeoutSeconds"),
        period_seconds: all.int("periodSeconds"),
        success_threshold: all.int("successThreshold"),
        failure_threshold: all.int("failureThreshold"),
        check,
    }
}

fn private_key_provider(value: &Json) -> Option<PrivateKeyProvider> {
    let (provider, settings) =
        ["cryptomb", "qat"].into_iter().find_map(|provider| Some((provider, value.get(provider)?)))?;
    Some(PrivateKeyProvider {
        provider,
        poll_delay: Reader(settings).duration("pollDelay").unwrap_or_default(),
        fallback: settings.get("fallback").and_then(Json::as_bool).unwrap_or(false),
    })
}
