//! How servers of plugins are reached: guard, proxies, TLS, redirects, and attempts that end with the deadline.

mod client;
mod guard;
mod proxies;
mod web;

pub(super) use client::{Ask, Client, Error};
pub(super) use guard::{Block, Guard};
pub(super) use proxies::Proxies;
pub(super) use web::{Attempts, fetch, split_login};

use std::time::Duration;

use crate::net::http1::client::Response;

/// How long an answer asks to be left alone (`Retry-After` in seconds; RFC 9110 §10.2.3).
pub(super) fn retry_after(response: &Response) -> Option<Duration> {
    response.headers.get("retry-after")?.trim().parse().ok().map(Duration::from_secs)
}

/// Waits before another attempt; `false`, at once, when the deadline comes first.
pub(super) async fn pause(delay: Duration, deadline: tokio::time::Instant) -> bool {
    let until = tokio::time::Instant::now() + delay;
    let in_time = until < deadline;
    if in_time {
        tokio::time::sleep_until(until).await;
    }
    in_time
}
