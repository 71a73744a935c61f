//! Responses put together around resources that are encoded already, so that a thousand streams share their bytes. Pure.

use std::sync::Arc;

use bytes::Bytes;
use prost::Message;

use super::resource::{Resource, TYPE_URL};
use crate::{
    base::random_u64,
    grpc::{Sender, Status},
    proto::envoy::service::discovery::v3::{self as discovery, DeltaDiscoveryResponse, DiscoveryResponse},
};

/// `resources` of both responses, and `resource` of a delta resource: all are field 2, length-delimited.
const FIELD_2: u8 = 2 << 3 | 2;

/// What is sent, piece by piece.
pub(super) struct Response {
    pieces: Vec<Bytes>,
}

impl Response {
    /// State of the world: all resources, in their order, under the version of the newest.
    pub(super) fn world(resources: &[(Arc<str>, Resource)], nonce: &str) -> Response {
        let head = DiscoveryResponse {
            version_info: newest(resources),
            type_url: TYPE_URL.to_owned(),
            nonce: nonce.to_owned(),
            ..DiscoveryResponse::default()
        };
        let mut response = Response { pieces: vec![head.encode_to_vec().into()] };
        for (_, resource) in resources {
            response.pieces.push(field_2(resource.any.len()).into());
            response.pieces.push(resource.any.clone());
        }
        response
    }

    /// Delta: each resource with its name and version.
    pub(super) fn delta(resources: &[(Arc<str>, Resource)], nonce: &str) -> Response {
        let head = DeltaDiscoveryResponse {
            system_version_info: newest(resources),
            type_url: TYPE_URL.to_owned(),
            nonce: nonce.to_owned(),
            ..DeltaDiscoveryResponse::default()
        };
        let mut response = Response { pieces: vec![head.encode_to_vec().into()] };
        for (name, resource) in resources {
            let wrapper = discovery::Resource {
                name: name.to_string(),
                version: resource.version.to_string(),
                ..discovery::Resource::default()
            };
            let inner = [wrapper.encode_to_vec(), field_2(resource.any.len())].concat();
            response.pieces.push([field_2(inner.len() + resource.any.len()), inner].concat().into());
            response.pieces.push(resource.any.clone());
        }
        response
    }

    /// Sends it as one message.
    pub(super) async fn send(self, sender: &mut Sender) -> Result<(), Status> {
        sender.begin(self.pieces.iter().map(Bytes::len).sum())?;
        for piece in self.pieces {
            sender.piece(piece).await?;
        }
        Ok(())
    }
}

/// A random UUID (RFC 9562, version 4), as Istio's nonces are.
pub(super) fn nonce() -> String {
    let (high, low) = (random_u64(), random_u64());
    format!(
        "{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}",
        high >> 32,
        (high >> 16) & 0xffff,
        high & 0xfff,
        0x8000 | (low >> 48) & 0x3fff,
        low & 0xffff_ffff_ffff
    )
}

fn newest(resources: &[(Arc<str>, Resource)]) -> String {
    let newest = resources.iter().max_by_key(|(_, resource)| resource.number);
    newest.map_or_else(String::new, |(_, resource)| resource.version.to_string())
}

/// Key and length of a field 2 of so many bytes.
fn field_2(length: usize) -> Vec<u8> {
    let mut bytes = vec![FIELD_2];
    prost::encoding::encode_varint(length as u64, &mut bytes);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::google::protobuf::Any;

    fn resource(number: u64, size: usize) -> Resource {
        let any = Any { type_url: TYPE_URL.to_owned(), value: vec![7; size].into() };
        Resource { any: any.encode_to_vec().into(), version: format!("v/{number}").into(), number }
    }

    fn whole(response: &Response) -> Vec<u8> {
        response.pieces.concat()
    }

    #[test]
    fn state_of_the_world_decodes_as_what_was_meant() {
        let resources = [("a".into(), resource(9, 10)), ("b".into(), resource(3, 300))];
        let response = DiscoveryResponse::decode(&whole(&Response::world(&resources, "n"))[..]).unwrap();
        assert_eq!((response.version_info.as_str(), response.nonce.as_str()), ("v/9", "n"));
        assert_eq!(response.type_url, TYPE_URL);
        let sizes: Vec<usize> = response.resources.iter().map(|any| any.value.len()).collect();
        assert_eq!(sizes, [10, 300]);
    }

    #[test]
    fn delta_decodes_as_what_was_meant() {
        let resources = [("a".into(), resource(9, 10)), ("b".into(), resource(3, 300))];
        let response = DeltaDiscoveryResponse::decode(&whole(&Response::delta(&resources, "n"))[..]).unwrap();
        assert_eq!(response.nonce, "n");
        let shown: Vec<_> = response
            .resources
            .iter()
            .map(|resource| {
                (resource.name.as_str(), resource.version.as_str(), resource.resource.as_ref().unwrap().value.len())
            })
            .collect();
        assert_eq!(shown, [("a", "v/9", 10), ("b", "v/3", 300)]);
    }

    #[test]
    fn nonces_are_uuids_and_differ() {
        let nonce = nonce();
        let lengths: Vec<usize> = nonce.split('-').map(str::len).collect();
        assert_eq!(lengths, [8, 4, 4, 4, 12]);
        assert_eq!(&nonce[14..15], "4");
        assert!(nonce != super::nonce());
    }
}
