//! A large module fetched while the agent serves: memory, and whether anything else waits for it.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use footman::{
    base::Trigger,
    grpc::MAX_MESSAGE,
    net::http1::server::{Answer, Reply, Request, Server, Service},
    proto::{
        envoy::{
            config::core::v3::{
                AsyncDataSource, HttpUri, RemoteDataSource, TypedExtensionConfig, async_data_source::Specifier,
            },
            extensions::wasm::v3::{PluginConfig, VmConfig, Wasm},
            service::discovery::v3::{DeltaDiscoveryRequest, DeltaDiscoveryResponse, Resource},
        },
        google::protobuf::Any,
    },
};
use prost::Message;
use tokio::net::UdpSocket;

use crate::{
    Bench, Figure, dns, milliseconds, process,
    support::{
        TempDir,
        agent::{Agent, Options},
        envoy, free_port,
        istiod::{Ads, DELTA, Istiod},
        within,
    },
};

pub const METHOD: &str = "a module of 64 MiB over HTTP, from the ECDS response at istiod until Envoy has the local path; a CDS response and a DNS query every 10 ms meanwhile";

const CDS: &str = "type.googleapis.com/envoy.config.cluster.v3.Cluster";
const LDS: &str = "type.googleapis.com/envoy.config.listener.v3.Listener";
const ECDS: &str = "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig";
const WASM: &str = "type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm";
const MODULE: usize = 64 << 20;

/// The module, in pieces that are all the same.
struct Module;

impl Service for Module {
    fn call<'a>(&'a self, _: &'a Request, reply: Reply<'a>) -> Answer<'a> {
        Box::pin(async move {
            let mut stream = reply.stream(200, "application/wasm");
            stream.write(&header()).await?;
            let piece = vec![0x5a; 64 << 10];
            for _ in 0..MODULE / piece.len() {
                stream.write(&piece).await?;
            }
            stream.finish().await
        })
    }
}

/// A Wasm module's magic, and the head of a custom section that fills the rest.
fn header() -> Vec<u8> {
    let mut header = b"\0asm\x01\0\0\0\0".to_vec();
    let mut length = MODULE;
    loop {
        let byte = (length & 0x7f) as u8;
        length >>= 7;
        header.push(if length > 0 { byte | 0x80 } else { byte });
        if length == 0 {
            return header;
        }
    }
}

pub async fn run(bench: &Bench) -> Vec<Figure> {
    let mut istiod = Istiod::start().await;
    let cache = TempDir::new();
    let env = [
        ("FOOTMAN_WASM_CACHE_DIR", cache.to_str().unwrap()),
        ("ISTIOD_SAN", "localhost"),
        ("ISTIO_META_DNS_CAPTURE", "true"),
    ];
    let agent = Agent::start(&istiod, Options { binary: &bench.binary, envoy: Some(&bench.envoy), env: &env });
    let pid = agent.pid();
    let port = free_port();
    let (_serving, drain) = Trigger::new();
    tokio::spawn(Server::bind_address(SocketAddr::from(([127, 0, 0, 1], port))).unwrap().run(Arc::new(Module), drain));
    let (mut requests, mut responses) = envoy::stream(agent.ads_socket(), DELTA).await;
    // The agent asks for names once Envoy has asked for listeners.
    for type_url in [CDS, LDS, ECDS] {
        let request = DeltaDiscoveryRequest {
            type_url: type_url.to_owned(),
            resource_names_subscribe: if type_url == ECDS { vec!["plugin".to_owned()] } else { Vec::new() },
            ..DeltaDiscoveryRequest::default()
        };
        requests.send(&request).await.unwrap();
    }
    let mut ads = istiod.stream().await;
    give_names(&mut ads).await;
    let resolver = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    resolver.connect(("127.0.0.1", agent.dns_port)).await.unwrap();
    resolve(&resolver, 0).await;
    // A first small response, so that what is compared with has served once.
    ads.responses.send(&response(CDS, "warm", cluster())).await.unwrap();
    within("CDS at Envoy", responses.raw(MAX_MESSAGE)).await.unwrap();
    let idle = process::rss(pid);
    let (began, cpu) = (Instant::now(), process::cpu(pid));
    ads.responses.send(&response(ECDS, "plugin", plugin(port))).await.unwrap();
    let (mut slowest, mut slowest_name, mut queries) = (Duration::ZERO, Duration::ZERO, 0);
    let fetched = loop {
        tokio::time::sleep(Duration::from_millis(10)).await;
        let sent = Instant::now();
        ads.responses.send(&response(CDS, "cluster", cluster())).await.unwrap();
        let arrived: DeltaDiscoveryResponse =
            within("a response at Envoy", responses.message(MAX_MESSAGE)).await.unwrap().unwrap();
        if arrived.type_url == ECDS {
            break began.elapsed();
        }
        slowest = slowest.max(sent.elapsed());
        queries += 1;
        slowest_name = slowest_name.max(resolve(&resolver, queries).await);
    };
    vec![
        Figure::new("until Envoy has the local path", milliseconds(fetched), "ms"),
        Figure::new("CPU", (process::cpu(pid) - cpu) * 1e3, "ms"),
        Figure::new("peak above idle", process::peak(pid) - idle, "MB").at_most(1.0),
        Figure::new("slowest CDS response meanwhile", milliseconds(slowest), "ms").at_most(5.0),
        Figure::new("slowest DNS answer meanwhile", milliseconds(slowest_name), "ms").at_most(5.0),
        Figure::new("CDS responses and DNS answers meanwhile", f64::from(queries), ""),
    ]
}

/// Answers the agent's own subscription to names; ends when they are in force.
async fn give_names(ads: &mut Ads) {
    loop {
        let request: DeltaDiscoveryRequest =
            within("a request at istiod", ads.requests.message(MAX_MESSAGE)).await.unwrap().unwrap();
        if request.type_url == dns::NDS {
            if request.response_nonce == "n" {
                return;
            }
            ads.responses.send_raw(dns::table(1)).await.unwrap();
        }
    }
}

/// How long one query takes.
async fn resolve(socket: &UdpSocket, id: u16) -> Duration {
    let sent = Instant::now();
    socket.send(&dns::query(id, 0)).await.unwrap();
    let mut answer = [0; 512];
    let length = within("a DNS answer", socket.recv(&mut answer)).await.unwrap();
    assert!(length > 12 && answer[3] & 15 == 0 && answer[..2] == id.to_be_bytes() && answer[6..8] == [0, 1]);
    sent.elapsed()
}

fn response(type_url: &str, name: &str, any: Any) -> DeltaDiscoveryResponse {
    DeltaDiscoveryResponse {
        type_url: type_url.to_owned(),
        nonce: name.to_owned(),
        resources: vec![Resource { name: name.to_owned(), resource: Some(any), ..Resource::default() }],
        ..DeltaDiscoveryResponse::default()
    }
}

fn cluster() -> Any {
    Any { type_url: CDS.to_owned(), value: Bytes::from_static(b"\x0a\x01c") }
}

/// An HTTP filter whose module is to be fetched.
fn plugin(port: u16) -> Any {
    let uri = HttpUri { uri: format!("http://127.0.0.1:{port}/module.wasm"), ..HttpUri::default() };
    let remote = RemoteDataSource { http_uri: Some(uri), ..RemoteDataSource::default() };
    let vm = VmConfig {
        runtime: "envoy.wasm.runtime.v8".to_owned(),
        code: Some(AsyncDataSource { specifier: Some(Specifier::Remote(remote)) }),
        ..VmConfig::default()
    };
    let wasm = Wasm { config: Some(PluginConfig { vm_config: Some(vm), ..PluginConfig::default() }) };
    let config = TypedExtensionConfig {
        name: "plugin".to_owned(),
        typed_config: Some(Any { type_url: WASM.to_owned(), value: wasm.encode_to_vec().into() }),
    };
    Any { type_url: ECDS.to_owned(), value: config.encode_to_vec().into() }
}
