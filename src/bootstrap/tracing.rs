//! The `tracing` and `stats_sinks` sections: where Envoy sends spans and statistics.

use super::{
    Config, any,
    json::{Json, json},
    node::Node,
};
use crate::config::Tracer;

/// The tracer's section.
pub(super) fn tracing<'a>(config: &Config, node: &'a Node) -> Option<Json<'a>> {
    let (name, kind, settings) = match config.proxy.tracing.as_ref()?.tracer.as_ref()? {
        Tracer::Zipkin(_) => (
            "zipkin",
            "ZipkinConfig",
            json!({
                "collector_cluster": "zipkin",
                "collector_endpoint": "/api/v2/spans",
                "collector_endpoint_version": "HTTP_JSON",
                "trace_id_128bit": true,
                "shared_span_context": false
            }),
        ),
        Tracer::Lightstep(..) => (
            "lightstep",
            "LightstepConfig",
            json!({"collector_cluster": "lightstep", "access_token_file": config.token_path()}),
        ),
        Tracer::Datadog(_) => (
            "datadog",
            "DatadogConfig",
            json!({"collector_cluster": "datadog_agent", "service_name": node.cluster.as_str()}),
        ),
        Tracer::Stackdriver | Tracer::OpenCensus => return None,
    };
    let settings = any(&format!("envoy.config.trace.v3.{kind}"), settings);
    Some(json!({"http": {"name": format!("envoy.tracers.{name}"), "typed_config": settings}}))
}

/// The sinks, metrics service first; empty when there are none.
pub(super) fn stats_sinks(config: &Config) -> Vec<Json<'_>> {
    let mut sinks = Vec::new();
    if config.proxy.envoy_metrics_service.as_ref().is_some_and(|service| !service.address.is_empty()) {
        let settings = json!({
            "transport_api_version": "V3",
            "grpc_service": {"envoy_grpc": {"cluster_name": "envoy_metrics_service"}}
        });
        let settings = any("envoy.config.metrics.v3.MetricsServiceConfig", settings);
        sinks.push(json!({"name": "envoy.stat_sinks.metrics_service", "typed_config": settings}));
    }
    if let Some((address, port)) = config.statsd() {
        let settings = json!({"address": {"socket_address": {"address": address, "port_value": port}}});
        let settings = any("envoy.config.metrics.v3.StatsdSink", settings);
        sinks.push(json!({"name": "envoy.stat_sinks.statsd", "typed_config": settings}));
    }
    sinks
}
