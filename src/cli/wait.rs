//! `wait`: blocks until a URL answers 200. The postStart hook of injected pods holds the application back with it.

use std::time::Duration;

use log::{debug, info};
use tokio::time::{Instant, sleep};

use super::{
    Failure,
    args::Typed,
    commands::{PERIOD, REQUEST_TIMEOUT, TIMEOUT, URL},
};
use crate::net::http1::{Url, client::Request};

/// Redirects that one attempt follows, as Go's client.
const REDIRECTS: usize = 10;
/// The largest answer that is read.
const MAX_BODY: usize = 1 << 20;

/// Runs it.
///
/// # Errors
/// A flag that cannot be used, or no 200 in time: with the last failure.
pub async fn run(typed: &Typed) -> Result<(), Failure> {
    let url = Url::parse(typed.text(&URL)).map_err(|error| Failure::usage(format!("--url: {error}")))?;
    let period = Duration::from_millis(typed.count(&PERIOD)?);
    let limit = Duration::from_secs(typed.count(&TIMEOUT)?);
    let request = Duration::from_millis(typed.count(&REQUEST_TIMEOUT)?);
    info!("Waiting for Envoy proxy to be ready (timeout: {} seconds)...", limit.as_secs());
    let end = Instant::now() + limit;
    let mut last = "no attempt was made".to_owned();
    while Instant::now() < end {
        // Not beyond the limit, which is the caller's budget.
        sleep(period.min(end - Instant::now())).await;
        match attempt(&url, request).await {
            Ok(()) => {
                info!("Envoy is ready!");
                return Ok(());
            }
            Err(error) => {
                debug!("Not ready yet: {error}");
                last = error;
            }
        }
    }
    Err(Failure::failed(format!("timeout waiting for Envoy proxy to become ready. Last error: {last}")))
}

async fn attempt(url: &Url, limit: Duration) -> Result<(), String> {
    let deadline = Instant::now() + limit;
    let mut url = url.clone();
    for _ in 0..=REDIRECTS {
        let mut request = Request::new("GET", url.clone());
        request.deadline = Some(deadline);
        let mut response = request.send(None).await.map_err(|error| error.to_string())?;
        let body = response.body.collect(MAX_BODY).await.map_err(|error| error.to_string())?;
        match (response.status, response.headers.get("location")) {
            (200, _) => return Ok(()),
            (301 | 302 | 303 | 307 | 308, Some(location)) => {
                url = url.join(location).map_err(|error| error.to_string())?;
            }
            (status, _) => return Err(format!("HTTP status code {status}, body: {}", String::from_utf8_lossy(&body))),
        }
    }
    Err(format!("stopped after {REDIRECTS} redirects"))
}
