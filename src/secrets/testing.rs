//! A certificate authority for this room's tests.

use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, CertifiedIssuer, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose, SanType,
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
}

fn params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.distinguished_name.push(DnType::CommonName, name);
    params
}
