//! `envoy.service.secret.v3.SecretDiscoveryService`: which method is which.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    Shared,
    resource::Resource,
    response::Response,
    shelf::Slot,
    stream::{Flavor, Stream, failed, limit},
    subscription::Place,
};
use crate::{
    grpc::{BoxFuture, Code, Receiver, Request, Sender, Service, Status},
    proto::envoy::service::discovery::v3::DiscoveryRequest,
};

const STREAM: &str = "/envoy.service.secret.v3.SecretDiscoveryService/StreamSecrets";
const DELTA: &str = "/envoy.service.secret.v3.SecretDiscoveryService/DeltaSecrets";
const FETCH: &str = "/envoy.service.secret.v3.SecretDiscoveryService/FetchSecrets";
/// The largest unary request.
const MAX_REQUEST: usize = 4 << 20;
/// How long a unary call waits for secrets that are not there yet.
const PATIENCE: Duration = Duration::from_secs(10);

pub(super) struct Secrets {
    pub shared: Arc<Shared>,
}

impl Service for Secrets {
    fn call(&self, request: Request, receiver: Receiver, mut sender: Sender) -> BoxFuture {
        let shared = Arc::clone(&self.shared);
        let flavor = match request.path.as_str() {
            STREAM => Flavor::World,
            DELTA => Flavor::Delta,
            FETCH => return Box::pin(fetch(shared, receiver, sender)),
            _ => return Box::pin(async move { sender.close(&request.unimplemented()) }),
        };
        Box::pin(Stream::new(shared, flavor, receiver, sender).run())
    }
}

/// Answers one unary call with the secrets that are there, waiting for the first.
async fn fetch(shared: Arc<Shared>, mut receiver: Receiver, mut sender: Sender) {
    let status = match answer(&shared, &mut receiver).await {
        Ok(ready) => Response::world(&ready, "").send(&mut sender).await.err().unwrap_or_else(Status::ok),
        Err(status) => status,
    };
    sender.close(&status);
}

async fn answer(shared: &Shared, receiver: &mut Receiver) -> Result<Vec<(Arc<str>, Resource)>, Status> {
    let Some(request) = receiver.message::<DiscoveryRequest>(MAX_REQUEST).await? else {
        return Err(Status::new(Code::Internal, "a request is missing"));
    };
    limit(request.resource_names.len())?;
    let mut places: Vec<(&str, Place)> = Vec::new();
    for name in &request.resource_names {
        if !places.iter().any(|(known, _)| known == name) {
            places.push((name, shared.place(name).await));
        }
    }
    let mut revision = shared.revision.subscribe();
    let give_up = Instant::now() + PATIENCE;
    loop {
        revision.mark_unchanged();
        let is_over = Instant::now() >= give_up;
        match look(shared, &places, is_over)? {
            ready if ready.len() == known(&places) || is_over => return Ok(ready),
            _ => tokio::select! {
                Ok(()) = revision.changed() => {}
                () = tokio::time::sleep_until(give_up) => {}
            },
        }
    }
}

/// The secrets that are there.
///
/// # Errors
/// When none is, and none is to be expected.
fn look(shared: &Shared, places: &[(&str, Place)], is_over: bool) -> Result<Vec<(Arc<str>, Resource)>, Status> {
    let (mut ready, mut refusal, mut waits) = (Vec::new(), None, false);
    for (name, place) in places {
        let status = match place {
            Place::Known { name: known, .. } => match shared.shelf.get(name, known) {
                Slot::Ready(resource) => {
                    ready.push(((*name).into(), resource));
                    continue;
                }
                Slot::Hopeless(error) => failed(name, &error),
                Slot::Waiting(error) => {
                    waits = true;
                    let error = error.as_deref().unwrap_or("it is not there yet").to_owned();
                    Status::new(Code::Unavailable, format!("failed to generate secret for {name}: {error}"))
                }
            },
            _ => Status::new(Code::InvalidArgument, format!("unknown secret {name:?}")),
        };
        refusal.get_or_insert(status);
    }
    match refusal {
        Some(status) if ready.is_empty() && (is_over || !waits) => Err(status),
        _ => Ok(ready),
    }
}

fn known(places: &[(&str, Place)]) -> usize {
    places.iter().filter(|(_, place)| matches!(place, Place::Known { .. })).count()
}
