//! TLS of the bootstrap's own clusters and listeners; every certificate comes over SDS from the agent.

use super::{
    SDS_CLUSTER, any,
    json::{Json, Object, json},
    metadata::Metadata,
};
use crate::config::{ClientTls, Errors, TlsMode, Vars};

const UPSTREAM: &str = "envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext";
const DOWNSTREAM: &str = "envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext";

/// TLS towards a tracer or service; `None` where there is none. `sni` counts for ISTIO_MUTUAL when none was configured.
pub(super) fn transport_socket<'a>(
    tls: Option<&'a ClientTls>,
    metadata: &Metadata,
    sni: &'a str,
    http2: bool,
) -> Option<Json<'a>> {
    let tls = tls.filter(|tls| tls.mode != TlsMode::Disable)?;
    let file = |key: &str, configured: &str| match metadata.text(key) {
        "" => configured.to_owned(),
        path => path.to_owned(),
    };
    let chain = file("TLS_CLIENT_CERT_CHAIN", &tls.client_certificate);
    let key = file("TLS_CLIENT_KEY", &tls.private_key);
    let roots = file("TLS_CLIENT_ROOT_CERT", &tls.ca_certificates);
    let own = tls.mode == TlsMode::IstioMutual;
    let certificate = match tls.mode {
        TlsMode::IstioMutual => Some("default".to_owned()),
        TlsMode::Mutual if !chain.is_empty() && !key.is_empty() => Some(format!("file-cert:{chain}~{key}")),
        _ => None,
    };
    let validation = match tls.mode {
        TlsMode::IstioMutual => Some("ROOTCA".to_owned()),
        _ if roots.is_empty() => None,
        _ => Some(format!("file-root:{roots}")),
    };
    let mut common = Object::default();
    if let Some(name) = certificate {
        common.insert("tls_certificate_sds_secret_configs", json!([sds(name, own)]));
    }
    if let Some(name) = validation {
        let names: Vec<Json<'_>> = tls.subject_alt_names.iter().map(|name| json!({"exact": name.as_str()})).collect();
        let default = if names.is_empty() { json!({}) } else { json!({"match_subject_alt_names": names}) };
        let context =
            json!({"default_validation_context": default, "validation_context_sds_secret_config": sds(name, own)});
        common.insert("combined_validation_context", context);
    }
    if http2 {
        let protocols: &[&str] = if own { &["istio", "h2"] } else { &["h2"] };
        common.insert("alpn_protocols", protocols);
    }
    let sni = if own && tls.sni.is_empty() { sni } else { &tls.sni };
    let mut context = json!({"common_tls_context": common});
    if !sni.is_empty() {
        context.insert("sni", sni);
    }
    Some(json!({"name": "envoy.transport_sockets.tls", "typed_config": any(UPSTREAM, context)}))
}

/// Names that cannot be verified: Envoy takes them only together with roots, and to leave them out would trust anybody.
pub(super) fn check(vars: &Vars, metadata: &Metadata, errors: &mut Errors) {
    let proxy = vars.proxy();
    let services = [
        ("tracing", proxy.tracing.as_ref().and_then(|tracing| tracing.tls.as_ref())),
        ("envoyMetricsService", proxy.envoy_metrics_service.as_ref().and_then(|service| service.tls.as_ref())),
        ("envoyAccessLogService", proxy.envoy_access_log_service.as_ref().and_then(|service| service.tls.as_ref())),
    ];
    for (field, tls) in services.into_iter().filter_map(|(field, tls)| Some((field, tls?))) {
        let from_files = matches!(tls.mode, TlsMode::Simple | TlsMode::Mutual);
        let has_roots = !tls.ca_certificates.is_empty() || !metadata.text("TLS_CLIENT_ROOT_CERT").is_empty();
        if from_files && !has_roots && !tls.subject_alt_names.is_empty() {
            let source = format!("{}: {field}.tlsSettings.subjectAltNames", vars.proxy_origin(field));
            errors.add(source, "cannot be verified without caCertificates");
        }
    }
}

/// TLS of a metrics listener: the workload's certificate, and a client of the mesh.
pub(super) fn mutual_listener() -> Json<'static> {
    let common = json!({
        "tls_certificate_sds_secret_configs": [sds("default".to_owned(), false)],
        "combined_validation_context": {
            "default_validation_context": {},
            "validation_context_sds_secret_config": sds("ROOTCA".to_owned(), false)
        }
    });
    let context = any(DOWNSTREAM, json!({"common_tls_context": common, "require_client_certificate": true}));
    json!({"name": "envoy.transport_sockets.tls", "typed_config": context})
}

/// A secret by its name; `wait` has Envoy wait for it as long as it takes.
fn sds(name: String, wait: bool) -> Json<'static> {
    let mut source = json!({
        "api_config_source": {
            "api_type": "GRPC",
            "grpc_services": [{"envoy_grpc": {"cluster_name": SDS_CLUSTER}}],
            "set_node_on_first_message_only": true,
            "transport_api_version": "V3"
        },
        "resource_api_version": "V3"
    });
    if wait {
        source.insert("initial_fetch_timeout", "0s");
    }
    json!({"name": name, "sds_config": source})
}
