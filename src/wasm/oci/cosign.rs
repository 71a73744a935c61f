//! cosign's signatures of images by a static key (P-256, SHA-256): opt-in, checked before a module is downloaded.
//!
//! cosign keeps the signature of `sha256:X` as the image `sha256-X.sig` in the same repository; each layer is a payload that names
//! the digest, its annotation the signature of the payload (cosign's SIGNATURE_SPEC). Only this form is read: no keyless signatures,
//! no transparency log.

use std::fmt;

use base64::{Engine, engine::general_purpose::STANDARD};
use der::{Decode, pem::PemLabel};
use ring::signature::{ECDSA_P256_SHA256_ASN1, UnparsedPublicKey};
use serde_json::Value;
use x509_cert::spki::SubjectPublicKeyInfoRef;

use crate::wasm::spool::sha256_hex;

use super::{
    manifest::{self, Document},
    registry::{Failure, Session},
};

/// Most signatures of one image that are looked at.
const MAX_SIGNATURES: usize = 32;

/// A key that signs images.
#[derive(Clone, PartialEq, Eq)]
pub(in crate::wasm) struct PublicKey {
    /// The uncompressed point.
    point: Vec<u8>,
}

impl PublicKey {
    /// Reads the PEM file that `cosign generate-key-pair` makes (`cosign.pub`).
    pub(in crate::wasm) fn from_pem(pem: &str) -> Result<PublicKey, String> {
        let (label, der) = der::pem::decode_vec(pem.as_bytes()).map_err(|error| format!("not PEM: {error}"))?;
        if label != SubjectPublicKeyInfoRef::PEM_LABEL {
            return Err(format!("PEM holds {label:?}, not {:?}", SubjectPublicKeyInfoRef::PEM_LABEL));
        }
        let key = SubjectPublicKeyInfoRef::from_der(&der).map_err(|error| format!("no public key: {error}"))?;
        match key.subject_public_key.as_bytes() {
            // 0x04 and two coordinates of P-256.
            Some(point) if point.len() == 65 && point[0] == 4 => Ok(PublicKey { point: point.to_vec() }),
            _ => Err("the key is not on the curve P-256".to_owned()),
        }
    }

    /// Tells keys apart in the cache's index.
    pub(in crate::wasm) fn fingerprint(&self) -> String {
        sha256_hex(&self.point)
    }

    fn signed(&self, payload: &[u8], signature: &str) -> bool {
        let key = UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, &self.point);
        STANDARD.decode(signature).is_ok_and(|signature| key.verify(payload, &signature).is_ok())
    }
}

/// Looks for a signature by `key` of any of the digests (hexadecimal), in their order.
pub(super) async fn verify(session: &mut Session<'_>, digests: &[&str], key: &PublicKey) -> Result<(), Failure> {
    let mut last = None;
    for digest in digests {
        match verify_one(session, digest, key).await {
            Ok(()) => return Ok(()),
            Err(failure) => last = Some(failure),
        }
    }
    Err(last.unwrap_or_else(|| Failure::last("no digest".to_owned())))
}

async fn verify_one(session: &mut Session<'_>, digest: &str, key: &PublicKey) -> Result<(), Failure> {
    let tag = format!("sha256-{digest}.sig");
    let document = session.manifest(&tag).await?;
    let parsed = manifest::parse(&document.body, &document.content_type);
    let Ok(Document::Image(image)) = parsed else {
        return Err(Failure::last(format!("{tag} is no image")));
    };
    for layer in image.layers.iter().take(MAX_SIGNATURES) {
        let Some(signature) = &layer.signature else { continue };
        let payload = session.small_blob(layer).await?;
        if key.signed(&payload, signature) && names_digest(&payload, digest) {
            return Ok(());
        }
    }
    Err(Failure::last(format!("no signature in {tag} is of the configured key")))
}

/// Whether a signed payload is about this image.
fn names_digest(payload: &[u8], digest: &str) -> bool {
    let payload: Value = serde_json::from_slice(payload).unwrap_or_default();
    let named = payload.pointer("/critical/image/docker-manifest-digest").and_then(Value::as_str);
    named.and_then(|named| named.strip_prefix("sha256:")) == Some(digest)
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.fingerprint())
    }
}

#[cfg(test)]
mod tests {
    use ring::{
        rand::SystemRandom,
        signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair},
    };

    use super::*;

    fn pair() -> (EcdsaKeyPair, PublicKey) {
        let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
        let random = SystemRandom::new();
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &key.serialize_der(), &random).unwrap();
        (pair, PublicKey::from_pem(&key.public_key_pem()).unwrap())
    }

    #[test]
    fn signatures_are_of_the_key_and_of_the_payload() {
        let (pair, key) = pair();
        let payload = br#"{"critical":{"image":{"docker-manifest-digest":"sha256:ab"}}}"#;
        let signature = STANDARD.encode(pair.sign(&SystemRandom::new(), payload).unwrap());
        assert!(key.signed(payload, &signature));
        assert!(!key.signed(b"other", &signature));
        assert!(!key.signed(payload, "AAAA") && !key.signed(payload, "?"));
        assert!(!self::pair().1.signed(payload, &signature));
        assert!(names_digest(payload, "ab") && !names_digest(payload, "ac") && !names_digest(b"{", "ab"));
    }

    #[test]
    fn other_keys_are_refused() {
        let p384 = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384).unwrap();
        assert_eq!(PublicKey::from_pem(&p384.public_key_pem()).unwrap_err(), "the key is not on the curve P-256");
        assert!(PublicKey::from_pem(&p384.serialize_pem()).unwrap_err().contains("PRIVATE KEY"));
        assert!(PublicKey::from_pem("x").unwrap_err().starts_with("not PEM"));
    }
}
