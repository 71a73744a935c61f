//! The relay between a scripted Envoy and a scripted istiod whose connections split, stall and break wherever HTTP/2 allows.

use std::{
    io,
    path::PathBuf,
    pin::Pin,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use footman::{
    base::{Drain, Gates, Trigger},
    config::{Sources, Vars},
    grpc::{
        BoxFuture, Call, Client, Code, Keepalive, MAX_MESSAGE, Receiver, Request, Sender, Service, Settings, serve,
    },
    istiod::{self, Istiod, Token},
    net::BoxIo,
    proto::{
        envoy::{
            config::core::v3::Node,
            service::discovery::v3::{DiscoveryRequest, DiscoveryResponse},
        },
        google::protobuf::Any,
    },
    telemetry::metrics::Registry,
    wires::{AppHealth, NamesReceiver, Told, TrustBundle, names},
    xds::{self, Kind, Xds},
};
use prost::Message;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf},
    net::{TcpListener, TcpSocket, UnixStream},
    sync::{
        mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
        watch,
    },
};

use crate::support::{TempDir, within};

const CDS: &str = "type.googleapis.com/envoy.config.cluster.v3.Cluster";
const LDS: &str = "type.googleapis.com/envoy.config.listener.v3.Listener";
const NDS: &str = "type.googleapis.com/istio.networking.nds.v1.NameTable";
const PCDS: &str = "type.googleapis.com/istio.mesh.v1alpha1.ProxyConfig";
const HEALTH: &str = "type.googleapis.com/istio.v1.HealthInformation";

/// What happens to one direction of a connection.
#[derive(Debug, Clone, Copy, Default)]
struct Plan {
    /// Chunks are of 1 to so many bytes; 0: as they come.
    chunk: u64,
    seed: u64,
    /// The frame before which something happens; `None`: nothing does.
    at: Option<(usize, Fault)>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    /// The connection ends in good order.
    Close,
    /// The frame is cut in its middle, then the connection ends.
    Tear,
    /// Nothing passes any more, and nothing ends.
    Stall,
}

/// The relay, its istiod, and the ends of its channels.
struct Lab {
    socket: PathBuf,
    streams: UnboundedReceiver<(Receiver, Sender)>,
    plan: Arc<Mutex<Plan>>,
    health: watch::Sender<Option<AppHealth>>,
    anchors: watch::Receiver<Option<Arc<TrustBundle>>>,
    names: NamesReceiver,
    gates: Gates,
    registry: Registry,
    _serving: Trigger,
    _folder: TempDir,
}

struct Script(UnboundedSender<(Receiver, Sender)>);

impl Service for Script {
    fn call(&self, _: Request, receiver: Receiver, sender: Sender) -> BoxFuture {
        // A failure means that the test is over.
        let _ = self.0.send((receiver, sender));
        Box::pin(async {})
    }
}

impl Lab {
    async fn new() -> Lab {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Lab::towards(listener.local_addr().unwrap().port(), listener, None)
    }

    /// An agent whose istiod has that port, whoever listens there.
    fn towards(port: u16, listener: TcpListener, last_good: Option<xds::Store>) -> Lab {
        let folder = TempDir::new();
        let (sender, streams) = unbounded_channel();
        let plan = Arc::new(Mutex::new(Plan::default()));
        tokio::spawn(accept(listener, Arc::new(Script(sender)), Arc::clone(&plan)));
        let (publisher, names) = names::channel();
        let (anchor_sender, anchors) = watch::channel(None);
        let (health, app_health) = watch::channel(None);
        let (gates, registry) = (Gates::default(), Registry::default());
        let links = xds::Links {
            istiod: Istiod::new(way(port)),
            names: Some(publisher),
            anchors: Some(anchor_sender),
            rewrite: None,
            health: app_health,
            gate: gates.gate("istiod", ""),
            registry: registry.clone(),
        };
        let socket = folder.join("XDS");
        let config =
            xds::Config { socket: socket.clone(), settings: Settings::default(), max_request: None, last_good };
        let relay = Xds::bind(&config, links).unwrap();
        let (serving, drain) = Trigger::new();
        tokio::spawn(relay.run(drain));
        Lab { socket, streams, plan, health, anchors, names, gates, registry, _serving: serving, _folder: folder }
    }

    /// A stream of Envoy's, over a connection of its own that follows `plan`.
    async fn envoy(&self, kind: Kind, plan: Plan) -> (Sender, Receiver) {
        let (near, far) = tokio::io::duplex(1 << 16);
        let agent = UnixStream::connect(&self.socket).await.unwrap();
        tokio::spawn(carry(Box::new(far), Box::new(agent), plan));
        let settings = Settings { keepalive: None, ..Settings::default() };
        let (client, drive) = Client::handshake(Box::new(near), settings).await.unwrap();
        tokio::spawn(drive);
        client.stream(&Call { path: kind.method(), authority: "x", ..Call::default() }).await.unwrap()
    }

    async fn istiod(&mut self) -> (Receiver, Sender) {
        within("a stream at istiod", self.streams.recv()).await.unwrap()
    }

    fn plan(&self, plan: Plan) {
        *self.plan.lock().unwrap() = plan;
    }
}

fn way(port: u16) -> istiod::Config {
    istiod::Config {
        endpoint: istiod::Endpoint {
            address: format!("127.0.0.1:{port}"),
            host: "127.0.0.1".to_owned(),
            port,
            proxy: None,
            authority: "istiod".to_owned(),
            tls: None,
            keepalive: Keepalive { interval: Duration::from_secs(30), timeout: Duration::from_secs(10) },
        },
        headers: Vec::new(),
        token: Token::None,
        exchange: None,
    }
}

async fn accept(listener: TcpListener, script: Arc<Script>, plan: Arc<Mutex<Plan>>) {
    while let Ok((tcp, _)) = listener.accept().await {
        // A paused clock does not wait for an acknowledgement.
        tcp.set_nodelay(true).unwrap();
        let (near, far) = tokio::io::duplex(1 << 16);
        let plan = *plan.lock().unwrap();
        tokio::spawn(carry(Box::new(near), Box::new(tcp), plan));
        let settings = Settings { keepalive: None, ..Settings::default() };
        tokio::spawn(serve(Box::new(far), Arc::clone(&script) as Arc<dyn Service>, settings, Drain::never()));
    }
}

/// Carries bytes both ways; those of the scripted peer (`near`) follow the plan, those of the agent pass as they are.
async fn carry(near: BoxIo, far: BoxIo, plan: Plan) {
    let (mut from_near, to_near) = tokio::io::split(near);
    let (from_far, mut to_far) = tokio::io::split(far);
    let back = tokio::spawn(pass(from_far, to_near));
    let ended = frames(&mut from_near, &mut to_far, plan).await;
    if matches!(ended, Ok(Some(Fault::Stall))) {
        std::future::pending::<()>().await;
    }
    let _ = to_far.shutdown().await;
    back.abort();
}

async fn pass(mut from: ReadHalf<BoxIo>, mut to: WriteHalf<BoxIo>) {
    let _ = tokio::io::copy(&mut from, &mut to).await;
    let _ = to.shutdown().await;
}

/// Carries frame by frame; tells the fault that ended it.
async fn frames(from: &mut ReadHalf<BoxIo>, to: &mut WriteHalf<BoxIo>, plan: Plan) -> io::Result<Option<Fault>> {
    let mut random = plan.seed | 1;
    let mut number = 0;
    let mut head = [0; 9];
    loop {
        from.read_exact(&mut head).await?;
        // A client's connection begins with the preface, which is no frame.
        let rest = if head.starts_with(b"PRI * HTT") {
            24 - 9
        } else {
            u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize
        };
        let mut frame = head.to_vec();
        frame.resize(9 + rest, 0);
        from.read_exact(&mut frame[9..]).await?;
        match plan.at {
            Some((at, fault)) if at == number => {
                if fault == Fault::Tear {
                    to.write_all(&frame[..frame.len() / 2]).await?;
                }
                return Ok(Some(fault));
            }
            _ => number += 1,
        }
        let mut left = &frame[..];
        while !left.is_empty() {
            // xorshift64: the same for the same seed.
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let size = if plan.chunk == 0 { left.len() } else { (random % plan.chunk + 1) as usize };
            let (chunk, later) = left.split_at(size.min(left.len()));
            to.write_all(chunk).await?;
            to.flush().await?;
            tokio::task::yield_now().await;
            left = later;
        }
    }
}

fn request(type_url: &str) -> DiscoveryRequest {
    DiscoveryRequest { type_url: type_url.to_owned(), ..DiscoveryRequest::default() }
}

/// A response with a field that nobody here knows.
fn response(type_url: &str, nonce: &str, size: usize) -> Bytes {
    let resource = Any { type_url: type_url.to_owned(), value: vec![0x61; size].into() };
    let mut bytes = DiscoveryResponse {
        version_info: "v".to_owned(),
        resources: vec![resource],
        type_url: type_url.to_owned(),
        nonce: nonce.to_owned(),
        ..DiscoveryResponse::default()
    }
    .encode_to_vec();
    bytes.extend_from_slice(b"\xa2\x06\x06future");
    bytes.into()
}

async fn next_type(istiod: &mut Receiver) -> String {
    let request: DiscoveryRequest = within("a request", istiod.message(MAX_MESSAGE)).await.unwrap().unwrap();
    request.type_url
}

/// Messages until the stream ends, and how it ended.
async fn drain(receiver: &mut Receiver) -> (Vec<Bytes>, Option<footman::grpc::Status>) {
    let mut messages = Vec::new();
    loop {
        match within("the end of a stream", receiver.raw(MAX_MESSAGE)).await {
            Ok(Some(message)) => messages.push(message),
            Ok(None) => return (messages, None),
            Err(status) => return (messages, Some(status)),
        }
    }
}

#[test]
fn a_limit_that_cannot_be_read_is_none() {
    for (text, limit) in [("1000", Some(1000)), ("0", Some(0)), ("-1", None), ("", None), ("4Mi", None)] {
        let env = [("ISTIO_GPRC_MAXRECVMSGSIZE".to_owned(), text.to_owned())].into();
        let (vars, _) = Vars::load(Sources { env, ..Sources::default() });
        assert_eq!(xds::Config::from_vars(&vars).unwrap().max_request, limit, "{text:?}");
    }
}

#[tokio::test]
async fn long_response_goes_on_before_it_is_complete() {
    let mut lab = Lab::new().await;
    let (mut requests, mut responses) = lab.envoy(Kind::Sotw, Plan::default()).await;
    requests.send(&request(CDS)).await.unwrap();
    let (_upstream, mut istiod) = lab.istiod().await;
    let whole = response(CDS, "n", 300_000);
    istiod.begin(whole.len()).unwrap();
    istiod.piece(whole.slice(..1000)).await.unwrap();
    let begin = within("the beginning", responses.piece()).await.unwrap();
    assert_eq!(begin, Some(footman::grpc::Piece::Begin(whole.len())));
    let first = within("the first bytes", responses.piece()).await.unwrap();
    assert_eq!(first, Some(footman::grpc::Piece::Data(whole.slice(..1000))));
    istiod.piece(whole.slice(1000..)).await.unwrap();
    assert_eq!(within("the rest", responses.rest(whole.len() - 1000, MAX_MESSAGE)).await.unwrap(), whole.slice(1000..));
}

#[tokio::test]
async fn own_requests_follow_the_first_listener_request() {
    let mut lab = Lab::new().await;
    lab.health.send_replace(Some(AppHealth::Healthy));
    for _ in 0..2 {
        let (mut requests, _responses) = lab.envoy(Kind::Sotw, Plan::default()).await;
        for type_url in [CDS, LDS, LDS] {
            requests.send(&request(type_url)).await.unwrap();
        }
        let (mut upstream, _answers) = lab.istiod().await;
        for type_url in [CDS, LDS, NDS, PCDS, HEALTH, LDS] {
            assert_eq!(next_type(&mut upstream).await, type_url);
        }
    }
}

#[tokio::test]
async fn farewell_is_over_when_istiod_has_been_told() {
    let mut lab = Lab::new().await;
    let told = Told::default();
    lab.health.send_replace(Some(AppHealth::Leaving(told.clone())));
    let (mut requests, _responses) = lab.envoy(Kind::Sotw, Plan::default()).await;
    requests.send(&request(CDS)).await.unwrap();
    let (mut upstream, _answers) = lab.istiod().await;
    assert_eq!(next_type(&mut upstream).await, CDS);
    assert!(tokio::time::timeout(Duration::ZERO, told.wait()).await.is_err(), "nothing was said yet");
    requests.send(&request(LDS)).await.unwrap();
    within("the report", told.wait()).await;
    for type_url in [LDS, NDS, PCDS] {
        assert_eq!(next_type(&mut upstream).await, type_url);
    }
    let report: DiscoveryRequest = within("a request", upstream.message(MAX_MESSAGE)).await.unwrap().unwrap();
    assert_eq!((&*report.type_url, report.error_detail.is_some()), (HEALTH, true));
}

#[tokio::test]
async fn own_responses_are_applied_and_answered() {
    let mut lab = Lab::new().await;
    let (mut requests, mut responses) = lab.envoy(Kind::Sotw, Plan::default()).await;
    requests.send(&request(CDS)).await.unwrap();
    let (mut upstream, mut istiod) = lab.istiod().await;
    next_type(&mut upstream).await;

    istiod.send_raw(response(NDS, "garbage", 3)).await.unwrap();
    let nack: DiscoveryRequest = within("a NACK", upstream.message(MAX_MESSAGE)).await.unwrap().unwrap();
    assert_eq!((nack.response_nonce.as_str(), nack.error_detail.unwrap().code), ("garbage", 13));

    istiod.send_raw(response(NDS, "table", 0)).await.unwrap();
    let update = within("a table", lab.names.next()).await.unwrap();
    assert!(update.table.unwrap().is_empty());
    update.applied.send(()).unwrap();
    let ack: DiscoveryRequest = within("an ACK", upstream.message(MAX_MESSAGE)).await.unwrap().unwrap();
    assert_eq!((ack.response_nonce.as_str(), ack.error_detail), ("table", None));

    istiod.send_raw(response(PCDS, "anchors", 0)).await.unwrap();
    within("anchors", lab.anchors.changed()).await.unwrap();
    istiod.send_raw(response(CDS, "last", 10)).await.unwrap();
    // Nothing of the agent's own has reached Envoy.
    assert_eq!(within("a response", responses.raw(MAX_MESSAGE)).await.unwrap(), Some(response(CDS, "last", 10)));
}

#[tokio::test]
async fn an_istiod_that_reads_gets_every_answer() {
    let mut lab = Lab::new().await;
    let (mut requests, _responses) = lab.envoy(Kind::Sotw, Plan::default()).await;
    requests.send(&request(CDS)).await.unwrap();
    let (mut upstream, mut istiod) = lab.istiod().await;
    next_type(&mut upstream).await;
    let nonces: Vec<String> = (0..20).map(|number| format!("anchors-{number}")).collect();
    for nonce in &nonces {
        istiod.send_raw(response(PCDS, nonce, 0)).await.unwrap();
    }
    for nonce in &nonces {
        let ack: DiscoveryRequest = within("an ACK", upstream.message(MAX_MESSAGE)).await.unwrap().unwrap();
        assert_eq!(ack.response_nonce, *nonce);
    }
}

#[tokio::test]
async fn a_long_first_request_names_its_stream_as_well() {
    let mut lab = Lab::new().await;
    let node = Node { id: "sidecar~1".to_owned(), ..Node::default() };
    let first = |names| DiscoveryRequest { node: Some(node.clone()), resource_names: names, ..request(CDS) };
    let (mut requests, mut older) = lab.envoy(Kind::Sotw, Plan::default()).await;
    requests.send(&first(Vec::new())).await.unwrap();
    let (mut upstream, _istiod) = lab.istiod().await;
    next_type(&mut upstream).await;
    let (mut again, _newer) = lab.envoy(Kind::Sotw, Plan::default()).await;
    again.send(&first(vec!["n".repeat(100_000)])).await.unwrap();
    let (messages, _) = drain(&mut older).await;
    assert!(messages.is_empty(), "the older stream has given way, without a message");
}

#[tokio::test]
async fn an_envoy_that_dies_with_bytes_unread_is_no_error() {
    let mut lab = Lab::new().await;
    let kept = std::os::unix::net::UnixStream::connect(&lab.socket).unwrap();
    kept.set_nonblocking(true).unwrap();
    let io = UnixStream::from_std(kept.try_clone().unwrap()).unwrap();
    let (client, drive) = Client::handshake(Box::new(io), Settings::default()).await.unwrap();
    let drive = tokio::spawn(drive);
    let call = Call { path: Kind::Sotw.method(), authority: "x", ..Call::default() };
    let (mut requests, _responses) = client.stream(&call).await.unwrap();
    requests.send(&request(CDS)).await.unwrap();
    let (mut upstream, mut istiod) = lab.istiod().await;
    next_type(&mut upstream).await;
    // From here on nobody reads, and the socket is still open.
    drive.abort();
    assert!(drive.await.unwrap_err().is_cancelled());
    istiod.send_raw(response(CDS, "n", 10)).await.unwrap();
    let kept = UnixStream::from_std(kept).unwrap();
    within("bytes for Envoy", kept.readable()).await.unwrap();
    drop(kept);
    drain(&mut upstream).await;
    let text = lab.registry.text();
    assert!(text.contains("envoy_connection_terminations{type=\"cancelled\"} 1"), "{text}");
    assert!(!text.contains("envoy_connection_terminations{type=\"error\"} 1"), "{text}");
    assert!(text.contains("istiod_connection_terminations{type=\"cancelled\"} 1"), "both sides have ended: {text}");
}

#[tokio::test]
async fn only_the_newest_health_waits_for_an_istiod_that_does_not_read() {
    let mut lab = Lab::new().await;
    let (mut requests, _responses) = lab.envoy(Kind::Sotw, Plan::default()).await;
    requests.send(&request(LDS)).await.unwrap();
    let (mut upstream, _answers) = lab.istiod().await;
    for _ in 0..3 {
        next_type(&mut upstream).await;
    }
    // More than the window: what comes now waits in the agent.
    let long = DiscoveryRequest { resource_names: vec!["x".repeat(1 << 20)], ..request(CDS) };
    let sending = tokio::spawn(async move {
        requests.send(&long).await.unwrap();
        requests
    });
    for reason in ["first", "second", "third"] {
        lab.health.send_replace(Some(AppHealth::Unhealthy(reason.into())));
        tokio::task::yield_now().await;
    }
    let mut reported = Vec::new();
    while reported.last().map(String::as_str) != Some("third") {
        let request: DiscoveryRequest = within("a request", upstream.message(MAX_MESSAGE)).await.unwrap().unwrap();
        reported.extend(request.error_detail.map(|detail| detail.message));
    }
    assert!(reported.len() <= 3, "{reported:?}");
    within("the long request", sending).await.unwrap();
}

/// Neither direction waits for the other: each passes on while the peer of the other one reads nothing.
#[tokio::test]
async fn envoy_that_leaves_while_istiod_reads_nothing_is_noticed() {
    let mut lab = Lab::new().await;
    let (mut requests, responses) = lab.envoy(Kind::Sotw, Plan::default()).await;
    requests.send(&request(CDS)).await.unwrap();
    let (mut upstream, mut istiod) = lab.istiod().await;
    assert_eq!(next_type(&mut upstream).await, CDS);
    // More than every window on its way takes: Envoy's next requests are not read any more.
    let long = DiscoveryRequest { resource_names: vec!["x".repeat(8 << 20)], ..request(LDS) };
    let mut sending = Box::pin(requests.send(&long));
    let pushed = response(CDS, "n", 3 << 20);
    let mut responses = Some(responses);
    let pushing = async {
        for _ in 0..3 {
            let reading = responses.as_mut().unwrap().raw(MAX_MESSAGE);
            let (sent, got) = tokio::join!(istiod.send_raw(pushed.clone()), reading);
            sent.unwrap();
            assert_eq!(got.unwrap().as_ref(), Some(&pushed));
        }
    };
    tokio::select! {
        biased;
        _ = &mut sending => panic!("8 MiB fit into the windows"),
        () = within("responses meanwhile", pushing) => {}
    }
    drop(sending);
    drop((requests, responses.take()));
    within("the end at istiod", istiod.closed()).await;
}

#[tokio::test]
async fn a_stalled_direction_leaves_the_other_one_running() {
    let mut lab = Lab::new().await;
    let (mut requests, mut responses) = lab.envoy(Kind::Sotw, Plan::default()).await;
    requests.send(&request(CDS)).await.unwrap();
    let (mut upstream, mut istiod) = lab.istiod().await;
    assert_eq!(next_type(&mut upstream).await, CDS);

    // istiod reads nothing: a request that is longer than every window on its way stays where it is.
    let long = DiscoveryRequest { resource_names: vec!["x".repeat(8 << 20)], ..request(LDS) };
    let bytes = Bytes::from(long.encode_to_vec());
    let pushed = response(CDS, "n", 3 << 20);
    let mut sending = Box::pin(requests.send_raw(bytes.clone()));
    let pushing = async {
        for _ in 0..3 {
            let (sent, got) = tokio::join!(istiod.send_raw(pushed.clone()), responses.raw(MAX_MESSAGE));
            sent.unwrap();
            assert_eq!(got.unwrap().as_ref(), Some(&pushed));
        }
    };
    tokio::select! {
        biased;
        () = within("responses meanwhile", pushing) => {}
        _ = &mut sending => panic!("8 MiB fit into the windows"),
    }
    let (sent, got) = within("the long request", async { tokio::join!(sending, upstream.raw(MAX_MESSAGE)) }).await;
    sent.unwrap();
    assert_eq!(got.unwrap(), Some(bytes));
    for own in [NDS, PCDS] {
        assert_eq!(next_type(&mut upstream).await, own);
    }

    // Envoy reads nothing.
    let long = response(CDS, "n", 8 << 20);
    let mut pushing = Box::pin(istiod.send_raw(long.clone()));
    let asking = async {
        for _ in 0..100 {
            requests.send(&request(CDS)).await.unwrap();
            assert_eq!(next_type(&mut upstream).await, CDS);
        }
    };
    tokio::select! {
        biased;
        () = within("requests meanwhile", asking) => {}
        _ = &mut pushing => panic!("8 MiB fit into the windows"),
    }
    let (sent, got) = within("the long response", async { tokio::join!(pushing, responses.raw(MAX_MESSAGE)) }).await;
    sent.unwrap();
    assert_eq!(got.unwrap(), Some(long));
}

#[tokio::test(start_paused = true)]
async fn refusals_hold_the_next_attempt_back_and_show() {
    let mut lab = Lab::new().await;
    let denied = footman::grpc::Status::new(Code::PermissionDenied, "not you");
    let begun = tokio::time::Instant::now();
    for attempt in 0..6 {
        assert_eq!(lab.gates.shut().is_empty(), attempt < 5);
        let (mut requests, mut responses) = lab.envoy(Kind::Sotw, Plan::default()).await;
        requests.send(&request(CDS)).await.unwrap();
        let (_upstream, mut istiod) = lab.istiod().await;
        istiod.close(&denied);
        assert_eq!(responses.raw(MAX_MESSAGE).await.unwrap_err().message, "not you");
    }
    // Four waits: 1, 2, 4 and 8 s, less a fifth at most.
    assert!(begun.elapsed() > Duration::from_secs(12), "{:?}", begun.elapsed());
    assert!(lab.gates.shut()[0].1.contains("not you"));
    assert!(lab.registry.text().contains("\nistio_agent_istiod_refused 1\n"));
}

/// An answer before the error is no reason to ask again at once, unless the stream was healthy for a while or ends in good order.
#[tokio::test(start_paused = true)]
async fn a_stream_that_fails_soon_after_an_answer_is_a_refusal() {
    use footman::grpc::Status;
    let failed = Status::new(Code::PermissionDenied, "oops");
    for (end, lived, waits) in [(&failed, 0, true), (&failed, 31, false), (&Status::ok(), 0, false)] {
        let mut lab = Lab::new().await;
        let lived = Duration::from_secs(lived);
        let begun = tokio::time::Instant::now();
        for _ in 0..5 {
            let (mut requests, mut responses) = lab.envoy(Kind::Sotw, Plan::default()).await;
            requests.send(&request(CDS)).await.unwrap();
            let (_upstream, mut istiod) = lab.istiod().await;
            istiod.send_raw(response(CDS, "n", 10)).await.unwrap();
            assert!(responses.raw(MAX_MESSAGE).await.unwrap().is_some());
            assert!(lab.gates.shut().is_empty());
            tokio::time::sleep(lived).await;
            istiod.close(end);
            assert_eq!(responses.raw(MAX_MESSAGE).await.is_err(), end.code != Code::Ok);
        }
        assert_eq!(lab.registry.text().contains("\nistio_agent_istiod_refused 1\n"), waits, "{end} after {lived:?}");
        // Three waits: 1, 2 and 4 s, less a fifth at most.
        assert!(!waits || begun.elapsed() > Duration::from_secs(5), "{:?}", begun.elapsed());
    }
}

/// Every way in which istiod's connection can break: Envoy has whole messages, in order, then the end; and can come back.
#[tokio::test(start_paused = true)]
async fn istiod_breaks_at_every_frame() {
    let sent: Vec<Bytes> =
        [("a", 10), ("b", 70_000), ("c", 0), ("d", 5000)].map(|(nonce, size)| response(CDS, nonce, size)).into();
    for fault in [Fault::Close, Fault::Tear, Fault::Stall] {
        for at in 1.. {
            let mut lab = Lab::new().await;
            lab.plan(Plan { chunk: 3000, seed: at as u64, at: Some((at, fault)) });
            let (mut requests, mut responses) = lab.envoy(Kind::Sotw, Plan::default()).await;
            requests.send(&request(CDS)).await.unwrap();
            let script = sent.clone();
            let playing = async {
                let (_upstream, mut istiod) = lab.streams.recv().await.unwrap();
                for message in script {
                    // A failure is what this is about; Envoy's side tells how it ended.
                    let _ = istiod.send_raw(message).await;
                }
                istiod.close(&footman::grpc::Status::ok());
                std::future::pending::<(Vec<Bytes>, _)>().await
            };
            let (got, end) = tokio::select! {
                never = playing => never,
                read = drain(&mut responses) => read,
            };
            assert_eq!(got, sent[..got.len()], "{fault:?} before frame {at}");
            let Some(end) = end else {
                // There are no more frames.
                assert_eq!(got, sent);
                break;
            };
            assert_eq!(end.code, Code::Unavailable, "{fault:?} before frame {at}");
            lab.plan(Plan::default());
            let (mut requests, _responses) = lab.envoy(Kind::Sotw, Plan::default()).await;
            requests.send(&request(LDS)).await.unwrap();
            let (mut upstream, _answers) = lab.istiod().await;
            assert_eq!(next_type(&mut upstream).await, LDS);
        }
    }
}

/// Every way in which Envoy's connection can break: istiod has whole messages, in order, then the end of the stream.
#[tokio::test]
async fn envoy_breaks_at_every_frame() {
    let sent: Vec<DiscoveryRequest> = [CDS, LDS, CDS]
        .map(|type_url| DiscoveryRequest { resource_names: vec!["name".repeat(5000)], ..request(type_url) })
        .into();
    for fault in [Fault::Close, Fault::Tear] {
        for at in 1.. {
            let mut lab = Lab::new().await;
            let plan = Plan { chunk: 2000, seed: at as u64, at: Some((at, fault)) };
            let (mut requests, mut responses) = lab.envoy(Kind::Delta, plan).await;
            for message in &sent {
                if requests.send(message).await.is_err() {
                    break;
                }
            }
            let _ = requests.finish().await;
            let whole = within("the end", responses.raw(MAX_MESSAGE)).await.is_ok();
            // A connection that broke before the stream began leaves nothing at istiod.
            let upstream = tokio::time::timeout(Duration::from_millis(0), lab.streams.recv()).await;
            if let Ok(Some((mut upstream, _answers))) = upstream {
                let (got, _) = drain(&mut upstream).await;
                for (got, sent) in got.iter().filter(|bytes| bytes.len() > 1000).zip(&sent) {
                    assert_eq!(got, &Bytes::from(sent.encode_to_vec()), "{fault:?} before frame {at}");
                }
            }
            if whole {
                break;
            }
        }
    }
}

#[tokio::test]
async fn garbage_on_the_socket_hurts_nobody_else() {
    let mut lab = Lab::new().await;
    let (mut requests, mut responses) = lab.envoy(Kind::Sotw, Plan::default()).await;
    requests.send(&request(CDS)).await.unwrap();
    let (mut upstream, mut istiod) = lab.istiod().await;
    next_type(&mut upstream).await;
    for garbage in
        [&b"GET / HTTP/1.1\r\n\r\n"[..], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\xff\xff\xff\xff\xff\xff", b"\0"]
    {
        let mut connection = UnixStream::connect(&lab.socket).await.unwrap();
        connection.write_all(garbage).await.unwrap();
        connection.shutdown().await.unwrap();
        let mut rest = Vec::new();
        let _ = within("its end", Pin::new(&mut connection).read_to_end(&mut rest)).await;
    }
    // A request that is no protobuf ends its own stream only.
    let (mut odd, mut answers) = lab.envoy(Kind::Sotw, Plan::default()).await;
    odd.send_raw(Bytes::from_static(b"\xff\xff\xff")).await.unwrap();
    assert_eq!(within("its end", answers.raw(MAX_MESSAGE)).await.unwrap_err().code, Code::Internal);
    istiod.send_raw(response(CDS, "n", 10)).await.unwrap();
    assert_eq!(within("a response", responses.raw(MAX_MESSAGE)).await.unwrap(), Some(response(CDS, "n", 10)));
}

/// An edge gateway that restarts while its control plane is away serves what it had, until the control plane is back.
#[tokio::test(start_paused = true)]
async fn last_good_configuration_is_served_until_istiod_is_back() {
    let folder = TempDir::new();
    let store = xds::Store { folder: folder.join("kept"), max_age: Duration::from_secs(3600), max_bytes: 1 << 20 };
    let accepted = response(CDS, "accepted", 100_000);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut lab = Lab::towards(listener.local_addr().unwrap().port(), listener, Some(store.clone()));
    let (mut requests, mut responses) = lab.envoy(Kind::Sotw, Plan::default()).await;
    requests.send(&request(CDS)).await.unwrap();
    let (mut upstream, mut istiod) = lab.istiod().await;
    next_type(&mut upstream).await;
    let refusal = footman::proto::google::rpc::Status::default();
    for (nonce, message, error_detail) in
        [("accepted", &accepted, None), ("refused", &response(CDS, "refused", 10), Some(refusal))]
    {
        istiod.send_raw(message.clone()).await.unwrap();
        assert_eq!(responses.raw(MAX_MESSAGE).await.unwrap().as_ref(), Some(message));
        let answer = DiscoveryRequest { response_nonce: nonce.to_owned(), error_detail, ..request(CDS) };
        requests.send(&answer).await.unwrap();
        next_type(&mut upstream).await;
    }
    drop(lab);
    for kept in std::fs::read_dir(&store.folder).unwrap() {
        let kept = std::fs::File::open(kept.unwrap().path()).unwrap();
        kept.set_modified(SystemTime::now() - Duration::from_secs(100)).unwrap();
    }

    // A port where nobody listens yet.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = socket.local_addr().unwrap();
    drop(socket);
    let elsewhere = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut lab = Lab::towards(address.port(), elsewhere, Some(store));
    let (mut requests, mut responses) = lab.envoy(Kind::Sotw, Plan::default()).await;
    requests.send(&request(CDS)).await.unwrap();
    assert_eq!(within("what was kept", responses.raw(MAX_MESSAGE)).await.unwrap(), Some(accepted));
    let age = || {
        let text = lab.registry.text();
        let value = text.lines().find_map(|line| line.strip_prefix("istio_agent_xds_last_good_age_seconds "));
        value.unwrap().parse::<f64>().unwrap()
    };
    let first = age();
    assert!(first >= 100.0 && age() > first, "it grows while the old configuration is served");
    let notes = lab.gates.notes(SystemTime::now());
    assert!(matches!(&notes[..], [(_, note)] if note.contains("serving the configuration that Envoy accepted")));

    let (sender, streams) = unbounded_channel();
    lab.streams = streams;
    let listener = TcpListener::bind(address).await.unwrap();
    tokio::spawn(accept(listener, Arc::new(Script(sender)), Arc::clone(&lab.plan)));
    assert_eq!(within("istiod's return", responses.raw(MAX_MESSAGE)).await.unwrap_err().code, Code::Unavailable);
    let (mut requests, mut responses) = lab.envoy(Kind::Sotw, Plan::default()).await;
    requests.send(&request(CDS)).await.unwrap();
    let (mut upstream, mut istiod) = lab.istiod().await;
    assert_eq!(next_type(&mut upstream).await, CDS);
    istiod.send_raw(response(CDS, "fresh", 10)).await.unwrap();
    within("fresh configuration", responses.raw(MAX_MESSAGE)).await.unwrap();
    assert_eq!(lab.gates.notes(SystemTime::now()), [], "what is served is no longer old");
    assert!(!lab.registry.text().contains("xds_last_good_age_seconds"));
}
