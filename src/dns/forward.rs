//! Asks the servers behind us: one after the other, one beside the other, or with a hedge, until one gives a usable answer.
//!
//! A server that fails, by silence or by its own words, gives way to the next. Only when all fail does the client hear of it: by
//! the failing answer of one that at least spoke, or by [`None`], which becomes SERVFAIL. Answers are never looked into further.

use std::{
    collections::VecDeque,
    io::{self, ErrorKind},
    net::SocketAddr,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::{Instant, sleep, sleep_until};

use super::{message::Transport, servers::Servers};
use crate::{
    base::{BoxFuture, first},
    net::resolve::{
        exchange,
        frame::{self, rcode},
    },
};

/// How long a server has when nobody says otherwise (Istio: DNS_FORWARD_TIMEOUT).
const TIMEOUT: Duration = Duration::from_secs(5);
/// How many datagrams a server is sent within that time when resolv.conf does not say (RES_DFLRETRY).
const ATTEMPTS: u32 = 2;
/// Pause before all servers are asked again.
const ROUND: Duration = Duration::from_millis(50);

/// How servers are asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// When the next server is asked while the one before has not answered; `None` waits until it failed, zero asks all at once.
    pub stagger: Option<Duration>,
    /// How long one server has; `None` takes resolv.conf's `timeout`, else 5 s.
    pub timeout: Option<Duration>,
    /// How many datagrams it is sent in that time; `None` takes resolv.conf's `attempts`, else 2.
    pub attempts: Option<u32>,
    /// How often all servers are asked again after all failed.
    pub retries: u32,
}

/// The way out.
#[derive(Debug)]
pub struct Forwarder {
    servers: Mutex<Servers>,
    policy: Policy,
}

impl Forwarder {
    /// Forwards to `servers`.
    pub fn new(servers: Servers, policy: Policy) -> Forwarder {
        Forwarder { servers: Mutex::new(servers), policy }
    }

    /// The servers and search list now.
    pub fn servers(&self) -> MutexGuard<'_, Servers> {
        let mut servers = self.servers.lock().unwrap_or_else(PoisonError::into_inner);
        servers.refresh(Instant::now());
        servers
    }

    /// The answer to `query`, with its id; `None` when no server gave any.
    pub async fn forward(&self, query: &[u8], transport: Transport) -> Option<Vec<u8>> {
        let mut failing = None;
        for round in 0..=self.policy.retries {
            if round > 0 {
                sleep(ROUND).await;
            }
            match self.round(query, transport).await {
                Some(reply) if is_usable(&reply) => return Some(reply),
                Some(reply) => failing = Some(reply),
                None => {}
            }
        }
        failing
    }

    /// Each server once: the first usable answer, else the first failing one.
    async fn round(&self, query: &[u8], transport: Transport) -> Option<Vec<u8>> {
        let (mut waiting, options) = {
            let mut servers = self.servers();
            (VecDeque::from(servers.order(Instant::now())), servers.options())
        };
        let patience = self.policy.timeout.or(options.timeout).unwrap_or(TIMEOUT);
        let sends = self.policy.attempts.or(options.attempts).unwrap_or(ATTEMPTS);
        let mut running: Vec<BoxFuture<'_, (SocketAddr, io::Result<Vec<u8>>)>> = Vec::new();
        let mut failing = None;
        loop {
            if let Some(server) = waiting.pop_front() {
                running.push(Box::pin(async move { (server, ask(server, query, transport, sends, patience).await) }));
            }
            if running.is_empty() {
                return failing;
            }
            let next = self.policy.stagger.filter(|_| !waiting.is_empty()).map(|stagger| Instant::now() + stagger);
            tokio::select! {
                biased;
                () = async { sleep_until(next.unwrap_or_else(Instant::now)).await }, if next.is_some() => {}
                (server, result) = first(&mut running) => {
                    let is_news = match &result {
                        Err(error) if !is_of_server(error) => false,
                        _ => self.servers().note(server, result.is_ok(), Instant::now()),
                    };
                    match result {
                        Ok(reply) if is_usable(&reply) => return Some(reply),
                        Ok(reply) => failing = failing.or(Some(reply)),
                        Err(error) if is_news => log::info!(target: "dns", "upstream failure: {error}"),
                        Err(error) => log::debug!(target: "dns", "upstream failure: {error}"),
                    }
                }
            }
        }
    }
}

async fn ask(
    server: SocketAddr,
    query: &[u8],
    transport: Transport,
    sends: u32,
    patience: Duration,
) -> io::Result<Vec<u8>> {
    let mut reply = match transport {
        Transport::Udp => exchange::udp(server, query, sends, patience).await?,
        Transport::Tcp => match exchange::tcp(server, query, patience).await {
            // The server closed a connection that it had just taken, as one does that is restarting: once more.
            Err(error)
                if matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset) && sends > 1 =>
            {
                exchange::tcp(server, query, patience).await?
            }
            other => other?,
        },
    };
    if frame::trim(&mut reply) {
        Ok(reply)
    } else {
        Err(io::Error::new(ErrorKind::InvalidData, format!("{server}: broken answer")))
    }
}

/// Whether the server is to blame, not this machine, which may have no descriptors left.
fn is_of_server(error: &io::Error) -> bool {
    use ErrorKind::{
        ConnectionRefused, ConnectionReset, HostUnreachable, InvalidData, NetworkUnreachable, TimedOut, UnexpectedEof,
    };
    matches!(
        error.kind(),
        ConnectionRefused
            | ConnectionReset
            | HostUnreachable
            | InvalidData
            | NetworkUnreachable
            | TimedOut
            | UnexpectedEof
    )
}

/// Whether another server could not do better: "no such name" is an answer, "I cannot" is none.
fn is_usable(reply: &[u8]) -> bool {
    !matches!(frame::rcode_of(reply), rcode::FORMERR | rcode::SERVFAIL | rcode::NOTIMP | rcode::REFUSED)
}
