//! A real module in a real Envoy: fetched by the agent, run in requests, replaced under traffic without losing one.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use footman::{
    net::http1::client::Request,
    proto::{
        envoy::{
            config::core::v3::{
                AsyncDataSource, HttpUri, RemoteDataSource, TypedExtensionConfig, async_data_source::Specifier,
            },
            extensions::wasm::v3::{FailurePolicy, PluginConfig, VmConfig, Wasm},
            service::discovery::v3::{DiscoveryRequest, DiscoveryResponse},
        },
        google::protobuf::{Any, Duration},
    },
};
use prost::Message;

use crate::support::{
    agent::{Agent, Options},
    envoy as support_envoy, free_port,
    istiod::{Ads, Istiod},
    web::Web,
    within,
};

#[path = "../examples/control_plane/envoy.rs"]
#[allow(dead_code, reason = "the control plane makes more kinds of resources")]
mod envoy;

const LDS: &str = "type.googleapis.com/envoy.config.listener.v3.Listener";
const CDS: &str = "type.googleapis.com/envoy.config.cluster.v3.Cluster";
const ECDS: &str = "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig";
const HTTP_WASM: &str = "type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm";
const MANAGER: &str =
    "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";
const ROUTER: &str = "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router";
const PLUGIN: &str = "ns1.plugin";
/// Each adds a header `x-wasm` with its name to responses.
const FIRST: &[u8] = include_bytes!("captures/first.wasm");
const SECOND: &[u8] = include_bytes!("captures/second.wasm");

/// `HttpFilter` whose configuration comes by ECDS (field 5: `ExtensionConfigSource`).
#[derive(Clone, PartialEq, Message)]
struct DiscoveredFilter {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, optional, tag = "5")]
    config_discovery: Option<ExtensionConfigSource>,
}

/// `envoy.config.core.v3.ExtensionConfigSource`
#[derive(Clone, PartialEq, Message)]
struct ExtensionConfigSource {
    #[prost(message, optional, tag = "1")]
    config_source: Option<envoy::ConfigSource>,
    #[prost(string, repeated, tag = "4")]
    type_urls: Vec<String>,
}

/// The part of `HttpConnectionManager` that `envoy::HttpConnectionManager` does not have: a discovered filter, before the others.
#[derive(Clone, PartialEq, Message)]
struct DiscoveredFilters {
    #[prost(message, repeated, tag = "5")]
    http_filters: Vec<DiscoveredFilter>,
}

fn any(type_url: &str, message: &impl Message) -> Any {
    Any { type_url: type_url.to_owned(), value: message.encode_to_vec().into() }
}

/// A listener that answers by itself, behind the plugin.
fn listener(port: u16) -> Any {
    let discovered = DiscoveredFilter {
        name: PLUGIN.to_owned(),
        config_discovery: Some(ExtensionConfigSource {
            config_source: Some(envoy::ConfigSource { ads: Some(()), resource_api_version: 2, ..Default::default() }),
            type_urls: vec![HTTP_WASM.to_owned()],
        }),
    };
    let route = envoy::Route {
        r#match: Some(envoy::RouteMatch { prefix: "/".to_owned() }),
        direct_response: Some(envoy::DirectResponse { status: 200, ..Default::default() }),
        ..Default::default()
    };
    let everything = envoy::VirtualHost { name: "all".to_owned(), domains: vec!["*".to_owned()], routes: vec![route] };
    let router = envoy::Filter { name: "router".to_owned(), typed_config: Some(any(ROUTER, &())) };
    let manager = envoy::HttpConnectionManager {
        stat_prefix: "test".to_owned(),
        route_config: Some(envoy::RouteConfiguration { name: "all".to_owned(), virtual_hosts: vec![everything] }),
        http_filters: vec![router],
        ..Default::default()
    };
    // Repeated fields of both messages add up, in the order of the bytes.
    let mut value = DiscoveredFilters { http_filters: vec![discovered] }.encode_to_vec();
    manager.encode(&mut value).unwrap();
    let filter = envoy::Filter {
        name: "http".to_owned(),
        typed_config: Some(Any { type_url: MANAGER.to_owned(), value: value.into() }),
    };
    let socket_address = Some(envoy::SocketAddress { address: "127.0.0.1".to_owned(), port_value: port.into() });
    let listener = envoy::Listener {
        name: "test".to_owned(),
        address: Some(envoy::Address { socket_address }),
        filter_chains: vec![envoy::FilterChain { filters: vec![filter], ..Default::default() }],
    };
    any(LDS, &listener)
}

fn plugin(url: String) -> Any {
    let timeout = Some(Duration { seconds: 30, nanos: 0 });
    let http_uri = Some(HttpUri { uri: url, timeout, ..Default::default() });
    let remote = RemoteDataSource { http_uri, ..Default::default() };
    let vm = VmConfig {
        runtime: "envoy.wasm.runtime.v8".to_owned(),
        code: Some(AsyncDataSource { specifier: Some(Specifier::Remote(remote)) }),
        ..Default::default()
    };
    let config =
        PluginConfig { vm_config: Some(vm), failure_policy: FailurePolicy::FailClosed.into(), ..Default::default() };
    let typed_config = Some(any(HTTP_WASM, &Wasm { config: Some(config) }));
    any(ECDS, &TypedExtensionConfig { name: PLUGIN.to_owned(), typed_config })
}

/// Answers Envoy's subscriptions until it has acknowledged this plugin.
async fn serve(ads: &mut Ads, port: u16, plugin: &Any, serial: &mut usize) {
    loop {
        let request: DiscoveryRequest =
            within("a request of Envoy", ads.requests.message(1 << 24)).await.unwrap().unwrap();
        assert_eq!(request.error_detail, None, "refused");
        if request.type_url == ECDS && request.response_nonce == format!("n{serial}") {
            return;
        }
        if request.response_nonce.is_empty() {
            let resources = match request.type_url.as_str() {
                LDS => vec![listener(port)],
                ECDS => vec![plugin.clone()],
                CDS => Vec::new(),
                _ => continue,
            };
            push(ads, &request.type_url, resources, serial).await;
        }
    }
}

async fn push(ads: &mut Ads, type_url: &str, resources: Vec<Any>, serial: &mut usize) {
    *serial += 1;
    let response = DiscoveryResponse {
        version_info: serial.to_string(),
        type_url: type_url.to_owned(),
        nonce: format!("n{serial}"),
        resources,
        ..Default::default()
    };
    ads.responses.send(&response).await.unwrap();
}

/// Status and `x-wasm` of one request; an error text when there is no answer.
async fn ask(port: u16) -> Result<(u16, String), String> {
    let request = Request::get(&format!("http://127.0.0.1:{port}/")).unwrap();
    let response = request.send(None).await.map_err(|error| error.to_string())?;
    Ok((response.status, response.headers.get("x-wasm").unwrap_or_default().to_owned()))
}

/// Asks until the plugin of that name answers.
async fn answers(port: u16, name: &str) {
    let expected = Ok((200, name.to_owned()));
    within("the plugin", async { while ask(port).await != expected {} }).await;
}

#[tokio::test]
async fn module_runs_and_is_replaced_under_traffic() {
    let Some(binary) = support_envoy::real() else {
        eprintln!("skipped: ENVOY does not name an Envoy");
        return;
    };
    let cache = crate::support::TempDir::new();
    let env = [
        ("FOOTMAN_WASM_CACHE_DIR", cache.to_str().unwrap()),
        ("ISTIO_DELTA_XDS", "false"),
        ("ISTIOD_SAN", "localhost"),
    ];
    let (web, port) = (Web::start(), free_port());
    let mut istiod = Istiod::start().await;
    let agent = Agent::start(&istiod, Options { envoy: Some(Path::new(&binary)), env: &env, ..Options::default() });
    let mut ads = istiod.stream().await;
    let mut serial = 0;
    serve(&mut ads, port, &plugin(web.put("/first.wasm", FIRST)), &mut serial).await;
    answers(port, "first").await;

    let (done, asked) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let traffic = tokio::spawn({
        let (done, asked) = (done.clone(), asked.clone());
        async move {
            while !done.load(Ordering::Relaxed) {
                let answer = ask(port).await;
                let well = matches!(&answer, Ok((200, name)) if name == "first" || name == "second");
                assert!(well, "{answer:?}");
                asked.fetch_add(1, Ordering::Relaxed);
            }
        }
    });
    for (path, module, name) in
        [("/b.wasm", SECOND, "second"), ("/c.wasm", FIRST, "first"), ("/d.wasm", SECOND, "second")]
    {
        push(&mut ads, ECDS, vec![plugin(web.put(path, module))], &mut serial).await;
        serve(&mut ads, port, &Any::default(), &mut serial).await;
        answers(port, name).await;
    }
    done.store(true, Ordering::Relaxed);
    within("the traffic", traffic).await.unwrap();
    assert!(asked.load(Ordering::Relaxed) > 10);
    drop(agent);
}
