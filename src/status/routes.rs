//! What is where on the status port, and who may call it.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use super::{Status, app::Outcome};
use crate::net::http1::server::{Answer, Reply, Request, Service};

/// Content type of texts.
pub(super) const PLAIN: &str = "text/plain; charset=utf-8";
/// Content type of states and tables.
pub(super) const JSON: &str = "application/json";
/// Content type of the page for people.
pub(super) const HTML: &str = "text/html; charset=utf-8";

impl Service for Status {
    fn call<'a>(&'a self, request: &'a Request, reply: Reply<'a>) -> Answer<'a> {
        Box::pin(self.route(request, reply))
    }
}

impl Status {
    async fn route(&self, request: &Request, reply: Reply<'_>) -> io::Result<()> {
        let path = &*request.path;
        match path {
            "/healthz/ready" => match self.ready.check().await {
                Ok(notes) => reply.send(200, if notes.is_empty() { "" } else { PLAIN }, notes.as_bytes()).await,
                Err(reasons) => {
                    let reply = if self.ready.is_closed() { reply.last() } else { reply };
                    reply.send(503, PLAIN, reasons.as_bytes()).await
                }
            },
            "/stats/prometheus" | "/metrics" if self.config.metrics_local_only && !is_local(request) => {
                forbidden(reply).await
            }
            "/stats/prometheus" | "/metrics" => self.scraper.answer(request, reply).await,
            "/quitquitquit" | "/drain" if !is_local(request) => forbidden(reply).await,
            "/quitquitquit" | "/drain" if self.config.control_socket.is_some() => {
                let text = "This request is taken on the control socket only\n";
                refuse(reply, 403, text).await
            }
            "/quitquitquit" | "/drain" => self.control.answer(path, request, reply).await,
            "/debug" if !self.may_debug(request) => forbidden(reply).await,
            "/debug" => self.debug.answer("", &self.ready, reply).await,
            _ if is_below(path, "/app-health") || is_below(path, "/app-lifecycle") => {
                self.application(path, request, reply).await
            }
            _ => match path.strip_prefix("/debug/") {
                Some(_) if !self.may_debug(request) => forbidden(reply).await,
                Some(name) => self.debug.answer(name, &self.ready, reply).await,
                None => not_found(reply).await,
            },
        }
    }

    fn may_debug(&self, request: &Request) -> bool {
        self.config.debug_remote || is_local(request)
    }

    async fn application(&self, path: &str, request: &Request, reply: Reply<'_>) -> io::Result<()> {
        match self.applications.probe(path, request).await {
            Outcome::Answered(status, body) => reply.send(status, sniff(&body), &body).await,
            Outcome::Passed => reply.send(200, "", b"").await,
            Outcome::Failed => reply.send(500, "", b"").await,
            Outcome::Unknown => {
                let text = format!("app prober config does not exists for {path}");
                reply.send(400, PLAIN, text.as_bytes()).await
            }
        }
    }
}

/// 404 as Go's server says it.
pub(super) async fn not_found(reply: Reply<'_>) -> io::Result<()> {
    refuse(reply, 404, "404 page not found\n").await
}

/// 405.
pub(super) async fn wrong_method(reply: Reply<'_>) -> io::Result<()> {
    refuse(reply, 405, "Method Not Allowed\n").await
}

async fn forbidden(reply: Reply<'_>) -> io::Result<()> {
    refuse(reply, 403, "Only requests from localhost are allowed\n").await
}

async fn refuse(reply: Reply<'_>, status: u16, text: &str) -> io::Result<()> {
    reply.header("X-Content-Type-Options", "nosniff").send(status, PLAIN, text.as_bytes()).await
}

/// Whether the caller is in this pod. 127.0.0.6 and `::6` are not: from there Envoy passes on what came from the network.
fn is_local(request: &Request) -> bool {
    match request.peer {
        Some(IpAddr::V4(ip)) => ip.is_loopback() && ip != Ipv4Addr::new(127, 0, 0, 6),
        Some(IpAddr::V6(ip)) => ip == Ipv6Addr::LOCALHOST,
        None => false,
    }
}

fn is_below(path: &str, folder: &str) -> bool {
    path.strip_prefix(folder).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// A content type for a body of which nothing is known.
fn sniff(body: &[u8]) -> &'static str {
    match body.trim_ascii_start() {
        _ if body.is_empty() => "",
        [b'<', ..] => HTML,
        text if text.iter().any(|byte| matches!(byte, 0..=8 | 14..=26)) => "application/octet-stream",
        _ => PLAIN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_local() {
        for (peer, local) in [
            ("127.0.0.1", true),
            ("127.1.2.3", true),
            ("::1", true),
            ("127.0.0.6", false),
            ("::6", false),
            ("10.0.0.1", false),
            ("::", false),
        ] {
            let peer = Some(peer.parse().unwrap());
            let request =
                Request { method: String::new(), path: String::new(), query: None, headers: Default::default(), peer };
            assert_eq!(is_local(&request), local, "{peer:?}");
        }
    }

    #[test]
    fn bodies_are_sniffed() {
        assert_eq!(sniff(b""), "");
        assert_eq!(sniff(b" \n"), PLAIN);
        assert_eq!(sniff(b" <html>"), HTML);
        assert_eq!(sniff(b"fine"), PLAIN);
        assert_eq!(sniff(b"a\0"), "application/octet-stream");
    }
}
