//! ECDS messages as bytes: what a response holds, and a response with some resources replaced or left out.
//!
//! Nothing that is not replaced is decoded and encoded again, so unknown fields survive.

use bytes::Bytes;
use prost::{DecodeError, Message};

use crate::proto::{
    envoy::service::discovery::v3::{DeltaDiscoveryRequest, DiscoveryRequest},
    google::rpc::Status,
    wire,
};

use super::Kind;

const ECDS: &str = "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig";
/// gRPC's INTERNAL: what Istio's agent refuses with.
const INTERNAL: i32 = 13;

/// Field numbers of `DiscoveryResponse` and `DeltaDiscoveryResponse`.
const RESOURCES: u32 = 2;
const NONCE: u32 = 5;
const REMOVED: u32 = 6;
/// Field numbers of `Resource`, in delta responses.
const RESOURCE: u32 = 2;
const NAME: u32 = 3;

/// What the agent needs to know of a response.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Content {
    pub(super) nonce: String,
    pub(super) resources: Vec<Item>,
    /// Names; delta only.
    pub(super) removed: Vec<String>,
}

/// One resource of a response.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Item {
    /// Delta only; SotW supersedes whole responses, so it needs no names.
    pub(super) name: String,
    /// The encoded `google.protobuf.Any`.
    pub(super) any: Bytes,
}

/// What becomes of a resource.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Fate {
    Keep,
    Replace(Bytes),
    Drop,
}

/// Reads a response.
pub(super) fn content(kind: Kind, message: &Bytes) -> Result<Content, DecodeError> {
    let mut content = Content::default();
    for field in wire::fields(message) {
        let field = field?;
        match (field.number, kind) {
            (RESOURCES, Kind::Sotw) => {
                content.resources.push(Item { name: String::new(), any: message.slice_ref(field.content) });
            }
            (RESOURCES, Kind::Delta) => content.resources.push(Item {
                name: text(&wire::message_field(field.content, NAME)?.unwrap_or_default()),
                any: wire::message_field(field.content, RESOURCE)?.unwrap_or_default().into(),
            }),
            (NONCE, _) => content.nonce = text(field.content),
            (REMOVED, Kind::Delta) => content.removed.push(text(field.content)),
            _ => {}
        }
    }
    Ok(content)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// `message` with each resource's fate fulfilled (by position), without the removals that `keep_removed` refuses, and with `nonce`
/// for its own if given.
pub(super) fn assemble(
    kind: Kind,
    message: &Bytes,
    fates: &[Fate],
    keep_removed: &dyn Fn(&str) -> bool,
    nonce: Option<&str>,
) -> Result<Bytes, DecodeError> {
    let mut out = Vec::with_capacity(message.len());
    let mut position = 0;
    for field in wire::fields(message) {
        let field = field?;
        match (field.number, kind) {
            (RESOURCES, _) => {
                match fates.get(position).unwrap_or(&Fate::Keep) {
                    Fate::Keep => out.extend_from_slice(field.whole),
                    Fate::Drop => {}
                    Fate::Replace(any) if kind == Kind::Sotw => wire::put(&mut out, RESOURCES, any),
                    Fate::Replace(any) => {
                        wire::put(&mut out, RESOURCES, &wire::replace(field.content, RESOURCE, Some(any))?);
                    }
                }
                position += 1;
            }
            (REMOVED, Kind::Delta) if !keep_removed(&text(field.content)) => {}
            (NONCE, _) => match nonce {
                Some(nonce) => wire::put(&mut out, NONCE, nonce.as_bytes()),
                None => out.extend_from_slice(field.whole),
            },
            _ => out.extend_from_slice(field.whole),
        }
    }
    Ok(out.into())
}

/// A refusal towards istiod. It names the version in force, as xDS says (Istio's agent names the refused one; istiod reads neither).
pub(super) fn refusal(kind: Kind, accepted: &str, nonce: &str, message: String) -> Bytes {
    let error_detail = Some(Status { code: INTERNAL, message, ..Status::default() });
    let (type_url, response_nonce) = (ECDS.to_owned(), nonce.to_owned());
    match kind {
        Kind::Sotw => {
            let version_info = accepted.to_owned();
            DiscoveryRequest { version_info, type_url, response_nonce, error_detail, ..Default::default() }
                .encode_to_vec()
        }
        Kind::Delta => {
            DeltaDiscoveryRequest { type_url, response_nonce, error_detail, ..Default::default() }.encode_to_vec()
        }
    }
    .into()
}

/// What the agent needs to know of a request of Envoy's.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Request {
    pub(super) version: String,
    pub(super) nonce: String,
    pub(super) refused: bool,
    /// SotW: the names subscribed to. Delta: whether they change is what counts, so both lists in one.
    pub(super) names: Vec<String>,
}

/// Reads a request; fields that cannot be read count as absent, since istiod judges the request itself.
pub(super) fn request(kind: Kind, message: &[u8]) -> Request {
    let mut request = Request::default();
    for field in wire::fields(message).map_while(Result::ok) {
        match (kind, field.number) {
            (Kind::Sotw, 1) => request.version = text(field.content),
            (Kind::Sotw, 3) | (Kind::Delta, 3 | 4) => request.names.push(text(field.content)),
            (Kind::Sotw, 5) | (Kind::Delta, 6) => request.nonce = text(field.content),
            (Kind::Sotw, 6) | (Kind::Delta, 7) => request.refused = true,
            _ => {}
        }
    }
    request
}

/// The request with another nonce, or none.
pub(super) fn with_nonce(kind: Kind, message: &[u8], nonce: Option<&str>) -> Result<Bytes, DecodeError> {
    let number = match kind {
        Kind::Sotw => 5,
        Kind::Delta => 6,
    };
    Ok(wire::replace(message, number, nonce.map(str::as_bytes))?.into())
}
