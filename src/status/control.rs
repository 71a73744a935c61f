//! `/drain` and `/quitquitquit`: what others in the pod may ask of the agent. Changes nothing but by [`Event`].
//!
//! On the status port any process of the pod may call them. Where `FOOTMAN_CONTROL_SOCKET` names a socket, they are taken there only,
//! from processes of the agent's own user or root.

use std::{io, os::fd::AsFd};

use nix::{
    sys::socket::{getsockopt, sockopt},
    unistd::getuid,
};
use tokio::sync::{mpsc, oneshot};

use super::routes::{not_found, wrong_method};
use crate::{
    net::http1::server::{Answer, Reply, Request, Service},
    wires::Event,
};

/// Hands requests on to the lifecycle.
#[derive(Clone)]
pub struct Control(pub mpsc::Sender<Event>);

impl Control {
    /// Answers `POST` of one of the two paths.
    pub async fn answer(&self, path: &str, request: &Request, reply: Reply<'_>) -> io::Result<()> {
        if request.method != "POST" {
            return wrong_method(reply).await;
        }
        if path == "/drain" {
            let (done, answered) = oneshot::channel();
            // The lifecycle bounds its answer in time; without one, the drain has become pointless.
            if self.0.send(Event::Drain(done)).await.is_ok() {
                let _ = answered.await;
            }
            return ok(reply).await;
        }
        // The reply leaves first: the agent may be gone a moment later.
        let sent = ok(reply).await;
        let _ = self.0.send(Event::Quit).await;
        sent
    }
}

impl Service for Control {
    fn call<'a>(&'a self, request: &'a Request, reply: Reply<'a>) -> Answer<'a> {
        Box::pin(async move {
            match &*request.path {
                path @ ("/drain" | "/quitquitquit") => self.answer(path, request, reply).await,
                _ => not_found(reply).await,
            }
        })
    }
}

/// Whether the process at the other end may control the agent.
pub fn is_owner(stream: &impl AsFd) -> bool {
    let peer = getsockopt(stream, sockopt::PeerCredentials);
    peer.is_ok_and(|peer| peer.uid() == 0 || peer.uid() == getuid().as_raw())
}

async fn ok(reply: Reply<'_>) -> io::Result<()> {
    reply.send(200, "text/plain; charset=utf-8", b"OK").await
}
