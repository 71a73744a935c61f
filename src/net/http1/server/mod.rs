//! The server: keep-alive, pipelining, chunked bodies both ways, HEAD, `Expect: 100-continue`, gzip, and limits on everything.
//!
//! Called by `status`. Meant for a port that faces the network: no client can make it hold more than [`Limits`] allow, and when all
//! connections are taken, those that wait for their client make room first. Request bodies are read and dropped before the service is
//! called: nothing on the status port has a use for one.

mod connection;
mod encoding;
mod reply;
mod slots;

use std::{
    future::Future,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use tokio::net::TcpListener;

use connection::serve;
pub use connection::serve_one;
pub use reply::{Reply, Stream};
use slots::Slots;

use super::{Headers, Url, url::percent_decode};
use crate::{base::Drain, net::listen};

/// What answers requests.
pub trait Service: Send + Sync {
    /// Answers one request by `reply`. The future is dropped when the client is gone.
    fn call<'a>(&'a self, request: &'a Request, reply: Reply<'a>) -> Answer<'a>;
}

/// The future of one answer; an error closes the connection.
pub type Answer<'a> = Pin<Box<dyn Future<Output = io::Result<()>> + Send + 'a>>;

/// A request whose body has been read.
#[derive(Debug)]
pub struct Request {
    /// As it came: methods are case-sensitive.
    pub method: String,
    /// Decoded path; begins with `/`. Who asks for one with empty, `.` or `..` segments is sent to the one without.
    pub path: String,
    /// The query as it came, without `?`.
    pub query: Option<String>,
    /// Fields as they came.
    pub headers: Headers,
    /// Who connected; `None` when the connection does not say.
    pub peer: Option<IpAddr>,
}

/// What a client may cost.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Connections at once.
    pub connections: usize,
    /// From the first byte of a head to its last. A slower client is told 408.
    pub head: Duration,
    /// Between requests. Longer than Prometheus' scrape and kubelet's probe periods, so that their connections are reused.
    pub idle: Duration,
    /// For reading a request body.
    pub body_time: Duration,
    /// Bytes of a request body; more is answered with 413.
    pub body: u64,
    /// Without any progress of a write: a client that does not read its answer.
    pub stall: Duration,
    /// How much longer an answer may take after the client has closed its side: it may only have shut down its writing half.
    pub half_closed: Duration,
    /// How long answers under way may take once the server drains.
    pub drain: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections: 2048,
            head: Duration::from_secs(10),
            idle: Duration::from_secs(300),
            body_time: Duration::from_secs(10),
            body: 1 << 20,
            stall: Duration::from_secs(20),
            half_closed: Duration::from_secs(1),
            drain: Duration::from_millis(400),
        }
    }
}

/// Pause after a failed accept for which no connection can make room.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A bound listener.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    limits: Limits,
}

impl Server {
    /// Binds `port` on all addresses of both families, or of IPv4 where there is no IPv6. Port 0 takes a free one.
    ///
    /// # Errors
    /// When the port is taken or not permitted; the text names it.
    pub fn bind(port: u16) -> io::Result<Server> {
        let listener = match listen(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port))) {
            Err(error) if error.kind() != io::ErrorKind::AddrInUse => listen((Ipv4Addr::UNSPECIFIED, port).into()),
            done => done,
        };
        let named = |error: io::Error| io::Error::new(error.kind(), format!("port {port}: {error}"));
        Ok(Server { listener: listener.map_err(named)?, limits: Limits::default() })
    }

    /// Binds one address only.
    ///
    /// # Errors
    /// When it is taken or not permitted; the text names it.
    pub fn bind_address(address: SocketAddr) -> io::Result<Server> {
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{address}: {error}"));
        Ok(Server { listener: listen(address).map_err(named)?, limits: Limits::default() })
    }

    /// With other limits.
    #[must_use]
    pub fn with_limits(mut self, limits: Limits) -> Server {
        self.limits = limits;
        self
    }

    /// Where it listens.
    ///
    /// # Errors
    /// When the kernel does not say.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until the drain starts; then answers under way are finished, within the limit for that.
    pub async fn run(self, service: Arc<dyn Service>, mut drain: Drain) {
        let slots = Slots::new(self.limits.connections);
        loop {
            let accepted = tokio::select! {
                () = drain.started() => break,
                accepted = self.listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, peer)) => {
                    let Some(slot) = slots.enter() else { continue };
                    let _ = stream.set_nodelay(true);
                    let (service, drain, limits) = (service.clone(), drain.clone(), self.limits);
                    let peer = Some(peer.ip().to_canonical());
                    tokio::spawn(async move {
                        serve(Box::new(stream), peer, &*service, &limits, slot, drain).await;
                    });
                }
                // No descriptor is left, or the client is gone already.
                Err(error) => {
                    if !slots.make_room() {
                        log::warn!(target: "healthcheck", "status port: cannot accept: {error}");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                }
            }
        }
        drop(self.listener);
        let _ = tokio::time::timeout(self.limits.drain, slots.empty()).await;
    }
}

impl Request {
    /// Path and query out of a request target: origin form, absolute form or `*` (RFC 9112 §3.2).
    fn split_target(target: &str) -> Option<(String, Option<String>)> {
        let url;
        let target = match target.as_bytes().first()? {
            b'/' => target,
            b'*' if target.len() == 1 => "/*",
            _ => {
                url = Url::parse(target).ok()?;
                &url.target
            }
        };
        let target = target.split('#').next().unwrap_or_default();
        let (path, query) = target.split_once('?').map_or((target, None), |(path, query)| (path, Some(query)));
        Some((path.to_owned(), query.map(str::to_owned)))
    }
}

/// The path without empty, `.` and `..` segments; Go's server redirects to it.
fn clean(path: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    for segment in path.split('/') {
        match segment {
            "" | "." => {}
            ".." => drop(kept.pop()),
            _ => kept.push(segment),
        }
    }
    let slash = if path.ends_with('/') && !kept.is_empty() { "/" } else { "" };
    format!("/{}{slash}", kept.join("/"))
}

#[cfg(test)]
mod tests;
