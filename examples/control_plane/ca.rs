//! A certificate authority for development and tests: a root made at start, certificates for CSRs, a server's TLS.

use std::{
    error::Error,
    sync::Arc,
    time::{Duration, SystemTime},
};

use der::{DecodePem, Encode};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PublicKeyData, SanType,
    SignatureAlgorithm,
};
use ring::signature::{ECDSA_P256_SHA256_ASN1, ECDSA_P384_SHA384_ASN1, UnparsedPublicKey, VerificationAlgorithm};
use rustls::{
    ServerConfig,
    crypto::ring::default_provider,
    pki_types::{CertificateDer, PrivatePkcs8KeyDer},
};
use x509_cert::request::CertReq;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Certificates are valid from a little before now on, for peers whose clock is behind.
const BACKDATED: Duration = Duration::from_secs(10);

pub struct Ca {
    root: CertifiedIssuer<'static, KeyPair>,
}

/// The public key of a CSR, as rcgen wants it.
struct Requested {
    point: Vec<u8>,
    algorithm: &'static SignatureAlgorithm,
}

impl PublicKeyData for Requested {
    fn der_bytes(&self) -> &[u8] {
        &self.point
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        self.algorithm
    }
}

impl Ca {
    /// A new root, valid for a year.
    pub fn new(name: &str) -> Result<Ca> {
        let mut params = valid_for(CertificateParams::default(), Duration::from_secs(365 * 86_400));
        params.distinguished_name.push(DnType::OrganizationName, "cluster.local");
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        Ok(Ca { root: CertifiedIssuer::self_signed(params, KeyPair::generate()?)? })
    }

    /// The root certificate, PEM.
    pub fn root_pem(&self) -> String {
        self.root.pem()
    }

    /// A certificate for the key of a CSR (PKCS #10, PEM), PEM, without the root. The signature in the CSR must be good; whom the
    /// certificate is for is `spiffe_id` alone.
    pub fn sign(&self, csr: &str, spiffe_id: &str, ttl: Duration) -> Result<String> {
        let request = CertReq::from_pem(csr)?;
        let key = request.info.public_key.subject_public_key.raw_bytes();
        let (algorithm, verify): (_, &dyn VerificationAlgorithm) = match key.len() {
            65 => (&PKCS_ECDSA_P256_SHA256, &ECDSA_P256_SHA256_ASN1),
            97 => (&PKCS_ECDSA_P384_SHA384, &ECDSA_P384_SHA384_ASN1),
            _ => return Err("the key is neither P-256 nor P-384".into()),
        };
        UnparsedPublicKey::new(verify, key)
            .verify(&request.info.to_der()?, request.signature.raw_bytes())
            .map_err(|_| "the CSR is not signed with its own key")?;
        let mut params = valid_for(CertificateParams::default(), ttl);
        params.subject_alt_names = vec![SanType::URI(spiffe_id.try_into()?)];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let requested = Requested { point: key.to_vec(), algorithm };
        Ok(params.signed_by(&requested, &self.root)?.pem())
    }

    /// TLS for a gRPC server of these names (DNS names and addresses).
    pub fn server_config(&self, names: &[&str]) -> Result<Arc<ServerConfig>> {
        let key = KeyPair::generate()?;
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let params = valid_for(CertificateParams::new(names)?, Duration::from_secs(30 * 86_400));
        let chain = vec![CertificateDer::from(params.signed_by(&key, &self.root)?)];
        let mut config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(chain, PrivatePkcs8KeyDer::from(key.serialize_der()).into())?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Arc::new(config))
    }
}

fn valid_for(mut params: CertificateParams, ttl: Duration) -> CertificateParams {
    let now = SystemTime::now();
    params.distinguished_name = DistinguishedName::new();
    params.not_before = (now - BACKDATED).into();
    params.not_after = (now + ttl).into();
    params
}
