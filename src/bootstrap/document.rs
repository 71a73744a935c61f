//! The bootstrap as a whole, section by section in Istio's order.

use serde_json::{Map, Value as Json};

use super::{Config, Surroundings, XDS_CLUSTER, any, clusters, json::json, listeners, node::Node, runtime, tracing};

const FILE_LOG: &str = "envoy.extensions.access_loggers.file.v3.FileAccessLog";
const CONNECTIONS: &str = "envoy.extensions.resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig";
const INTERNAL_LISTENER: &str = "envoy.extensions.bootstrap.internal_listener.v3.InternalListener";

pub(super) fn document(config: &Config, around: &Surroundings) -> Json {
    let node = Node::new(config, around);
    let discovery = config.metadata_discovery(&node);
    let mut all = Map::new();
    let mut add = |name: &str, section: Json| drop(all.insert(name.to_owned(), section));
    add("application_log_config", json!({"log_format": log_format(config)}));
    add("node", node.to_json());
    add("layered_runtime", runtime::layered_runtime(config));
    add("bootstrap_extensions", extensions(discovery));
    config.stats.add_to(&mut all, discovery, config.flavor);
    let mut add = |name: &str, section: Json| drop(all.insert(name.to_owned(), section));
    add("admin", admin(config));
    add("dynamic_resources", dynamic_resources(config));
    add(
        "static_resources",
        json!({"clusters": clusters::clusters(config, &node), "listeners": listeners::listeners(config)}),
    );
    add("overload_manager", overload_manager(config));
    if let Some(section) = tracing::tracing(config, &node) {
        add("tracing", section);
    }
    let sinks = tracing::stats_sinks(config);
    if !sinks.is_empty() {
        add("stats_sinks", sinks.into());
    }
    if let Some(section) = cluster_manager(config, &node) {
        add("cluster_manager", section);
    }
    add("deferred_stat_options", json!({"enable_deferred_creation_stats": true}));
    Json::Object(all)
}

fn log_format(config: &Config) -> Json {
    if config.log_as_json {
        json!({"json_format": {
            "time": "%Y-%m-%dT%T.%fZ", "level": "%l", "scope": "envoy %n", "msg": "%j", "caller": "%g:%#", "thread": "%t"
        }})
    } else {
        json!({"text_format": "%Y-%m-%dT%T.%fZ\t%l\tenvoy %n %g:%#\t%v\tthread=%t"})
    }
}

fn extensions(metadata_discovery: bool) -> Json {
    let extension = |name: &str, kind: &str, value: Json| {
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

fn admin(config: &Config) -> Json {
    json!({
        "access_log": [{"name": "envoy.access_loggers.file", "typed_config": any(FILE_LOG, json!({"path": "/dev/null"}))}],
        "profile_path": "/var/lib/istio/data/envoy.prof",
        "address": {"socket_address": {"address": config.family.localhost, "port_value": config.proxy.proxy_admin_port}}
    })
}

fn dynamic_resources(config: &Config) -> Json {
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

fn overload_manager(config: &Config) -> Json {
    let monitor = any(CONNECTIONS, json!({"max_active_downstream_connections": config.max_connections}));
    let name = "envoy.resource_monitors.global_downstream_max_connections";
    json!({"resource_monitors": [{"name": name, "typed_config": monitor}]})
}

/// Only there when one of its settings is; deferred creation of clusters comes with it, as in Istio.
fn cluster_manager(config: &Config, node: &Node) -> Option<Json> {
    let mut section = Map::new();
    if node.metadata.flag("ENABLE_SELF_DISCOVERY") {
        section.insert("local_cluster_name".to_owned(), "local_cluster".into());
    }
    let outlier_log = config.args.outlier_log_path();
    if !outlier_log.is_empty() {
        section.insert("outlier_detection".to_owned(), json!({"event_log_path": outlier_log}));
    }
    if let Some(load_stats) = &config.load_stats {
        section.insert("load_stats_config".to_owned(), load_stats.clone());
    }
    if !section.is_empty() {
        section.insert("enable_deferred_cluster_creation".to_owned(), true.into());
    }
    if let Some(bind) = config.flavor.upstream_bind(&config.family) {
        section.insert("upstream_bind_config".to_owned(), bind);
    }
    (!section.is_empty()).then_some(Json::Object(section))
}
