//! What becomes of a message, whichever way it came: answered from the table, from kept answers, or by the servers behind us.
//! Called by `udp` and `tcp`, which do the reading and writing.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::time::{Duration, Instant, timeout};

use super::{
    answer::{A, AAAA, IN, PTR, Writer},
    bounds::{Bounds, Room},
    cache::{Cache, Cached},
    debug, fit,
    forward::Forwarder,
    message::{self, Message, Query, Transport},
    metrics::Metrics,
    pointer,
    table::{Hit, Index, MAX_TEXT},
};
use crate::net::resolve::{
    exchange,
    frame::{self, Section, rcode},
};

/// How long the servers have where an expired answer is at hand (RFC 8767 §5): clients give up after 5 s.
const STALE_PATIENCE: Duration = Duration::from_millis(1800);

/// Shared by all sockets.
pub struct Service {
    state: Mutex<State>,
    forwarder: Forwarder,
    cache: Option<Mutex<Cache>>,
    pub(super) metrics: Metrics,
    forward_before_table: bool,
    bounds: Arc<Bounds>,
}

/// What local answers need.
struct State {
    index: Option<Arc<Index>>,
    /// First entry of the search list, lower-case.
    search: Option<Box<[u8]>>,
    writer: Writer,
}

/// What to do with a message.
pub enum Step {
    /// Nothing.
    Silence,
    /// Send the reply, which stands in the buffer.
    Reply,
    /// Ask the servers behind us; the reply comes later.
    Forward(Pending),
}

/// A query on its way to the servers behind us.
pub struct Pending {
    query: Vec<u8>,
    transport: Transport,
    /// The mesh knows the name, if not data of this type.
    known: bool,
    stale: Option<Vec<u8>>,
    _room: Room,
}

impl Service {
    /// A service without a table.
    pub(super) fn new(config: &super::Config, forwarder: Forwarder, metrics: Metrics, room: usize) -> Service {
        let state = State { index: None, search: None, writer: Writer::new(config.ttl) };
        Service {
            state: Mutex::new(state),
            forwarder,
            cache: config.cache.map(|policy| Mutex::new(Cache::new(policy))),
            metrics,
            forward_before_table: config.forward_before_table,
            bounds: Bounds::new(room),
        }
    }

    /// Decides on one message of `client`; a reply that is known at once is written to `out`.
    pub fn take(&self, bytes: &[u8], client: SocketAddr, transport: Transport, out: &mut Vec<u8>) -> Step {
        let query = match message::read(bytes) {
            Message::Drop => return Step::Silence,
            Message::Refuse(code, opcode) => {
                message::refuse(bytes, code, opcode, out);
                return Step::Reply;
            }
            Message::Ask(query) => query,
        };
        self.metrics.requests.inc();
        let known = match self.local(&query, transport, out) {
            Local::Answered => {
                self.metrics.hits.inc();
                tell(&query, "answered from the table", out);
                return Step::Reply;
            }
            Local::NoTable => {
                query.reply(out, rcode::SERVFAIL);
                tell(&query, "no table yet", out);
                return Step::Reply;
            }
            Local::Other { known } => known,
        };
        self.metrics.misses.inc();
        if exchange::is_ours(client, bytes) {
            // Redirected back to us: forwarding it again would go on until there are no descriptors left.
            query.reply(out, rcode::SERVFAIL);
            return Step::Reply;
        }
        let stale = match self.kept(&query) {
            Cached::Fresh(reply) => {
                self.metrics.cache_hits.inc();
                tell(&query, "answered from the cache", &reply);
                *out = fit::fit(reply, query.limit(transport));
                return Step::Reply;
            }
            Cached::Stale(reply) => Some(reply),
            Cached::Nothing => None,
        };
        match self.bounds.admit(client) {
            Some(room) => Step::Forward(Pending { query: query.bytes.to_vec(), transport, known, stale, _room: room }),
            None => {
                self.metrics.overload.inc();
                query.reply(out, rcode::SERVFAIL);
                Step::Reply
            }
        }
    }

    /// The reply to a query that the table does not answer.
    pub async fn forward(&self, pending: Pending) -> Vec<u8> {
        let start = Instant::now();
        self.metrics.forwarded.inc();
        let asking = self.forwarder.forward(&pending.query, pending.transport);
        let answered = match &pending.stale {
            None => asking.await,
            Some(_) => timeout(STALE_PATIENCE, asking).await.unwrap_or_default(),
        };
        self.metrics.took(start.elapsed());
        self.refresh();
        let Message::Ask(query) = message::read(&pending.query) else { return Vec::new() };
        if answered.is_none() {
            self.metrics.failures.inc();
        }
        tell(&query, "forwarded", answered.as_deref().unwrap_or_default());
        let reply = match (answered, pending.stale) {
            (Some(reply), Some(stale)) if frame::rcode_of(&reply) == rcode::SERVFAIL => self.served_stale(stale),
            // Clients pass over an answer that does not say to what: they would wait on.
            (Some(reply), _) if frame::is_bare(&reply) => return failure(&query, frame::rcode_of(&reply)),
            (Some(reply), _) if pending.known => as_known(reply),
            (Some(reply), _) => reply,
            (None, Some(stale)) => self.served_stale(stale),
            (None, None) => return failure(&query, rcode::SERVFAIL),
        };
        if let Some(cache) = &self.cache {
            lock(cache).put(&query, &reply, Instant::now());
        }
        fit::fit(reply, query.limit(pending.transport))
    }

    /// Puts a table in force.
    pub fn set_index(&self, index: Arc<Index>) {
        self.metrics.hosts.set(index.table().len() as f64);
        // The old index, which may be large, is dropped outside of the lock.
        let old = lock(&self.state).index.replace(index);
        drop(old);
    }

    /// The table in force.
    pub fn index(&self) -> Option<Arc<Index>> {
        lock(&self.state).index.clone()
    }

    /// Follows the search list of resolv.conf.
    pub fn refresh(&self) {
        let servers = self.forwarder.servers();
        let search = servers.search().map(str::as_bytes);
        let mut state = lock(&self.state);
        if state.search.as_deref() != search {
            state.search = search.map(Box::from);
        }
    }

    /// The state of this room, for `/debug`.
    pub fn debug(&self) -> serde_json::Value {
        let servers = self.forwarder.servers().order(Instant::now());
        let kept = self.cache.as_ref().map(|cache| lock(cache).count());
        debug::summary(self.index().as_deref(), &servers, kept)
    }

    fn local(&self, query: &Query<'_>, transport: Transport, out: &mut Vec<u8>) -> Local {
        let mut state = lock(&self.state);
        let State { index, search, writer } = &mut *state;
        let Some(index) = index else {
            return if self.forward_before_table { Local::Other { known: false } } else { Local::NoTable };
        };
        if query.question.qclass != IN {
            return Local::Other { known: false };
        }
        let mut buffer = [0; MAX_TEXT];
        let Some(name) = query.name(&mut buffer) else { return Local::Other { known: false } };
        let hit = index.lookup(name, search.as_deref());
        let named = (query.question.qtype == PTR && hit.is_none()).then(|| pointer::address(name)).flatten();
        if let Some(host) = named.and_then(|ip| index.host_of(ip)) {
            if !query.refuses_version(out) {
                writer.pointer(query, host, out);
            }
            return Local::Answered;
        }
        match hit {
            Some(hit) if matches!(query.question.qtype, A | AAAA) => {
                if !query.refuses_version(out) {
                    writer.addresses(query, transport, index, hit, out);
                }
                Local::Answered
            }
            Some(Hit { .. }) => Local::Other { known: true },
            None => Local::Other { known: false },
        }
    }

    fn kept(&self, query: &Query<'_>) -> Cached {
        self.cache.as_ref().map_or(Cached::Nothing, |cache| lock(cache).get(query, Instant::now()))
    }

    fn served_stale(&self, stale: Vec<u8>) -> Vec<u8> {
        self.metrics.stale.inc();
        stale
    }
}

enum Local {
    Answered,
    NoTable,
    Other { known: bool },
}

/// For a name that the mesh knows, "no such name" of a server that knows nothing of the mesh means "no such data".
fn as_known(mut reply: Vec<u8>) -> Vec<u8> {
    if frame::rcode_of(&reply) == rcode::NXDOMAIN {
        // No server vouches for this any more: it is not authenticated data.
        reply[3] &= 0xf0 & !frame::AD;
    }
    reply
}

/// Says what became of a query, to those who want to see each of them.
fn tell(query: &Query<'_>, what: &str, reply: &[u8]) {
    if log::log_enabled!(target: "dns", log::Level::Debug) {
        log::debug!(target: "dns", "{}", line(query, what, reply));
    }
}

fn line(query: &Query<'_>, what: &str, reply: &[u8]) -> String {
    let mut buffer = [0; MAX_TEXT];
    // A label may hold any byte, line breaks too.
    let name = query.name(&mut buffer).unwrap_or(b"?").escape_ascii();
    let verdict = match reply {
        [] => "no answer".to_owned(),
        _ => format!("code {}, answers {}", frame::rcode_of(reply), frame::count(reply, Section::Answer)),
    };
    format!("\"{name}.\" type {}: {what}: {verdict}", query.question.qtype)
}

fn failure(query: &Query<'_>, code: u8) -> Vec<u8> {
    let mut reply = Vec::new();
    query.reply(&mut reply, code);
    reply
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_what_became_of_a_query() {
        let bytes = b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x03W\nw\x07example\x00\x00\x1c\x00\x01";
        let Message::Ask(query) = message::read(bytes) else { panic!() };
        let reply = failure(&query, rcode::REFUSED);
        assert_eq!(line(&query, "forwarded", &reply), "\"w\\nw.example.\" type 28: forwarded: code 5, answers 0");
        assert_eq!(line(&query, "forwarded", &[]), "\"w\\nw.example.\" type 28: forwarded: no answer");
    }
}
