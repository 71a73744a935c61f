//! Many SDS streams: what they cost, and how soon a rotated secret is with all of them.

use std::path::PathBuf;

use footman::{
    grpc::{Call, Client, Receiver, Sender},
    proto::envoy::{
        config::core::v3::Node,
        service::discovery::v3::{DiscoveryRequest, DiscoveryResponse},
    },
};

use crate::{
    Bench, Figure, median, milliseconds, process,
    support::{
        agent::{Agent, Options},
        envoy,
        istiod::Istiod,
        within,
    },
};

pub const METHOD: &str = "1,000 streams for \"default\" over 10 connections; a certificate of 20 s, from the answer to its CSR until the last stream has it (3 rotations, median)";

const STREAM_SECRETS: &str = "/envoy.service.secret.v3.SecretDiscoveryService/StreamSecrets";
const SECRET: &str = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret";
const CONNECTIONS: usize = 10;
const STREAMS: usize = 100;

/// A stream with its newest secret, acknowledged.
pub struct Subscription {
    sender: Sender,
    receiver: Receiver,
}

/// A stream of its own connection that has "default".
pub async fn subscribe(socket: PathBuf) -> Subscription {
    on(&envoy::client(socket).await).await
}

async fn on(client: &Client) -> Subscription {
    let call = Call { path: STREAM_SECRETS, authority: "localhost", ..Call::default() };
    let (mut sender, receiver) = client.stream(&call).await.unwrap();
    let request = DiscoveryRequest {
        node: Some(Node { id: "sidecar~127.0.0.1~app-0.ns1~ns1.svc.cluster.local".to_owned(), ..Node::default() }),
        type_url: SECRET.to_owned(),
        resource_names: vec!["default".to_owned()],
        ..DiscoveryRequest::default()
    };
    sender.send(&request).await.unwrap();
    let mut subscription = Subscription { sender, receiver };
    subscription.next().await;
    subscription
}

impl Subscription {
    /// Waits for the next secret and acknowledges it.
    async fn next(&mut self) {
        let response = within("a secret", self.receiver.message::<DiscoveryResponse>(1 << 20)).await.unwrap().unwrap();
        let ack = DiscoveryRequest {
            type_url: SECRET.to_owned(),
            resource_names: vec!["default".to_owned()],
            version_info: response.version_info,
            response_nonce: response.nonce,
            ..DiscoveryRequest::default()
        };
        self.sender.send(&ack).await.unwrap();
    }
}

pub async fn run(bench: &Bench) -> Vec<Figure> {
    let mut istiod = Istiod::start().await;
    let env = [("SECRET_TTL", "20s")];
    let agent = Agent::start(&istiod, Options { binary: &bench.binary, envoy: Some(&bench.envoy), env: &env });
    let mut subscriptions = Vec::new();
    for _ in 0..CONNECTIONS {
        let client = envoy::client(agent.sds_socket()).await;
        for _ in 0..STREAMS {
            subscriptions.push(on(&client).await);
        }
    }
    let resident = process::rss(agent.pid());
    istiod.certificate().await;
    let mut delays = Vec::new();
    for _ in 0..3 {
        let issued = istiod.certificate().await;
        for subscription in &mut subscriptions {
            subscription.next().await;
        }
        delays.push(milliseconds(issued.elapsed()));
    }
    vec![
        Figure::new("resident memory with 1,000 streams", resident, "MB").at_most(8.0),
        Figure::new("peak over the rotations", process::peak(agent.pid()), "MB"),
        Figure::new("a rotated secret is with all 1,000 streams after", median(delays), "ms").at_most(50.0),
    ]
}
