//! Private keys as files and certificate requests bring them. Pure; keeps no copy.

use std::fmt;

use der::{Decode, Reader, SliceReader, Tag, TagNumber, Tagged, asn1::AnyRef};
use rustls::{
    crypto::ring::sign,
    pki_types::{PrivateKeyDer, PrivatePkcs1KeyDer, PrivatePkcs8KeyDer, PrivateSec1KeyDer},
};

use super::{
    csr::{INTEGER, bit_string, sequence, tlv},
    pem,
};

/// Why a key cannot be used.
#[derive(Debug, PartialEq, Eq)]
pub enum KeyError {
    /// There is no private key in the text.
    Missing,
    /// It is protected by a passphrase, which Envoy would need as well.
    Encrypted,
    /// It does not parse.
    Broken,
}

/// The public half (SubjectPublicKeyInfo, DER) of the first private key in a PEM text; `None` for a sound key about which nothing
/// more can be said here: one written without its public half, as Java does. As in Go, the label does not decide on the form.
///
/// # Errors
/// When there is no usable key.
pub(crate) fn public_key(text: &[u8]) -> Result<Option<Vec<u8>>, KeyError> {
    let blocks = pem::blocks(text);
    let block = blocks.iter().find(|block| block.label.ends_with("PRIVATE KEY")).ok_or(KeyError::Missing)?;
    if block.label == "ENCRYPTED PRIVATE KEY" {
        return Err(KeyError::Encrypted);
    }
    let der = &block.der[..];
    let forms: [PrivateKeyDer<'_>; 3] = [
        PrivatePkcs8KeyDer::from(der).into(),
        PrivatePkcs1KeyDer::from(der).into(),
        PrivateSec1KeyDer::from(der).into(),
    ];
    match forms.iter().find_map(|form| sign::any_supported_type(form).ok()) {
        Some(key) => Ok(key.public_key().map(|info| info.to_vec())),
        None => foreign(der, None).ok_or(KeyError::Broken),
    }
}

/// The public half of a key that Envoy knows and ring does not: RSA of other sizes (8192 bits) and exponents (3), P-521, curves
/// without their public half. `algorithm` is what the PKCS#8 (RFC 5208) around it says.
fn foreign(der: &[u8], algorithm: Option<&[u8]>) -> Option<Option<Vec<u8>>> {
    const P256: &[u8] = &[0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07];
    const P384: &[u8] = &[0x06, 0x05, 0x2b, 0x81, 0x04, 0x00, 0x22];
    const P521: &[u8] = &[0x06, 0x05, 0x2b, 0x81, 0x04, 0x00, 0x23];
    const EC: &[u8] = &[0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01];
    const RSA: &[u8] = &[0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01, 0x05, 0x00];
    match fields(der)?[..] {
        // Once: a file may nest them until the stack ends.
        [(Tag::Integer, _), (Tag::Sequence, named), (Tag::OctetString, inner), ..] if algorithm.is_none() => {
            foreign(inner, Some(named))
        }
        // RFC 8017 `RSAPrivateKey`.
        [(Tag::Integer, _), (Tag::Integer, modulus), (Tag::Integer, exponent), (Tag::Integer, _), _, _, _, _, _] => {
            let key = sequence(&[&tlv(INTEGER, modulus), &tlv(INTEGER, exponent)]);
            Some(Some(sequence(&[&sequence(&[RSA]), &bit_string(&key)]).to_vec()))
        }
        // RFC 5915 `ECPrivateKey`.
        [(Tag::Integer, [1]), (Tag::OctetString, [_, ..]), ref rest @ ..] => {
            let part = |number| {
                let tag = Tag::ContextSpecific { constructed: true, number: TagNumber(number) };
                rest.iter().find(|field| field.0 == tag).map(|field| field.1)
            };
            let named = [EC, part(0).unwrap_or_default()].concat();
            let algorithm = algorithm.unwrap_or(&named);
            match part(1) {
                None => [P256, P384, P521].iter().any(|curve| algorithm.ends_with(curve)).then_some(None),
                Some(point) => {
                    algorithm.ends_with(P521).then(|| Some(sequence(&[&sequence(&[algorithm]), point]).to_vec()))
                }
            }
        }
        _ => None,
    }
}

/// Tag and contents of each field of a DER sequence.
fn fields(der: &[u8]) -> Option<Vec<(Tag, &[u8])>> {
    let mut reader = SliceReader::new(AnyRef::from_der(der).ok()?.value()).ok()?;
    let mut fields = Vec::new();
    while !reader.is_finished() {
        let field = AnyRef::decode(&mut reader).ok()?;
        fields.push((field.tag(), field.value()));
    }
    Some(fields)
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            KeyError::Missing => "no private key in it",
            KeyError::Encrypted => "the private key is encrypted; Envoy needs it without a passphrase",
            KeyError::Broken => "the private key does not parse",
        })
    }
}

impl std::error::Error for KeyError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_what_is_wrong_with_a_key() {
        for (text, error) in [
            ("", KeyError::Missing),
            ("-----BEGIN CERTIFICATE-----\nAQI=\n-----END CERTIFICATE-----\n", KeyError::Missing),
            ("-----BEGIN ENCRYPTED PRIVATE KEY-----\nAQI=\n-----END ENCRYPTED PRIVATE KEY-----\n", KeyError::Encrypted),
            ("-----BEGIN PRIVATE KEY-----\nAQI=\n-----END PRIVATE KEY-----\n", KeyError::Broken),
            ("-----BEGIN EC PRIVATE KEY-----\nAQI=\n-----END EC PRIVATE KEY-----\n", KeyError::Broken),
        ] {
            assert_eq!(public_key(text.as_bytes()), Err(error), "{text}");
        }
    }

    #[test]
    fn a_key_without_its_public_half_is_sound() {
        // PKCS#8 of P-256 as Java writes it: the scalar and nothing else.
        let scalar = [&[0x30, 0x25, 2, 1, 1, 4, 0x20][..], &[7; 32]].concat();
        let head = [0x30, 0x41, 2, 1, 0, 0x30, 0x13, 6, 7, 0x2a, 0x86, 0x48, 0xce, 0x3d, 2, 1];
        let curve = [6, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 3, 1, 7, 4, 0x27];
        let der = [&head[..], &curve, &scalar].concat();
        assert_eq!(public_key(pem::encode("PRIVATE KEY", &der).as_bytes()), Ok(None));
        assert_eq!(public_key(pem::encode("PRIVATE KEY", &der[..der.len() - 1]).as_bytes()), Err(KeyError::Broken));
    }

    #[test]
    fn keys_of_other_makers_are_read() {
        for algorithm in [&rcgen::PKCS_ECDSA_P256_SHA256, &rcgen::PKCS_ECDSA_P384_SHA384, &rcgen::PKCS_ED25519] {
            let pair = rcgen::KeyPair::generate_for(algorithm).unwrap();
            let public = public_key(pair.serialize_pem().as_bytes()).unwrap().unwrap();
            assert_eq!(public, rcgen::PublicKeyData::subject_public_key_info(&pair));
        }
    }

    #[test]
    fn keys_that_ring_does_not_take_are_read_whatever_their_label() {
        const OCTETS: u8 = 4;
        // RSA of 8192 bits and exponent 3.
        let (modulus, three) = (tlv(INTEGER, &[&[0, 0xab][..], &[7; 1023]].concat()), tlv(INTEGER, &[3]));
        let number = tlv(INTEGER, &[5; 512]);
        let rsa =
            sequence(&[&tlv(INTEGER, &[0]), &modulus, &three, &number, &number, &number, &number, &number, &number]);
        let name = [0x30, 13, 6, 9, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 1, 5, 0];
        let public = sequence(&[&name, &bit_string(&sequence(&[&modulus, &three]))]).to_vec();
        let wrapped = sequence(&[&tlv(INTEGER, &[0]), &name, &tlv(OCTETS, &rsa)]);
        for label in ["RSA PRIVATE KEY", "PRIVATE KEY", "EC PRIVATE KEY"] {
            for der in [&rsa, &wrapped] {
                assert_eq!(public_key(pem::encode(label, der).as_bytes()), Ok(Some(public.clone())), "{label}");
            }
        }
        let twice = sequence(&[&tlv(INTEGER, &[0]), &name, &tlv(OCTETS, &wrapped)]);
        assert_eq!(public_key(pem::encode("PRIVATE KEY", &twice).as_bytes()), Err(KeyError::Broken));
        // P-521, P-256 without its public half, and an unknown curve.
        let (p521, p256) = (&[6, 5, 0x2b, 0x81, 4, 0, 0x23][..], &[6, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 3, 1, 7][..]);
        let point = bit_string(&[4; 133]);
        let scalar = [tlv(INTEGER, &[1]).to_vec(), tlv(OCTETS, &[1; 66]).to_vec()].concat();
        let sec1 = |curve: &[u8], public: &[u8]| sequence(&[&scalar, &tlv(0xa0, curve), &tlv(0xa1, public)]);
        let ec = |curve: &[u8]| sequence(&[&[6, 7, 0x2a, 0x86, 0x48, 0xce, 0x3d, 2, 1], curve]);
        let public = sequence(&[&ec(p521), &point]).to_vec();
        let inner = sequence(&[&scalar, &tlv(0xa1, &point)]);
        for (der, is) in [
            (sec1(p521, &point), Ok(Some(public.clone()))),
            (sequence(&[&tlv(INTEGER, &[0]), &ec(p521), &tlv(OCTETS, &inner)]), Ok(Some(public))),
            (sequence(&[&scalar, &tlv(0xa0, p256)]), Ok(None)),
            (sec1(p256, &point), Err(KeyError::Broken)),
            (sequence(&[&scalar, &tlv(0xa0, &[6, 1, 9])]), Err(KeyError::Broken)),
        ] {
            assert_eq!(public_key(pem::encode("EC PRIVATE KEY", &der).as_bytes()), is);
        }
    }
}
