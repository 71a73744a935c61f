//! The agent's own requests, in both protocols. Pure.

use bytes::Bytes;
use prost::Message;

use super::{Kind, types::HEALTH};
use crate::{
    proto::{
        envoy::service::discovery::v3::{DeltaDiscoveryRequest, DiscoveryRequest},
        google::rpc,
    },
    wires::AppHealth,
};

/// `google.rpc.Code.INTERNAL`: what Istio puts into every NACK of its own.
const INTERNAL: i32 = 13;

/// Asks for everything of a type.
pub fn subscribe(kind: Kind, type_url: &str) -> Bytes {
    request(kind, type_url, "", "", None)
}

/// Accepts a response, or refuses it with a reason; `version` is what is in use after it.
pub fn answer(kind: Kind, type_url: &str, version: &str, nonce: &str, error: Option<&str>) -> Bytes {
    request(kind, type_url, version, nonce, error)
}

/// Reports the health of the application.
pub fn health(kind: Kind, health: &AppHealth) -> Bytes {
    match health {
        AppHealth::Healthy => request(kind, HEALTH, "", "", None),
        AppHealth::Unhealthy(reason) => request(kind, HEALTH, "", "", Some(reason)),
        AppHealth::Leaving(_) => request(kind, HEALTH, "", "", Some("the proxy is terminating")),
    }
}

fn request(kind: Kind, type_url: &str, version: &str, nonce: &str, error: Option<&str>) -> Bytes {
    let error_detail =
        error.map(|message| rpc::Status { code: INTERNAL, message: message.to_owned(), ..rpc::Status::default() });
    let (type_url, response_nonce) = (type_url.to_owned(), nonce.to_owned());
    match kind {
        Kind::Sotw => DiscoveryRequest {
            version_info: version.to_owned(),
            type_url,
            response_nonce,
            error_detail,
            ..DiscoveryRequest::default()
        }
        .encode_to_vec(),
        // There is no version in it.
        Kind::Delta => {
            DeltaDiscoveryRequest { type_url, response_nonce, error_detail, ..DeltaDiscoveryRequest::default() }
                .encode_to_vec()
        }
    }
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acknowledgements_and_refusals() {
        let ack = DiscoveryRequest::decode(answer(Kind::Sotw, "t", "v", "n", None)).unwrap();
        assert_eq!((ack.version_info.as_str(), ack.response_nonce.as_str(), ack.error_detail), ("v", "n", None));
        let nack = DeltaDiscoveryRequest::decode(answer(Kind::Delta, "t", "v", "n", Some("bad"))).unwrap();
        let detail = nack.error_detail.unwrap();
        assert_eq!((detail.code, detail.message.as_str()), (13, "bad"));
        assert_eq!((nack.type_url.as_str(), nack.response_nonce.as_str()), ("t", "n"));
    }

    #[test]
    fn health_and_subscriptions_carry_nothing_else() {
        let healthy = DiscoveryRequest::decode(health(Kind::Sotw, &AppHealth::Healthy)).unwrap();
        assert_eq!(healthy, DiscoveryRequest { type_url: HEALTH.into(), ..DiscoveryRequest::default() });
        let ill = DeltaDiscoveryRequest::decode(health(Kind::Delta, &AppHealth::Unhealthy("why".into()))).unwrap();
        assert_eq!(ill.error_detail.unwrap().message, "why");
        assert_eq!(
            subscribe(Kind::Delta, "t"),
            DeltaDiscoveryRequest { type_url: "t".into(), ..Default::default() }.encode_to_vec()
        );
    }
}
