//! The service over an in-memory pipe, on paused time, against a client that plays Envoy.

use std::{fs, time::Duration};

use prost::Message;
use tokio::time::Instant;

use super::*;
use crate::{
    base::Trigger,
    grpc::{Call, Client, Code, Receiver, Sender, Status},
    proto::{
        envoy::{
            config::core::v3::Node,
            extensions::transport_sockets::tls::v3::{Secret, secret::Type},
            service::discovery::v3::{
                DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
            },
        },
        google::rpc,
    },
    secrets::{
        Files,
        testing::{Authority, Scratch, snapshot},
    },
};

const SERVICE: &str = "/envoy.service.secret.v3.SecretDiscoveryService";
const HOUR: Duration = Duration::from_secs(3600);

struct Bed {
    identity: watch::Sender<Snapshot>,
    authority: Authority,
    client: Client,
    registry: Registry,
    scratch: Scratch,
    trigger: Trigger,
}

/// The service with nothing to serve yet; `has_authority` says whether waiting for a certificate makes sense.
async fn bed(has_authority: bool) -> Bed {
    bed_with(has_authority, |_| None).await
}

/// The same, with a place for a revocation list.
async fn bed_with(has_authority: bool, crl: impl Fn(&Scratch) -> Option<PathBuf>) -> Bed {
    let (registry, scratch) = (Registry::default(), Scratch::new());
    let crl = crl(&scratch);
    let (trigger, drain) = Trigger::new();
    let (files, reader) = Files::new(Duration::from_millis(10), Clock::System, &registry);
    tokio::spawn(reader.run(drain.clone()));
    let (identity, snapshots) = watch::channel(Snapshot::default());
    let table = files.table();
    let shelf = Shelf::new(snapshots.clone(), table.clone(), has_authority, (None, crl.clone()), Clock::System);
    let shared = Arc::new(Shared {
        shelf,
        files,
        system_roots: None,
        revision: watch::Sender::new(0),
        metrics: Metrics::new(&registry),
    });
    tokio::spawn(announce(Arc::clone(&shared), (snapshots, table), crl, drain.clone()));
    let service = Arc::new(service::Secrets { shared });
    // Small, so that a client that does not read is felt soon.
    let (near, far) = tokio::io::duplex(16 * 1024);
    tokio::spawn(grpc::serve(Box::new(far), service, Settings::default(), drain));
    let (client, drive) = Client::handshake(Box::new(near), Settings::default()).await.unwrap();
    tokio::spawn(drive);
    Bed { identity, authority: Authority::new("root"), client, registry, scratch, trigger }
}

struct World {
    sender: Sender,
    receiver: Receiver,
}

impl Bed {
    fn rotate(&self) {
        self.identity.send_replace(snapshot(&self.authority, HOUR));
    }

    async fn open(&self, method: &str) -> (Sender, Receiver) {
        let path = format!("{SERVICE}/{method}");
        self.client.stream(&Call { path: &path, authority: "sds-grpc", ..Call::default() }).await.unwrap()
    }

    async fn world(&self) -> World {
        let (sender, receiver) = self.open("StreamSecrets").await;
        World { sender, receiver }
    }

    /// A stream that asks for these names.
    async fn ask(&self, names: &[&str]) -> World {
        let mut world = self.world().await;
        world.send(request(names)).await;
        world
    }

    async fn fetch(&self, names: &[&str]) -> Result<DiscoveryResponse, Status> {
        let path = format!("{SERVICE}/FetchSecrets");
        let call = Call { path: &path, authority: "sds-grpc", deadline: Some(HOUR), ..Call::default() };
        self.client.unary(&call, &request(names)).await
    }
}

fn node() -> Option<Node> {
    Some(Node { id: "sidecar~1.1.1.1~a.b~c".to_owned(), ..Node::default() })
}

fn request(names: &[&str]) -> DiscoveryRequest {
    let resource_names = names.iter().map(|name| (*name).to_owned()).collect();
    DiscoveryRequest { node: node(), resource_names, ..DiscoveryRequest::default() }
}

impl World {
    async fn send(&mut self, request: DiscoveryRequest) {
        self.sender.send(&request).await.unwrap();
    }

    async fn next(&mut self) -> DiscoveryResponse {
        self.receiver.message(1 << 20).await.unwrap().expect("a response")
    }

    /// Takes a response and acknowledges it for these names.
    async fn take(&mut self, names: &[&str]) -> DiscoveryResponse {
        let response = self.next().await;
        self.ack(&response, names).await;
        response
    }

    async fn ack(&mut self, response: &DiscoveryResponse, names: &[&str]) {
        let request = DiscoveryRequest {
            version_info: response.version_info.clone(),
            response_nonce: response.nonce.clone(),
            ..request(names)
        };
        self.send(request).await;
    }

    async fn quiet(&mut self) {
        let response = tokio::time::timeout(5 * HOUR, self.receiver.message::<DiscoveryResponse>(1 << 20)).await;
        assert!(response.is_err(), "unexpected {response:?}");
    }

    async fn end(&mut self) -> Status {
        self.receiver.message::<DiscoveryResponse>(1 << 20).await.unwrap_err()
    }
}

fn names(response: &DiscoveryResponse) -> Vec<String> {
    response.resources.iter().map(|any| Secret::decode(&any.value[..]).unwrap().name).collect()
}

fn chain(response: &DiscoveryResponse) -> Vec<u8> {
    match Secret::decode(&response.resources[0].value[..]).unwrap().r#type {
        Some(Type::TlsCertificate(certificate)) => certificate.certificate_chain.unwrap().encode_to_vec(),
        _ => Vec::new(),
    }
}

#[tokio::test(start_paused = true)]
async fn each_name_is_sent_when_it_is_there_and_when_it_changes() {
    let bed = bed(true).await;
    let mut world = bed.ask(&["default", "ROOTCA"]).await;
    world.quiet().await;
    bed.rotate();
    let first = world.take(&["default", "ROOTCA"]).await;
    assert_eq!(names(&first), ["default", "ROOTCA"]);
    world.quiet().await;
    let bundle = bed.identity.borrow().bundle.clone();
    bed.identity.send_replace(Snapshot { bundle, ..snapshot(&bed.authority, HOUR) });
    let second = world.take(&["default", "ROOTCA"]).await;
    assert_eq!(names(&second), ["default"], "the roots are the same");
    assert!(chain(&second) != chain(&first) && second.nonce != first.nonce);
    assert_ne!(second.version_info, first.version_info);
    // Why renewal fails is no news for Envoy.
    bed.identity.send_modify(|snapshot| snapshot.error = Some("no".into()));
    world.quiet().await;
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_noted_and_answered_by_the_next_secret_only() {
    let bed = bed(true).await;
    bed.rotate();
    let mut world = bed.ask(&["default"]).await;
    let response = world.next().await;
    let refusal = DiscoveryRequest {
        response_nonce: response.nonce.clone(),
        error_detail: Some(rpc::Status { code: 13, message: "no".to_owned(), details: Vec::new() }),
        ..request(&["default", "ROOTCA"])
    };
    world.send(refusal.clone()).await;
    assert_eq!(names(&world.take(&["default", "ROOTCA"]).await), ["ROOTCA"], "the added name");
    world.quiet().await;
    bed.rotate();
    assert_eq!(names(&world.next().await), ["default", "ROOTCA"]);
    world.send(DiscoveryRequest { response_nonce: "old".to_owned(), ..refusal }).await;
    world.quiet().await;
    let text = bed.registry.text();
    assert!(text.contains("istio_agent_pilot_total_xds_rejects{type=\"sds\"} 2"), "{text}");
    assert!(text.contains("istio_agent_pilot_xds_expired_nonce{type=\"sds\"} 1"), "{text}");
    assert!(text.contains("istio_agent_sds_streams 1"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_client_must_say_who_it_is_once() {
    let bed = bed(true).await;
    bed.rotate();
    for node in [None, Some(Node::default())] {
        let mut world = bed.world().await;
        world.send(DiscoveryRequest { node, ..request(&["default"]) }).await;
        let status = world.end().await;
        assert_eq!((status.code, status.message.as_str()), (Code::InvalidArgument, "missing node information"));
    }
    let mut world = bed.world().await;
    let misplaced = DiscoveryRequest {
        type_url: "type.googleapis.com/istio.v1.HealthInformation".to_owned(),
        ..DiscoveryRequest::default()
    };
    world.send(misplaced).await;
    world.send(request(&["default"])).await;
    world.next().await;
    world.send(DiscoveryRequest { node: None, ..request(&["ROOTCA"]) }).await;
    assert_eq!(names(&world.next().await), ["ROOTCA"]);
}

#[tokio::test(start_paused = true)]
async fn what_can_never_be_served_ends_the_stream_unless_something_else_can() {
    let bed = bed(false).await;
    bed.identity.send_replace(Snapshot { error: Some("no files".into()), ..Snapshot::default() });
    for (wanted, code, words) in [
        (vec!["kubernetes://x"], Code::InvalidArgument, "unknown secret"),
        (vec!["file-cert:a~"], Code::InvalidArgument, "unknown secret"),
        (vec!["default"], Code::Unknown, "failed to generate secret for default: no files"),
        (vec!["spiffe://x", "ROOTCA"], Code::InvalidArgument, "unknown secret"),
    ] {
        let status = bed.ask(&wanted).await.end().await;
        assert!(status.code == code && status.message.contains(words), "{wanted:?}: {status}");
    }
    fs::write(bed.scratch.path("ca.pem"), bed.authority.pem()).unwrap();
    let file = format!("file-root:{}", bed.scratch.path("ca.pem").display());
    let mut world = bed.ask(&["default", "kubernetes://x", &file]).await;
    assert_eq!(names(&world.next().await), [file.as_str()]);
    world.quiet().await;
}

#[tokio::test(start_paused = true)]
async fn files_that_do_not_come_end_the_stream_when_envoy_would_give_up() {
    let bed = bed(true).await;
    let missing = format!("file-root:{}", bed.scratch.path("missing.pem").display());
    let begun = Instant::now();
    let status = bed.ask(&[&missing]).await.end().await;
    assert!(
        begun.elapsed() >= Duration::from_secs(10) && begun.elapsed() < Duration::from_secs(15),
        "{:?}",
        begun.elapsed()
    );
    assert_eq!(status.code, Code::Unknown);
    assert!(status.message.contains("failed to generate secret") && status.message.contains("missing.pem"), "{status}");
    let mut world = bed.ask(&[&missing]).await;
    fs::write(bed.scratch.path("missing.pem"), bed.authority.pem()).unwrap();
    assert_eq!(names(&world.next().await), [missing.as_str()]);
}

#[tokio::test]
async fn a_revocation_list_that_comes_later_concerns_the_meshs_roots_only() {
    let bed = bed_with(true, |scratch| Some(scratch.path("ca-crl.pem"))).await;
    fs::write(bed.scratch.path("ca.pem"), bed.authority.pem()).unwrap();
    let file = format!("file-root:{}", bed.scratch.path("ca.pem").display());
    bed.rotate();
    let listed = |response: &DiscoveryResponse| -> Vec<(String, bool)> {
        let secrets = response.resources.iter().map(|any| Secret::decode(&any.value[..]).unwrap());
        let context = |secret: Secret| match secret.r#type {
            Some(Type::ValidationContext(context)) => (secret.name, context.crl.is_some()),
            other => panic!("{other:?}"),
        };
        secrets.map(context).collect()
    };
    let mut world = bed.ask(&["ROOTCA", &file]).await;
    let first = world.take(&["ROOTCA", &file]).await;
    assert_eq!(listed(&first), [("ROOTCA".to_owned(), false), (file.clone(), false)]);
    fs::write(bed.scratch.path("ca-crl.pem"), "a list").unwrap();
    let second = tokio::time::timeout(HOUR / 60, world.next()).await.expect("news in time");
    assert_eq!(listed(&second), [("ROOTCA".to_owned(), true)]);
}

#[tokio::test(start_paused = true)]
async fn a_slow_reader_gets_the_newest_and_never_a_backlog() {
    let bed = bed(true).await;
    bed.rotate();
    // Reads nothing: its window and the pipe fill up.
    let mut slow = bed.ask(&["default"]).await;
    let mut quick = bed.ask(&["default"]).await;
    let mut last = Vec::new();
    for _ in 0..200 {
        bed.rotate();
        last = chain(&quick.take(&["default"]).await);
    }
    let mut taken = 0;
    while {
        taken += 1;
        chain(&slow.next().await) != last
    } {}
    assert!(taken <= 200);
    slow.quiet().await;
}

#[tokio::test(start_paused = true)]
async fn delta_streams_get_names_versions_and_no_repetition_after_a_reconnect() {
    let bed = bed(true).await;
    bed.rotate();
    let (mut sender, mut receiver) = bed.open("DeltaSecrets").await;
    let subscribe = |names: &[&str]| DeltaDiscoveryRequest {
        node: node(),
        resource_names_subscribe: names.iter().map(|name| (*name).to_owned()).collect(),
        ..DeltaDiscoveryRequest::default()
    };
    sender.send(&subscribe(&["default", "ROOTCA"])).await.unwrap();
    let first: DeltaDiscoveryResponse = receiver.message(1 << 20).await.unwrap().unwrap();
    let versions = first.resources.iter().map(|resource| (resource.name.clone(), resource.version.clone())).collect();
    // Another stream of the same Envoy still has both, and hears of the next change only.
    let (mut again, mut answers) = bed.open("DeltaSecrets").await;
    let known = DeltaDiscoveryRequest { initial_resource_versions: versions, ..subscribe(&["default", "ROOTCA"]) };
    again.send(&known).await.unwrap();
    let silent = tokio::time::timeout(HOUR, answers.message::<DeltaDiscoveryResponse>(1 << 20)).await;
    assert!(silent.is_err());
    let bundle = bed.identity.borrow().bundle.clone();
    bed.identity.send_replace(Snapshot { bundle, ..snapshot(&bed.authority, HOUR) });
    for receiver in [&mut receiver, &mut answers] {
        let next: DeltaDiscoveryResponse = receiver.message(1 << 20).await.unwrap().unwrap();
        let names: Vec<&str> = next.resources.iter().map(|resource| resource.name.as_str()).collect();
        assert_eq!(names, ["default"]);
        assert_ne!(next.resources[0].version, first.resources[0].version);
    }
}

#[tokio::test(start_paused = true)]
async fn too_many_names_are_refused_before_they_are_looked_at() {
    let bed = bed(true).await;
    bed.rotate();
    let many = ["default"; 1001];
    assert_eq!(bed.ask(&many).await.end().await.code, Code::ResourceExhausted);
    let owned: Vec<String> = many.map(str::to_owned).into();
    for (resource_names_subscribe, resource_names_unsubscribe) in [(owned.clone(), Vec::new()), (Vec::new(), owned)] {
        let (mut sender, mut receiver) = bed.open("DeltaSecrets").await;
        let request = DeltaDiscoveryRequest {
            node: node(),
            resource_names_subscribe,
            resource_names_unsubscribe,
            ..DeltaDiscoveryRequest::default()
        };
        sender.send(&request).await.unwrap();
        let status = receiver.message::<DeltaDiscoveryResponse>(1 << 20).await.unwrap_err();
        assert_eq!(status.code, Code::ResourceExhausted, "{status}");
    }
}

#[tokio::test(start_paused = true)]
async fn one_call_fetches_what_is_there_and_says_what_is_not() {
    let bed = bed(true).await;
    let status = bed.fetch(&["kubernetes://x"]).await.unwrap_err();
    assert_eq!(status.code, Code::InvalidArgument);
    let begun = Instant::now();
    let status = bed.fetch(&["default"]).await.unwrap_err();
    assert_eq!((status.code, begun.elapsed().as_secs()), (Code::Unavailable, 10));
    bed.rotate();
    let response = bed.fetch(&["ROOTCA", "kubernetes://x", "default", "ROOTCA"]).await.unwrap();
    assert_eq!(names(&response), ["ROOTCA", "default"]);
    assert_eq!(response.type_url, resource::TYPE_URL);
    assert!(!response.version_info.is_empty() && response.nonce.is_empty());
    assert_eq!(bed.fetch(&["default"; 1001]).await.unwrap_err().code, Code::ResourceExhausted);
}

#[tokio::test(start_paused = true)]
async fn unknown_methods_and_garbage_concern_their_stream_only() {
    let bed = bed(true).await;
    bed.rotate();
    let mut world = bed.ask(&["default"]).await;
    world.take(&["default"]).await;
    let (_sender, mut receiver) = bed.open("WatchSecrets").await;
    let status = receiver.message::<DiscoveryResponse>(1 << 20).await.unwrap_err();
    assert_eq!(status.code, Code::Unimplemented);
    let mut garbage = bed.world().await;
    garbage.sender.send_raw(vec![0xff; 100].into()).await.unwrap();
    assert_eq!(garbage.end().await.code, Code::Internal);
    let mut greedy = bed.world().await;
    let many: Vec<String> = (0..5000).map(|index| index.to_string()).collect();
    greedy.send(DiscoveryRequest { resource_names: many, ..request(&[]) }).await;
    assert_eq!(greedy.end().await.code, Code::ResourceExhausted);
    bed.rotate();
    world.next().await;
}

#[tokio::test(start_paused = true)]
async fn the_end_of_the_agent_ends_its_streams() {
    let bed = bed(true).await;
    let mut world = bed.ask(&["default"]).await;
    world.quiet().await;
    bed.trigger.start();
    assert_eq!(world.end().await.code, Code::Unavailable);
}
