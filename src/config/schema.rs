//! The fields of `istio.mesh.v1alpha1.ProxyConfig` (istio.io/api 1.31, mesh/v1alpha1/proxy.proto and what it imports), as
//! a table: [`super::decode`] reads documents by it.

/// A field: its lowerCamelCase name, its type, and which `oneof` of its message it belongs to (0: none).
pub(super) struct Field {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) oneof: u8,
}

/// Types of fields. `…Value` are protobuf's wrappers: their zero is told apart from "not set".
pub(super) enum Kind {
    Text,
    Bool,
    BoolValue,
    Int32,
    Int32Value,
    Int64Value,
    UInt32,
    Double,
    Duration,
    /// Names by number; the one of number 0 first.
    Enum(Names),
    Message(Fields),
    List(&'static Kind),
    Map(&'static Kind),
}

pub(super) type Fields = &'static [Field];
pub(super) type Names = &'static [(&'static str, i32)];

const fn f(name: &'static str, kind: Kind) -> Field {
    Field { name, kind, oneof: 0 }
}

const fn one(name: &'static str, kind: Kind) -> Field {
    Field { name, kind, oneof: 1 }
}

use Kind::{Bool, BoolValue, Double, Duration, Enum, Int32, Int32Value, Int64Value, List, Map, Message, Text, UInt32};

/// `ProxyConfig`.
pub(super) const PROXY_CONFIG: Fields = &[
    f("configPath", Text),
    f("binaryPath", Text),
    one("serviceCluster", Text),
    one("tracingServiceName", Enum(TRACING_SERVICE_NAME)),
    f("drainDuration", Duration),
    f("discoveryAddress", Text),
    f("discoveryRefreshDelay", Duration),
    f("zipkinAddress", Text),
    f("statsdUdpAddress", Text),
    f("envoyMetricsServiceAddress", Text),
    f("proxyAdminPort", Int32),
    f("availabilityZone", Text),
    f("controlPlaneAuthPolicy", Enum(&[("NONE", 0), ("MUTUAL_TLS", 1), ("INHERIT", 1000)])),
    f("customConfigFile", Text),
    f("statNameLength", Int32),
    f("concurrency", Int32Value),
    f("proxyBootstrapTemplatePath", Text),
    f("interceptionMode", Enum(&[("REDIRECT", 0), ("TPROXY", 1), ("NONE", 2)])),
    f("tracing", Message(TRACING)),
    f("sds", Message(&[f("enabled", Bool), f("k8sSaJwtPath", Text)])),
    f("envoyAccessLogService", Message(REMOTE_SERVICE)),
    f("envoyMetricsService", Message(REMOTE_SERVICE)),
    f("proxyMetadata", Map(&Text)),
    f("runtimeValues", Map(&Text)),
    f("statusPort", Int32),
    f("extraStatTags", List(&Text)),
    f("gatewayTopology", Message(TOPOLOGY)),
    f("terminationDrainDuration", Duration),
    f("meshId", Text),
    f("readinessProbe", Message(READINESS_PROBE)),
    f("proxyStatsMatcher", Message(STATS_MATCHER)),
    f("holdApplicationUntilProxyStarts", BoolValue),
    f("caCertificatesPem", List(&Text)),
    f("image", Message(&[f("imageType", Text)])),
    f("privateKeyProvider", Message(&[one("cryptomb", Message(KEY_PROVIDER)), one("qat", Message(KEY_PROVIDER))])),
    f("proxyHeaders", Message(PROXY_HEADERS)),
    f("fileFlushInterval", Duration),
    f("fileFlushMinSizeKb", UInt32),
    f("statsCompression", BoolValue),
    f("connectionSettings", Message(CONNECTION_SETTINGS)),
];

const TRACING_SERVICE_NAME: Names =
    &[("APP_LABEL_AND_NAMESPACE", 0), ("CANONICAL_NAME_ONLY", 1), ("CANONICAL_NAME_AND_NAMESPACE", 2)];

const TRACING: Fields = &[
    one("zipkin", Message(&[f("address", Text)])),
    one("lightstep", Message(&[f("address", Text), f("accessToken", Text)])),
    one("datadog", Message(&[f("address", Text)])),
    one("stackdriver", Message(STACKDRIVER)),
    one("openCensusAgent", Message(&[f("address", Text), f("context", List(&Enum(TRACE_CONTEXT)))])),
    f("customTags", Map(&Message(CUSTOM_TAG))),
    f("maxPathTagLength", UInt32),
    f("sampling", Double),
    f("tlsSettings", Message(CLIENT_TLS)),
    f("enableIstioTags", BoolValue),
];

const STACKDRIVER: Fields = &[
    f("debug", Bool),
    f("maxNumberOfAttributes", Int64Value),
    f("maxNumberOfAnnotations", Int64Value),
    f("maxNumberOfMessageEvents", Int64Value),
];

const TRACE_CONTEXT: Names =
    &[("UNSPECIFIED", 0), ("W3C_TRACE_CONTEXT", 1), ("GRPC_BIN", 2), ("CLOUD_TRACE_CONTEXT", 3), ("B3", 4)];

const CUSTOM_TAG: Fields = &[
    one("literal", Message(&[f("value", Text)])),
    one("environment", Message(&[f("name", Text), f("defaultValue", Text)])),
    one("header", Message(&[f("name", Text), f("defaultValue", Text)])),
];

/// `istio.networking.v1alpha3.ClientTLSSettings`.
const CLIENT_TLS: Fields = &[
    f("mode", Enum(&[("DISABLE", 0), ("SIMPLE", 1), ("MUTUAL", 2), ("ISTIO_MUTUAL", 3)])),
    f("clientCertificate", Text),
    f("privateKey", Text),
    f("caCertificates", Text),
    f("credentialName", Text),
    f("subjectAltNames", List(&Text)),
    f("sni", Text),
    f("insecureSkipVerify", BoolValue),
    f("caCrl", Text),
];

const REMOTE_SERVICE: Fields = &[
    f("address", Text),
    f("tlsSettings", Message(CLIENT_TLS)),
    f("tcpKeepalive", Message(&[f("probes", UInt32), f("time", Duration), f("interval", Duration)])),
];

const FORWARD_CLIENT_CERT: Names = &[
    ("UNDEFINED", 0),
    ("SANITIZE", 1),
    ("FORWARD_ONLY", 2),
    ("APPEND_FORWARD", 3),
    ("SANITIZE_SET", 4),
    ("ALWAYS_FORWARD_ONLY", 5),
];

const TOPOLOGY: Fields = &[
    f("numTrustedProxies", UInt32),
    f("forwardClientCertDetails", Enum(FORWARD_CLIENT_CERT)),
    f("proxyProtocol", Message(&[])),
];

/// `istio.networking.v1alpha3.ReadinessProbe`.
const READINESS_PROBE: Fields = &[
    f("initialDelaySeconds", Int32),
    f("timeoutSeconds", Int32),
    f("periodSeconds", Int32),
    f("successThreshold", Int32),
    f("failureThreshold", Int32),
    one("httpGet", Message(HTTP_GET)),
    one("tcpSocket", Message(&[f("host", Text), f("port", UInt32)])),
    one("exec", Message(&[f("command", List(&Text))])),
    one("grpc", Message(&[f("port", UInt32), f("service", Text)])),
];

const HTTP_GET: Fields = &[
    f("path", Text),
    f("port", UInt32),
    f("host", Text),
    f("scheme", Text),
    f("httpHeaders", List(&Message(&[f("name", Text), f("value", Text)]))),
];

const STATS_MATCHER: Fields = &[
    f("inclusionPrefixes", List(&Text)),
    f("inclusionSuffixes", List(&Text)),
    f("inclusionRegexps", List(&Text)),
    // Higress's; see bootstrap/higress.rs.
    f("exclusionRegexps", List(&Text)),
];

const KEY_PROVIDER: Fields = &[f("pollDelay", Duration), f("fallback", BoolValue)];

const DISABLED: Fields = &[f("disabled", BoolValue)];
const ENABLED: Fields = &[f("enabled", BoolValue)];

const PROXY_HEADERS: Fields = &[
    f("forwardedClientCert", Enum(FORWARD_CLIENT_CERT)),
    f("setCurrentClientCertDetails", Message(CERT_DETAILS)),
    f("requestId", Message(DISABLED)),
    f("server", Message(&[f("disabled", BoolValue), f("value", Text)])),
    f("attemptCount", Message(DISABLED)),
    f("envoyDebugHeaders", Message(DISABLED)),
    f("metadataExchangeHeaders", Message(&[f("mode", Enum(&[("UNDEFINED", 0), ("IN_MESH", 1)]))])),
    f("preserveHttp1HeaderCase", BoolValue),
    f("xForwardedHost", Message(ENABLED)),
    f("xForwardedPort", Message(ENABLED)),
];

const CERT_DETAILS: Fields =
    &[f("subject", BoolValue), f("cert", BoolValue), f("chain", BoolValue), f("dns", BoolValue), f("uri", BoolValue)];

const CONNECTION_SETTINGS: Fields = &[
    f("profile", Enum(&[("SIDECAR", 0), ("EDGE", 1)])),
    f("listenerPerConnectionBufferLimitBytes", Int32Value),
    f("clusterPerConnectionBufferLimitBytes", Int32Value),
    f("httpIdleTimeout", Duration),
    f("httpMaxConnectionDuration", Duration),
    f("httpDrainTimeout", Duration),
    f("httpRequestTimeout", Duration),
    f("httpRequestHeadersTimeout", Duration),
    f("httpStreamIdleTimeout", Duration),
    f("httpMaxStreamDuration", Duration),
    f("httpMaxConcurrentStreams", Int32Value),
    f("http2InitialStreamWindowSize", Int32Value),
    f("http2InitialConnectionWindowSize", Int32Value),
    f("httpHeadersWithUnderscoresAction", Enum(HEADERS_WITH_UNDERSCORES)),
    f("httpMergeSlashes", BoolValue),
    f("httpPathWithEscapedSlashesAction", Enum(ESCAPED_SLASHES)),
    f("listenerConnectionLimit", Int32Value),
    f("globalDownstreamConnectionLimit", Int32Value),
];

const HEADERS_WITH_UNDERSCORES: Names = &[
    ("HEADERS_WITH_UNDERSCORES_UNSPECIFIED", 0),
    ("HEADERS_WITH_UNDERSCORES_ALLOW", 1),
    ("HEADERS_WITH_UNDERSCORES_REJECT_REQUEST", 2),
    ("HEADERS_WITH_UNDERSCORES_DROP_HEADER", 3),
];

const ESCAPED_SLASHES: Names = &[
    ("PATH_WITH_ESCAPED_SLASHES_UNSPECIFIED", 0),
    ("KEEP_UNCHANGED", 1),
    ("REJECT_REQUEST", 2),
    ("UNESCAPE_AND_REDIRECT", 3),
    ("UNESCAPE_AND_FORWARD", 4),
];

impl Field {
    /// Whether a document's key names this field: lowerCamelCase or the proto's snake_case.
    pub(super) fn is_named(&self, key: &str) -> bool {
        if key == self.name {
            return true;
        }
        let mut key = key.bytes();
        for byte in self.name.bytes() {
            let expected = if byte.is_ascii_uppercase() {
                if key.next() != Some(b'_') {
                    return false;
                }
                byte.to_ascii_lowercase()
            } else {
                byte
            };
            if key.next() != Some(expected) {
                return false;
            }
        }
        key.next().is_none()
    }

    /// Whether proto-JSON leaves the field out when it has this value.
    pub(super) fn is_zero(&self, value: &serde_json::Value) -> bool {
        use serde_json::Value as Json;
        self.oneof == 0
            && match (&self.kind, value) {
                (Kind::Text, Json::String(text)) => text.is_empty(),
                (Kind::Bool, Json::Bool(value)) => !value,
                (Kind::Int32 | Kind::UInt32 | Kind::Double, Json::Number(number)) => number.as_f64() == Some(0.0),
                (Kind::Enum(names), Json::String(name)) => names.first().is_some_and(|(zero, _)| zero == name),
                (Kind::List(_), Json::Array(items)) => items.is_empty(),
                (Kind::Map(_), Json::Object(entries)) => entries.is_empty(),
                _ => false,
            }
    }
}
