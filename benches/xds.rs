//! The ADS relay: large responses, many small ones, the way back after istiod was away.

use std::time::{Duration, Instant};

use bytes::Bytes;
use footman::{
    grpc::{MAX_MESSAGE, Piece, Receiver, Sender},
    proto::{
        envoy::service::discovery::v3::{
            DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse, Resource,
        },
        google::protobuf::Any,
    },
};
use prost::Message;

use crate::{
    Bench, Figure, median, milliseconds, process, start,
    support::{
        agent::Agent,
        envoy,
        istiod::{Ads, DELTA, Istiod, SOTW},
        within,
    },
};

pub const PUSH_METHOD: &str =
    "CDS responses of 60 MiB (7,680 clusters of 8 KiB), 8 after a first one, one after the other; medians";
pub const SMALL_METHOD: &str = "20,000 delta responses of one 300-byte resource, sent as fast as they are taken";
pub const RECONNECT_METHOD: &str = "istiod killed and started again at once; from the opening of Envoy's next stream until its first request is at istiod; 9 times, median";

const CDS: &str = "type.googleapis.com/envoy.config.cluster.v3.Cluster";

/// A stream of Envoy's with its counterpart at istiod, the first request sent.
pub struct Relayed {
    pub agent: Agent,
    requests: Sender,
    responses: Receiver,
    ads: Ads,
}

pub async fn relayed(bench: &Bench, istiod: &mut Istiod, path: &str) -> Relayed {
    let agent = start::start(bench, istiod);
    let (mut requests, responses) = envoy::stream(agent.ads_socket(), path).await;
    requests.send_raw(first_request(path)).await.unwrap();
    let mut ads = istiod.stream().await;
    within("Envoy's first request", ads.requests.raw(MAX_MESSAGE)).await.unwrap();
    Relayed { agent, requests, responses, ads }
}

fn first_request(path: &str) -> Bytes {
    if path == SOTW {
        DiscoveryRequest { type_url: CDS.to_owned(), ..DiscoveryRequest::default() }.encode_to_vec().into()
    } else {
        DeltaDiscoveryRequest { type_url: CDS.to_owned(), ..DeltaDiscoveryRequest::default() }.encode_to_vec().into()
    }
}

/// A response of `count` resources of `size` bytes each.
fn response(path: &str, count: usize, size: usize) -> Bytes {
    let any = |index: usize| Any { type_url: CDS.to_owned(), value: vec![index as u8; size].into() };
    if path == SOTW {
        let resources = (0..count).map(any).collect();
        let response =
            DiscoveryResponse { type_url: CDS.to_owned(), nonce: "n".to_owned(), resources, ..Default::default() };
        response.encode_to_vec().into()
    } else {
        let resource =
            |index| Resource { name: format!("c{index}"), resource: Some(any(index)), ..Resource::default() };
        let resources = (0..count).map(resource).collect();
        let response =
            DeltaDiscoveryResponse { type_url: CDS.to_owned(), nonce: "n".to_owned(), resources, ..Default::default() };
        response.encode_to_vec().into()
    }
}

pub async fn push(bench: &Bench) -> Vec<Figure> {
    let mut figures = Vec::new();
    for (name, path) in [("SotW", SOTW), ("delta", DELTA)] {
        let mut istiod = Istiod::start().await;
        let mut relayed = relayed(bench, &mut istiod, path).await;
        let pid = relayed.agent.pid();
        let large = response(path, 7680, 8 * 1024);
        relayed.pass(&large).await;
        let dirty = process::private_dirty(pid);
        let (mut cpu, mut wall, mut first) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..8 {
            let (before, began) = (process::cpu(pid), Instant::now());
            first.push(relayed.pass(&large).await);
            wall.push(milliseconds(began.elapsed()));
            cpu.push(process::cpu(pid) - before);
        }
        tokio::time::sleep(Duration::from_secs(3)).await;
        figures.extend([
            Figure::new(format!("{name}: CPU each"), median(cpu), "s").at_most(0.12),
            Figure::new(format!("{name}: time each"), median(wall), "ms"),
            Figure::new(format!("{name}: first byte at Envoy after it left istiod"), median(first), "ms").at_most(1.0),
            Figure::new(format!("{name}: peak"), process::peak(pid), "MB").at_most(4.0),
            Figure::new(
                format!("{name}: private dirty memory kept 3 s later"),
                process::private_dirty(pid) - dirty,
                "KB",
            )
            .at_most(256.0),
        ]);
    }
    figures
}

impl Relayed {
    /// Passes a small response through the agent, which holds it until it has seen it all, and Envoy's acknowledgement back.
    pub async fn configure(&mut self) {
        let small = response(DELTA, 1, 300);
        self.ads.responses.send_raw(small.clone()).await.unwrap();
        let bytes = within("a response at Envoy", self.responses.raw(MAX_MESSAGE)).await.unwrap().unwrap();
        assert_eq!(bytes, small);
        let ack =
            DeltaDiscoveryRequest { type_url: CDS.to_owned(), response_nonce: "n".to_owned(), ..Default::default() };
        self.requests.send_raw(ack.encode_to_vec().into()).await.unwrap();
        within("Envoy's acknowledgement", self.ads.requests.raw(MAX_MESSAGE)).await.unwrap();
    }

    /// Passes a large response through the agent; milliseconds from its first bytes leaving istiod to their arrival at Envoy.
    async fn pass(&mut self, response: &Bytes) -> f64 {
        let began = Instant::now();
        self.ads.responses.begin(response.len()).unwrap();
        self.ads.responses.piece(response.slice(..1024)).await.unwrap();
        let mut left = response.len() - data(&mut self.responses).await;
        let first = milliseconds(began.elapsed());
        let rest = self.ads.responses.piece(response.slice(1024..));
        let receive = async {
            while left > 0 {
                left -= data(&mut self.responses).await;
            }
        };
        let (sent, ()) = tokio::join!(rest, receive);
        sent.unwrap();
        first
    }
}

/// How many bytes of the message at hand come next.
async fn data(responses: &mut Receiver) -> usize {
    loop {
        if let Piece::Data(bytes) = within("a response at Envoy", responses.piece()).await.unwrap().unwrap() {
            return bytes.len();
        }
    }
}

pub async fn small(bench: &Bench) -> Vec<Figure> {
    const RESPONSES: usize = 20_000;
    let mut istiod = Istiod::start().await;
    let mut relayed = relayed(bench, &mut istiod, DELTA).await;
    let pid = relayed.agent.pid();
    let small = response(DELTA, 1, 300);
    let idle = process::rss(pid);
    let (before, began) = (process::cpu(pid), Instant::now());
    let send = async {
        for _ in 0..RESPONSES {
            relayed.ads.responses.send_raw(small.clone()).await.unwrap();
        }
    };
    let receive = async {
        for _ in 0..RESPONSES {
            let bytes = within("a response at Envoy", relayed.responses.raw(MAX_MESSAGE)).await.unwrap().unwrap();
            assert_eq!(bytes, small);
        }
    };
    tokio::join!(send, receive);
    let (cpu, wall) = (process::cpu(pid) - before, began.elapsed());
    vec![
        Figure::new("CPU each", cpu / RESPONSES as f64 * 1e6, "us").at_most(40.0),
        Figure::new("responses per second", RESPONSES as f64 / wall.as_secs_f64(), ""),
        Figure::new("growth of resident memory", (process::rss(pid) - idle) * 1e3, "KB"),
    ]
}

pub async fn reconnect(bench: &Bench) -> Vec<Figure> {
    let mut istiod = Istiod::start().await;
    let Relayed { agent, mut requests, mut responses, ads } = relayed(bench, &mut istiod, DELTA).await;
    drop(ads);
    let mut delays = Vec::new();
    for _ in 0..9 {
        istiod = istiod.restart().await;
        within("the end of Envoy's stream", async { while let Ok(Some(_)) = responses.raw(MAX_MESSAGE).await {} })
            .await;
        let began = Instant::now();
        (requests, responses) = envoy::stream(agent.ads_socket(), DELTA).await;
        requests.send_raw(first_request(DELTA)).await.unwrap();
        let mut ads = istiod.stream().await;
        within("the first request", ads.requests.raw(MAX_MESSAGE)).await.unwrap();
        delays.push(milliseconds(began.elapsed()));
    }
    drop(requests);
    vec![Figure::new("until the first request is at istiod", median(delays), "ms").at_most(150.0)]
}
