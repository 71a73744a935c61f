//! The two gRPC services of istiod that an agent calls: certificates and ADS.

use std::{sync::Arc, time::Duration};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use footman::{
    grpc::{BoxFuture, Code, Metadata, Receiver, Request, Sender, Service, Status},
    proto::istio::v1::auth::{IstioCertificateRequest, IstioCertificateResponse},
};
use tokio::sync::watch;

use crate::{
    ads::{Kind, Stream},
    ca::Ca,
    mesh::Mesh,
};

/// Requests are larger than most with Envoy's list of extensions; 4 MiB is gRPC's usual limit.
const MAX_REQUEST: usize = 4 * 1024 * 1024;

/// What answers the agents.
pub struct ControlPlane {
    pub ca: Arc<Ca>,
    /// No certificate is valid for longer.
    pub max_ttl: Duration,
    pub mesh: watch::Receiver<Arc<Mesh>>,
}

impl Service for ControlPlane {
    fn call(&self, request: Request, mut receiver: Receiver, mut sender: Sender) -> BoxFuture {
        let (ca, max_ttl, mesh) = (Arc::clone(&self.ca), self.max_ttl, self.mesh.clone());
        Box::pin(async move {
            let ended = match request.path.as_str() {
                "/istio.v1.auth.IstioCertificateService/CreateCertificate" => {
                    create_certificate(&ca, max_ttl, &request.metadata, &mut receiver, &mut sender).await
                }
                "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources" => {
                    discover(Kind::Sotw, mesh, &mut receiver, &mut sender).await
                }
                "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources" => {
                    discover(Kind::Delta, mesh, &mut receiver, &mut sender).await
                }
                _ => Err(request.unimplemented()),
            };
            sender.close(&ended.err().unwrap_or_else(Status::ok));
        })
    }
}

async fn create_certificate(
    ca: &Ca,
    max_ttl: Duration,
    metadata: &Metadata,
    receiver: &mut Receiver,
    sender: &mut Sender,
) -> Result<(), Status> {
    let request: IstioCertificateRequest =
        receiver.message(MAX_REQUEST).await?.ok_or_else(|| Status::new(Code::Internal, "no request"))?;
    let spiffe_id = spiffe_id(metadata)?;
    let wanted = Duration::from_secs(request.validity_duration.try_into().unwrap_or_default());
    let ttl = wanted.min(max_ttl);
    let leaf = ca
        .sign(&request.csr, &spiffe_id, ttl)
        .map_err(|error| Status::new(Code::InvalidArgument, format!("CSR: {error}")))?;
    println!("certificate for {spiffe_id}, valid for {} s", ttl.as_secs());
    sender.send(&IstioCertificateResponse { cert_chain: vec![leaf, ca.root_pem()] }).await
}

/// Whom the token speaks for. Its signature is not checked: nobody but a developer calls this server.
fn spiffe_id(metadata: &Metadata) -> Result<String, Status> {
    let unauthenticated = |text: &str| Status::new(Code::Unauthenticated, text);
    let token = metadata.get("authorization").and_then(|value| value.strip_prefix("Bearer "));
    let claims = token.ok_or_else(|| unauthenticated("no bearer token"))?.split('.').nth(1).unwrap_or_default();
    let claims = URL_SAFE_NO_PAD.decode(claims).map_err(|_| unauthenticated("the token is no JWT"))?;
    let claims: serde_json::Value =
        serde_json::from_slice(&claims).map_err(|_| unauthenticated("the token is no JWT"))?;
    let subject = claims["sub"].as_str().and_then(|subject| subject.strip_prefix("system:serviceaccount:"));
    let (namespace, account) = subject
        .and_then(|subject| subject.split_once(':'))
        .ok_or_else(|| unauthenticated("the token's sub is not system:serviceaccount:NAMESPACE:NAME"))?;
    Ok(format!("spiffe://cluster.local/ns/{namespace}/sa/{account}"))
}

async fn discover(
    kind: Kind,
    mut mesh: watch::Receiver<Arc<Mesh>>,
    receiver: &mut Receiver,
    sender: &mut Sender,
) -> Result<(), Status> {
    let mut stream = Stream::new(kind);
    mesh.mark_unchanged();
    loop {
        let responses = tokio::select! {
            request = receiver.raw(MAX_REQUEST) => match request? {
                Some(bytes) => {
                    let mesh = Arc::clone(&mesh.borrow());
                    match stream.request(&mesh, &bytes) {
                        Ok(response) => Vec::from_iter(response),
                        Err(problem) => {
                            println!("{problem}");
                            Vec::new()
                        }
                    }
                }
                None => return Ok(()),
            },
            changed = mesh.changed() => {
                changed.map_err(|_| Status::new(Code::Unavailable, "the control plane is ending"))?;
                let mesh = Arc::clone(&mesh.borrow_and_update());
                let responses = stream.changed(&mesh);
                println!("{}: {} responses after a change", stream.workload(), responses.len());
                responses
            }
        };
        for response in responses {
            sender.send_raw(response).await?;
        }
    }
}
