//! What stands in for a plugin whose module cannot be had: an RBAC filter that lets all pass, or none.

use bytes::Bytes;
use prost::Message;

use crate::proto::{
    envoy::config::{
        core::v3::TypedExtensionConfig,
        rbac::v3::{HttpRbac, NetworkRbac, Rules},
    },
    google::protobuf::Any,
};

use super::resource::Kind;

const EXTENSION: &str = "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig";
const HTTP_RBAC: &str = "type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC";
const NETWORK_RBAC: &str = "type.googleapis.com/envoy.extensions.filters.network.rbac.v3.RBAC";

/// The stand-in of that name, an encoded `google.protobuf.Any`.
///
/// RBAC without rules allows everything; with rules that hold no policy it denies everything (Istio 1.31).
pub(super) fn stand_in(name: &str, kind: Kind, fail_open: bool) -> Bytes {
    let (rules, prefix) = if fail_open { (None, "wasm-default-allow") } else { (Some(Rules {}), "wasm-default-deny") };
    let prefix = prefix.to_owned();
    let (type_url, value) = match kind {
        Kind::Http => (HTTP_RBAC, HttpRbac { rules, rules_stat_prefix: prefix }.encode_to_vec()),
        Kind::Network => (NETWORK_RBAC, NetworkRbac { rules, stat_prefix: prefix }.encode_to_vec()),
    };
    let typed_config = Some(Any { type_url: type_url.to_owned(), value: value.into() });
    let extension = TypedExtensionConfig { name: name.to_owned(), typed_config };
    Any { type_url: EXTENSION.to_owned(), value: extension.encode_to_vec().into() }.encode_to_vec().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(name: &str, kind: Kind, fail_open: bool) -> Any {
        let any = Any::decode(stand_in(name, kind, fail_open)).unwrap();
        assert_eq!(any.type_url, EXTENSION);
        let extension = TypedExtensionConfig::decode(any.value).unwrap();
        assert_eq!(extension.name, name);
        extension.typed_config.unwrap()
    }

    #[test]
    fn denies_with_empty_rules_and_allows_without() {
        let deny = typed("p", Kind::Http, false);
        assert_eq!(deny.type_url, HTTP_RBAC);
        assert_eq!(deny.value.as_ref(), b"\x0a\x00\x32\x11wasm-default-deny");
        assert_eq!(typed("p", Kind::Http, true).value.as_ref(), b"\x32\x12wasm-default-allow");
        let deny = typed("p", Kind::Network, false);
        assert_eq!(deny.type_url, NETWORK_RBAC);
        assert_eq!(deny.value.as_ref(), b"\x0a\x00\x1a\x11wasm-default-deny");
        assert_eq!(typed("p", Kind::Network, true).value.as_ref(), b"\x1a\x12wasm-default-allow");
    }
}
