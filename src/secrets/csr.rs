//! A new key and the request to sign it (PKCS#10, RFC 2986), in the one shape that istiod accepts in every mode: subject `O=""`,
//! one critical SAN with the SPIFFE ID, no other extension.
//!
//! Called by the worker for each certificate: a key is used for one certificate only. Key bytes are wiped when dropped.

use std::fmt;

use der::{
    Decode, Encode, Reader, SliceReader,
    asn1::{AnyRef, ObjectIdentifier},
};
use ring::{
    rand::SystemRandom,
    signature::{self, EcdsaKeyPair, EcdsaSigningAlgorithm, KeyPair},
};
use zeroize::Zeroizing;

use crate::wires::PrivateKey;

use super::pem;

const ORGANIZATION: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.4.10");
const SUBJECT_ALT_NAME: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.29.17");
const EXTENSION_REQUEST: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.9.14");
const EC_PUBLIC_KEY: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.10045.2.1");

// DER tags.
const BOOLEAN: u8 = 0x01;
pub(super) const INTEGER: u8 = 0x02;
const BIT_STRING: u8 = 0x03;
const OCTET_STRING: u8 = 0x04;
const PRINTABLE_STRING: u8 = 0x13;
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
/// `uniformResourceIdentifier` of RFC 5280 `GeneralName`.
const URI_NAME: u8 = 0x86;
const CONTEXT_0: u8 = 0xa0;
const CONTEXT_1: u8 = 0xa1;

/// The curve of a new key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Curve {
    /// NIST P-256, signed with SHA-256.
    P256,
    /// NIST P-384, signed with SHA-384.
    P384,
}

/// How a new key is made and written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyStyle {
    /// Its curve.
    pub curve: Curve,
    /// PKCS#8 (`PRIVATE KEY`) instead of SEC1 (`EC PRIVATE KEY`).
    pub pkcs8: bool,
}

/// A key and the request for its certificate.
pub struct Request {
    /// The request, PEM.
    pub csr: String,
    /// The key.
    pub key: PrivateKey,
    /// Its public half with the algorithm (SubjectPublicKeyInfo), DER.
    pub public_key: Vec<u8>,
}

/// Why there is no request.
#[derive(Debug)]
pub struct Error(&'static str);

/// Makes a key and signs a request for `identity` with it.
///
/// # Errors
/// When the kernel gives no randomness, or `identity` is not ASCII.
pub fn request(identity: &str, style: KeyStyle) -> Result<Request, Error> {
    let random = SystemRandom::new();
    let document =
        EcdsaKeyPair::generate_pkcs8(style.curve.algorithm(), &random).map_err(|_| Error("no randomness for a key"))?;
    // ring's document is a plain array: this copy is the one that is wiped.
    let pkcs8 = Zeroizing::new(document.as_ref().to_vec());
    let pair =
        EcdsaKeyPair::from_pkcs8(style.curve.algorithm(), &pkcs8, &random).map_err(|_| Error("unusable new key"))?;
    let public_key = style.curve.public_key_info(pair.public_key().as_ref())?;
    let body = body(identity, &public_key)?;
    let signature = pair.sign(&random, &body).map_err(|_| Error("no randomness for a signature"))?;
    let csr = sequence(&[&body, &sequence(&[&style.curve.signature().to_der()?]), &bit_string(signature.as_ref())]);
    let key = if style.pkcs8 {
        pem::encode("PRIVATE KEY", &pkcs8)
    } else {
        pem::encode("EC PRIVATE KEY", &sec1(&pkcs8, style.curve)?)
    };
    Ok(Request {
        csr: pem::encode("CERTIFICATE REQUEST", &csr).to_string(),
        key: PrivateKey::from_pem(Zeroizing::new(key.as_bytes().to_vec())),
        public_key: public_key.to_vec(),
    })
}

/// RFC 2986 `CertificationRequestInfo`.
fn body(identity: &str, public_key: &[u8]) -> Result<Zeroizing<Vec<u8>>, Error> {
    if !identity.is_ascii() {
        return Err(Error("the identity cannot be written into a certificate: only ASCII can"));
    }
    let organization = sequence(&[&ORGANIZATION.to_der()?, &tlv(PRINTABLE_STRING, b"")]);
    let subject = sequence(&[&tlv(SET, &organization)]);
    let names = sequence(&[&tlv(URI_NAME, identity.as_bytes())]);
    let extension = sequence(&[&SUBJECT_ALT_NAME.to_der()?, &tlv(BOOLEAN, &[0xff]), &tlv(OCTET_STRING, &names)]);
    let attribute = sequence(&[&EXTENSION_REQUEST.to_der()?, &tlv(SET, &sequence(&[&extension]))]);
    Ok(sequence(&[&tlv(INTEGER, &[0]), &subject, public_key, &tlv(CONTEXT_0, &attribute)]))
}

/// RFC 5915 `ECPrivateKey` with the curve's name in it, which BoringSSL insists on and PKCS#8 keeps elsewhere.
fn sec1(pkcs8: &[u8], curve: Curve) -> Result<Zeroizing<Vec<u8>>, Error> {
    let outer = fields(pkcs8)?;
    let [_, _, inner, ..] = outer.as_slice() else { return Err(Error("a new key of unknown form")) };
    let inner = fields(inner)?;
    let [_, scalar, public, ..] = inner.as_slice() else { return Err(Error("a new key of unknown form")) };
    let name = curve.name().to_der()?;
    Ok(sequence(&[&tlv(INTEGER, &[1]), &tlv(OCTET_STRING, scalar), &tlv(CONTEXT_0, &name), &tlv(CONTEXT_1, public)]))
}

/// The contents of each field of a DER sequence.
fn fields(der: &[u8]) -> der::Result<Vec<&[u8]>> {
    let mut reader = SliceReader::new(AnyRef::from_der(der)?.value())?;
    let mut fields = Vec::new();
    while !reader.is_finished() {
        fields.push(AnyRef::decode(&mut reader)?.value());
    }
    Ok(fields)
}

pub(super) fn sequence(fields: &[&[u8]]) -> Zeroizing<Vec<u8>> {
    tlv(SEQUENCE, &Zeroizing::new(fields.concat()))
}

pub(super) fn bit_string(bytes: &[u8]) -> Zeroizing<Vec<u8>> {
    tlv(BIT_STRING, &[&[0], bytes].concat())
}

/// One DER value of less than 64 KiB.
pub(super) fn tlv(tag: u8, value: &[u8]) -> Zeroizing<Vec<u8>> {
    let [high, low] = (value.len() as u16).to_be_bytes();
    let head: &[u8] = match value.len() {
        0..0x80 => &[tag, low],
        0x80..0x100 => &[tag, 0x81, low],
        _ => &[tag, 0x82, high, low],
    };
    Zeroizing::new([head, value].concat())
}

impl Curve {
    fn algorithm(self) -> &'static EcdsaSigningAlgorithm {
        match self {
            Curve::P256 => &signature::ECDSA_P256_SHA256_ASN1_SIGNING,
            Curve::P384 => &signature::ECDSA_P384_SHA384_ASN1_SIGNING,
        }
    }

    /// RFC 5480 name of the curve.
    fn name(self) -> ObjectIdentifier {
        match self {
            Curve::P256 => ObjectIdentifier::new_unwrap("1.2.840.10045.3.1.7"),
            Curve::P384 => ObjectIdentifier::new_unwrap("1.3.132.0.34"),
        }
    }

    /// RFC 5758 name of the signature.
    fn signature(self) -> ObjectIdentifier {
        match self {
            Curve::P256 => ObjectIdentifier::new_unwrap("1.2.840.10045.4.3.2"),
            Curve::P384 => ObjectIdentifier::new_unwrap("1.2.840.10045.4.3.3"),
        }
    }

    /// RFC 5480 `SubjectPublicKeyInfo` of a point.
    fn public_key_info(self, point: &[u8]) -> der::Result<Zeroizing<Vec<u8>>> {
        let algorithm = sequence(&[&EC_PUBLIC_KEY.to_der()?, &self.name().to_der()?]);
        Ok(sequence(&[&algorithm, &bit_string(point)]))
    }
}

impl From<der::Error> for Error {
    fn from(_: der::Error) -> Error {
        Error("a new key of unknown form")
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secrets::{certificate, key};

    const ID: &str = "spiffe://cluster.local/ns/ns1/sa/sa1";

    /// What rcgen makes of the request when it signs it: another implementation read it and checked its signature.
    fn signed(request: &Request) -> certificate::Parsed {
        let mut params = rcgen::CertificateSigningRequestParams::from_pem(&request.csr).expect("a valid request");
        params.params.not_after = rcgen::date_time_ymd(2050, 1, 1);
        let ca = rcgen::KeyPair::generate().unwrap();
        let issuer = rcgen::Issuer::new(rcgen::CertificateParams::default(), ca);
        certificate::parse(params.signed_by(&issuer).unwrap().der()).unwrap()
    }

    #[test]
    fn request_carries_identity_and_key_in_every_style() {
        for (curve, pkcs8, label) in [
            (Curve::P256, false, "EC PRIVATE KEY"),
            (Curve::P256, true, "PRIVATE KEY"),
            (Curve::P384, false, "EC PRIVATE KEY"),
            (Curve::P384, true, "PRIVATE KEY"),
        ] {
            let made = request(ID, KeyStyle { curve, pkcs8 }).unwrap();
            assert!(made.key.pem().starts_with(format!("-----BEGIN {label}-----").as_bytes()));
            assert_eq!(key::public_key(made.key.pem()).unwrap(), Some(made.public_key.clone()));
            let leaf = signed(&made);
            assert_eq!(leaf.leaf.names, [ID]);
            assert_eq!(leaf.public_key, made.public_key);
        }
    }

    #[test]
    fn every_request_has_its_own_key() {
        let style = KeyStyle { curve: Curve::P256, pkcs8: false };
        assert_ne!(request(ID, style).unwrap().public_key, request(ID, style).unwrap().public_key);
    }

    #[test]
    fn subject_is_an_empty_organization_and_the_name_is_critical() {
        let made = request(ID, KeyStyle { curve: Curve::P256, pkcs8: false }).unwrap();
        let der = pem::blocks(made.csr.as_bytes()).remove(0).der;
        let hex: String = der.iter().map(|byte| format!("{byte:02x}")).collect();
        // SEQUENCE { SET { SEQUENCE { OID 2.5.4.10, PrintableString "" } } }
        assert!(hex.contains("300b3109300706035504 0a1300".replace(' ', "").as_str()), "{hex}");
        // Extensions: one, OID 2.5.29.17, critical TRUE
        assert!(hex.contains("0603551d110101ff04"), "{hex}");
    }

    #[test]
    fn an_identity_that_no_certificate_can_hold_is_refused() {
        let error = request("spiffe://ä/ns/x/sa/y", KeyStyle { curve: Curve::P256, pkcs8: false }).err().unwrap();
        assert!(error.to_string().contains("ASCII"));
    }
}
