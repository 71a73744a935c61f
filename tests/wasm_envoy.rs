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
            service::discovery::v3::{
                DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse, Resource,
            },
        },
        google::protobuf::{Any, Duration},
    },
};
use prost::Message;

use crate::support::{
    agent::{Agent, Options},
    envoy as support_envoy, free_port,
    istiod::{Ads, DELTA, Istiod},
    web::{Response, Web},
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

/// The scripted control plane towards one Envoy, in either protocol.
struct Plane {
    ads: Ads,
    /// Where Envoy's listener is.
    port: u16,
    serial: usize,
}

impl Plane {
    async fn next(istiod: &mut Istiod, port: u16) -> Plane {
        Plane { ads: istiod.stream().await, port, serial: 0 }
    }

    /// Answers Envoy's subscriptions until it has acknowledged this plugin.
    async fn serve(&mut self, plugin: &Any) {
        loop {
            let (type_url, nonce) = self.request().await;
            if type_url == ECDS && nonce == format!("n{}", self.serial) {
                return;
            }
            if nonce.is_empty() {
                match type_url.as_str() {
                    LDS => self.push(LDS, Some(("test", listener(self.port)))).await,
                    ECDS => self.push(ECDS, Some((PLUGIN, plugin.clone()))).await,
                    CDS => self.push(CDS, None).await,
                    _ => {}
                }
            }
        }
    }

    /// Sends another plugin, until it is acknowledged.
    async fn replace(&mut self, plugin: &Any) {
        self.push(ECDS, Some((PLUGIN, plugin.clone()))).await;
        self.serve(plugin).await;
    }

    /// Type and nonce of the next request.
    async fn request(&mut self) -> (String, String) {
        let requests = &mut self.ads.requests;
        let (type_url, nonce, refusal) = if self.ads.path == DELTA {
            let request: DeltaDiscoveryRequest =
                within("a request of Envoy", requests.message(1 << 24)).await.unwrap().unwrap();
            (request.type_url, request.response_nonce, request.error_detail)
        } else {
            let request: DiscoveryRequest =
                within("a request of Envoy", requests.message(1 << 24)).await.unwrap().unwrap();
            (request.type_url, request.response_nonce, request.error_detail)
        };
        assert_eq!(refusal, None, "refused");
        (type_url, nonce)
    }

    async fn push(&mut self, type_url: &str, resource: Option<(&str, Any)>) {
        self.serial += 1;
        let (version, nonce, type_url) = (self.serial.to_string(), format!("n{}", self.serial), type_url.to_owned());
        let sent = if self.ads.path == DELTA {
            let resources = resource.into_iter().map(|(name, resource)| Resource {
                name: name.to_owned(),
                version: version.clone(),
                resource: Some(resource),
                ..Default::default()
            });
            let resources = resources.collect();
            self.ads.responses.send(&DeltaDiscoveryResponse { type_url, nonce, resources, ..Default::default() }).await
        } else {
            let resources = resource.into_iter().map(|(_, resource)| resource).collect();
            let response =
                DiscoveryResponse { version_info: version, type_url, nonce, resources, ..Default::default() };
            self.ads.responses.send(&response).await
        };
        sent.unwrap();
    }
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

/// What the agent is told beside a pod's usual environment.
fn environment<'a>(cache: &'a Path, delta: &'a str) -> [(&'a str, &'a str); 3] {
    [("FOOTMAN_WASM_CACHE_DIR", cache.to_str().unwrap()), ("ISTIO_DELTA_XDS", delta), ("ISTIOD_SAN", "localhost")]
}

#[tokio::test]
async fn module_runs_and_is_replaced_under_traffic() {
    replaced_under_traffic("false").await;
}

#[tokio::test]
async fn module_runs_and_is_replaced_under_traffic_in_delta() {
    replaced_under_traffic("true").await;
}

async fn replaced_under_traffic(delta: &str) {
    let Some(binary) = support_envoy::real() else {
        eprintln!("skipped: ENVOY does not name an Envoy");
        return;
    };
    let cache = crate::support::TempDir::new();
    let env = environment(&cache, delta);
    let (web, port) = (Web::start(), free_port());
    let mut istiod = Istiod::start().await;
    let agent = Agent::start(&istiod, Options { envoy: Some(Path::new(&binary)), env: &env, ..Options::default() });
    let mut plane = Plane::next(&mut istiod, port).await;
    plane.serve(&plugin(web.put("/first.wasm", FIRST))).await;
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
        plane.replace(&plugin(web.put(path, module))).await;
        answers(port, name).await;
    }
    done.store(true, Ordering::Relaxed);
    within("the traffic", traffic).await.unwrap();
    assert!(asked.load(Ordering::Relaxed) > 10);
    drop(agent);
}

#[tokio::test]
async fn restarted_agent_serves_the_module_it_kept() {
    restarted_without_registry("false").await;
}

#[tokio::test]
async fn restarted_agent_serves_the_module_it_kept_in_delta() {
    restarted_without_registry("true").await;
}

/// The agent is killed, with all that was in its memory; the registry is gone when it starts again.
async fn restarted_without_registry(delta: &str) {
    let Some(binary) = support_envoy::real() else {
        eprintln!("skipped: ENVOY does not name an Envoy");
        return;
    };
    let cache = crate::support::TempDir::new();
    let env = environment(&cache, delta);
    let start = |istiod: &Istiod| {
        Agent::start(istiod, Options { envoy: Some(Path::new(&binary)), env: &env, ..Default::default() })
    };
    let web = Web::start();
    let plugin = plugin(web.put("/first.wasm", FIRST));
    let mut istiod = Istiod::start().await;
    for run in ["fetched", "from the cache"] {
        let (agent, port) = (start(&istiod), free_port());
        let mut plane = Plane::next(&mut istiod, port).await;
        plane.serve(&plugin).await;
        answers(port, "first").await;
        assert_eq!(web.seen(), ["GET /first.wasm"], "{run}");
        web.route("/first.wasm", |_| Response::new(404, "gone"));
        drop(agent);
    }
}
