//! The streams that are open now: which one a new one takes the place of, and what each has carried (`/debug/xds`).

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use serde_json::{Value, json};
use tokio::{sync::oneshot, time::Instant};

use super::{
    Kind,
    peek::{Peek, Text},
    types::short,
};

/// All open streams.
#[derive(Default)]
pub struct Streams(Mutex<Table>);

#[derive(Default)]
struct Table {
    last_id: u32,
    open: Vec<Stream>,
}

struct Stream {
    id: u32,
    connection: u64,
    kind: Kind,
    node: Option<Node>,
    opened: Instant,
    /// Ends the stream; gone once it was used.
    stop: Option<oneshot::Sender<()>>,
    types: Arc<Mutex<Types>>,
}

/// Who speaks on a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Node {
    id: String,
    user_agent: String,
}

/// One open stream; dropping it takes it out of the table.
pub struct Entry {
    streams: Arc<Streams>,
    /// Its number in this process, for logs.
    pub id: u32,
    types: Arc<Mutex<Types>>,
}

/// What a stream has carried, by type URL.
type Types = BTreeMap<String, Carried>;

#[derive(Debug, Default)]
struct Carried {
    requests: u64,
    responses: u64,
    version: String,
    nonce: String,
    bytes: usize,
    at: Option<Instant>,
    refusals: u64,
    refused: String,
    /// The agent's own subscription.
    own: bool,
}

impl Streams {
    /// Adds a stream. Another one on the same connection gives way to it.
    pub fn open(self: &Arc<Streams>, kind: Kind, connection: u64) -> (Entry, oneshot::Receiver<()>) {
        let (stop, stopped) = oneshot::channel();
        let mut table = self.table();
        table.last_id = table.last_id.wrapping_add(1);
        let id = table.last_id;
        table.supersede(id, |stream| stream.connection == connection);
        let types = Arc::default();
        let stream = Stream {
            id,
            connection,
            kind,
            node: None,
            opened: Instant::now(),
            stop: Some(stop),
            types: Arc::clone(&types),
        };
        table.open.push(stream);
        (Entry { streams: Arc::clone(self), id, types }, stopped)
    }

    /// Every stream with its types.
    pub fn json(&self) -> Value {
        self.table().open.iter().map(Stream::json).collect()
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    /// Ends every stream but `id` that matches.
    fn supersede(&mut self, id: u32, matches: impl Fn(&Stream) -> bool) {
        for stream in self.open.iter_mut().filter(|stream| stream.id != id && matches(stream)) {
            if let Some(stop) = stream.stop.take() {
                log::warn!(target: "xdsproxy", "registered overlapping stream; closing previous (id {})", stream.id);
                // A stream that ends by itself at this moment needs no stop.
                let _ = stop.send(());
            }
        }
    }
}

impl Entry {
    /// Notes who speaks. An older stream of the same node and kind gives way: Envoy has come back before its last connection was
    /// seen to end. Applications that speak xDS themselves (gRPC) may have several streams under one name.
    pub fn identify(&self, request: &Peek) {
        let Some(id) = request.text(Text::NodeId).filter(|id| !id.is_empty()) else { return };
        let node = Node { id: id.to_owned(), user_agent: request.text(Text::UserAgent).unwrap_or_default().to_owned() };
        let mut table = self.streams.table();
        let Some(stream) = table.open.iter_mut().find(|stream| stream.id == self.id) else { return };
        stream.node = Some(node.clone());
        let kind = stream.kind;
        if !node.user_agent.starts_with("gRPC") {
            table.supersede(self.id, |stream| {
                stream.id < self.id && stream.kind == kind && stream.node.as_ref() == Some(&node)
            });
        }
    }

    /// Notes a request that went to istiod.
    pub fn requested(&self, request: &Peek) {
        self.carried(request.type_url(), |carried| {
            carried.requests += 1;
            if let Some(error) = request.text(Text::Error) {
                carried.refusals += 1;
                carried.refused.clear();
                carried.refused.push_str(error);
            }
        });
    }

    /// Notes a request of the agent's own.
    pub fn requested_own(&self, type_url: &str) {
        self.carried(Some(type_url), |carried| {
            carried.requests += 1;
            carried.own = true;
        });
    }

    /// Notes a response of istiod's.
    pub fn responded(&self, response: &Peek, bytes: usize) {
        self.carried(response.type_url(), |carried| {
            carried.responses += 1;
            carried.bytes = bytes;
            carried.at = Some(Instant::now());
            for (text, kept) in [(Text::Version, &mut carried.version), (Text::Nonce, &mut carried.nonce)] {
                kept.clear();
                kept.push_str(response.text(text).unwrap_or_default());
            }
        });
    }

    fn carried(&self, type_url: Option<&str>, note: impl FnOnce(&mut Carried)) {
        /// A stream carries some ten types; an odd client shall not make the table grow.
        const MOST: usize = 64;
        let type_url = type_url.unwrap_or_default();
        let mut types = self.types.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(carried) = types.get_mut(type_url) {
            note(carried);
        } else if types.len() < MOST {
            note(types.entry(type_url.to_owned()).or_default());
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.streams.table().open.retain(|stream| stream.id != self.id);
    }
}

impl Stream {
    fn json(&self) -> Value {
        let types = self.types.lock().unwrap_or_else(PoisonError::into_inner);
        let types: serde_json::Map<String, Value> =
            types.iter().map(|(type_url, carried)| (type_url.clone(), carried.json(type_url))).collect();
        json!({
            "id": self.id,
            "protocol": self.kind.name(),
            "node": self.node.as_ref().map(|node| &node.id),
            "userAgent": self.node.as_ref().map(|node| &node.user_agent),
            "ageSeconds": self.opened.elapsed().as_secs(),
            "types": types,
        })
    }
}

impl Carried {
    fn json(&self, type_url: &str) -> Value {
        json!({
            "name": short(type_url),
            "requests": self.requests,
            "responses": self.responses,
            "version": self.version,
            "nonce": self.nonce,
            "bytes": self.bytes,
            "ageSeconds": self.at.map(|at| at.elapsed().as_secs()),
            "refusals": self.refusals,
            "lastRefusal": if self.refusals > 0 { Some(&self.refused) } else { None },
            "agentOwned": self.own,
        })
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;
    use crate::proto::envoy::{config::core::v3::Node as NodeMessage, service::discovery::v3::DiscoveryRequest};

    fn first_request(id: &str, user_agent: &str) -> Peek {
        let request = DiscoveryRequest {
            node: Some(NodeMessage { id: id.into(), user_agent_name: user_agent.into(), ..NodeMessage::default() }),
            type_url: "t".into(),
            ..DiscoveryRequest::default()
        };
        let bytes = request.encode_to_vec();
        let mut peek = Peek::request(Kind::Sotw, bytes.len());
        peek.feed(&bytes);
        peek
    }

    #[test]
    fn new_stream_takes_over_on_its_connection_or_by_its_node() {
        let streams = Arc::new(Streams::default());
        let (first, mut first_stop) = streams.open(Kind::Sotw, 1);
        let (other_kind, mut other_kind_stop) = streams.open(Kind::Delta, 2);
        let (application, mut application_stop) = streams.open(Kind::Sotw, 3);
        first.identify(&first_request("a", "envoy"));
        other_kind.identify(&first_request("a", "envoy"));
        application.identify(&first_request("a", "gRPC Go"));
        assert!(first_stop.try_recv().is_err());
        let (second, mut second_stop) = streams.open(Kind::Sotw, 4);
        assert!(first_stop.try_recv().is_err());
        second.identify(&first_request("a", "envoy"));
        assert_eq!(first_stop.try_recv(), Ok(()));
        let (_third, _stop) = streams.open(Kind::Delta, 4);
        assert_eq!(second_stop.try_recv(), Ok(()));
        assert!(other_kind_stop.try_recv().is_err());
        assert!(application_stop.try_recv().is_err());
        drop(first);
        assert_eq!(streams.json().as_array().unwrap().len(), 4);
    }

    #[tokio::test]
    async fn shows_what_was_carried() {
        let streams = Arc::new(Streams::default());
        let (entry, _stop) = streams.open(Kind::Sotw, 1);
        entry.requested(&first_request("a", "envoy"));
        entry.requested_own("x.y.Z");
        let shown = streams.json();
        assert_eq!(shown[0]["types"]["t"]["requests"], 1);
        assert_eq!(shown[0]["types"]["x.y.Z"]["name"], "Z");
        assert_eq!(shown[0]["types"]["x.y.Z"]["agentOwned"], true);
    }
}
