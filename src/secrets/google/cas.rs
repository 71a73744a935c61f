//! Google's Certificate Authority Service (`google.cloud.security.privateca.v1`), as Istio 1.19 and Higress ask it: the service takes
//! only the key of the CSR and names the certificate after whoever calls. The roots are those of the whole pool.

use std::{future::Future, pin::Pin};

use tokio::time::Instant;

use crate::{
    base::random_u64,
    istiod::{Istiod, escape},
    proto::google::{
        cloud::security::privateca::v1::{
            Certificate, CertificateConfig, CreateCertificateRequest, FetchCaCertsRequest, FetchCaCertsResponse,
            IssuedCertificate, KeyUsage, PublicKey, Subject, SubjectRequestMode, X509Parameters,
            certificate_config::SubjectConfig,
            key_usage::{ExtendedKeyUsageOptions, KeyUsageOptions},
            public_key::KeyFormat,
            x509_parameters::CaOptions,
        },
        protobuf::Duration,
    },
    secrets::{Answer, Authority, Failure, Order, bundle, ca::failed},
};

/// Where the service is; `CA_ADDR` names the pool.
pub const ADDRESS: &str = "privateca.googleapis.com:443";
const CREATE_CERTIFICATE: &str = "/google.cloud.security.privateca.v1.CertificateAuthorityService/CreateCertificate";
const FETCH_CA_CERTS: &str = "/google.cloud.security.privateca.v1.CertificateAuthorityService/FetchCaCerts";
/// The header that routes a call to the pool's region.
const ROUTE: &str = "x-goog-request-params";

/// `CA_PROVIDER=GoogleCAS`.
pub struct Cas {
    create: Istiod,
    fetch: Istiod,
    /// `projects/*/locations/*/caPools/*`.
    pool: String,
}

impl Cas {
    /// The CAs of `pool`, behind this way to the service.
    pub fn new(way: &Istiod, pool: String) -> Cas {
        let route = |field| way.with_header(ROUTE, format!("{field}={}", escape(&pool)));
        Cas { create: route("parent"), fetch: route("ca_pool"), pool }
    }

    async fn ask(&self, order: &Order) -> Result<Answer, Failure> {
        let begun = Instant::now();
        let request = CreateCertificateRequest {
            parent: self.pool.clone(),
            certificate_id: format!("csr-workload-{:016x}", random_u64()),
            certificate: Some(wanted(order)),
        };
        let created = self.create.unary::<_, IssuedCertificate>(CREATE_CERTIFICATE, &request, order.deadline).await;
        let certificate = created.map_err(|status| failed(&self.create, &status))?;
        let left = order.deadline.saturating_sub(begun.elapsed());
        let request = FetchCaCertsRequest { ca_pool: self.pool.clone() };
        let fetched = self.fetch.unary::<_, FetchCaCertsResponse>(FETCH_CA_CERTS, &request, left).await;
        let cas = fetched.map_err(|status| failed(&self.fetch, &status))?.ca_certs;
        let mut roots: Vec<String> = cas.into_iter().filter_map(|mut ca| ca.certificates.pop()).collect();
        roots.sort();
        roots.dedup();
        let mut chain = certificate.pem_certificate_chain;
        chain.insert(0, certificate.pem_certificate);
        // As in Istio: without any the last element of the chain has to do.
        let roots = (!roots.is_empty()).then(|| bundle::concat(&roots));
        Ok(Answer { chain, roots })
    }
}

impl Authority for Cas {
    fn sign<'a>(&'a self, order: &'a Order) -> Pin<Box<dyn Future<Output = Result<Answer, Failure>> + Send + 'a>> {
        Box::pin(self.ask(order))
    }
}

/// Whether this is the name of a pool.
pub fn is_pool(name: &str) -> bool {
    let parts: Vec<&str> = name.split('/').collect();
    matches!(parts[..], ["projects", p, "locations", l, "caPools", c] if ![p, l, c].contains(&""))
}

fn wanted(order: &Order) -> Certificate {
    let key_usage = KeyUsage {
        base_key_usage: Some(KeyUsageOptions { digital_signature: true, key_encipherment: true }),
        extended_key_usage: Some(ExtendedKeyUsageOptions { server_auth: true, client_auth: true }),
    };
    let config = CertificateConfig {
        subject_config: Some(SubjectConfig { subject: Some(Subject {}) }),
        x509_config: Some(X509Parameters {
            key_usage: Some(key_usage),
            ca_options: Some(CaOptions { is_ca: Some(false) }),
        }),
        public_key: Some(PublicKey { key: order.csr.clone().into_bytes(), format: KeyFormat::Pem.into() }),
    };
    Certificate {
        config: Some(config),
        lifetime: Some(Duration { seconds: order.seconds(), nanos: 0 }),
        subject_mode: SubjectRequestMode::ReflectedSpiffe.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::tests::{Google, KNOWN},
        *,
    };
    use crate::{
        grpc::{Code, Status},
        proto::google::cloud::security::privateca::v1::fetch_ca_certs_response::CertChain,
        secrets::Cause,
    };

    const POOL: &str = "projects/p/locations/l/caPools/c";

    fn roots(chains: &[&[&str]]) -> FetchCaCertsResponse {
        let chain = |chain: &&[&str]| CertChain { certificates: chain.iter().map(|pem| (*pem).to_owned()).collect() };
        FetchCaCertsResponse { ca_certs: chains.iter().map(chain).collect() }
    }

    #[test]
    fn pools_have_a_project_and_a_location() {
        assert!(is_pool(POOL));
        for name in ["", "privateca.googleapis.com:443", "projects/p/locations/l/caPools/", "projects/p/caPools/c"] {
            assert!(!is_pool(name), "{name}");
        }
    }

    #[tokio::test]
    async fn a_certificate_comes_with_the_roots_of_the_pool() {
        let google = Google::start().await;
        let signed = IssuedCertificate {
            pem_certificate: "leaf\n".to_owned(),
            pem_certificate_chain: vec!["ca\n".to_owned(), "b\n".to_owned()],
        };
        google.will_answer(&signed);
        google.will_answer(&roots(&[&["ca\n", "b\n"], &["a\n"], &["other\n", "b\n"], &[]]));
        let answer = Cas::new(&google.way(KNOWN), POOL.to_owned()).sign(&Google::order()).await.unwrap();
        assert_eq!(answer.chain, ["leaf\n", "ca\n", "b\n"]);
        assert_eq!(answer.roots.as_deref(), Some(&b"a\nb\n"[..]));

        let (path, headers, request) = google.asked::<CreateCertificateRequest>().remove(0);
        assert_eq!(path, CREATE_CERTIFICATE);
        let route = "projects%2Fp%2Flocations%2Fl%2FcaPools%2Fc";
        assert_eq!(headers, format!("authorization=Bearer exchanged {ROUTE}=parent={route}"));
        assert_eq!(request.parent, POOL);
        assert!(request.certificate_id.starts_with("csr-workload-"), "{}", request.certificate_id);
        let certificate = request.certificate.unwrap();
        assert_eq!(certificate, wanted(&Google::order()));
        assert_eq!(certificate.lifetime.unwrap().seconds, 90);
        let (path, headers, request) = google.asked::<FetchCaCertsRequest>().remove(1);
        assert_eq!((path.as_str(), request.ca_pool.as_str()), (FETCH_CA_CERTS, POOL));
        assert!(headers.ends_with(&format!("{ROUTE}=ca_pool={route}")), "{headers}");
    }

    #[tokio::test]
    async fn a_failure_of_either_call_is_told() {
        let google = Google::start().await;
        let cas = Cas::new(&google.way(KNOWN), POOL.to_owned());
        google.will_fail(Status::new(Code::InvalidArgument, "malformed ca path"));
        let failure = cas.sign(&Google::order()).await.unwrap_err();
        assert_eq!(failure.cause, Cause::Refused);
        assert!(failure.message.contains("malformed ca path"), "{failure}");
        google.will_answer(&IssuedCertificate::default());
        google.will_fail(Status::new(Code::Unavailable, "no roots now"));
        let failure = cas.sign(&Google::order()).await.unwrap_err();
        assert_eq!(failure.cause, Cause::Unavailable);
        assert!(failure.message.contains("no roots now"), "{failure}");
        // A pool that names no root: the chain's end is left.
        google.will_answer(&IssuedCertificate::default());
        google.will_answer(&roots(&[]));
        assert_eq!(cas.sign(&Google::order()).await.unwrap().roots, None);
    }
}
