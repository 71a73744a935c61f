//! The bootstrap as a whole, section by section in Istio's order.

use super::{
    Config, XDS_CLUSTER, any, clusters,
    json::{Json, Object, json},
    listeners,
    node::Node,
    runtime, tracing,
};

const FILE_LOG: &str = "envoy.extensions.access_loggers.file.v3.FileAccessLog";
const CONNECTIONS: &str = "envoy.extensions.resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig";
const INTERNAL_LISTENER: &str = "envoy.extensions.bootstrap.internal_listener.v3.InternalListener";

pub(super) fn document<'a>(config: &'a Config, node: &'a Node) -> Json<'a> {
    let discovery = config.metadata_discovery(node);
    let mut all = Object::default();
    all.insert("application_log_config", json!({"log_format": log_format(config)}));
    all.insert("node", node.to_json());
    all.insert("layered_runtime", runtime::layered_runtime(config));
    all.insert("bootstrap_extensions", extensions(discovery));
    config.stats.add_to(&mut all, discovery, config.flavor);
    all.insert("admin", admin(config));
    all.insert("dynamic_resources", dynamic_resources(config));
    all.insert(
        "static_resources",
        json!({"clusters": clusters::clusters(config, node), "listeners": listeners::listeners(config)}),
    );
    all.insert("overload_manager", overload_manager(config));
    if let Some(section) = tracing::tracing(config, node) {
        all.insert("tracing", section);
    }
    let sinks = tracing::stats_sinks(config);
    if !sinks.is_empty() {
        all.insert("stats_sinks", sinks);
    }
    if let Some(section) = cluster_manager(config, node) {
        all.insert("cluster_manager", section);
    }
    all.insert("deferred_stat_options", json!({"enable_deferred_creation_stats": true}));
    all.into()
}

fn log_format(config: &Config) -> Json<'static> {
    if config.log_as_json {
        json!({"json_format": {
            "time": "%Y-%m-%dT%T.%fZ", "level": "%l", "scope": "envoy %n", "msg": "%j", "caller": "%g:%#", "thread": "%t"
        }})
    } else {
        json!({"text_format": "%Y-%m-%dT%T.%fZ\t%l\tenvoy %n %g:%#\t%v\tthread=%t"})
    }
}

fn extensions(metadata_discovery: bool) -> Json<'static> {
    let extension = |name: &'static str, kind: &str, value: Json<'static>| {
        let typed = json!({"type_url": format!("type.googleapis.com/{kind}"), "value": value});
        json!({"name": name, "typed_config": any("udpa.type.v1.TypedStruct", typed)})
    };
    let mut list = Vec::new();
    if metadata_discovery {
        let value = json!({"config_source": {"ads": {}}});
        list.push(extension("metadata_discovery", "istio.workload.BootstrapExtension", value));
    }
    list.push(extension("envoy.bootstrap.internal_listener", INTERNAL_LISTENER, json!({"buffer_size_kb": 64})));
    list.into()
}

fn admin(config: &Config) -> Json<'static> {
    json!({
        "access_log": [{"name": "envoy.access_loggers.file", "typed_config": any(FILE_LOG, json!({"path": "/dev/null"}))}],
        "profile_path": "/var/lib/istio/data/envoy.prof",
        "address": {"socket_address": {"address": config.family.localhost, "port_value": config.proxy.proxy_admin_port}}
    })
}

fn dynamic_resources(config: &Config) -> Json<'static> {
    let source = json!({"ads": {}, "initial_fetch_timeout": "0s", "resource_api_version": "V3"});
    let api_type = if config.delta_xds || config.is_waypoint { "DELTA_GRPC" } else { "GRPC" };
    json!({
        "lds_config": source.clone(),
        "cds_config": source,
        "ads_config": {
            "api_type": api_type,
            "set_node_on_first_message_only": true,
            "transport_api_version": "V3",
            "grpc_services": [{"envoy_grpc": {"cluster_name": XDS_CLUSTER}}]
        }
    })
}

fn overload_manager(config: &Config) -> Json<'static> {
    let monitor = any(CONNECTIONS, json!({"max_active_downstream_connections": config.max_connections}));
    let name = "envoy.resource_monitors.global_downstream_max_connections";
    json!({"resource_monitors": [{"name": name, "typed_config": monitor}]})
}

/// Only there when one of its settings is; deferred creation of clusters comes with it, as in Istio.
fn cluster_manager<'a>(config: &'a Config, node: &Node) -> Option<Json<'a>> {
    let mut section = Object::default();
    if node.metadata.flag("ENABLE_SELF_DISCOVERY") {
        section.insert("local_cluster_name", "local_cluster");
    }
    let outlier_log = config.args.outlier_log_path();
    if !outlier_log.is_empty() {
        section.insert("outlier_detection", json!({"event_log_path": outlier_log}));
    }
    if let Some(load_stats) = &config.load_stats {
        section.insert("load_stats_config", load_stats);
    }
    if !section.is_empty() {
        section.insert("enable_deferred_cluster_creation", true);
    }
    if let Some(bind) = config.flavor.upstream_bind(&config.family) {
        section.insert("upstream_bind_config", bind);
    }
    (!section.is_empty()).then_some(section.into())
}
