//! The listeners that Envoy opens before istiod tells it more: metrics, secure metrics, readiness.

use serde_json::Value as Json;

use super::{Config, any, json::json, member, tls};

const MANAGER: &str = "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";
const COMPRESSOR: &str = "envoy.extensions.filters.http.compressor.v3.Compressor";
const ROUTER: &str = "envoy.extensions.filters.http.router.v3.Router";
const TLS_INSPECTOR: &str = "envoy.extensions.filters.listener.tls_inspector.v3.TlsInspector";
const PROXY_PROTOCOL: &str = "envoy.extensions.filters.listener.proxy_protocol.v3.ProxyProtocol";
/// Name and type of each compression, best first.
const COMPRESSIONS: [(&str, &str); 3] = [("brotli", "Brotli"), ("zstd", "Zstd"), ("gzip", "Gzip")];
/// What metrics come as.
const METRICS_TYPES: [&str; 4] = [
    "text/plain",
    "application/vnd.google.protobuf",
    "application/openmetrics-text",
    "application/openmetrics-protobuf",
];

/// `static_resources.listeners`, in Istio's order.
pub(super) fn listeners(config: &Config) -> Vec<Json> {
    let ports = &config.ports;
    let family = &config.family;
    let local_only = config.metrics_localhost_only;
    let mut list = Vec::new();

    let (address, additional) = match (&family.additional, local_only) {
        (Some((localhost, _)), true) => (family.localhost, Some(*localhost)),
        (Some((_, wildcard)), false) => (family.wildcard, Some(*wildcard)),
        (None, true) => (family.localhost, None),
        (None, false) => (family.wildcard, None),
    };
    let compress = config.proxy.stats_compression;
    let stats = manager("stats", &[("/stats/prometheus", "prometheus_stats")], compress);
    list.push(listener(address, additional, ports.prometheus, stats));

    if ports.secure_metrics != 0 {
        let stats = manager("secure_stats", &[("/stats/prometheus", "prometheus_stats")], false);
        list.push(secure(listener(family.wildcard, None, ports.secure_metrics, stats)));
    }
    if ports.secure_merged_metrics != 0 {
        let routes = [("/stats/prometheus", "agent"), ("/metrics", "agent")];
        let stats = manager("secure_merged_stats", &routes, false);
        list.push(secure(listener(family.wildcard, None, ports.secure_merged_metrics, stats)));
    }

    let ready = manager("agent", &[("/healthz/ready", "agent")], false);
    let additional = family.additional.map(|(_, wildcard)| wildcard);
    let mut status = listener(family.wildcard, additional, ports.status, ready);
    if config.status_proxy_protocol {
        let filter = any(PROXY_PROTOCOL, json!({"allow_requests_without_proxy_protocol": true}));
        member(
            &mut status,
            "listener_filters",
            json!([{"name": "envoy.listener.proxy_protocol", "typed_config": filter}]),
        );
    }
    list.push(status);
    list
}

fn listener(address: &str, additional: Option<&str>, port: u16, manager: Json) -> Json {
    let socket = |address: &str| json!({"socket_address": {"protocol": "TCP", "address": address, "port_value": port}});
    let mut listener = json!({
        "name": format!("{address}_{port}"),
        "address": socket(address),
        "ignore_global_conn_limit": true,
        "bypass_overload_manager": true,
        "filter_chains": [{
            "filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]
        }]
    });
    if let Some(additional) = additional {
        member(&mut listener, "additional_addresses", json!([{"address": socket(additional)}]));
    }
    listener
}

fn manager(stat_prefix: &str, routes: &[(&str, &str)], compress: bool) -> Json {
    let route =
        |(prefix, cluster): &(&str, &str)| json!({"match": {"prefix": *prefix}, "route": {"cluster": *cluster}});
    let routes: Vec<Json> = routes.iter().map(route).collect();
    let mut filters: Vec<Json> = Vec::new();
    if compress {
        filters.extend(COMPRESSIONS.iter().map(|(name, kind)| compressor(name, kind)));
    }
    filters.push(json!({"name": "envoy.filters.http.router", "typed_config": any(ROUTER, json!({}))}));
    let manager = json!({
        "codec_type": "AUTO",
        "stat_prefix": stat_prefix,
        "route_config": {"virtual_hosts": [{"name": "backend", "domains": ["*"], "routes": routes}]},
        "http_filters": filters
    });
    any(MANAGER, manager)
}

fn compressor(name: &str, kind: &str) -> Json {
    let library = any(&format!("envoy.extensions.compression.{name}.compressor.v3.{kind}"), json!({}));
    let compressor = json!({
        "compressor_library": {"name": format!("stats_{name}"), "typed_config": library},
        "response_direction_config": {"common_config": {"content_type": METRICS_TYPES}}
    });
    json!({"name": format!("envoy.filters.http.compressor.{name}"), "typed_config": any(COMPRESSOR, compressor)})
}

/// The same listener for clients of the mesh only.
fn secure(mut listener: Json) -> Json {
    let inspector =
        json!({"name": "envoy.filters.listener.tls_inspector", "typed_config": any(TLS_INSPECTOR, json!({}))});
    member(&mut listener, "listener_filters", json!([inspector]));
    if let Some(chain) = listener.pointer_mut("/filter_chains/0") {
        member(chain, "filter_chain_match", json!({"transport_protocol": "tls"}));
        member(chain, "transport_socket", tls::mutual_listener());
    }
    listener
}
