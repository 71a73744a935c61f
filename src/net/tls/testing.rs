//! A TLS server's settings for tests.

use std::sync::Arc;

use rustls::{
    ServerConfig, SignatureAlgorithm, SignatureScheme,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer},
    sign::{CertifiedKey, Signer, SigningKey, SingleCertAndKey},
};

/// A certificate for `istiod`, signed by itself, after `change`, as PEM; and a server that shows it.
pub(crate) fn server(change: impl FnOnce(&mut Vec<u8>)) -> (String, Arc<ServerConfig>) {
    let made = rcgen::generate_simple_self_signed(["istiod".to_owned()]).unwrap();
    let mut certificate = made.cert.der().to_vec();
    change(&mut certificate);
    let pem = der::pem::encode_string("CERTIFICATE", der::pem::LineEnding::LF, &certificate).unwrap();
    let provider = Arc::new(ring::default_provider());
    let key = provider.key_provider.load_private_key(PrivateKeyDer::from(made.signing_key)).unwrap();
    (pem, showing(certificate, key))
}

/// A server that shows a certificate which nobody would verify, and signs with a key on P-521.
pub(crate) fn server_with_p521() -> Arc<ServerConfig> {
    let made = rcgen::generate_simple_self_signed(["istiod".to_owned()]).unwrap();
    showing(made.cert.der().to_vec(), Arc::new(P521))
}

fn showing(certificate: Vec<u8>, key: Arc<dyn SigningKey>) -> Arc<ServerConfig> {
    let shown = SingleCertAndKey::from(CertifiedKey::new(vec![CertificateDer::from(certificate)], key));
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(shown));
    Arc::new(config)
}

/// ring has no such keys; its signatures are none.
#[derive(Debug)]
struct P521;

impl SigningKey for P521 {
    fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        offered.contains(&self.scheme()).then(|| Box::new(P521) as Box<dyn Signer>)
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        SignatureAlgorithm::ECDSA
    }
}

impl Signer for P521 {
    fn sign(&self, _: &[u8]) -> Result<Vec<u8>, rustls::Error> {
        Ok(vec![0; 139])
    }

    fn scheme(&self) -> SignatureScheme {
        SignatureScheme::ECDSA_NISTP521_SHA512
    }
}
