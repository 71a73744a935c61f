//! Private keys as files and certificate requests bring them. Pure; keeps no copy.

use std::fmt;

use der::{Decode, Reader, SliceReader, Tag, TagNumber, Tagged, asn1::AnyRef};
use rustls::{
    crypto::ring::sign,
    pki_types::{PrivateKeyDer, PrivatePkcs1KeyDer, PrivatePkcs8KeyDer, PrivateSec1KeyDer},
};

use super::pem;

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
/// more can be said here: on P-521, or written without its public half, as Java does.
///
/// # Errors
/// When there is no usable key.
pub(crate) fn public_key(text: &[u8]) -> Result<Option<Vec<u8>>, KeyError> {
    let blocks = pem::blocks(text);
    let block = blocks.iter().find(|block| block.label.ends_with("PRIVATE KEY")).ok_or(KeyError::Missing)?;
    let der = match block.label {
        "ENCRYPTED PRIVATE KEY" => return Err(KeyError::Encrypted),
        "RSA PRIVATE KEY" => PrivateKeyDer::Pkcs1(PrivatePkcs1KeyDer::from(&block.der[..])),
        "EC PRIVATE KEY" => PrivateKeyDer::Sec1(PrivateSec1KeyDer::from(&block.der[..])),
        _ => PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(&block.der[..])),
    };
    match sign::any_supported_type(&der) {
        Ok(key) => Ok(key.public_key().map(|info| info.to_vec())),
        Err(_) if names_p521(&block.der) || lacks_public_half(&block.der) => Ok(None),
        Err(_) => Err(KeyError::Broken),
    }
}

/// Whether this is an elliptic-curve key (PKCS#8 around RFC 5915 `ECPrivateKey`) without the public half, which is optional there.
fn lacks_public_half(der: &[u8]) -> bool {
    const PUBLIC_KEY: Tag = Tag::ContextSpecific { constructed: true, number: TagNumber(1) };
    let inner = || {
        let [_, _, (Tag::OctetString, inner), ..] = fields(der)?[..] else { return None };
        fields(inner)
    };
    inner().is_some_and(|fields| {
        matches!(fields[..], [(Tag::Integer, [1]), (Tag::OctetString, [_, ..]), ..])
            && fields.iter().all(|(tag, _)| *tag != PUBLIC_KEY)
    })
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

/// Whether the key says that it is on P-521 (secp521r1, 1.3.132.0.35), which Envoy knows and ring does not.
fn names_p521(der: &[u8]) -> bool {
    const NAME: [u8; 7] = [0x06, 0x05, 0x2b, 0x81, 0x04, 0x00, 0x23];
    der.windows(NAME.len()).any(|window| window == NAME)
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
}
