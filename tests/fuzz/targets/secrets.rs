//! What CAs, files and Envoy send where secrets are concerned.

use std::time::SystemTime;

use footman::{
    sds::Subscription,
    secrets::{answer, bundle, pem, public_key},
};
use prost::Message;

/// A PEM bundle, merged and normalized: both are stable, and each certificate is in them once.
pub fn pem_bundle(data: &[u8]) {
    let merged = bundle::merge(&[data]);
    assert_eq!(bundle::merge(std::slice::from_ref(&merged)), merged);
    let normal = bundle::normalize(data);
    assert_eq!(bundle::normalize(&normal), normal);
    let ders: std::collections::BTreeSet<Vec<u8>> =
        pem::blocks(&normal).iter().map(|block| block.der.to_vec()).collect();
    assert_eq!(pem::blocks(&merged).len(), ders.len());
}

/// The chain that a CA answers with, its elements separated by zero bytes: the verdict never panics, and the chain keeps every byte.
pub fn csr_answer(data: &[u8]) {
    let chain: Vec<String> =
        data.split(|byte| *byte == 0).map(|text| String::from_utf8_lossy(text).into_owned()).collect();
    // Its own key, so that the checks behind that of the key are reached.
    let key = public_key(chain[0].as_bytes()).unwrap_or_default();
    let _ = answer::judge(&chain, None, &key, "spiffe://cluster.local/ns//sa/", SystemTime::now());
    let whole = bundle::concat(&chain);
    let kept = whole.iter().filter(|byte| **byte != b'\n').count();
    assert_eq!(kept, chain.iter().flat_map(|text| text.bytes()).filter(|byte| *byte != b'\n').count());
}

/// Requests on one stream, each with a length byte before it: names are never wanted twice, an empty list wants none.
pub fn sds_requests(mut data: &[u8]) {
    use footman::proto::envoy::service::discovery::v3::DiscoveryRequest;
    let mut stream = Subscription::default();
    while let Some((length, rest)) = data.split_first() {
        let (message, rest) = rest.split_at(rest.len().min(usize::from(*length)));
        data = rest;
        let Ok(request) = DiscoveryRequest::decode(message) else { continue };
        stream.request(&request.resource_names, &request.response_nonce);
        let names: Vec<&str> = stream.names().collect();
        let once: std::collections::BTreeSet<&str> = names.iter().copied().collect();
        assert_eq!(once.len(), names.len());
        assert!(!request.resource_names.is_empty() || names.is_empty());
    }
}
