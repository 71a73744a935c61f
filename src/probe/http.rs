//! An HTTP or HTTPS check: one GET, redirects within the host, the beginning of the body.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use rustls::ClientConfig;
use tokio::time::{Duration, Instant, timeout_at};

use super::dial::{self, Source};
use crate::net::{
    BoxIo,
    http1::{
        Error, Headers, Url,
        client::{MAX_REQUESTS, Request},
    },
    http2,
    tls::{self, Policy, Protocol, Roots},
};

/// How long an idle connection to an application is kept, where the check reuses connections; Istio's value.
const IDLE: Duration = Duration::from_secs(90);

/// Most that is read of the rest of a body to make its connection reusable.
const MAX_REST: usize = 256 * 1024;

/// What a check asks for.
pub struct Http<'a> {
    /// Where the first request goes.
    pub url: Url,
    /// Fields of every request.
    pub headers: Headers,
    /// Where its connections come from.
    pub source: Source,
    /// How much of the body is wanted, bytes.
    pub body: usize,
    /// How TLS is spoken, which a redirect may ask for as well.
    pub tls: &'a Tls,
    /// Where the connection is kept for the next check; `None` closes it.
    pub idle: Option<&'a Idle>,
    /// When the check has to be over. What has come of the body by then counts.
    pub deadline: Option<Instant>,
}

/// The answer of the application.
#[derive(Debug)]
pub struct Answer {
    /// Its status.
    pub status: u16,
    /// The beginning of its body, as far as it came.
    pub body: Vec<u8>,
}

/// A connection that waits for the next check.
#[derive(Default)]
pub struct Idle(Mutex<Option<(Connection, Instant)>>);

/// A connection, by what is spoken on it.
enum Connection {
    Http1(BoxIo),
    Http2(Box<http2::Connection>),
}

/// TLS as probes speak it: any certificate is believed, as the kubelet does. Costs nothing before the first use.
#[derive(Debug, Clone)]
pub struct Tls {
    http2: bool,
    config: OnceLock<Arc<ClientConfig>>,
}

impl Tls {
    /// `http2` offers HTTP/2 and 1.1, else nothing is offered.
    pub fn new(http2: bool) -> Tls {
        Tls { http2, config: OnceLock::new() }
    }

    fn config(&self) -> Result<Arc<ClientConfig>, tls::Error> {
        if let Some(config) = self.config.get() {
            return Ok(Arc::clone(config));
        }
        let protocol = if self.http2 { Protocol::Any } else { Protocol::Unsaid };
        let config = tls::client_config(&Roots::Unverified, None, Policy::Default, protocol)?;
        Ok(Arc::clone(self.config.get_or_init(|| config)))
    }
}

impl Http<'_> {
    /// Carries out the check. Redirects within the host of the first request are followed; another one is the answer (kubelet's rule).
    ///
    /// # Errors
    /// When there is no answer in time, it is no HTTP, or it redirects too often.
    pub async fn get(&self) -> Result<Answer, Error> {
        let mut request = Request::new("GET", self.url.clone());
        request.headers = self.headers.clone();
        request.keep_alive = self.idle.is_some();
        request.deadline = self.deadline;
        for _ in 0..MAX_REQUESTS {
            let (answer, location) = self.request(&request).await?;
            let redirected = matches!(answer.status, 301 | 302 | 303 | 307 | 308);
            let location = location.filter(|location| redirected && !location.is_empty());
            let Some(location) = location else { return Ok(answer) };
            if leads_to_another_scheme(&location) {
                return Ok(answer);
            }
            let next = request.url.join(&location)?;
            if !next.host.eq_ignore_ascii_case(&self.url.host) {
                return Ok(answer);
            }
            // A Host of its own belongs to the first request; an absolute location names another one.
            if next.peer() != request.url.peer() || location.contains("://") || location.starts_with("//") {
                request.headers.remove("host");
            }
            request.url = next;
        }
        Err(Error::Malformed("stopped after 10 redirects"))
    }

    async fn request(&self, request: &Request) -> Result<(Answer, Option<String>), Error> {
        let reuse = self.idle.filter(|_| request.url == self.url);
        // The application may have closed a kept one meanwhile: then a new one is made.
        if let Some(kept) = reuse.and_then(Idle::take)
            && let Ok(answer) = self.ask(request, kept, reuse).await
        {
            return Ok(answer);
        }
        let connection = match self.deadline {
            None => self.connect(&request.url).await?,
            Some(deadline) => timeout_at(deadline, self.connect(&request.url)).await.unwrap_or(Err(Error::Timeout))?,
        };
        self.ask(request, connection, reuse).await
    }

    /// Connects, with TLS where the URL says so; the application chooses between HTTP/2 and 1.1.
    async fn connect(&self, url: &Url) -> Result<Connection, Error> {
        let tcp = dial::tcp(&url.host, url.port, self.source).await.map_err(Error::Connect)?;
        if !url.tls {
            return Ok(Connection::Http1(Box::new(tcp)));
        }
        let failed = |error| Error::Tls(url.peer(), error);
        let config = self.tls.config().map_err(failed)?;
        match tls::connect_any(Box::new(tcp), config, &url.host).await.map_err(failed)? {
            (io, true) => Ok(Connection::Http2(Box::new(http2::Connection::open(io).await?))),
            (io, false) => Ok(Connection::Http1(io)),
        }
    }

    async fn ask(
        &self,
        request: &Request,
        connection: Connection,
        reuse: Option<&Idle>,
    ) -> Result<(Answer, Option<String>), Error> {
        let io = match connection {
            Connection::Http1(io) => io,
            Connection::Http2(connection) => {
                let (answer, connection) = connection.exchange(request, self.body).await?;
                let location = answer.headers.get("location").map(str::to_owned);
                if let (Some(idle), Some(connection)) = (reuse, connection) {
                    idle.put(Connection::Http2(Box::new(connection)));
                }
                return Ok((Answer { status: answer.status, body: answer.body }, location));
            }
        };
        let mut response = request.send_on(io).await?;
        let location = response.headers.get("location").map(str::to_owned);
        let (mut body, mut rest) = (Vec::new(), 0);
        // What has come of a body that breaks off counts.
        while rest < MAX_REST && (body.len() < self.body || reuse.is_some()) {
            let Ok(Some(piece)) = response.body.chunk().await else { break };
            let wanted = piece.len().min(self.body - body.len());
            body.extend_from_slice(&piece[..wanted]);
            rest += piece.len() - wanted;
        }
        let answer = Answer { status: response.status, body };
        if let (Some(idle), Some(io)) = (reuse, response.into_connection()) {
            idle.put(Connection::Http1(io));
        }
        Ok((answer, location))
    }
}

impl Idle {
    fn take(&self) -> Option<Connection> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        kept.filter(|(_, since)| since.elapsed() < IDLE).map(|(connection, _)| connection)
    }

    fn put(&self, connection: Connection) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((connection, Instant::now()));
    }
}

impl std::fmt::Debug for Idle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Idle")
    }
}

/// Whether this is no place of the web: `app:` or `mailto:` leads away from the host, too.
fn leads_to_another_scheme(location: &str) -> bool {
    let scheme = location.split_once(':').map(|(scheme, _)| scheme.to_ascii_lowercase());
    scheme.is_some_and(|scheme| {
        scheme.starts_with(|first: char| first.is_ascii_lowercase())
            && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
            && scheme != "http"
            && scheme != "https"
    })
}

#[cfg(test)]
mod tests;
