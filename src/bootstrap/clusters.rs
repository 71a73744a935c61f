//! The clusters that Envoy has before istiod tells it more: itself, the agent's sockets, tracers and services.

use super::{
    Config, SDS_CLUSTER, XDS_CLUSTER, any,
    json::{Json, Object, json},
    node::Node,
    tls,
};
use crate::config::{RemoteService, Tracer};

const HTTP_OPTIONS: &str = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";
/// Where the agent serves certificates from files while somebody else serves the workload's identity.
const FILES_SOCKET: &str = "./var/run/secrets/credential-uds/files-socket";
/// Enough for one stream a worker, whatever their number.
const XDS_LIMIT: u32 = 100_000;

/// `static_resources.clusters`, in Istio's order.
pub(super) fn clusters<'a>(config: &'a Config, node: &'a Node) -> Vec<Json<'a>> {
    let local = config.family.localhost;
    let admin = u32::from(config.proxy.proxy_admin_port);
    let workload = format!("./var/run/secrets/workload-spiffe-uds/{}", config.socket_file);
    let mut list = vec![
        fixed("prometheus_stats", "0.250s", tcp(local, admin)),
        fixed("agent", "0.250s", tcp(local, config.proxy.status_port.into())),
        http2(fixed(SDS_CLUSTER, "1s", pipe(workload))),
    ];
    // Metadata may bring the key as well.
    if node.metadata.has_raw("file-credential") {
        list.push(http2(fixed("sds-files-grpc", "1s", pipe(FILES_SOCKET.to_owned()))));
    }
    list.push(xds(format!("{}/XDS", config.proxy.config_path)));
    list.extend(tracer(config, node));
    for (name, service) in [
        ("envoy_metrics_service", &config.proxy.envoy_metrics_service),
        ("envoy_accesslog_service", &config.proxy.envoy_access_log_service),
    ] {
        list.extend(service.as_ref().and_then(|service| remote_service(config, node, name, service)));
    }
    if node.metadata.flag("ENABLE_SELF_DISCOVERY") {
        list.push(local_cluster());
    }
    if !config.flavor.is_istio() {
        // Higress's tags end a name at its dot, not at Istio's semicolon.
        for cluster in &mut list {
            cluster.remove("alt_stat_name");
        }
    }
    list
}

/// A socket address of an endpoint.
fn tcp(address: &str, port: u32) -> Json<'_> {
    json!({"socket_address": {"protocol": "TCP", "address": address, "port_value": port}})
}

fn pipe(path: String) -> Json<'static> {
    json!({"pipe": {"path": path}})
}

fn fixed<'a>(name: &'a str, connect_timeout: &'a str, address: Json<'a>) -> Json<'a> {
    cluster(name, "STATIC", connect_timeout, address)
}

/// What all clusters but `local_cluster` have. The semicolon of `alt_stat_name` ends the name in statistics, for the tags.
fn cluster<'a>(name: &'a str, kind: &'a str, connect_timeout: &'a str, address: Json<'a>) -> Json<'a> {
    json!({
        "name": name,
        "alt_stat_name": format!("{name};"),
        "type": kind,
        "connect_timeout": connect_timeout,
        "lb_policy": "ROUND_ROBIN",
        "load_assignment": {
            "cluster_name": name,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address}}]}]
        }
    })
}

/// A cluster by a name or address that a person configured.
fn named<'a>(config: &Config, name: &'a str, address: Json<'a>) -> Json<'a> {
    let mut cluster = cluster(name, "STRICT_DNS", "1s", address);
    cluster.insert("respect_dns_ttl", true);
    cluster.insert("dns_lookup_family", config.family.dns);
    cluster
}

fn http2(mut cluster: Json<'_>) -> Json<'_> {
    let options = any(HTTP_OPTIONS, json!({"explicit_http_config": {"http2_protocol_options": {}}}));
    cluster.insert("typed_extension_protocol_options", json!({HTTP_OPTIONS: options}));
    cluster
}

fn xds(path: String) -> Json<'static> {
    let mut cluster = http2(fixed(XDS_CLUSTER, "1s", pipe(path)));
    let threshold = |priority: &'static str| {
        json!({
            "priority": priority,
            "max_connections": XDS_LIMIT, "max_pending_requests": XDS_LIMIT, "max_requests": XDS_LIMIT
        })
    };
    cluster.insert("circuit_breakers", json!({"thresholds": [threshold("DEFAULT"), threshold("HIGH")]}));
    cluster.insert("upstream_connection_options", json!({"tcp_keepalive": {"keepalive_time": 300}}));
    cluster.insert("max_requests_per_connection", 1);
    cluster
}

fn tracer<'a>(config: &'a Config, node: &'a Node) -> Option<Json<'a>> {
    let tracing = config.proxy.tracing.as_ref()?;
    let (name, address, grpc) = match tracing.tracer.as_ref()? {
        Tracer::Zipkin(address) => ("zipkin", address, false),
        Tracer::Lightstep(address, _) => ("lightstep", address, true),
        Tracer::Datadog(address) => ("datadog_agent", address, false),
        Tracer::Stackdriver | Tracer::OpenCensus => return None,
    };
    let mut cluster = named(config, name, host_port(address, &config.host_ip)?);
    if name == "zipkin" {
        cluster.insert("dns_refresh_rate", "30s");
    }
    if grpc {
        cluster = http2(cluster);
    }
    if let Some(socket) = tls::transport_socket(tracing.tls.as_ref(), &node.metadata, "tracer", grpc) {
        cluster.insert("transport_socket", socket);
    }
    Some(cluster)
}

fn remote_service<'a>(
    config: &'a Config,
    node: &'a Node,
    name: &'a str,
    service: &'a RemoteService,
) -> Option<Json<'a>> {
    let mut cluster = http2(named(config, name, host_port(&service.address, &config.host_ip)?));
    if let Some(socket) = tls::transport_socket(service.tls.as_ref(), &node.metadata, name, true) {
        cluster.insert("transport_socket", socket);
    }
    if let Some(numbers) = service.tcp_keepalive {
        let keys = ["keepalive_probes", "keepalive_time", "keepalive_interval"];
        let set = keys.into_iter().zip(numbers).filter(|(_, number)| *number > 0);
        let keepalive: Object<'_> = set.map(|(key, number)| (key.into(), number.into())).collect();
        cluster.insert("upstream_connection_options", json!({"tcp_keepalive": keepalive}));
    }
    Some(cluster)
}

/// An address that validation has let pass; the host `$(HOST_IP)` is the node's where it is known.
fn host_port<'a>(text: &'a str, host_ip: &'a str) -> Option<Json<'a>> {
    let (host, port) = crate::config::split_host_port(text).ok()?;
    let host = if host == "$(HOST_IP)" && !host_ip.is_empty() { host_ip } else { host };
    let port: u16 = port.parse().ok()?;
    Some(json!({"socket_address": {"address": host, "port_value": port}}))
}

/// The workload's own service, for zone-aware balancing.
fn local_cluster() -> Json<'static> {
    let least_request = any(
        "envoy.extensions.load_balancing_policies.least_request.v3.LeastRequest",
        json!({"locality_lb_config": {"zone_aware_lb_config": {"min_cluster_size": "1"}}}),
    );
    let policy = json!({"name": "envoy.load_balancing_policies.least_request", "typed_config": least_request});
    json!({
        "name": "local_cluster",
        "alt_stat_name": "local_cluster;",
        "type": "EDS",
        "connect_timeout": "1s",
        "load_balancing_policy": {"policies": [{"typed_extension_config": policy}]},
        "eds_cluster_config": {
            "eds_config": {"ads": {}, "resource_api_version": "V3"},
            "service_name": "local_cluster"
        }
    })
}
