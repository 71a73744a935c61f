//! Responses that istiod sends to the agent itself: the name table (NDS) and the trust anchors (PCDS).

use std::sync::Arc;

use bytes::Bytes;
use prost::Message;
use tokio::task::yield_now;

use super::{
    Kind, message,
    session::Stream,
    types::{NDS, PCDS, Route},
};
use crate::{
    proto::{
        envoy::service::discovery::v3::{DeltaDiscoveryResponse, DiscoveryResponse},
        google::protobuf::Any,
        istio::mesh::v1alpha1::ProxyConfig,
    },
    wires::{TrustBundle, names::Reading},
};

/// Entries of a name table read before other tasks have their turn: about 100 µs.
const SLICE: usize = 256;

/// The parts of a response that matter here, of either protocol.
struct Response {
    version: String,
    nonce: String,
    /// Only the first resource is looked at, as in Istio.
    resource: Option<Any>,
    /// How many others there are.
    more: usize,
}

/// Applies a response and gives the answer to istiod, with its type.
pub(super) async fn take(stream: &Stream<'_>, route: Route, whole: &Bytes) -> (&'static str, Bytes) {
    let type_url = if route == Route::Names { NDS } else { PCDS };
    let response = match Response::decode(stream.kind, whole) {
        Ok(response) => response,
        Err(error) => {
            log::warn!(target: "xdsproxy", "undecodable response of type {type_url}: {error}");
            return (type_url, message::answer(stream.kind, type_url, "", "", Some(&error.to_string())));
        }
    };
    if response.more > 0 {
        log::warn!(target: "xdsproxy", "{type_url}: only the first of {} resources counts", response.more + 1);
    }
    let applied = match route {
        Route::Names => names(stream, response.resource.as_ref()).await,
        _ => anchors(stream, response.resource.as_ref()),
    };
    if let Err(error) = &applied {
        log::warn!(target: "xdsproxy", "refused {type_url} ({}): {error}", response.nonce);
    }
    let error = applied.as_ref().err().map(String::as_str);
    (type_url, message::answer(stream.kind, type_url, &response.version, &response.nonce, error))
}

/// Applied means: lookups are answered from it. A response without a table changes nothing but that there has been one.
async fn names(stream: &Stream<'_>, resource: Option<&Any>) -> Result<(), String> {
    let Some(publisher) = &stream.proxy.links.names else { return Ok(()) };
    let table = match resource {
        None => None,
        Some(any) => {
            is_a(any, NDS)?;
            let mut reading = Reading::new(&any.value);
            while reading.step(SLICE).map_err(|error| error.to_string())? {
                yield_now().await;
            }
            Some(reading.finish())
        }
    };
    publisher.publish(table).await;
    Ok(())
}

fn anchors(stream: &Stream<'_>, resource: Option<&Any>) -> Result<(), String> {
    let (Some(anchors), Some(any)) = (&stream.proxy.links.anchors, resource) else { return Ok(()) };
    is_a(any, PCDS)?;
    let config = ProxyConfig::decode(any.value.clone()).map_err(|error| error.to_string())?;
    let bundle = TrustBundle { pem: join(&config.ca_certificates_pem).into() };
    anchors.send_if_modified(|current| {
        let changed = current.as_deref() != Some(&bundle);
        if changed {
            *current = Some(Arc::new(bundle));
        }
        changed
    });
    Ok(())
}

/// By the last part, as protobuf's own unpacking compares.
fn is_a(any: &Any, wanted: &str) -> Result<(), String> {
    let name = |type_url: &str| type_url.rsplit('/').next().unwrap_or_default().to_owned();
    if name(&any.type_url) == name(wanted) {
        Ok(())
    } else {
        Err(format!("the resource is of type {:?}, not {wanted}", any.type_url))
    }
}

/// One certificate after the other, each on a line of its own.
fn join(certificates: &[String]) -> String {
    let mut bundle = String::new();
    for certificate in certificates {
        if !bundle.is_empty() && !bundle.ends_with('\n') {
            bundle.push('\n');
        }
        bundle.push_str(certificate);
    }
    bundle
}

impl Response {
    fn decode(kind: Kind, whole: &Bytes) -> Result<Response, prost::DecodeError> {
        Ok(match kind {
            Kind::Sotw => {
                let response = DiscoveryResponse::decode(whole.clone())?;
                let more = response.resources.len().saturating_sub(1);
                let resource = response.resources.into_iter().next();
                Response { version: response.version_info, nonce: response.nonce, resource, more }
            }
            Kind::Delta => {
                let response = DeltaDiscoveryResponse::decode(whole.clone())?;
                let more = response.resources.len().saturating_sub(1);
                let resource = response.resources.into_iter().next().and_then(|resource| resource.resource);
                Response { version: response.system_version_info, nonce: response.nonce, resource, more }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bundles_are_joined_line_by_line() {
        let join = |parts: &[&str]| join(&parts.iter().map(|part| (*part).to_owned()).collect::<Vec<_>>());
        assert_eq!(join(&[]), "");
        assert_eq!(join(&["a", "b\n", "c"]), "a\nb\nc");
    }

    #[test]
    fn resources_of_another_type_are_refused() {
        let any = Any { type_url: "x/google.protobuf.Struct".into(), ..Any::default() };
        assert!(is_a(&any, NDS).unwrap_err().contains("google.protobuf.Struct"));
    }
}
