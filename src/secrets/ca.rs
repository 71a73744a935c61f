//! istiod as certificate authority (`istio.v1.auth.IstioCertificateService/CreateCertificate`).
//!
//! Token, roots and client certificate are the business of [`Istiod`], which reads them for each call. Nothing is retried here.

use std::{future::Future, pin::Pin};

use tokio::sync::watch;

use super::authority::{Answer, Authority, Cause, Failure, Order};
use crate::{
    grpc::{Code, Status},
    istiod::Istiod,
    proto::{
        google::protobuf::{Struct, Value, value::Kind},
        istio::v1::auth::{IstioCertificateRequest, IstioCertificateResponse},
    },
};

const CREATE_CERTIFICATE: &str = "/istio.v1.auth.IstioCertificateService/CreateCertificate";

/// istiod's own CA, or whom it asks in turn. Istio's name for the provider.
pub struct Citadel {
    istiod: Istiod,
    /// `ISTIO_META_CERT_SIGNER`; always sent, empty for the default one.
    signer: String,
}

impl Citadel {
    /// A CA behind this way to istiod.
    pub fn new(istiod: Istiod, signer: String) -> Citadel {
        Citadel { istiod, signer }
    }

    async fn create(&self, order: &Order) -> Result<Answer, Failure> {
        let signer = Value { kind: Some(Kind::StringValue(self.signer.clone())) };
        let request = IstioCertificateRequest {
            csr: order.csr.clone(),
            validity_duration: order.seconds(),
            metadata: Some(Struct { fields: [("CertSigner".to_owned(), signer)].into() }),
        };
        match self.istiod.unary::<_, IstioCertificateResponse>(CREATE_CERTIFICATE, &request, order.deadline).await {
            Ok(response) => Ok(Answer { chain: response.cert_chain, roots: None }),
            Err(status) => Err(failed(&self.istiod, &status)),
        }
    }
}

/// What a CA's refusal means, whichever CA it is.
pub(super) fn failed(way: &Istiod, status: &Status) -> Failure {
    // The next attempt may find another istiod, or another client certificate.
    way.retire();
    let cause = match status.code {
        Code::Unauthenticated | Code::PermissionDenied | Code::InvalidArgument => Cause::Refused,
        Code::DeadlineExceeded => Cause::Timeout,
        _ => Cause::Unavailable,
    };
    // Istio's words: people search for them.
    let message = format!("create certificate: CA {}: {status}{}", way.address(), way.token_doubt(status));
    Failure { cause, message, pushback: status.pushback }
}

impl Authority for Citadel {
    fn sign<'a>(&'a self, order: &'a Order) -> Pin<Box<dyn Future<Output = Result<Answer, Failure>> + Send + 'a>> {
        Box::pin(self.create(order))
    }

    fn reached(&self) -> Option<watch::Receiver<u64>> {
        Some(self.istiod.connected())
    }
}
