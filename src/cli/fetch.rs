//! One HTTP request of a sub-command, with redirects followed as Go's client follows them.

use tokio::time::Instant;

use crate::{
    config::{Flags, Vars},
    net::{
        http1::{
            Error, Url,
            client::{MAX_REQUESTS, Request},
        },
        tls::{self, Policy, Protocol, Roots},
    },
};

/// What was answered in the end.
pub struct Answer {
    /// Its status.
    pub status: u16,
    /// Its body.
    pub body: Vec<u8>,
}

/// Sends the request and reads the answer, at most `limit` bytes, until `deadline`. A server of `https` has to have a certificate
/// that the system's trust store verifies.
///
/// # Errors
/// No answer, or one that cannot be read; its text names the peer.
pub async fn fetch(method: &str, url: &Url, body: &str, deadline: Instant, limit: usize) -> Result<Answer, String> {
    let (mut method, mut url, mut body) = (method.to_owned(), url.clone(), body.to_owned());
    for _ in 0..MAX_REQUESTS {
        let mut request = Request::new(method.clone(), url.clone());
        request.deadline = Some(deadline);
        request.body = body.clone().into();
        let asked = url.clone();
        let text = |error: Error| match error {
            Error::Connect(_) | Error::Tls(..) | Error::Url(_) => error.to_string(),
            _ => format!("{asked}: {error}"),
        };
        let config = if url.tls {
            let roots = Roots::System(Vars::at_hand(Flags::default()).0.system_store());
            let config = tls::client_config(&roots, None, Policy::Default, Protocol::Http1);
            Some(config.map_err(|error| format!("{asked}: the system's trust store (SSL_CERT_FILE): {error}"))?)
        } else {
            None
        };
        let mut response = request.send(config.as_ref()).await.map_err(text)?;
        let answer = response.body.collect(limit).await.map_err(text)?;
        let location = response.headers.get("location");
        match (response.status, location) {
            (301..=303, Some(location)) => {
                url = url.join(location).map_err(text)?;
                if method != "HEAD" {
                    "GET".clone_into(&mut method);
                }
                body.clear();
            }
            (307 | 308, Some(location)) => url = url.join(location).map_err(text)?,
            (status, _) => return Ok(Answer { status, body: answer }),
        }
    }
    Err(format!("stopped after {MAX_REQUESTS} redirects"))
}
