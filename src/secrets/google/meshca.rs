//! Google's Mesh CA (`google.security.meshca.v1.MeshCertificateService/CreateCertificate`), as Istio 1.19 and Higress ask it. Its
//! roots are the last element of its answer.

use std::{future::Future, pin::Pin};

use crate::{
    base::random_u64,
    istiod::Istiod,
    proto::google::{
        protobuf::Duration,
        security::meshca::v1::{MeshCertificateRequest, MeshCertificateResponse},
    },
    secrets::{Answer, Authority, Failure, Order, ca::failed},
};

const CREATE_CERTIFICATE: &str = "/google.security.meshca.v1.MeshCertificateService/CreateCertificate";

/// `CA_PROVIDER=GoogleCA`.
pub struct MeshCa(Istiod);

impl MeshCa {
    /// The CA behind this way; `cluster` is GKE's URL of the cluster, whose location routes the requests.
    pub fn new(way: &Istiod, cluster: &str) -> MeshCa {
        MeshCa(match location(cluster) {
            Some(location) => way.with_header("x-goog-request-params", format!("location=locations/{location}")),
            None => way.clone(),
        })
    }

    async fn create(&self, order: &Order) -> Result<Answer, Failure> {
        let request = MeshCertificateRequest {
            request_id: uuid(),
            csr: order.csr.clone(),
            validity: Some(Duration { seconds: order.seconds(), nanos: 0 }),
        };
        match self.0.unary::<_, MeshCertificateResponse>(CREATE_CERTIFICATE, &request, order.deadline).await {
            Ok(response) => Ok(Answer { chain: response.cert_chain, roots: None }),
            Err(status) => Err(failed(&self.0, &status)),
        }
    }
}

impl Authority for MeshCa {
    fn sign<'a>(&'a self, order: &'a Order) -> Pin<Box<dyn Future<Output = Result<Answer, Failure>> + Send + 'a>> {
        Box::pin(self.create(order))
    }
}

/// The location in `…/projects/P/locations/L/clusters/C`; none of a fleet's membership, which has no place.
fn location(cluster: &str) -> Option<&str> {
    if cluster.starts_with("https://gkehub.googleapis.com/") {
        return None;
    }
    let (before, location) = cluster.rsplit_once("/clusters/")?.0.rsplit_once("/locations/")?;
    (before.contains("/projects/") && !location.is_empty()).then_some(location)
}

/// A random one (RFC 9562, version 4).
fn uuid() -> String {
    let (high, low) = (random_u64(), random_u64());
    let (a, b, c) = (high >> 32, high >> 16 & 0xffff, high & 0xfff);
    format!("{a:08x}-{b:04x}-4{c:03x}-{:04x}-{:012x}", low >> 48 & 0x3fff | 0x8000, low & 0xffff_ffff_ffff)
}

#[cfg(test)]
mod tests {
    use super::{
        super::tests::{Google, KNOWN},
        *,
    };
    use crate::{
        grpc::{Code, Status},
        secrets::Cause,
    };

    #[test]
    fn a_location_is_in_the_url_of_a_cluster_and_ids_are_uuids() {
        let url = "https://container.googleapis.com/v1/projects/p/locations/us-central1-c/clusters/c";
        assert_eq!(location(url), Some("us-central1-c"));
        for url in
            ["", "https://gkehub.googleapis.com/projects/p/locations/global/clusters/m", "/locations/l/clusters/c"]
        {
            assert_eq!(location(url), None, "{url}");
        }
        let id = uuid();
        let lengths: Vec<usize> = id.split('-').map(str::len).collect();
        assert_eq!(lengths, [8, 4, 4, 4, 12], "{id}");
        assert!(&id[14..15] == "4" && "89ab".contains(&id[19..20]) && id != uuid(), "{id}");
    }

    #[tokio::test]
    async fn a_request_has_what_mesh_ca_wants_and_an_error_is_told() {
        let response = MeshCertificateResponse { cert_chain: vec!["leaf".to_owned(), "root".to_owned()] };
        let google = Google::start().await;
        google.will_answer(&response);
        google.will_fail(Status::new(Code::PermissionDenied, "not you"));
        let ca = MeshCa::new(&google.way(KNOWN), "x/projects/p/locations/l/clusters/c");
        let answer = ca.sign(&Google::order()).await.unwrap();
        assert_eq!(answer, Answer { chain: response.cert_chain, roots: None });
        let failure = ca.sign(&Google::order()).await.unwrap_err();
        assert_eq!(failure.cause, Cause::Refused);
        assert!(failure.message.contains("not you"), "{failure}");

        let [first, second] = &google.asked::<MeshCertificateRequest>()[..] else { panic!("two requests") };
        assert_eq!(first.0, CREATE_CERTIFICATE);
        assert_eq!(first.1, "authorization=Bearer exchanged x-goog-request-params=location=locations/l");
        assert_eq!(first.2.csr, "csr");
        assert_eq!(first.2.validity, Some(Duration { seconds: 90, nanos: 0 }));
        assert_ne!(first.2.request_id, second.2.request_id);
    }

    #[tokio::test]
    async fn without_googles_token_nothing_is_asked() {
        let google = Google::start().await;
        let failure = MeshCa::new(&google.way("other"), "").sign(&Google::order()).await.unwrap_err();
        assert_eq!(failure.cause, Cause::Unavailable);
        assert!(failure.message.contains("/v1/token for other: it answered 400, who is that"), "{failure}");
        assert!(!failure.message.contains("test_token") && google.asked::<MeshCertificateRequest>().is_empty());
    }
}
