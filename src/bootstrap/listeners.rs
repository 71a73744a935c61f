//! The listeners that Envoy opens before istiod tells it more: metrics, secure metrics, readiness.

use super::{
    Config, any,
    json::{Json, json},
    tls,
};

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
pub(super) fn listeners(config: &Config) -> Vec<Json<'static>> {
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
    list.push(listener(address, additional, ports.prometheus, chain(stats)));

    if ports.secure_metrics != 0 {
        let stats = manager("secure_stats", &[("/stats/prometheus", "prometheus_stats")], false);
        list.push(secure(family.wildcard, ports.secure_metrics, stats));
    }
    if ports.secure_merged_metrics != 0 {
        let routes = [("/stats/prometheus", "agent"), ("/metrics", "agent")];
        let stats = manager("secure_merged_stats", &routes, false);
        list.push(secure(family.wildcard, ports.secure_merged_metrics, stats));
    }

    let ready = manager("agent", &[("/healthz/ready", "agent")], false);
    let additional = family.additional.map(|(_, wildcard)| wildcard);
    let mut status = listener(family.wildcard, additional, ports.status, chain(ready));
    if config.status_proxy_protocol {
        let filter = any(PROXY_PROTOCOL, json!({"allow_requests_without_proxy_protocol": true}));
        status.insert("listener_filters", json!([{"name": "envoy.listener.proxy_protocol", "typed_config": filter}]));
    }
    list.push(status);
    list
}

fn listener(address: &'static str, additional: Option<&'static str>, port: u16, chain: Json<'static>) -> Json<'static> {
    let socket =
        |address: &'static str| json!({"socket_address": {"protocol": "TCP", "address": address, "port_value": port}});
    let mut listener = json!({
        "name": format!("{address}_{port}"),
        "address": socket(address),
        "ignore_global_conn_limit": true,
        "bypass_overload_manager": true,
        "filter_chains": [chain]
    });
    if let Some(additional) = additional {
        listener.insert("additional_addresses", json!([{"address": socket(additional)}]));
    }
    listener
}

fn chain(manager: Json<'static>) -> Json<'static> {
    json!({"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]})
}

fn manager(stat_prefix: &'static str, routes: &[(&'static str, &'static str)], compress: bool) -> Json<'static> {
    let route = |(prefix, cluster): &(&'static str, &'static str)| json!({"match": {"prefix": *prefix}, "route": {"cluster": *cluster}});
    let routes: Vec<Json<'_>> = routes.iter().map(route).collect();
    let mut filters: Vec<Json<'_>> = Vec::new();
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

fn compressor(name: &str, kind: &str) -> Json<'static> {
    let library = any(&format!("envoy.extensions.compression.{name}.compressor.v3.{kind}"), json!({}));
    let compressor = json!({
        "compressor_library": {"name": format!("stats_{name}"), "typed_config": library},
        "response_direction_config": {"common_config": {"content_type": &METRICS_TYPES[..]}}
    });
    json!({"name": format!("envoy.filters.http.compressor.{name}"), "typed_config": any(COMPRESSOR, compressor)})
}

/// A listener for clients of the mesh only.
fn secure(address: &'static str, port: u16, manager: Json<'static>) -> Json<'static> {
    let mut chain = chain(manager);
    chain.insert("filter_chain_match", json!({"transport_protocol": "tls"}));
    chain.insert("transport_socket", tls::mutual_listener());
    let mut listener = listener(address, None, port, chain);
    let inspector =
        json!({"name": "envoy.filters.listener.tls_inspector", "typed_config": any(TLS_INSPECTOR, json!({}))});
    listener.insert("listener_filters", json!([inspector]));
    listener
}
