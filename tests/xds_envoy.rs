//! A real Envoy across 50 restarts of istiod: it keeps serving, and takes its configuration from each new one.

use std::time::Duration;

use footman::{
    net::http1::client::Request,
    proto::envoy::service::discovery::v3::{DiscoveryRequest, DiscoveryResponse},
};
use serde_json::json;

use crate::support::{
    TempDir,
    agent::{Agent, Options},
    envoy, free_port,
    istiod::{Ads, Istiod},
    within,
};

const RESTARTS: usize = 50;

/// Answers every subscription with no resources, until Envoy has asked for listeners, its last wish at a start.
async fn configure(ads: &mut Ads, version: usize) {
    loop {
        let request = within("a request", ads.requests.message::<DiscoveryRequest>(1 << 24)).await;
        let request = request.unwrap().expect("Envoy ended its stream");
        assert_eq!(request.error_detail, None);
        let is_answer = request.response_nonce.starts_with(&format!("{version}-"));
        if is_answer && request.type_url.ends_with(".Listener") {
            return;
        }
        if !is_answer {
            let response = DiscoveryResponse {
                version_info: version.to_string(),
                nonce: format!("{version}-{}", request.type_url),
                type_url: request.type_url,
                ..DiscoveryResponse::default()
            };
            ads.responses.send(&response).await.unwrap();
        }
    }
}

async fn ask(port: u16) -> Result<u16, String> {
    let request = Request::get(&format!("http://127.0.0.1:{port}/")).unwrap().timeout(Duration::from_secs(60));
    request.send(None).await.map(|response| response.status).map_err(|error| error.to_string())
}

#[tokio::test]
async fn envoy_serves_across_restarts_of_istiod() {
    let Some(binary) = envoy::real() else {
        eprintln!("skipped: ENVOY does not name an Envoy");
        return;
    };
    let port = free_port();
    let listener = json!({ "static_resources": { "listeners": [{
        "name": "test",
        "address": { "socket_address": { "address": "127.0.0.1", "port_value": port } },
        "filter_chains": [{ "filters": [{ "name": "http", "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
            "stat_prefix": "test",
            "route_config": { "virtual_hosts": [{ "name": "all", "domains": ["*"], "routes": [
                { "match": { "prefix": "/" }, "direct_response": { "status": 200 } },
            ] }] },
            "http_filters": [{ "name": "router", "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router",
            } }],
        } }] }],
    }] } });
    let folder = TempDir::new();
    let bootstrap = folder.write("override.json", listener.to_string());
    let env = [("ISTIO_BOOTSTRAP_OVERRIDE", bootstrap.to_str().unwrap()), ("ISTIO_DELTA_XDS", "false")];
    let mut istiod = Istiod::start().await;
    let _agent = Agent::start(&istiod, Options { envoy: Some(&binary), env: &env, ..Options::default() });
    let mut ads = istiod.stream().await;
    configure(&mut ads, 0).await;
    within("Envoy", async { while ask(port).await != Ok(200) {} }).await;
    for version in 1..=RESTARTS {
        istiod = istiod.restart().await;
        assert_eq!(ask(port).await, Ok(200), "after restart {version}");
        ads = istiod.stream().await;
        configure(&mut ads, version).await;
    }
    assert_eq!(ask(port).await, Ok(200));
}
