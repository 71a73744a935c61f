//! What a TLS dial needs from disk, read afresh each time: roots, client certificate and key.

use std::{os::unix::fs::MetadataExt, path::PathBuf, sync::Arc, time::SystemTime};

use der::Decode as _;
use ring::digest::{Context, SHA256};
use rustls::{
    ClientConfig,
    pki_types::{CertificateDer, pem::PemObject},
};
use x509_cert::Certificate;
use zeroize::Zeroizing;

use super::{RootSource, Tls};
use crate::net::tls::{self, Identity, Protocol, Roots};

/// Files of a client certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pair {
    /// Leaf first, PEM.
    pub chain: PathBuf,
    /// PEM.
    pub key: PathBuf,
}

/// Tells whether the files still say what they said.
pub(super) type Fingerprint = [u8; 32];

/// What was read for one dial.
pub(super) struct Material {
    pub(super) fingerprint: Fingerprint,
    pub(super) roots: Roots,
    identity: Option<Identity>,
    /// When the certificate that is shown ends.
    pub(super) ends: Option<SystemTime>,
    /// Why there is no identity although files for one are configured.
    pub(super) warning: Option<String>,
}

impl Material {
    /// Reads the files. What cannot be read counts as empty; a dial then says what is missing.
    pub(super) fn read(tls: &Tls) -> Material {
        let mut context = Context::new(&SHA256);
        let roots = match &tls.roots {
            RootSource::System(store) => {
                // Large, and read for a dial only: what the file system says of it tells whether it was replaced.
                for data in store.paths().filter_map(|path| path.metadata().ok()) {
                    let (size, changed) = (data.size(), (data.ctime(), data.ctime_nsec()));
                    context.update(format!("{} {size} {changed:?}", data.ino()).as_bytes());
                }
                Roots::System(store.clone())
            }
            RootSource::File(file) => {
                let pem = std::fs::read(file).unwrap_or_default();
                context.update(&pem);
                Roots::Pem(pem)
            }
        };
        let (mut identity, mut ends, mut warning) = (None, None, None);
        if let Some(pair) = &tls.pair {
            match pair.read() {
                Ok((read, end)) => {
                    context.update(&read.chain);
                    context.update(&read.key);
                    (identity, ends) = (Some(read), Some(end));
                }
                Err(reason) => warning = Some(reason),
            }
        }
        let mut fingerprint = [0; 32];
        fingerprint.copy_from_slice(context.finish().as_ref());
        Material { fingerprint, roots, identity, ends, warning }
    }

    /// Settings made of it.
    pub(super) fn config(&self, tls: &Tls) -> Result<Arc<ClientConfig>, tls::Error> {
        tls::client_config(&self.roots, self.identity.as_ref(), tls.policy, Protocol::Http2)
    }
}

impl Pair {
    /// The pair and its end, unless its certificate cannot be shown; then the reason, as Istio words it. A key that does not fit is shown: the
    /// dial fails, for that is a mistake that a token should not hide.
    fn read(&self) -> Result<(Identity, SystemTime), String> {
        let chain = std::fs::read(&self.chain).unwrap_or_default();
        let unusable = |why: String| format!("{why} ({}), using token instead", self.chain.display());
        let leaf = CertificateDer::from_pem_slice(&chain)
            .ok()
            .and_then(|der| Certificate::from_der(&der).ok())
            .ok_or_else(|| unusable("cannot parse the cert chain".to_owned()))?;
        let end = leaf.tbs_certificate().validity().not_after.to_system_time();
        if end < SystemTime::now() {
            return Err(unusable("cert expired".to_owned()));
        }
        Ok((Identity { chain, key: Zeroizing::new(std::fs::read(&self.key).unwrap_or_default()) }, end))
    }
}
