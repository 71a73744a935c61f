//! Amazon's instance metadata service, version 2 where it gives a token, else version 1.

use std::time::Duration;

use tokio::time::Instant;

use super::{Platform, reachable, text};
use crate::net::http1::client::Request;

/// Seconds that the token lives; it is used at once.
const TOKEN_LIFE: &str = "60";

/// How long the service may take to accept a connection, and to give a token. It is on the machine itself and answers within
/// milliseconds (Istio waits for 100 ms, too little under load); but a network policy may drop what is sent to it, and a hop limit of 1
/// loses its tokens.
pub(super) const PATIENCE: Duration = Duration::from_millis(300);

/// Whether this is an instance with Amazon's service.
pub(super) async fn is_there(server: &str, deadline: Instant) -> bool {
    let token = token(server, deadline).await;
    get(server, "meta-data/iam/info", &token, deadline).await.is_some_and(|body| body.contains("arn:aws:iam"))
}

pub(super) async fn ask(servers: &[String], deadline: Instant) -> Platform {
    let Some(server) = reachable(servers, deadline.min(Instant::now() + PATIENCE)).await else {
        return Platform::default();
    };
    let token = token(server, deadline).await;
    let (region, zone, instance) = tokio::join!(
        get(server, "meta-data/placement/region", &token, deadline),
        get(server, "meta-data/placement/availability-zone", &token, deadline),
        get(server, "meta-data/instance-id", &token, deadline),
    );
    let (region, zone) = (region.unwrap_or_default(), zone.unwrap_or_default());
    let values = [
        ("aws_region", region.clone()),
        ("aws_availability_zone", zone.clone()),
        ("aws_instance_id", instance.unwrap_or_default()),
    ];
    let metadata = values.into_iter().filter(|(_, value)| !value.is_empty());
    Platform {
        metadata: metadata.map(|(key, value)| (key.to_owned(), value)).collect(),
        locality: [region, zone, String::new()],
        ..Platform::default()
    }
}

/// Empty where the service has no tokens (version 1).
async fn token(server: &str, deadline: Instant) -> String {
    let request = Request::post(&format!("http://{server}/latest/api/token"), "").map(|mut request| {
        request.method = "PUT".into();
        request.header("X-aws-ec2-metadata-token-ttl-seconds", TOKEN_LIFE)
    });
    text(request, deadline.min(Instant::now() + PATIENCE)).await.unwrap_or_default()
}

async fn get(server: &str, path: &str, token: &str, deadline: Instant) -> Option<String> {
    let mut request = Request::get(&format!("http://{server}/latest/{path}"));
    if !token.is_empty() {
        request = request.map(|request| request.header("X-aws-ec2-metadata-token", token.to_owned()));
    }
    text(request, deadline).await
}
