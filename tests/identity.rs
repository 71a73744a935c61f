//! A real Envoy that gets its identity from the agent: certificates are renewed under traffic without losing a request.

use std::time::Duration;

use footman::{
    net::{
        BoxIo,
        http1::{Error, client::Request},
    },
    proto::envoy::service::discovery::v3::{DiscoveryRequest, DiscoveryResponse},
};
use serde_json::{Value, json};
use tokio::{task::JoinSet, time::Instant};

use crate::support::{
    agent::{Agent, Options},
    envoy, free_port,
    istiod::{Ads, Istiod},
    within,
};

const ROTATIONS: usize = 20;
/// 200 requests a second.
const PACE: Duration = Duration::from_millis(5);
/// Requests of as many seconds as there are rotations: a machine that is too busy for the pace takes longer, but sends no fewer.
const REQUESTS: usize = 200 * ROTATIONS;
/// Requests, and kept connections to Envoy, at a time.
const IN_FLIGHT: usize = 100;
/// Requests on one connection between the Envoys: 40 handshakes a second, and always some connections that outlive a rotation.
const PER_CONNECTION: u32 = 5;

/// `SdsSecretConfig` for the agent's socket, as istiod writes it.
fn secret(name: &str) -> Value {
    let source = json!({
        "api_type": "GRPC",
        "transport_api_version": "V3",
        "set_node_on_first_message_only": true,
        "grpc_services": [{ "envoy_grpc": { "cluster_name": "sds-grpc" } }],
    });
    json!({ "name": name, "sds_config": { "api_config_source": source, "resource_api_version": "V3", "initial_fetch_timeout": "0s" } })
}

fn tls(kind: &str, mut more: Value) -> Value {
    more["@type"] = format!("type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.{kind}").into();
    more["common_tls_context"] = json!({
        "tls_certificate_sds_secret_configs": [secret("default")],
        "validation_context_sds_secret_config": secret("ROOTCA"),
    });
    json!({ "name": "envoy.transport_sockets.tls", "typed_config": more })
}

fn listener(port: u16, route: Value, mut chain: Value) -> Value {
    let mut matched = route;
    matched["match"] = json!({ "prefix": "/" });
    chain["filters"] = json!([{ "name": "http", "typed_config": {
        "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "test",
        "route_config": { "virtual_hosts": [{ "name": "all", "domains": ["*"], "routes": [matched] }] },
        "http_filters": [{ "name": "router", "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router",
        } }],
    } }]);
    let address = json!({ "socket_address": { "address": "127.0.0.1", "port_value": port } });
    json!({ "name": format!("test-{port}"), "address": address, "filter_chains": [chain] })
}

/// `front` sends requests over mutual TLS, soon on a new connection, to `back`, which answers by itself.
fn bootstrap(front: u16, back: u16) -> Value {
    let endpoint = json!({ "socket_address": { "address": "127.0.0.1", "port_value": back } });
    let cluster = json!({
        "name": "back",
        "type": "STATIC",
        "connect_timeout": "5s",
        "transport_socket": tls("UpstreamTlsContext", json!({ "max_session_keys": 0 })),
        "typed_extension_protocol_options": { "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
            "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
            "common_http_protocol_options": { "max_requests_per_connection": PER_CONNECTION },
            "explicit_http_config": { "http_protocol_options": {} },
        } },
        "load_assignment": {
            "cluster_name": "back",
            "endpoints": [{ "lb_endpoints": [{ "endpoint": { "address": endpoint } }] }],
        },
    });
    let mutual = tls("DownstreamTlsContext", json!({ "require_client_certificate": true }));
    json!({ "static_resources": {
        "clusters": [cluster],
        "listeners": [
            listener(front, json!({ "route": { "cluster": "back" } }), json!({})),
            listener(back, json!({ "direct_response": { "status": 200 } }), json!({ "transport_socket": mutual })),
        ],
    } })
}

/// Answers every subscription of an Envoy with no resources, which is what it waits for before it listens.
async fn nothing(mut ads: Ads) {
    while let Ok(Some(request)) = ads.requests.message::<DiscoveryRequest>(1 << 24).await {
        if request.response_nonce.is_empty() {
            let type_url = request.type_url;
            let response = DiscoveryResponse {
                version_info: "1".to_owned(),
                nonce: "n".to_owned(),
                type_url,
                ..Default::default()
            };
            ads.responses.send(&response).await.unwrap();
        }
    }
}

/// One request, on a kept connection if there is one; the status, and the connection if it can be kept.
async fn ask(port: u16, kept: Option<BoxIo>) -> Result<(u16, Option<BoxIo>), Error> {
    let mut request = Request::get(&format!("http://127.0.0.1:{port}/")).unwrap().timeout(Duration::from_secs(60));
    request.keep_alive = true;
    let response = match kept {
        Some(connection) => request.send_on(connection).await?,
        None => request.send(None).await?,
    };
    Ok((response.status, response.into_connection()))
}

#[tokio::test]
async fn rotations_under_traffic_lose_no_request() {
    let Some(binary) = envoy::real() else {
        eprintln!("skipped: ENVOY does not name an Envoy");
        return;
    };
    let (front, back) = (free_port(), free_port());
    let folder = crate::support::TempDir::new();
    let bootstrap = folder.write("override.json", bootstrap(front, back).to_string());
    // Renewed as soon as the spacing of requests allows: once a second.
    let env = [
        ("ISTIO_BOOTSTRAP_OVERRIDE", bootstrap.to_str().unwrap()),
        ("ISTIO_DELTA_XDS", "false"),
        ("SECRET_TTL", "10s"),
        ("SECRET_GRACE_PERIOD_RATIO", "0.95"),
        ("SECRET_GRACE_PERIOD_RATIO_JITTER", "0"),
    ];
    let mut istiod = Istiod::start().await;
    let agent = Agent::start(&istiod, Options { envoy: Some(&binary), env: &env, ..Options::default() });
    istiod.certificate().await;
    let _configuration = tokio::spawn(nothing(istiod.stream().await));
    within("Envoy", async { while !matches!(ask(front, None).await, Ok((200, _))) {} }).await;

    let (mut rotations, mut sent, mut answered) = (0, 0, 0);
    let mut requests = JoinSet::new();
    let mut kept: Vec<BoxIo> = Vec::new();
    let mut pace = tokio::time::interval(PACE);
    let begun = Instant::now();
    while rotations < ROTATIONS || sent < REQUESTS || answered < sent {
        let more = requests.len() < IN_FLIGHT && (rotations < ROTATIONS || sent < REQUESTS);
        tokio::select! {
            _ = pace.tick(), if more => {
                sent += 1;
                requests.spawn(ask(front, kept.pop()));
            }
            Some(answer) = requests.join_next() => match answer.unwrap() {
                Ok((200, connection)) => {
                    answered += 1;
                    kept.extend(connection);
                }
                other => panic!("{:?} after {rotations} rotations and {answered} answers", other.map(|(status, _)| status)),
            },
            _ = istiod.certificate() => rotations += 1,
        }
    }
    let pace = answered as f64 / begun.elapsed().as_secs_f64();
    eprintln!("{answered} requests over {rotations} rotations, {pace:.0} a second");
    drop(agent);
}
