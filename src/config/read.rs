//! Reads the plain fields of [`ProxyConfig`] out of its effective document.

use std::{collections::BTreeMap, time::Duration};

use serde_json::Value as Json;

use super::{
    AuthPolicy, ClientTls, ClusterName, HealthCheck, PrivateKeyProvider, ProxyConfig, ReadinessProbe, RemoteService,
    StatsMatcher, TlsMode, Tracer, Tracing, duration, layers::Layers,
};

impl Layers {
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
        exclusions: all.texts("exclusionRegexps"),
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
