//! `wait`: blocks until a URL answers 200. The postStart hook of injected pods holds the application back with it.

use std::time::Duration;

use log::{debug, info};
use tokio::time::{Instant, sleep};

use super::{
    Failure,
    args::Typed,
    commands::{PERIOD, REQUEST_TIMEOUT, TIMEOUT, URL},
    fetch::fetch,
};
use crate::{base::later, net::http1::Url};

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
    let end = later(Instant::now(), limit);
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
    let answer = fetch("GET", url, "", later(Instant::now(), limit), MAX_BODY).await?;
    match answer.status {
        200 => Ok(()),
        status => Err(format!("HTTP status code {status}, body: {}", String::from_utf8_lossy(&answer.body))),
    }
}
