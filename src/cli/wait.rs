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

/// The largest answer that is read: more than Envoy's statistics, which somebody may wait for.
const MAX_BODY: usize = 64 << 20;

/// Runs it.
///
/// # Errors
/// A flag that cannot be used, or no 200 in time: with the last failure.
pub async fn run(typed: &Typed) -> Result<(), Failure> {
    let url = Url::parse(typed.text(&URL)).map_err(|error| Failure::usage(format!("--url: {error}")))?;
    let limit = Duration::from_secs(typed.count(&TIMEOUT)?);
    // The first attempt comes while there is time for it.
    let period = Duration::from_millis(typed.count(&PERIOD)?).min(limit / 2);
    let request = match typed.count(&REQUEST_TIMEOUT)? {
        0 => Duration::MAX,
        millis => Duration::from_millis(millis),
    };
    info!("Waiting for Envoy proxy to be ready (timeout: {} seconds)...", limit.as_secs());
    let end = later(Instant::now(), limit);
    let mut last = None;
    // Neither pause nor attempt goes beyond the limit, which is the caller's budget.
    let left = || end.saturating_duration_since(Instant::now());
    loop {
        sleep(period.min(left())).await;
        if left().is_zero() {
            break;
        }
        match attempt(&url, request.min(left())).await {
            Ok(()) => {
                info!("Envoy is ready!");
                return Ok(());
            }
            Err(error) => {
                debug!("Not ready yet: {error}");
                // The limit, which cuts an attempt off, says less than the failure before.
                if last.is_none() || !left().is_zero() {
                    last = Some(error);
                }
            }
        }
    }
    let last = last.as_deref().unwrap_or("no attempt was made");
    Err(Failure::failed(format!("timeout waiting for Envoy proxy to become ready. Last error: {last}")))
}

async fn attempt(url: &Url, limit: Duration) -> Result<(), String> {
    let answer = fetch("GET", url, "", later(Instant::now(), limit), MAX_BODY).await?;
    match answer.status {
        200 => Ok(()),
        status => Err(format!("HTTP status code {status}, body: {}", String::from_utf8_lossy(&answer.body))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::commands::WAIT;

    #[tokio::test(start_paused = true)]
    async fn nothing_goes_beyond_the_limit() {
        // It accepts, and never answers.
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("--url=http://127.0.0.1:{}/", listener.local_addr().unwrap().port());
        for flags in ["--requestTimeoutMillis=8000", "--requestTimeoutMillis=0", "--periodMillis=8000"] {
            let typed = WAIT.parse([&url, "--timeoutSeconds=2", flags].map(Into::into)).unwrap();
            let begun = Instant::now();
            let failure = run(&typed).await.unwrap_err();
            assert_eq!(begun.elapsed().as_millis() / 10, 200, "{flags}");
            assert!(!failure.message.contains("no attempt"), "{flags}: {}", failure.message);
        }
    }
}
