//! One ADS stream, SotW or delta: what Envoy subscribed to, what it was sent, and so what it is to be sent next. No I/O.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use footman::proto::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse, Resource as DeltaResource,
};
use prost::Message;

use crate::{
    mesh::Mesh,
    resources::{CDS, LDS, Resource, TYPES, resources},
};

/// Which of the two protocols a stream speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Sotw,
    Delta,
}

/// The state of one stream.
pub struct Stream {
    kind: Kind,
    /// `POD.NAMESPACE`, known from the first request on.
    workload: String,
    types: BTreeMap<String, Subscription>,
    nonces: u64,
}

#[derive(Default)]
struct Subscription {
    /// Empty: everything, for clusters and listeners.
    names: BTreeSet<String>,
    /// Version of each resource that Envoy has.
    sent: BTreeMap<String, String>,
    nonce: String,
}

/// What a request says, in either protocol.
struct Asked {
    type_url: String,
    nonce: String,
    refused: Option<String>,
    /// SotW: the whole set. Delta: what is added.
    subscribe: Vec<String>,
    unsubscribe: Vec<String>,
    /// Delta: what Envoy has from an earlier stream.
    initial: BTreeMap<String, String>,
}

impl Stream {
    pub fn new(kind: Kind) -> Stream {
        Stream { kind, workload: String::new(), types: BTreeMap::new(), nonces: 0 }
    }

    pub fn workload(&self) -> &str {
        &self.workload
    }

    /// Takes a request; the answer, when there is one. An error says why the bytes are no request, or what Envoy refused.
    pub fn request(&mut self, mesh: &Mesh, bytes: &[u8]) -> Result<Option<Bytes>, String> {
        let asked = self.read(bytes)?;
        if let Some(message) = asked.refused {
            return Err(format!("{} refused {}: {message}", self.workload, asked.type_url));
        }
        let first = !self.types.contains_key(&asked.type_url);
        let subscription = self.types.entry(asked.type_url.clone()).or_default();
        // Overtaken by a newer response. The first of a stream may carry the nonce of an earlier stream, which means nothing here.
        if !first && !asked.nonce.is_empty() && asked.nonce != subscription.nonce {
            return Ok(None);
        }
        let changed = match self.kind {
            Kind::Sotw => {
                let names: BTreeSet<String> = asked.subscribe.into_iter().collect();
                std::mem::replace(&mut subscription.names, names.clone()) != names
            }
            Kind::Delta => {
                let before = subscription.names.len();
                for name in &asked.unsubscribe {
                    subscription.names.remove(name);
                    subscription.sent.remove(name);
                }
                subscription.names.extend(asked.subscribe.into_iter().filter(|name| name != "*"));
                subscription.sent.extend(asked.initial);
                subscription.names.len() > before
            }
        };
        Ok(if first || changed { self.response(mesh, &asked.type_url, true) } else { None })
    }

    /// The responses that a change of the mesh makes necessary, in the order to send them.
    pub fn changed(&mut self, mesh: &Mesh) -> Vec<Bytes> {
        TYPES.iter().filter_map(|type_url| self.response(mesh, type_url, false)).collect()
    }

    fn read(&mut self, bytes: &[u8]) -> Result<Asked, String> {
        let broken = |error: prost::DecodeError| format!("no discovery request: {error}");
        let (node, asked) = match self.kind {
            Kind::Sotw => {
                let request = DiscoveryRequest::decode(bytes).map_err(broken)?;
                let asked = Asked {
                    type_url: request.type_url,
                    nonce: request.response_nonce,
                    refused: request.error_detail.map(|status| status.message),
                    subscribe: request.resource_names,
                    unsubscribe: Vec::new(),
                    initial: BTreeMap::new(),
                };
                (request.node, asked)
            }
            Kind::Delta => {
                let request = DeltaDiscoveryRequest::decode(bytes).map_err(broken)?;
                let asked = Asked {
                    type_url: request.type_url,
                    nonce: request.response_nonce,
                    refused: request.error_detail.map(|status| status.message),
                    subscribe: request.resource_names_subscribe,
                    unsubscribe: request.resource_names_unsubscribe,
                    initial: request.initial_resource_versions.into_iter().collect(),
                };
                (request.node, asked)
            }
        };
        if let Some(node) = node {
            // sidecar~ADDRESS~POD.NAMESPACE~DOMAIN
            self.workload = node.id.split('~').nth(2).unwrap_or_default().to_owned();
        }
        Ok(asked)
    }

    /// The response for a type; `None` when nobody subscribed to it, or when it would say nothing new and need not.
    fn response(&mut self, mesh: &Mesh, type_url: &str, answer: bool) -> Option<Bytes> {
        let subscription = self.types.get_mut(type_url)?;
        let mut all = resources(mesh, &self.workload, type_url);
        let wildcard = subscription.names.is_empty() && [CDS, LDS].contains(&type_url);
        all.retain(|name, _| wildcard || subscription.names.contains(name));
        let versions: BTreeMap<String, String> =
            all.iter().map(|(name, resource)| (name.clone(), resource.version.clone())).collect();
        if !answer && versions == subscription.sent {
            return None;
        }
        let sent = std::mem::replace(&mut subscription.sent, versions);
        self.nonces += 1;
        subscription.nonce = self.nonces.to_string();
        let nonce = subscription.nonce.clone();
        Some(match self.kind {
            Kind::Sotw => sotw(type_url, nonce, all),
            Kind::Delta => delta(type_url, nonce, all, &sent),
        })
    }
}

fn sotw(type_url: &str, nonce: String, all: BTreeMap<String, Resource>) -> Bytes {
    let response = DiscoveryResponse {
        version_info: nonce.clone(),
        type_url: type_url.to_owned(),
        nonce,
        resources: all.into_values().map(|resource| resource.any).collect(),
        ..DiscoveryResponse::default()
    };
    response.encode_to_vec().into()
}

fn delta(type_url: &str, nonce: String, all: BTreeMap<String, Resource>, sent: &BTreeMap<String, String>) -> Bytes {
    let removed = sent.keys().filter(|name| !all.contains_key(*name)).cloned().collect();
    let is_news = |(name, resource): &(String, Resource)| sent.get(name) != Some(&resource.version);
    let make = |(name, resource): (String, Resource)| DeltaResource {
        name,
        version: resource.version,
        resource: Some(resource.any),
        ..DeltaResource::default()
    };
    let response = DeltaDiscoveryResponse {
        system_version_info: nonce.clone(),
        type_url: type_url.to_owned(),
        nonce,
        resources: all.into_iter().filter(is_news).map(make).collect(),
        removed_resources: removed,
        ..DeltaDiscoveryResponse::default()
    };
    response.encode_to_vec().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resources::{EDS, RDS};
    use footman::proto::{envoy::config::core::v3::Node, google::rpc::Status};

    fn mesh(rewrite: &str) -> Mesh {
        Mesh::parse(&format!(
            r#"{{
                "services": {{"app": {{"account": "spiffe://a", "endpoints": ["127.0.0.1:1"]}}}},
                "workloads": {{"client.demo": {{"outbound": [{{"listen": "127.0.0.1:2", "routes": [
                    {{"prefix": "/", "service": "app", "rewrite": "{rewrite}"}}]}}]}}}}
            }}"#
        ))
        .unwrap()
    }

    fn node() -> Option<Node> {
        Some(Node { id: "sidecar~127.0.0.1~client.demo~demo.svc.cluster.local".to_owned(), ..Node::default() })
    }

    fn sotw_request(type_url: &str, names: &[&str], nonce: &str) -> Vec<u8> {
        let request = DiscoveryRequest {
            node: node(),
            type_url: type_url.to_owned(),
            resource_names: names.iter().map(|name| (*name).to_owned()).collect(),
            response_nonce: nonce.to_owned(),
            ..DiscoveryRequest::default()
        };
        request.encode_to_vec()
    }

    #[test]
    fn sotw_answers_subscriptions_and_changes_only() {
        let mut stream = Stream::new(Kind::Sotw);
        let old = mesh("/");
        let answer = stream.request(&old, &sotw_request(CDS, &[], "")).unwrap().unwrap();
        let clusters = DiscoveryResponse::decode(answer).unwrap();
        assert_eq!((clusters.type_url.as_str(), clusters.resources.len()), (CDS, 1));
        assert!(stream.request(&old, &sotw_request(CDS, &[], &clusters.nonce)).unwrap().is_none());
        stream.request(&old, &sotw_request(RDS, &["2"], "")).unwrap().unwrap();
        assert!(stream.changed(&old).is_empty());
        let changed = stream.changed(&mesh("/v2/"));
        assert_eq!(changed.len(), 1);
        assert_eq!(DiscoveryResponse::decode(changed[0].clone()).unwrap().type_url, RDS);
    }

    #[test]
    fn sotw_passes_over_stale_nonces_and_tells_what_envoy_refused() {
        let mut stream = Stream::new(Kind::Sotw);
        let mesh = mesh("/");
        stream.request(&mesh, &sotw_request(EDS, &["outbound|80||app"], "")).unwrap().unwrap();
        assert!(stream.request(&mesh, &sotw_request(EDS, &["other"], "stale")).unwrap().is_none());
        assert!(stream.request(&mesh, &sotw_request(EDS, &["other"], "1")).unwrap().is_some());
        let refusal = DiscoveryRequest {
            type_url: EDS.to_owned(),
            error_detail: Some(Status { message: "no such thing".to_owned(), ..Status::default() }),
            ..DiscoveryRequest::default()
        };
        let told = stream.request(&mesh, &refusal.encode_to_vec()).unwrap_err();
        assert_eq!(told, format!("client.demo refused {EDS}: no such thing"));
        assert!(stream.request(&mesh, b"\xff").is_err());
    }

    #[test]
    fn delta_sends_what_is_new_and_names_what_is_gone() {
        let mut stream = Stream::new(Kind::Delta);
        let subscribe =
            DeltaDiscoveryRequest { node: node(), type_url: CDS.to_owned(), ..DeltaDiscoveryRequest::default() };
        let answer = stream.request(&mesh("/"), &subscribe.encode_to_vec()).unwrap().unwrap();
        let clusters = DeltaDiscoveryResponse::decode(answer).unwrap();
        assert_eq!(clusters.resources[0].name, "outbound|80||app");
        assert!(stream.changed(&mesh("/v2/")).is_empty());
        let gone = stream.changed(&Mesh::default());
        let gone = DeltaDiscoveryResponse::decode(gone[0].clone()).unwrap();
        assert_eq!((gone.resources.len(), gone.removed_resources), (0, vec!["outbound|80||app".to_owned()]));
        // What Envoy has from an earlier stream is not sent again.
        let version = clusters.resources[0].version.clone();
        let again = DeltaDiscoveryRequest {
            initial_resource_versions: [("outbound|80||app".to_owned(), version)].into(),
            ..subscribe
        };
        let answer = Stream::new(Kind::Delta).request(&mesh("/"), &again.encode_to_vec()).unwrap().unwrap();
        assert!(DeltaDiscoveryResponse::decode(answer).unwrap().resources.is_empty());
    }
}
