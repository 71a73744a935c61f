//! The DNS proxy: a large table's memory, CPU per query, latency at a steady rate.

use std::{
    future::poll_fn,
    net::SocketAddr,
    task::Poll,
    time::{Duration, Instant},
};

use bytes::Bytes;
use footman::{
    grpc::MAX_MESSAGE,
    proto::{
        envoy::service::discovery::v3::{DeltaDiscoveryRequest, DeltaDiscoveryResponse, Resource},
        google::protobuf::Any,
        istio::networking::nds::v1::{NameTable, name_table::NameInfo},
    },
};
use prost::Message;
use tokio::{net::UdpSocket, time::Interval};

use crate::{
    Bench, Figure, process,
    support::{
        agent::{Agent, Options},
        envoy,
        istiod::{DELTA, Istiod},
        within,
    },
};

pub const METHOD: &str =
    "a table of 20,000 hosts, then 20,000 A queries a second over 4 sockets on loopback for 5 s, each host in turn";

const LDS: &str = "type.googleapis.com/envoy.config.listener.v3.Listener";
pub const NDS: &str = "type.googleapis.com/istio.networking.nds.v1.NameTable";
const HOSTS: usize = 20_000;
const SOCKETS: usize = 4;
/// Queries of one tick of a millisecond.
const PER_TICK: usize = 20;
const TICKS: usize = 5_000;

pub async fn run(bench: &Bench) -> Vec<Figure> {
    let mut istiod = Istiod::start().await;
    let env = [("ISTIO_META_DNS_CAPTURE", "true")];
    let agent = Agent::start(&istiod, Options { binary: &bench.binary, envoy: Some(&bench.envoy), env: &env });
    let pid = agent.pid();
    let (mut requests, _responses) = envoy::stream(agent.ads_socket(), DELTA).await;
    let request = DeltaDiscoveryRequest { type_url: LDS.to_owned(), ..DeltaDiscoveryRequest::default() };
    requests.send(&request).await.unwrap();
    let mut ads = istiod.stream().await;
    let mut table_sent = None;
    // The agent subscribes to the table by itself and acknowledges it when it is in force.
    let (before, after) = loop {
        let request: DeltaDiscoveryRequest =
            within("a request at istiod", ads.requests.message(MAX_MESSAGE)).await.unwrap().unwrap();
        match table_sent {
            Some(before) if request.response_nonce == "n" => break (before, process::rss(pid)),
            None if request.type_url == NDS => {
                table_sent = Some(process::rss(pid));
                ads.responses.send_raw(table(HOSTS)).await.unwrap();
            }
            _ => {}
        }
    };
    let cpu = process::cpu(pid);
    let mut latencies = load(SocketAddr::from(([127, 0, 0, 1], agent.dns_port))).await;
    let cpu = process::cpu(pid) - cpu;
    let sent = TICKS * PER_TICK;
    let answered = latencies.len();
    latencies.sort_unstable();
    let percentile = |share: f64| latencies[(answered as f64 * share) as usize].as_secs_f64() * 1e3;
    vec![
        Figure::new("resident memory for the table", after - before, "MB").at_most(6.0),
        Figure::new("peak", process::peak(pid), "MB"),
        Figure::new("CPU per query", cpu / sent as f64 * 1e6, "us").at_most(8.0),
        Figure::new("p50", percentile(0.5), "ms"),
        Figure::new("p99", percentile(0.99), "ms").at_most(1.0),
        Figure::new("queries without the right answer", (sent - answered) as f64, "").at_most(0.0),
    ]
}

/// A name table of so many hosts, as a delta response with the nonce `n`.
pub fn table(hosts: usize) -> Bytes {
    let host = |index: usize| {
        let info = NameInfo {
            ips: vec![format!("10.{}.{}.{}", index >> 16, index >> 8 & 255, index & 255)],
            registry: "Kubernetes".to_owned(),
            shortname: format!("service-{index}"),
            namespace: "namespace".to_owned(),
            ..NameInfo::default()
        };
        (format!("service-{index}.namespace.svc.cluster.local"), info)
    };
    let table = NameTable { table: (0..hosts).map(host).collect() };
    let any = Any { type_url: NDS.to_owned(), value: table.encode_to_vec().into() };
    let response = DeltaDiscoveryResponse {
        type_url: NDS.to_owned(),
        nonce: "n".to_owned(),
        resources: vec![Resource { name: "nds".to_owned(), resource: Some(any), ..Resource::default() }],
        ..DeltaDiscoveryResponse::default()
    };
    response.encode_to_vec().into()
}

/// Sends at a steady rate; how long each right answer took.
async fn load(server: SocketAddr) -> Vec<Duration> {
    let mut sockets = Vec::new();
    for _ in 0..SOCKETS {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        socket.connect(server).await.unwrap();
        sockets.push(socket);
    }
    // By socket and id: ids do not come round again before their answers are there.
    let mut sent_at = vec![vec![None; 1 << 16]; SOCKETS];
    let mut latencies = Vec::with_capacity(TICKS * PER_TICK);
    let mut ticks = tokio::time::interval(Duration::from_millis(1));
    for tick in 0..TICKS {
        collect_until(&mut ticks, &sockets, &mut sent_at, &mut latencies).await;
        for index in tick * PER_TICK..(tick + 1) * PER_TICK {
            let (socket, id) = (index % SOCKETS, (index / SOCKETS) as u16);
            sent_at[socket][usize::from(id)] = Some(Instant::now());
            sockets[socket].send(&query(id, index % HOSTS)).await.unwrap();
        }
    }
    let deadline = Instant::now() + Duration::from_secs(1);
    while latencies.len() < TICKS * PER_TICK && Instant::now() < deadline {
        collect_until(&mut ticks, &sockets, &mut sent_at, &mut latencies).await;
    }
    latencies
}

/// Takes answers as they come, until the next tick: one that waited for it would count as late.
async fn collect_until(
    ticks: &mut Interval,
    sockets: &[UdpSocket],
    sent_at: &mut [Vec<Option<Instant>>],
    latencies: &mut Vec<Duration>,
) {
    let mut ticked = false;
    while !ticked {
        ticked = poll_fn(|context| {
            if ticks.poll_tick(context).is_ready() {
                return Poll::Ready(true);
            }
            let answered = sockets.iter().any(|socket| socket.poll_recv_ready(context).is_ready());
            if answered { Poll::Ready(false) } else { Poll::Pending }
        })
        .await;
        collect(sockets, sent_at, latencies);
    }
}

/// Takes the answers that are there.
fn collect(sockets: &[UdpSocket], sent_at: &mut [Vec<Option<Instant>>], latencies: &mut Vec<Duration>) {
    let mut buffer = [0; 512];
    for (socket, sent_at) in sockets.iter().zip(sent_at) {
        while let Ok(length) = socket.try_recv(&mut buffer) {
            let id = u16::from_be_bytes([buffer[0], buffer[1]]);
            // No error, one answer.
            let right = length > 12 && buffer[3] & 15 == 0 && buffer[6..8] == [0, 1];
            if let (true, Some(sent)) = (right, sent_at[usize::from(id)].take()) {
                latencies.push(sent.elapsed());
            }
        }
    }
}

/// An A query of the host with that number.
pub fn query(id: u16, host: usize) -> Vec<u8> {
    let mut query = [&id.to_be_bytes()[..], &[1, 0, 0, 1, 0, 0, 0, 0, 0, 0]].concat();
    for label in format!("service-{host}.namespace.svc.cluster.local").split('.') {
        query.push(label.len() as u8);
        query.extend_from_slice(label.as_bytes());
    }
    query.extend_from_slice(&[0, 0, 1, 0, 1]);
    query
}
