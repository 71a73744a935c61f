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
