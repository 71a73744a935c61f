//! A TLS server's settings for tests.

use std::sync::Arc;

use rustls::{
    ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer},
    sign::{CertifiedKey, SingleCertAndKey},
};

/// A certificate for `istiod`, signed by itself, after `change`, as PEM; and a server that shows it.
pub(crate) fn server(change: impl FnOnce(&mut Vec<u8>)) -> (String, Arc<ServerConfig>) {
    let made = rcgen::generate_simple_self_signed(["istiod".to_owned()]).unwrap();
    let mut certificate = made.cert.der().to_vec();
    change(&mut certificate);
    let pem = der::pem::encode_string("CERTIFICATE", der::pem::LineEnding::LF, &certificate).unwrap();
    let provider = Arc::new(ring::default_provider());
    let key = provider.key_provider.load_private_key(PrivateKeyDer::from(made.signing_key)).unwrap();
    let shown = SingleCertAndKey::from(CertifiedKey::new(vec![CertificateDer::from(certificate)], key));
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(shown));
    (pem, Arc::new(config))
}
