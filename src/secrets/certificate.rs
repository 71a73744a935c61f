//! What a certificate says: names, validity, key. Pure.

use std::time::{Duration, SystemTime};

use der::{Decode, Encode, Reader, SliceReader, Tag, Tagged, asn1::AnyRef};
use x509_cert::{
    Certificate,
    ext::pkix::{SubjectAltName, name::GeneralName},
};

use crate::wires::Leaf;

use super::{distinguished::Distinguished, pem};

/// The label of certificates in PEM.
pub(crate) const LABEL: &str = "CERTIFICATE";

/// A certificate that parses.
pub(crate) struct Parsed {
    pub leaf: Leaf,
    /// The subject's public key with its algorithm, DER.
    pub public_key: Vec<u8>,
}

/// Reads one DER certificate; `None` when it is none.
pub(crate) fn parse(der: &[u8]) -> Option<Parsed> {
    let certificate = Certificate::from_der(der).ok()?;
    let inner = certificate.tbs_certificate();
    let validity = inner.validity();
    let leaf = Leaf {
        subject: Distinguished(inner.subject()).to_string(),
        issuer: Distinguished(inner.issuer()).to_string(),
        names: names(&certificate),
        serial: inner.serial_number().as_bytes().iter().map(|byte| format!("{byte:02x}")).collect(),
        not_before: since_epoch(validity.not_before.to_unix_duration()),
        not_after: since_epoch(validity.not_after.to_unix_duration()),
    };
    Some(Parsed { leaf, public_key: inner.subject_public_key_info().to_der().ok()? })
}

/// The public key (SubjectPublicKeyInfo, DER) of the first certificate in a PEM text.
pub fn public_key(text: &[u8]) -> Option<Vec<u8>> {
    parse(ders(text).first()?).map(|parsed| parsed.public_key)
}

/// Whether Go's `x509.ParseCertificate` takes it, as far as it matters for roots: it is a certificate, and its serial number is
/// not negative. Much cheaper than [`parse`], which is strict where old roots are not.
pub(crate) fn is_certificate(der: &[u8]) -> bool {
    let read = || -> der::Result<bool> {
        let mut reader = SliceReader::new(der)?;
        let outer = AnyRef::decode(&mut reader)?;
        reader.finish()?;
        outer.tag().assert_eq(Tag::Sequence)?;
        let mut fields = SliceReader::new(outer.value())?;
        let inner = AnyRef::decode(&mut fields)?;
        let algorithm = AnyRef::decode(&mut fields)?;
        let signature = AnyRef::decode(&mut fields)?;
        fields.finish()?;
        let mut fields = SliceReader::new(inner.value())?;
        let mut first = AnyRef::decode(&mut fields)?;
        if first.tag().is_context_specific() {
            first = AnyRef::decode(&mut fields)?;
        }
        let rest = (0..5).map(|_| AnyRef::decode(&mut fields)).collect::<der::Result<Vec<_>>>()?;
        Ok(inner.tag() == Tag::Sequence
            && algorithm.tag() == Tag::Sequence
            && signature.tag() == Tag::BitString
            && first.tag() == Tag::Integer
            && first.value().first().is_some_and(|byte| byte & 0x80 == 0)
            && rest.iter().all(|field| field.tag() == Tag::Sequence))
    };
    read().unwrap_or(false)
}

/// The certificates of a PEM text, DER, in their order; what is none is left out.
pub(crate) fn ders(text: &[u8]) -> Vec<Vec<u8>> {
    pem::blocks(text).into_iter().filter(in_block).map(|block| block.der.to_vec()).collect()
}

/// Whether the block is a certificate that parses.
pub(crate) fn in_block(block: &pem::Block<'_>) -> bool {
    block.label == LABEL && is_certificate(&block.der)
}

fn names(certificate: &Certificate) -> Vec<String> {
    let Ok(Some((_, alternative))) = certificate.tbs_certificate().get_extension::<SubjectAltName>() else {
        return Vec::new();
    };
    let text = |name: &GeneralName| match name {
        GeneralName::UniformResourceIdentifier(uri) => Some(uri.to_string()),
        GeneralName::DnsName(name) => Some(name.to_string()),
        _ => None,
    };
    alternative.0.iter().filter_map(text).collect()
}

fn since_epoch(duration: Duration) -> SystemTime {
    SystemTime::UNIX_EPOCH + duration
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secrets::testing::Authority;

    #[test]
    fn reads_names_and_validity() {
        let (der, _) = Authority::new("an authority").issue("spiffe://td/ns/n/sa/s");
        let leaf = parse(&der).unwrap().leaf;
        assert_eq!(leaf.names, ["spiffe://td/ns/n/sa/s"]);
        assert!(leaf.issuer.contains("an authority"), "{}", leaf.issuer);
        assert!(leaf.not_before < leaf.not_after && !leaf.serial.is_empty());
    }

    #[test]
    fn what_is_no_certificate_is_not_taken_for_one() {
        let (der, _) = Authority::new("a").issue("spiffe://td/ns/n/sa/s");
        assert!(is_certificate(&der));
        let mut cut = der.clone();
        cut.truncate(der.len() - 1);
        let long = [&der[..], &[0]].concat();
        for bytes in [&b""[..], b"\x30\x00", b"\x30\x80\x00\x00", &cut, &long] {
            assert!(!is_certificate(bytes) && parse(bytes).is_none(), "{bytes:02x?}");
        }
    }

    #[test]
    fn negative_serial_numbers_are_refused_as_go_refuses_them() {
        let (mut der, _) = Authority::new("a").issue("spiffe://td/ns/n/sa/s");
        // The serial number is the first INTEGER after the version.
        let serial = der.windows(5).position(|window| window == [0xa0, 3, 2, 1, 2]).unwrap() + 5;
        assert_eq!(der[serial], 2);
        der[serial + 2] |= 0x80;
        assert!(!is_certificate(&der));
    }

    #[test]
    fn roots_of_this_machine_are_read() {
        let Ok(text) = std::fs::read("/etc/ssl/certs/ca-certificates.crt") else { return };
        let count = text.windows(10).filter(|window| window == b"-----BEGIN").count();
        assert_eq!(ders(&text).len(), count);
    }
}
