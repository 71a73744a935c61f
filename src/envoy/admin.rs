//! Envoy's admin port: the few questions that the agent asks it, each with a deadline.

use std::time::Duration;

use crate::net::http1::{Error, client::Request};

/// Limit of an answer that is held whole: statistics that a filter chose.
const MAX_ANSWER: usize = 1 << 20;

/// A client of the admin port; cheap to clone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Admin {
    port: u16,
}

impl Admin {
    /// The admin port on this machine.
    pub fn new(port: u16) -> Admin {
        Admin { port }
    }

    /// Its URL without a path. By name, since Envoy listens on either family's loopback.
    pub fn url(&self) -> String {
        format!("http://localhost:{}", self.port)
    }

    /// `POST /drain_listeners?<query>`: clients are told to leave. The answer's status and body.
    ///
    /// # Errors
    /// When the port does not answer within `limit`.
    pub async fn drain_listeners(&self, query: &str, limit: Duration) -> Result<(u16, String), Error> {
        let request = Request::post(&format!("{}/drain_listeners?{query}", self.url()), "")?.timeout(limit);
        answer(request).await
    }

    /// GET of `path` with its query. The answer's status and body, at most 1 MiB.
    ///
    /// # Errors
    /// When the port does not answer within `limit`.
    pub async fn get(&self, path: &str, limit: Duration) -> Result<(u16, String), Error> {
        answer(Request::get(&format!("{}{path}", self.url()))?.timeout(limit)).await
    }
}

async fn answer(request: Request) -> Result<(u16, String), Error> {
    let mut response = request.send(None).await?;
    let body = response.body.collect(MAX_ANSWER).await?;
    Ok((response.status, String::from_utf8_lossy(&body).into_owned()))
}
