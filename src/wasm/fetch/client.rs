//! One request for a plugin: through the guard, a proxy, TLS and redirects to the head of the final answer.
//!
//! Called by `web` and by `oci`. Retries nothing; credentials go to the host for which they are meant and to nobody else.

use std::{
    error::Error as _,
    fmt, io,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use bytes::Bytes;
use rustls::ClientConfig;
use tokio::time::{Instant, timeout_at};

use crate::net::{
    BoxIo, dial,
    http1::{
        self, Url,
        client::{Request, Response},
    },
    tls::{self, Policy, Protocol, Roots, SystemStore},
};

use super::{guard::Guard, proxies::Proxies};

/// As many as Go's client follows.
const MAX_REDIRECTS: usize = 10;
const AGENT: &str = concat!("footman/", env!("CARGO_PKG_VERSION"));

/// How plugins' servers are reached.
#[derive(Debug, Clone, Default)]
pub(in crate::wasm) struct Client {
    pub(in crate::wasm) guard: Guard,
    pub(in crate::wasm) proxies: Proxies,
    /// `WASM_INSECURE_REGISTRIES`: `host[:port]` whose certificates are not verified; `*` means all.
    pub(in crate::wasm) insecure: Vec<String>,
    /// Whom the others' certificates are verified against.
    pub(in crate::wasm) store: SystemStore,
    /// What connections under way share, verifying and not: fetches are rare, and the system's roots take more memory than all else of one.
    pub(in crate::wasm) tls: Arc<[Mutex<Weak<ClientConfig>>; 2]>,
}

/// A request.
#[derive(Clone)]
pub(in crate::wasm) struct Ask {
    pub(in crate::wasm) url: Url,
    /// The value of `Authorization`; it does not follow a redirect to another host.
    pub(in crate::wasm) authorization: Option<String>,
    pub(in crate::wasm) accept: Option<&'static str>,
    /// A form to POST; without one it is a GET.
    pub(in crate::wasm) form: Option<String>,
    pub(in crate::wasm) deadline: Instant,
}

/// Why there is no answer.
#[derive(Debug)]
pub(in crate::wasm) enum Error {
    Http(http1::Error),
    Tls(tls::Error),
    /// The server on a port where TLS was expected speaks HTTP without it.
    PlainServer,
    TooManyRedirects,
    Proxy(u16),
}

impl Ask {
    pub(in crate::wasm) fn get(url: Url, deadline: Instant) -> Ask {
        Ask { url, authorization: None, accept: None, form: None, deadline }
    }
}

impl Client {
    /// Whether certificates of `url`'s server are verified.
    fn verifies(&self, url: &Url) -> bool {
        !self.insecure.iter().any(|entry| entry == "*" || *entry == url.authority() || *entry == url.peer())
    }

    /// The head of the answer, after redirects; everything, the body included, is over at the deadline.
    pub(in crate::wasm) async fn send(&self, ask: &Ask) -> Result<Response, Error> {
        if ask.deadline <= Instant::now() {
            return Err(Error::Http(http1::Error::Timeout));
        }
        let verify = self.verifies(&ask.url);
        let mut request = Request::new(if ask.form.is_some() { "POST" } else { "GET" }, ask.url.clone());
        request.deadline = Some(ask.deadline);
        request = request.header("User-Agent", AGENT);
        if let Some(accept) = ask.accept {
            request = request.header("Accept", accept);
        }
        if let Some(form) = &ask.form {
            request.body = Bytes::from(form.clone());
            request = request.header("Content-Type", "application/x-www-form-urlencoded");
        }
        if let Some(authorization) = &ask.authorization {
            request = request.header("Authorization", authorization.clone());
        }
        for _ in 0..=MAX_REDIRECTS {
            let response = timeout_at(ask.deadline, self.exchange(&request, verify)).await;
            let response = response.map_err(|_| Error::Http(http1::Error::Timeout))??;
            let location = response.headers.get("location").filter(|_| is_redirect(response.status, &request.method));
            let Some(location) = location else {
                return Ok(response);
            };
            let next = request.url.join(location).map_err(Error::Http)?;
            if next.host != ask.url.host || next.port != ask.url.port || (ask.url.tls && !next.tls) {
                request.headers.remove("Authorization");
            }
            request.url = next;
        }
        Err(Error::TooManyRedirects)
    }

    async fn exchange(&self, request: &Request, verify: bool) -> Result<Response, Error> {
        let url = &request.url;
        let proxy = self.proxies.for_url(url);
        let deadline = request.deadline.unwrap_or_else(Instant::now);
        let mut io = self.dial(proxy.map_or(url, |proxy| &proxy.url), deadline).await?;
        let mut request = request.clone();
        if let Some(proxy) = proxy {
            // The proxy resolves names by itself; an address is checked here.
            if let Ok(ip) = url.host.parse() {
                self.guard.check(ip).map_err(|reason| blocked(url, &reason))?;
            }
            if proxy.url.tls {
                io = self.secure(io, &proxy.url, true).await?;
            }
            let authorization = proxy.authorization.clone();
            if url.tls {
                io = tunnel(io, url, authorization, deadline).await?;
            } else {
                request.headers.set("Host", url.authority());
                request.url.target = url.to_string();
                if let Some(authorization) = authorization {
                    request.headers.set("Proxy-Authorization", authorization);
                }
            }
        }
        if url.tls {
            io = self.secure(io, url, verify).await?;
        }
        request.send_on(io).await.map_err(Error::Http)
    }

    async fn dial(&self, url: &Url, deadline: Instant) -> Result<BoxIo, Error> {
        let tcp = dial::tcp_to_allowed(&url.host, url.port, deadline, &|ip| self.guard.check(ip)).await;
        let tcp = tcp.map_err(|error| match error.kind() {
            io::ErrorKind::TimedOut => Error::Http(http1::Error::Timeout),
            _ => Error::Http(http1::Error::Io(error)),
        })?;
        Ok(Box::new(tcp))
    }

    async fn secure(&self, io: BoxIo, url: &Url, verify: bool) -> Result<BoxIo, Error> {
        let config = self.tls(verify).map_err(Error::Tls)?;
        tls::connect(io, config, &url.host)
            .await
            .map_err(|error| if is_plain(&error) { Error::PlainServer } else { Error::Tls(error) })
    }

    fn tls(&self, verify: bool) -> Result<Arc<ClientConfig>, tls::Error> {
        let mut shared = self.tls[usize::from(verify)].lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(config) = shared.upgrade() {
            return Ok(config);
        }
        let roots = if verify { Roots::System(self.store.clone()) } else { Roots::Unverified };
        let config = tls::client_config(&roots, None, Policy::Default, Protocol::Http1)?;
        *shared = Arc::downgrade(&config);
        Ok(config)
    }
}

fn is_redirect(status: u16, method: &str) -> bool {
    method == "GET" && matches!(status, 301 | 302 | 303 | 307 | 308)
}

async fn tunnel(io: BoxIo, url: &Url, authorization: Option<String>, deadline: Instant) -> Result<BoxIo, Error> {
    let mut connect = Request::new("CONNECT", Url { target: url.peer(), ..url.clone() }).header("Host", url.peer());
    connect.deadline = Some(deadline);
    connect.keep_alive = true;
    if let Some(authorization) = authorization {
        connect = connect.header("Proxy-Authorization", authorization);
    }
    let response = connect.send_on(io).await.map_err(Error::Http)?;
    let status = response.status;
    response.into_connection().filter(|_| (200..300).contains(&status)).ok_or(Error::Proxy(status))
}

fn blocked(url: &Url, reason: &str) -> Error {
    let text = format!("{}: {reason}", url.peer());
    Error::Http(http1::Error::Io(io::Error::new(io::ErrorKind::PermissionDenied, text)))
}

/// Whether the handshake failed since the answer was no TLS at all.
fn is_plain(error: &tls::Error) -> bool {
    let tls::Error::Handshake(error) = error else { return false };
    let cause = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    matches!(cause, Some(rustls::Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType)))
}

impl Error {
    /// Whether the same request may succeed later.
    pub(in crate::wasm) fn is_retryable(&self) -> bool {
        match self {
            Error::Http(http1::Error::Io(error)) => error.kind() != io::ErrorKind::PermissionDenied,
            Error::Http(error) => error.is_retryable(),
            Error::Tls(tls::Error::Handshake(error)) => !error.get_ref().is_some_and(is_untrusted),
            Error::Proxy(_) => true,
            Error::Tls(_) | Error::PlainServer | Error::TooManyRedirects => false,
        }
    }

    /// Whether the deadline is what ended it.
    pub(in crate::wasm) fn is_timeout(&self) -> bool {
        matches!(self, Error::Http(http1::Error::Timeout))
    }
}

fn is_untrusted(error: &(dyn std::error::Error + Send + Sync + 'static)) -> bool {
    matches!(error.downcast_ref(), Some(rustls::Error::InvalidCertificate(_)))
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Http(http1::Error::Timeout) => f.write_str("context deadline exceeded"),
            Error::Http(error) => error.fmt(f),
            Error::Tls(error) => match error.source() {
                Some(cause) => write!(f, "TLS: {cause}"),
                None => write!(f, "TLS: {error}"),
            },
            Error::PlainServer => f.write_str("http: server gave HTTP response to HTTPS client"),
            Error::TooManyRedirects => write!(f, "stopped after {MAX_REDIRECTS} redirects"),
            Error::Proxy(status) => write!(f, "proxy answered CONNECT with status {status}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Http(error) => Some(error),
            Error::Tls(error) => Some(error),
            _ => None,
        }
    }
}
