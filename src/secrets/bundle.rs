//! Chains and trust roots as text: joined, merged, checked. Pure.

use std::{
    collections::{BTreeMap, HashSet},
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use rustls::pki_types::{CertificateDer, UnixTime};
use webpki::{EndEntityCert, Error, KeyUsage, anchor_from_trusted_cert};

use super::{certificate, pem};

/// One text after the other, each beginning on a new line.
pub fn concat<T: AsRef<[u8]>>(texts: &[T]) -> Bytes {
    let mut all = Vec::with_capacity(texts.iter().map(|text| text.as_ref().len() + 1).sum());
    for text in texts.iter().map(AsRef::as_ref).filter(|text| !text.is_empty()) {
        if all.last().is_some_and(|last| *last != b'\n') {
            all.push(b'\n');
        }
        all.extend_from_slice(text);
    }
    all.into()
}

/// The certificates of all texts, each once, sorted by their text, joined by newlines, as Istio merges trust anchors. The text
/// of each stays as it came; what is no certificate is left out.
pub fn merge<T: AsRef<[u8]>>(texts: &[T]) -> Bytes {
    let mut sorted: BTreeMap<&str, pem::Block<'_>> = BTreeMap::new();
    for text in texts {
        let blocks = pem::blocks(text.as_ref()).into_iter();
        sorted.extend(blocks.filter(certificate::in_block).map(|block| (block.text, block)));
    }
    let mut seen: HashSet<&[u8]> = HashSet::new();
    let mut all: Vec<&str> = Vec::new();
    for block in sorted.values() {
        if seen.insert(&block.der) {
            all.push(block.text);
        }
    }
    all.join("\n").into()
}

/// The certificates of a root file, each written anew, in their order; empty when there is none. As in Go, the label does not decide
/// (`X509 CERTIFICATE`).
pub fn normalize(text: &[u8]) -> Bytes {
    let blocks = pem::blocks(text).into_iter().filter(|block| certificate::is_certificate(&block.der));
    let text: String = blocks.map(|block| pem::encode(certificate::LABEL, &block.der).to_string()).collect();
    text.into()
}

/// Whether the first certificate of `chain` leads through the others to one of `roots`.
///
/// Validity in time is not looked at, and a chain is only refused for what is certain: a signature that this build cannot check
/// counts as good.
pub fn chains_to(chain: &[Vec<u8>], roots: &[Vec<u8>], now: SystemTime) -> bool {
    let chain: Vec<CertificateDer<'_>> = chain.iter().map(|der| CertificateDer::from(&der[..])).collect();
    let roots: Vec<CertificateDer<'_>> = roots.iter().map(|der| CertificateDer::from(&der[..])).collect();
    let Some((leaf, intermediates)) = chain.split_first() else { return false };
    let Ok(leaf) = EndEntityCert::try_from(leaf) else { return true };
    let Ok(anchors) = roots.iter().map(anchor_from_trusted_cert).collect::<Result<Vec<_>, _>>() else { return true };
    let now = UnixTime::since_unix_epoch(now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO));
    let verified = leaf.verify_for_usage(
        webpki::ALL_VERIFICATION_ALGS,
        &anchors,
        intermediates,
        now,
        KeyUsage::client_auth(),
        None,
        None,
    );
    !matches!(verified, Err(Error::UnknownIssuer | Error::InvalidSignatureForPublicKey))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secrets::testing::Authority;

    fn text(bytes: &Bytes) -> &str {
        std::str::from_utf8(bytes).unwrap()
    }

    #[test]
    fn concat_begins_each_on_a_new_line() {
        for (parts, whole) in
            [(vec![], ""), (vec!["a"], "a"), (vec!["a", "b"], "a\nb"), (vec!["a\n", "b"], "a\nb"), (vec!["", "b"], "b")]
        {
            assert_eq!(text(&concat(&parts)), whole);
        }
    }

    #[test]
    fn merge_sorts_and_keeps_each_certificate_once() {
        let (a, b) = (Authority::new("a"), Authority::new("b"));
        let mut wanted = [a.pem().trim().to_owned(), b.pem().trim().to_owned()];
        wanted.sort();
        let merged = merge(&[format!("# one\n{}{}", a.pem(), b.pem()), b.pem().trim().to_owned()]);
        assert_eq!(text(&merged), wanted.join("\n"));
        assert_eq!(merge(std::slice::from_ref(&merged)), merged);
        assert_eq!(merge(&[a.pem(), a.pem().replace('\n', "\r\n")]).len(), a.pem().trim().len());
    }

    #[test]
    fn merge_of_nothing_is_empty() {
        assert!(merge::<&str>(&[]).is_empty());
        assert!(merge(&["-----BEGIN CERTIFICATE-----\nAQI=\n-----END CERTIFICATE-----\n"]).is_empty());
    }

    #[test]
    fn normalize_keeps_order_and_what_is_sound() {
        let (a, b) = (Authority::new("a"), Authority::new("b"));
        let broken = "-----BEGIN CERTIFICATE-----\nAQI=\n-----END CERTIFICATE-----\n";
        let file = format!("# roots\n{}{broken}words\n{}tail", b.pem().replace('\n', "\r\n"), a.pem());
        assert_eq!(text(&normalize(file.as_bytes())), format!("{}{}", b.pem(), a.pem()));
        let (labelled, key) = (a.pem().replace("CERTIFICATE", "X509 CERTIFICATE"), a.issue("spiffe://td/ns/n/sa/s").1);
        assert_eq!(text(&normalize(format!("{key}{labelled}").as_bytes())), a.pem());
    }

    #[test]
    fn a_chain_leads_to_its_own_roots_only() {
        let (a, b) = (Authority::new("a"), Authority::new("b"));
        let middle = a.intermediate("m");
        let leaf = vec![middle.issue("spiffe://td/ns/n/sa/s").0, middle.der()];
        let now = SystemTime::now();
        assert!(chains_to(&leaf, &[b.der(), a.der()], now));
        assert!(!chains_to(&leaf, &[b.der()], now));
        assert!(!chains_to(&leaf[..1], &[a.der()], now));
        assert!(!chains_to(&leaf, &[], now));
        assert!(!chains_to(&[], &[a.der()], now));
        // Another authority of the same name.
        assert!(!chains_to(&leaf, &[Authority::new("a").der()], now));
        assert!(chains_to(&leaf, &[a.der()], now + Duration::from_secs(400 * 365 * 86_400)));
    }
}
