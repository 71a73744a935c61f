//! The effective ProxyConfig as plain fields: what Istio's message of that name means to the agent itself.
//!
//! [`super::layers`] lays its sources over one another, [`super::read`] fills these types.

use std::{
    collections::BTreeMap,
    path::{Component, Path, PathBuf},
    time::Duration,
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
    /// RE2 expressions for what is not kept (Higress).
    pub exclusions: Vec<String>,
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
    /// A file in the folder `configPath`, its path cleaned as Go's `filepath.Join` does.
    pub fn config_file(&self, name: &str) -> PathBuf {
        clean(&Path::new(&self.config_path).join(name))
    }
}

/// Without `.`, without `..` where it can be resolved, without doubled slashes: Go's `path.Clean`.
pub(crate) fn clean(path: &Path) -> PathBuf {
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
