//! Recorded ADS sessions of upstream Envoy and istiod (`captures/README.md`), sent through the agent: what is forwarded arrives
//! equal to the byte, in both directions, in the recorded order.
//!
//! The agent's own subscriptions (NDS, PCDS) are checked for not reaching Envoy. ECDS is left out: its responses are rewritten.

use std::{fs, path::Path};

use bytes::Bytes;
use footman::grpc::{MAX_MESSAGE, Receiver, Sender};
use serde_json::Value;

use crate::support::{
    agent::{Agent, Options},
    envoy,
    istiod::{Ads, DELTA, Istiod, SOTW},
    within,
};

/// One recorded ADS stream, as Envoy and istiod saw it.
struct Recorded {
    messages: Vec<Message>,
}

#[derive(Debug, PartialEq)]
struct Message {
    /// From Envoy, or from istiod.
    is_request: bool,
    /// Last part of the type URL.
    type_name: String,
    bytes: Bytes,
}

#[tokio::test]
async fn sotw_small() {
    replay("sotw-small", SOTW).await;
}

#[tokio::test]
async fn sotw_300() {
    replay("sotw-300", SOTW).await;
}

#[tokio::test]
async fn delta_small() {
    replay("delta-small", DELTA).await;
}

#[tokio::test]
async fn delta_300() {
    replay("delta-300", DELTA).await;
}

async fn replay(name: &str, path: &str) {
    let recorded = sessions(name, path);
    assert!(recorded.iter().map(|recorded| recorded.messages.len()).sum::<usize>() > 20, "{name} holds too little");
    let mut istiod = Istiod::start().await;
    let env = [("ISTIO_META_DNS_CAPTURE", "true"), ("PROXY_XDS_VIA_AGENT", "true")];
    let agent = Agent::start(&istiod, Options { env: &env, ..Options::default() });
    for recorded in recorded {
        let (mut requests, mut responses) = envoy::stream(agent.ads_socket(), path).await;
        let mut ads: Option<Ads> = None;
        for message in &recorded.messages {
            if message.is_request {
                requests.send_raw(message.bytes.clone()).await.unwrap();
                if ads.is_none() {
                    ads = Some(istiod.stream().await);
                }
                let upstream = ads.as_mut().unwrap();
                assert_eq!(
                    (upstream.path.as_str(), upstream.metadata.get("authorization")),
                    (path, Some("Bearer token"))
                );
                expect(name, message, &mut upstream.requests).await;
            } else {
                let upstream = ads.as_mut().expect("a response before the first request");
                upstream.responses.send_raw(message.bytes.clone()).await.unwrap();
                if !is_own(&message.type_name) {
                    expect(name, message, &mut responses).await;
                }
            }
        }
        finish(requests, ads).await;
    }
}

/// The next message that is not the agent's own must be this one.
async fn expect(name: &str, message: &Message, receiver: &mut Receiver) {
    loop {
        let bytes = within("the message on the other side", receiver.raw(MAX_MESSAGE)).await.unwrap();
        let bytes = bytes.unwrap_or_else(|| panic!("{name}: the stream ended before {}", message.type_name));
        let own = message.is_request && ["NameTable", "v1alpha1.ProxyConfig"].iter().any(|own| contains(&bytes, own));
        if own {
            continue;
        }
        assert!(
            bytes == message.bytes,
            "{name}: {} differs: {} and {} bytes",
            message.type_name,
            bytes.len(),
            message.bytes.len()
        );
        return;
    }
}

/// Envoy closes its stream; istiod's ends as well.
async fn finish(mut requests: Sender, ads: Option<Ads>) {
    requests.reset();
    if let Some(mut ads) = ads {
        within("the end of the stream at istiod", async {
            while let Ok(Some(_)) = ads.requests.raw(MAX_MESSAGE).await {}
        })
        .await;
    }
}

/// What the agent subscribes to for itself.
fn is_own(type_name: &str) -> bool {
    ["NameTable", "ProxyConfig"].contains(&type_name)
}

fn contains(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

/// The ADS streams that got through to istiod, each with Envoy's requests and istiod's responses in the order of their times.
fn sessions(name: &str, path: &str) -> Vec<Recorded> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/captures");
    let bin = Bytes::from(fs::read(folder.join(format!("{name}.bin"))).unwrap());
    let index: Value = serde_json::from_slice(&fs::read(folder.join(format!("{name}.json"))).unwrap()).unwrap();
    let streams = |side: &str| -> Vec<u64> {
        let all = index["streams"].as_array().unwrap().iter();
        all.filter(|stream| stream["side"] == side && stream["method"] == path)
            .map(|stream| stream["id"].as_u64().unwrap())
            .collect()
    };
    let messages = index["messages"].as_array().unwrap();
    // The n-th stream of Envoy led to the n-th stream to istiod; some of them found nobody there.
    let mut recorded = Vec::new();
    for (envoy, istiod) in streams("envoy-agent").into_iter().zip(streams("agent-istiod")) {
        let session = messages.iter().filter_map(|message| {
            let is_request = message["dir"] == "request";
            let wanted = if is_request { envoy } else { istiod };
            let type_name = message["type"].as_str()?;
            if message["stream"].as_u64() != Some(wanted) || type_name == "TypedExtensionConfig" {
                return None;
            }
            let (offset, length) = (message["offset"].as_u64()? as usize, message["len"].as_u64()? as usize);
            Some(Message { is_request, type_name: type_name.to_owned(), bytes: bin.slice(offset..offset + length) })
        });
        let messages: Vec<Message> = session.collect();
        if messages.iter().any(|message| !message.is_request) {
            recorded.push(Recorded { messages });
        }
    }
    recorded
}
