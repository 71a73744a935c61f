//! One SDS stream: takes requests, sends what is due, waits for news of either. State of the world and delta.
//!
//! A name that cannot be served yet holds up nothing: what is there is sent, the rest follows when it comes. A stream ends with
//! an error only when nothing on it can be served, so that Envoy asks again at its own pace.

use std::{sync::Arc, time::Duration};

use prost::Message;
use tokio::time::Instant;

use super::{
    ENDING, Shared,
    inbox::Inbox,
    names::Name,
    resource::Resource,
    response::{self, Response},
    shelf::Slot,
    subscription::{Place, Subscription, Taken},
};
use crate::{
    grpc::{Code, Receiver, Sender, Status},
    proto::{
        envoy::{
            config::core::v3::Node,
            service::discovery::v3::{DeltaDiscoveryRequest, DiscoveryRequest},
        },
        google::rpc,
    },
};

/// A stream whose files cannot be read ends after so long, as Istio's: Envoy gives up on them after 15 s.
const PATIENCE: Duration = Duration::from_secs(10);
/// Istio drops a health report that opens a stream by mistake.
const HEALTH: &str = "type.googleapis.com/istio.v1.HealthInformation";
/// Names in all on one stream, and in one request: each is compared with each.
const MAX_NAMES: usize = 1000;

/// The two ways of xDS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flavor {
    World,
    Delta,
}

/// A stream that is open for months and quiet all the time: what it needs for a moment only is boxed, so that a thousand of them
/// cost little.
pub(super) struct Stream {
    shared: Arc<Shared>,
    flavor: Flavor,
    inbox: Inbox,
    sender: Sender,
    subscription: Subscription,
    has_begun: bool,
    /// When names began to be waited for.
    waiting_since: Instant,
}

impl Stream {
    pub(super) fn new(shared: Arc<Shared>, flavor: Flavor, receiver: Receiver, sender: Sender) -> Stream {
        Stream {
            shared,
            flavor,
            inbox: Inbox::new(receiver),
            sender,
            subscription: Subscription::default(),
            has_begun: false,
            waiting_since: Instant::now(),
        }
    }

    /// Serves until the client goes, the agent ends, or nothing can be served.
    pub(super) async fn run(mut self) {
        let _open = self.shared.metrics.opened();
        let status = self.serve().await.err().unwrap_or_else(Status::ok);
        self.shared.metrics.ended(&status);
        self.sender.close(&status);
    }

    async fn serve(&mut self) -> Result<(), Status> {
        let mut revision = self.shared.revision.subscribe();
        loop {
            if *revision.borrow_and_update() == ENDING {
                return Err(Status::new(Code::Unavailable, "the agent is ending"));
            }
            let due = self.due();
            if !due.is_empty() {
                Box::pin(self.send(due)).await?;
            }
            let give_up = self.waiting_since + PATIENCE;
            let waits = self.verdict(Instant::now() >= give_up)?;
            let patience = async move {
                if waits {
                    Box::pin(tokio::time::sleep_until(give_up)).await;
                } else {
                    std::future::pending().await
                }
            };
            tokio::select! {
                biased;
                request = self.inbox.next() => match request? {
                    Some(request) => {
                        self.take(&request)?;
                        Box::pin(self.find_places()).await;
                    }
                    None => return Ok(()),
                },
                Ok(()) = revision.changed() => {}
                () = patience => {}
            }
        }
    }

    fn take(&mut self, request: &[u8]) -> Result<(), Status> {
        match self.flavor {
            Flavor::World => {
                let request: DiscoveryRequest = decode(request)?;
                if self.is_misplaced(&request.type_url) {
                    return Ok(());
                }
                self.begin(request.node.as_ref())?;
                limit(request.resource_names.len())?;
                self.note_refusal(request.error_detail.as_ref());
                if self.subscription.request(&request.resource_names, &request.response_nonce) == Taken::Stale {
                    self.shared.metrics.expired_nonce.inc();
                    log::debug!(target: "sds", "request with an old nonce {} is ignored", request.response_nonce);
                }
            }
            Flavor::Delta => {
                let request: DeltaDiscoveryRequest = decode(request)?;
                if self.is_misplaced(&request.type_url) {
                    return Ok(());
                }
                self.begin(request.node.as_ref())?;
                limit(request.resource_names_subscribe.len().max(request.resource_names_unsubscribe.len()))?;
                self.note_refusal(request.error_detail.as_ref());
                let versions = &request.initial_resource_versions;
                self.subscription.change(
                    &request.resource_names_subscribe,
                    &request.resource_names_unsubscribe,
                    |name| versions.get(name),
                );
            }
        }
        limit(self.subscription.items.len())
    }

    fn is_misplaced(&self, type_url: &str) -> bool {
        let misplaced = !self.has_begun && type_url == HEALTH;
        if misplaced {
            log::warn!(target: "sds", "a health report came to the secret service; it is dropped");
        }
        misplaced
    }

    /// Envoy says who it is with its first request only.
    fn begin(&mut self, node: Option<&Node>) -> Result<(), Status> {
        if !self.has_begun && node.is_none_or(|node| node.id.is_empty()) {
            return Err(Status::new(Code::InvalidArgument, "missing node information"));
        }
        self.has_begun = true;
        Ok(())
    }

    fn note_refusal(&self, detail: Option<&rpc::Status>) {
        if let Some(detail) = detail {
            self.shared.metrics.rejects.inc();
            let names: Vec<&str> = self.subscription.names().collect();
            log::warn!(target: "sds", "Envoy refuses {}: {} (code {})", names.join(", "), detail.message, detail.code);
        }
    }

    /// Looks up what new names mean, and has their files read.
    async fn find_places(&mut self) {
        for item in &mut self.subscription.items {
            if !matches!(item.place, Place::New) {
                continue;
            }
            self.waiting_since = Instant::now();
            item.place = self.shared.place(&item.name).await;
            if matches!(item.place, Place::Unknown) {
                log::warn!(target: "sds", "unknown secret {:?} is not served", item.name);
            }
        }
    }

    /// What is new to the client; it counts as sent from now on.
    fn due(&mut self) -> Vec<(Arc<str>, Resource)> {
        let mut due = Vec::new();
        for item in &mut self.subscription.items {
            let Place::Known { name, .. } = &item.place else { continue };
            let Slot::Ready(resource) = self.shared.shelf.get(&item.name, name) else { continue };
            let known = item.known.take();
            if item.sent.as_ref() != Some(&resource.version) {
                item.sent = Some(Arc::clone(&resource.version));
                if known.as_deref() != Some(&*resource.version) {
                    due.push((Arc::clone(&item.name), resource));
                }
            }
        }
        due
    }

    async fn send(&mut self, due: Vec<(Arc<str>, Resource)>) -> Result<(), Status> {
        let nonce = response::nonce();
        let response = match self.flavor {
            Flavor::World => Response::world(&due, &nonce),
            Flavor::Delta => Response::delta(&due, &nonce),
        };
        drop(due);
        self.subscription.answered(nonce);
        let begun = Instant::now();
        response.send(&mut self.sender).await?;
        self.shared.metrics.sent(begun.elapsed());
        Ok(())
    }

    /// Whether the stream waits for something that may end it.
    ///
    /// # Errors
    /// When nothing on it can be served.
    fn verdict(&self, patience_is_over: bool) -> Result<bool, Status> {
        let mut verdict = None;
        for item in &self.subscription.items {
            let status = match &item.place {
                Place::New => return Ok(false),
                _ if item.sent.is_some() => return Ok(false),
                Place::Unknown => Status::new(Code::InvalidArgument, format!("unknown secret {:?}", item.name)),
                Place::Refused => Status::new(
                    Code::ResourceExhausted,
                    format!("failed to generate secret for {}: too many files", item.name),
                ),
                Place::Known { name, .. } => match (self.shared.shelf.get(&item.name, name), name) {
                    (Slot::Hopeless(error), _) => failed(&item.name, &error),
                    (Slot::Waiting(Some(error)), Name::File(_)) if patience_is_over => failed(&item.name, &error),
                    (_, Name::File(_)) => return Ok(true),
                    _ => return Ok(false),
                },
            };
            verdict.get_or_insert(status);
        }
        verdict.map_or(Ok(false), Err)
    }
}

/// Refuses more names than are looked at.
pub(super) fn limit(names: usize) -> Result<(), Status> {
    if names > MAX_NAMES {
        return Err(Status::new(Code::ResourceExhausted, format!("more than {MAX_NAMES} names on one stream")));
    }
    Ok(())
}

/// In Istio's words, which people search for.
pub(super) fn failed(name: &str, error: &str) -> Status {
    Status::new(Code::Unknown, format!("failed to generate secret for {name}: {error}"))
}

fn decode<M: Message + Default>(bytes: &[u8]) -> Result<M, Status> {
    M::decode(bytes)
        .map_err(|error| Status::new(Code::Internal, format!("grpc: failed to unmarshal the message: {error}")))
}
