//! A certificate authority and a directory for this room's tests.

use std::{
    fs,
    path::PathBuf,
    sync::Arc,
    time::{Duration, SystemTime},
};

use zeroize::Zeroizing;

use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, CertifiedIssuer, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose, SanType,
};

use super::{certificate, file::Source, pem};
use crate::{
    base::random_u64,
    wires::{self, PrivateKey, Snapshot, TrustBundle, Workload},
};

pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub(crate) fn new(name: &str) -> Authority {
        Authority(CertifiedIssuer::self_signed(params(name), KeyPair::generate().unwrap()).unwrap())
    }

    pub(crate) fn intermediate(&self, name: &str) -> Authority {
        Authority(CertifiedIssuer::signed_by(params(name), KeyPair::generate().unwrap(), &self.0).unwrap())
    }

    pub(crate) fn pem(&self) -> String {
        self.0.pem().replace("\r\n", "\n")
    }

    pub(crate) fn der(&self) -> Vec<u8> {
        self.0.der().to_vec()
    }

    /// Signs a request, valid from a moment ago for `life`.
    pub(crate) fn sign(&self, csr: &str, life: Duration) -> String {
        self.sign_at(csr, SystemTime::now(), life)
    }

    pub(crate) fn sign_at(&self, csr: &str, now: SystemTime, life: Duration) -> String {
        let mut request = CertificateSigningRequestParams::from_pem(csr).unwrap();
        request.params.not_before = now.into();
        request.params.not_after = (now + life).into();
        request.params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        request.signed_by(&self.0).unwrap().pem().replace("\r\n", "\n")
    }

    /// A leaf of this name with its key: (certificate DER, key PEM).
    pub(crate) fn issue(&self, name: &str) -> (Vec<u8>, String) {
        let key = KeyPair::generate().unwrap();
        let mut leaf = CertificateParams::default();
        leaf.subject_alt_names = vec![SanType::URI(name.try_into().unwrap())];
        (leaf.signed_by(&key, &self.0).unwrap().der().to_vec(), key.serialize_pem().replace("\r\n", "\n"))
    }

    /// The same, both in PEM.
    pub(crate) fn issue_pem(&self, name: &str) -> (String, String) {
        let (der, key) = self.issue(name);
        (pem::encode("CERTIFICATE", &der).to_string(), key)
    }
}

/// A snapshot with a certificate that lives for `life`.
pub(crate) fn snapshot(authority: &Authority, life: Duration) -> Snapshot {
    let (chain, key) = authority.issue_pem("spiffe://cluster.local/ns/ns1/sa/sa1");
    let mut leaf = certificate::parse(&certificate::ders(chain.as_bytes())[0]).unwrap().leaf;
    let now = SystemTime::now();
    (leaf.not_before, leaf.not_after) = (now, now + life);
    let workload = Workload {
        chain: format!("{chain}{}", authority.pem()).into(),
        key: PrivateKey::from_pem(Zeroizing::new(key.into_bytes())),
        leaf,
        source: wires::Source::Authority,
        obtained: now,
    };
    let bundle = TrustBundle { pem: authority.pem().into() };
    Snapshot { workload: Some(Arc::new(workload)), bundle: Some(Arc::new(bundle)), ..Snapshot::default() }
}

/// A directory of its own for one test, removed at its end.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new() -> Scratch {
        let path = std::env::temp_dir().join(format!("footman-secrets-{:x}", random_u64()));
        fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Writes a pair of files.
    pub(crate) fn pair(&self, chain: &str, key: &str) -> Source {
        fs::write(self.path("tls.crt"), chain).unwrap();
        fs::write(self.path("tls.key"), key).unwrap();
        Source::Pair { chain: self.path("tls.crt"), key: self.path("tls.key") }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.distinguished_name.push(DnType::CommonName, name);
    params
}
