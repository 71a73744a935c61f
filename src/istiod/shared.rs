//! One connection to istiod, shared by all calls of the agent that go to the same endpoint with the same credentials.
//!
//! It is dialled when a call needs it. A connection that istiod has said goodbye to (GOAWAY), or whose roots or client certificate
//! have changed on disk since, takes no new calls; the calls on it go on, unless its server is no longer believed ([`roll`](super::roll)).

use std::{
    future::{Future, pending},
    net::IpAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use prost::Message;
use ring::digest::{Context, SHA256};
use rustls::ClientConfig;
use tokio::{
    sync::watch,
    time::{Instant, timeout_at},
};

use super::{
    Config, Endpoint, Exchange, RootSource, Tls, Token,
    material::{Fingerprint, Material},
    roll::Basis,
};
use crate::{
    base::apart,
    grpc::{Call, Client, Code, Metadata, Receiver, Sender, Settings, Status, decoded, framed},
    net::{BoxIo, Socket, dial, tls},
};

/// A dial ends after so long, TCP, TLS and the first word of HTTP/2 together.
const DIAL: Duration = Duration::from_secs(8);

/// What istiod may send on a stream ahead of Envoy: Istio's 1 MiB and a little, so that a response of that size never waits for our
/// word. A stalled Envoy costs no more than this.
const STREAM_WINDOW: u32 = (1024 + 64) * 1024;

/// The way to istiod for one purpose; clones share everything.
#[derive(Clone)]
pub struct Istiod {
    connection: Arc<Shared>,
    purpose: Arc<Purpose>,
}

struct Purpose {
    headers: Vec<(String, String)>,
    token: Token,
    exchange: Option<Exchange>,
    /// The token's last complaint, so that each is logged once.
    complaint: Said,
}

struct Shared {
    endpoint: Endpoint,
    state: tokio::sync::Mutex<State>,
    /// Counts dials that ended, so that whoever waited for one shares its failure instead of dialling again.
    dials: AtomicU64,
    /// Counts the dials that brought a connection.
    connected: watch::Sender<u64>,
    /// Counts up when the live connection is to take no more calls.
    generation: AtomicU64,
    /// The address of the live connection turned us away.
    avoid: AtomicBool,
    outage: Said,
    identity: Said,
}

#[derive(Default)]
struct State {
    live: Option<Live>,
    /// Settings that were usable, for when a file is broken for a while.
    last_good: Option<Usable>,
    failure: Option<Status>,
    /// The address that has turned us away.
    avoided: Option<IpAddr>,
}

/// Settings of TLS, and what they were made of.
#[derive(Clone)]
struct Usable {
    fingerprint: Fingerprint,
    config: Arc<ClientConfig>,
    /// When the certificate that is shown ends.
    ends: Option<SystemTime>,
}

struct Live {
    client: Client,
    fingerprint: Fingerprint,
    generation: u64,
    peer: Option<IpAddr>,
}

impl Istiod {
    /// A way to istiod; nothing is dialled yet.
    pub fn new(config: Config) -> Istiod {
        let shared = Shared {
            endpoint: config.endpoint,
            state: tokio::sync::Mutex::default(),
            dials: AtomicU64::new(0),
            connected: watch::Sender::new(0),
            generation: AtomicU64::new(0),
            avoid: AtomicBool::new(false),
            outage: Said::default(),
            identity: Said::default(),
        };
        let purpose = Purpose::new(config.headers, config.token, config.exchange);
        Istiod { connection: Arc::new(shared), purpose: Arc::new(purpose) }
    }

    /// A way for another purpose, over the same connection when its endpoint is the same.
    pub fn beside(&self, config: Config) -> Istiod {
        if config.endpoint != self.connection.endpoint {
            return Istiod::new(config);
        }
        let purpose = Purpose::new(config.headers, config.token, config.exchange);
        Istiod { connection: Arc::clone(&self.connection), purpose: Arc::new(purpose) }
    }

    /// The same way, with a header more.
    #[must_use]
    pub fn with_header(&self, name: &str, value: String) -> Istiod {
        let Purpose { headers, token, exchange, .. } = &*self.purpose;
        let headers = headers.iter().cloned().chain([(name.to_owned(), value)]).collect();
        let purpose = Purpose::new(headers, token.clone(), exchange.clone());
        Istiod { connection: Arc::clone(&self.connection), purpose: Arc::new(purpose) }
    }

    /// `host:port` as configured.
    pub fn address(&self) -> &str {
        &self.connection.endpoint.address
    }

    /// Changes with each new connection, whichever purpose needed it.
    pub fn connected(&self) -> watch::Receiver<u64> {
        self.connection.connected.subscribe()
    }

    /// Opens a stream, dialling first when needed.
    ///
    /// # Errors
    /// Why istiod cannot be reached, with its address.
    pub async fn stream(&self, path: &str) -> Result<(Sender, Receiver), Status> {
        let (call, client) = self.prepare(path).await?;
        match client.stream(&call).await {
            // It said goodbye between our look and our call.
            Err(status) if status.is_unprocessed() => self.connection.client().await?.stream(&call).await,
            opened => opened,
        }
    }

    /// One request, one answer, within `deadline`, the dial included.
    ///
    /// # Errors
    /// Why istiod cannot be reached, or how it answered.
    pub async fn unary<Q, R>(&self, path: &str, request: &Q, deadline: Duration) -> Result<R, Status>
    where
        Q: Message,
        R: Message + Default,
    {
        decoded(self.unary_framed(path, framed(request)?, deadline).await?)
    }

    async fn unary_framed(&self, path: &str, framed: Bytes, deadline: Duration) -> Result<Bytes, Status> {
        let begun = Instant::now();
        let mut is_first = true;
        loop {
            let (mut call, client) = self.prepare(path).await?;
            call.deadline = Some(deadline.saturating_sub(begun.elapsed()));
            match client.unary_framed(&call, framed.clone()).await {
                // Once, as grpc-go: whoever refuses every call would otherwise be asked without pause.
                Err(status) if status.is_unprocessed() && is_first => is_first = false,
                answered => return answered,
            }
        }
    }

    /// Where istiod says that it does not know us: what is wrong with the token as far as it can be seen from here, to be put behind
    /// its word; else nothing.
    pub fn token_doubt(&self, status: &Status) -> String {
        let unknown = status.code == Code::Unauthenticated;
        let doubt = unknown.then(|| self.purpose.token.doubt()).flatten();
        doubt.map_or_else(String::new, |doubt| format!(" ({doubt})"))
    }

    /// Makes sure that there is a connection that takes calls.
    ///
    /// # Errors
    /// Why istiod cannot be reached.
    pub async fn connect(&self) -> Result<(), Status> {
        self.connection.client().await.map(drop)
    }

    /// The live connection takes no more calls: the next one dials anew, and reads every file again.
    pub fn retire(&self) {
        self.connection.generation.fetch_add(1, Ordering::Relaxed);
    }

    /// The next dial prefers another address than that of the live connection, which takes no more calls.
    pub fn avoid(&self) {
        self.connection.avoid.store(true, Ordering::Relaxed);
        self.retire();
    }

    /// A digest of token, roots and certificate as they are now: changes when there is reason to hope for another answer.
    pub async fn credentials(&self) -> [u8; 32] {
        let mut context = Context::new(&SHA256);
        if let Some(tls) = &self.connection.endpoint.tls {
            context.update(&Material::read(tls).fingerprint);
        }
        context.update(self.purpose.token().await.ok().flatten().unwrap_or_default().as_bytes());
        let mut digest = [0; 32];
        digest.copy_from_slice(context.finish().as_ref());
        digest
    }

    async fn prepare<'a>(&'a self, path: &'a str) -> Result<(Call<'a>, Client), Status> {
        let client = self.connection.client().await?;
        Ok((self.call(path).await?, client))
    }

    async fn call<'a>(&'a self, path: &'a str) -> Result<Call<'a>, Status> {
        let mut metadata = Metadata::default();
        for (name, value) in &self.purpose.headers {
            metadata.add(name, value)?;
        }
        if let Some(token) = self.purpose.token().await? {
            metadata.add("authorization", &format!("Bearer {token}"))?;
        }
        Ok(Call { path, authority: &self.connection.endpoint.authority, metadata, ..Call::default() })
    }
}

impl Purpose {
    fn new(headers: Vec<(String, String)>, token: Token, exchange: Option<Exchange>) -> Purpose {
        Purpose { headers, token, exchange, complaint: Said::default() }
    }

    /// The token, if there is one; why there is none is logged when it changes. A machine's token that cannot be fetched fails the call,
    /// as in Istio, and so does one that Google is to exchange. Whoever has no token file may have a certificate for istiod.
    async fn token(&self) -> Result<Option<String>, Status> {
        let (token, complaint) = match self.token.get().await {
            Ok(token) => (token, None),
            Err(complaint) if self.exchange.is_some() || matches!(self.token, Token::Google(_)) => {
                return Err(Status::transport(complaint));
            }
            Err(complaint) => (None, Some(complaint)),
        };
        if self.complaint.is_news(complaint.as_deref())
            && let Some(complaint) = complaint
        {
            log::warn!(target: "security", "{complaint}; calling istiod without a token");
        }
        match (&self.exchange, token) {
            (Some(exchange), Some(token)) => {
                apart(|| exchange.exchange(token)).await.map(Some).map_err(Status::transport)
            }
            (_, token) => Ok(token),
        }
    }
}

impl Shared {
    /// A connection that takes calls.
    async fn client(&self) -> Result<Client, Status> {
        let seen = self.dials.load(Ordering::Relaxed);
        let mut state = self.state.lock().await;
        if seen != self.dials.load(Ordering::Relaxed)
            && let Some(failure) = &state.failure
        {
            return Err(failure.clone());
        }
        let material = self.endpoint.tls.as_ref().map(|tls| (tls, Material::read(tls)));
        let chosen = match material {
            None => Ok(None),
            Some((tls, material)) => self.settings(tls, &material, &mut state).map(Some),
        };
        let usable = chosen.as_ref().ok().and_then(Option::as_ref);
        let fingerprint = usable.map_or([0; 32], |usable| usable.fingerprint);
        let generation = self.generation.load(Ordering::Relaxed);
        if let Some(live) = &mut state.live
            && live.generation == generation
            && live.fingerprint == fingerprint
            && live.client.is_usable()
        {
            return Ok(live.client.clone());
        }
        if self.avoid.swap(false, Ordering::Relaxed) {
            state.avoided = state.live.as_ref().and_then(|live| live.peer);
        }
        let dialled = match chosen {
            Ok(chosen) => apart(|| self.dial(chosen, state.avoided)).await,
            Err(status) => Err(status),
        };
        self.dials.fetch_add(1, Ordering::Relaxed);
        self.report(dialled.as_ref().err());
        state.failure = dialled.as_ref().err().cloned();
        let (client, peer) = dialled?;
        self.connected.send_modify(|count| *count += 1);
        state.live = Some(Live { client: client.clone(), fingerprint, generation, peer });
        Ok(client)
    }

    /// TLS settings by what the files say now, or else by what they said when they were last usable.
    fn settings(&self, tls: &Tls, material: &Material, state: &mut State) -> Result<Usable, Status> {
        let Material { fingerprint, ends, .. } = *material;
        let last_good = state.last_good.as_ref().filter(|usable| usable.fingerprint == fingerprint);
        let made = match last_good {
            Some(usable) => Ok(usable.clone()),
            None => material.config(tls).map(|config| Usable { fingerprint, config, ends }),
        };
        let (chosen, complaint) = match made {
            Ok(usable) => {
                state.last_good = Some(usable.clone());
                (Ok(usable), material.warning.clone())
            }
            Err(error) => {
                let text = format!("{error} ({})", tls.roots);
                match state.last_good.clone().filter(|_| matches!(error, tls::Error::NoRoots)) {
                    Some(kept) => (Ok(kept), Some(format!("{text}; keeping what was usable before"))),
                    // Logged as the reason why there is no connection.
                    None => (Err(self.failed(text)), None),
                }
            }
        };
        if self.identity.is_news(complaint.as_deref())
            && let Some(complaint) = complaint
        {
            log::warn!(target: "xdsproxy", "connection to {}: {complaint}", self.endpoint.address);
        }
        chosen
    }

    async fn dial(&self, usable: Option<Usable>, avoided: Option<IpAddr>) -> Result<(Client, Option<IpAddr>), Status> {
        let deadline = Instant::now() + DIAL;
        let endpoint = &self.endpoint;
        let late = || self.failed(format!("no answer within {} s", DIAL.as_secs()));
        let tcp = match &endpoint.proxy {
            None => apart(|| dial::tcp_avoiding(avoided, &endpoint.host, endpoint.port, deadline)).await,
            Some(proxy) => timeout_at(deadline, apart(|| proxy.connect(&endpoint.host, endpoint.port, deadline)))
                .await
                .map_err(|_| late())?,
        };
        let tcp = tcp.map_err(|error| match endpoint.proxy {
            None => Status::transport(format!("istiod {error}")),
            Some(_) => self.failed(error.to_string()),
        })?;
        let peer = tcp.peer_addr().ok().map(|address| address.ip());
        let socket = tcp.into_std().and_then(Socket::patient).map_err(|error| self.failed(error.to_string()))?;
        let (io, basis): (BoxIo, _) = match (usable, &endpoint.tls) {
            (Some(Usable { fingerprint, config, ends }), Some(tls)) => {
                let shaken = tls::connect_to_peer(Box::new(socket), config, &tls.server_name);
                let (io, peer) = timeout_at(deadline, shaken)
                    .await
                    .map_err(|_| late())?
                    .map_err(|error| self.failed(format!("{error} (name {:?}, {})", tls.server_name, tls.roots)))?;
                (io, peer.map(|peer| Basis { peer, fingerprint, ends }))
            }
            _ => (Box::new(socket), None),
        };
        let settings =
            Settings { stream_window: STREAM_WINDOW, keepalive: Some(endpoint.keepalive), ..Settings::default() };
        let (client, drive) = Client::handshake(io, settings).await?;
        tokio::spawn(apart(|| carry(drive, basis, endpoint.tls.clone(), endpoint.address.clone())));
        timeout_at(deadline, client.greeted()).await.map_err(|_| late())??;
        Ok((client, peer))
    }

    fn failed(&self, why: String) -> Status {
        Status::transport(format!("istiod {}: {why}", self.endpoint.address))
    }

    /// Logs the beginning of an outage, a change of its reason, and its end; nothing else.
    fn report(&self, failure: Option<&Status>) {
        let had = self.outage.since();
        if !self.outage.is_news(failure.map(|failure| failure.message.as_str())) {
            return;
        }
        match (failure, had) {
            (Some(failure), _) => {
                log::warn!(target: "xdsproxy", "cannot connect: {}; trying again when asked", failure.message)
            }
            (None, Some(since)) => {
                let away = since.elapsed().as_secs();
                log::info!(target: "xdsproxy", "istiod {}: connected again after {away} s", self.endpoint.address)
            }
            (None, None) => {}
        }
    }
}

/// Carries a connection until it ends, or until what it rests on is gone.
async fn carry(
    drive: impl Future<Output = Result<(), Status>>,
    basis: Option<Basis>,
    tls: Option<Tls>,
    address: String,
) {
    let lost = async {
        match (basis, &tls) {
            (Some(basis), Some(tls)) => basis.lost(tls).await,
            _ => pending().await,
        }
    };
    tokio::select! {
        _ = drive => {}
        reason = lost => log::info!(target: "xdsproxy", "istiod {address}: {reason}; ending this connection, dialling anew"),
    }
}

/// What was said last, so that it is not said again, and since when there is something to say.
#[derive(Default)]
struct Said(Mutex<Option<(String, Instant)>>);

impl Said {
    fn is_news(&self, text: Option<&str>) -> bool {
        let mut last = self.last();
        let news = last.as_ref().map(|(said, _)| &**said) != text;
        if news {
            let since = last.as_ref().map_or_else(Instant::now, |(_, since)| *since);
            *last = text.map(|text| (text.to_owned(), since));
        }
        news
    }

    fn since(&self) -> Option<Instant> {
        self.last().as_ref().map(|(_, since)| *since)
    }

    fn last(&self) -> MutexGuard<'_, Option<(String, Instant)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Display for RootSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            RootSource::System(_) => f.write_str("roots of the system"),
            RootSource::File(file) => write!(f, "roots {}", file.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn says_each_thing_once_and_knows_since_when() {
        let (said, begun) = (Said::default(), Instant::now());
        assert!(!said.is_news(None) && said.is_news(Some("refused")) && !said.is_news(Some("refused")));
        tokio::time::advance(Duration::from_secs(7)).await;
        assert!(said.is_news(Some("no route")));
        assert_eq!(said.since(), Some(begun));
        assert!(said.is_news(None));
        assert_eq!(said.since(), None);
    }
}
