//! A module from a web server: one file behind a URL, asked for until it comes (Istio's `HTTPFetcher`).

use std::{path::Path, time::Duration};

use base64::{Engine, engine::general_purpose::STANDARD};
use tokio::time::Instant;

use crate::{
    base::{Backoff, Policy, later},
    net::http1::Url,
    wasm::{
        error::{Error, Stage},
        spool::{self, Spool, Spooled},
    },
};

use super::{Ask, Client, client, pause, retry_after};

/// Between attempts, as Istio's.
const BACKOFF: Policy =
    Policy { initial: Duration::from_millis(500), factor: 1.5, max: Duration::from_secs(60), jitter: 0.5 };

/// How often and how long.
#[derive(Debug, Clone, Copy)]
pub(in crate::wasm) struct Attempts {
    /// `WASM_HTTP_REQUEST_MAX_RETRIES`: all attempts, the first one too.
    pub(in crate::wasm) count: u32,
    /// `WASM_HTTP_REQUEST_TIMEOUT`, of one attempt.
    pub(in crate::wasm) timeout: Duration,
    /// When it must have come.
    pub(in crate::wasm) deadline: Instant,
}

/// How one attempt failed.
enum Failure {
    /// Another one may help, after the time that the server asks for.
    Passing(String, Option<Duration>),
    Final(String),
    Spool(spool::Error),
}

/// Fetches `url` into a file in `folder` of at most `limit` bytes.
pub(in crate::wasm) async fn fetch(
    client: &Client,
    url: &str,
    attempts: Attempts,
    folder: &Path,
    limit: u64,
) -> Result<Spooled, Error> {
    let ask = ask(url, attempts.deadline)?;
    let mut backoff = Backoff::new(BACKOFF);
    let mut made = 0;
    loop {
        made += 1;
        let deadline = attempts.deadline.min(later(Instant::now(), attempts.timeout));
        let failure = match attempt(client, &Ask { deadline, ..ask.clone() }, folder, limit).await {
            Ok(spooled) => return Ok(spooled),
            Err(failure) => failure,
        };
        let (last, after, retryable) = match failure {
            Failure::Spool(error) => return Err(Error::from_spool(&ask.url.to_string(), error)),
            Failure::Final(last) => (last, None, false),
            Failure::Passing(last, after) => {
                let delay = after.unwrap_or_else(|| backoff.next_delay());
                if made < attempts.count.max(1) && pause(delay, attempts.deadline).await {
                    log::debug!(target: "wasm", "asking again for {}: {last}", ask.url);
                    continue;
                }
                (last, after, true)
            }
        };
        let text = format!("wasm module download failed after {made} attempts, last error: {last}");
        return Err(Error::Fetch { stage: Stage::Download, text, retryable, after });
    }
}

/// A login in the URL becomes a header, so that no text shows it.
fn ask(url: &str, deadline: Instant) -> Result<Ask, Error> {
    let (user, bare) = split_login(url);
    let url = Url::parse(&bare)
        .map_err(|error| Error::Config(format!("fail to parse Wasm module fetch url: {bare}, error: {error}")))?;
    let authorization = user.map(|user| format!("Basic {}", STANDARD.encode(user)));
    Ok(Ask { authorization, ..Ask::get(url, deadline) })
}

/// `user:password` of a URL, and the URL without it.
pub(in crate::wasm) fn split_login(url: &str) -> (Option<&str>, String) {
    let Some((scheme, rest)) = url.split_once("://") else {
        return (None, url.to_owned());
    };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    match rest[..end].rsplit_once('@') {
        Some((user, host)) => (Some(user), format!("{scheme}://{host}{}", &rest[end..])),
        None => (None, url.to_owned()),
    }
}

async fn attempt(client: &Client, ask: &Ask, folder: &Path, limit: u64) -> Result<Spooled, Failure> {
    let said = |error: client::Error| {
        let text = format!("Get \"{}\": {error}", ask.url);
        if error.is_retryable() { Failure::Passing(text, None) } else { Failure::Final(text) }
    };
    let mut response = client.send(ask).await.map_err(said)?;
    if response.status != 200 {
        let text = format!("wasm module download request failed: status code {}", response.status);
        return Err(match response.status {
            501 | 505 | 511 => Failure::Final(text),
            429 | 500.. => Failure::Passing(text, retry_after(&response)),
            _ => Failure::Final(text),
        });
    }
    let mut spool = Spool::create(folder, limit).map_err(Failure::Spool)?;
    while let Some(piece) = response.body.chunk().await.map_err(|error| said(client::Error::Http(error)))? {
        spool.write(&piece).await.map_err(Failure::Spool)?;
    }
    spool.finish().map_err(Failure::Spool)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn login_leaves_the_url() {
        for (url, user, bare) in [
            ("https://u:hunter2@h/x?a@b", Some("u:hunter2"), "https://h/x?a@b"),
            ("https://h/x@y", None, "https://h/x@y"),
            ("nothing", None, "nothing"),
        ] {
            assert_eq!(split_login(url), (user, bare.to_owned()), "{url}");
        }
        let ask = ask("http://u:p@h/x", Instant::now()).unwrap();
        assert_eq!((ask.url.to_string().as_str(), ask.authorization.as_deref()), ("http://h/x", Some("Basic dTpw")));
    }
}
