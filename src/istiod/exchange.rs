//! The exchange of the workload's token for one of Google's, which Google's certificate authorities want to see (RFC 8693, in the
//! JSON form of Google's token service).
//!
//! Asked for with every call and kept nowhere, as in Istio 1.19: a certificate is asked for a few times a day.

use std::time::Duration;

use serde_json::{Value as Json, json};

use crate::{
    config::{Errors, Vars},
    net::{
        http1::{self, client::Request},
        tls::{Policy, Protocol, Roots, SystemStore, client_config},
    },
};

const TOKEN_SERVICE: &str = "https://sts.googleapis.com/v1/token";
const SCOPE: &str = "https://www.googleapis.com/auth/cloud-platform";
/// Istio's.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Access tokens have some 2 KiB.
const MAX_ANSWER: usize = 64 * 1024;

/// Where and for whom tokens are exchanged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exchange {
    /// The token service.
    pub url: String,
    /// The trust domain, and who has made the tokens that it believes.
    pub audience: String,
    /// Whom to believe that it is the token service.
    pub store: SystemStore,
    /// Versions and ciphers.
    pub policy: Policy,
}

impl Exchange {
    /// `TRUST_DOMAIN`; `GKE_CLUSTER_URL`, on Google's virtual machines `CREDENTIAL_IDENTITY_PROVIDER`.
    pub(super) fn from_vars(vars: &Vars, policy: Policy) -> Result<Exchange, Errors> {
        let mut errors = Errors::default();
        let provider = match vars.text("CREDENTIAL_FETCHER_TYPE") {
            Some("GoogleComputeEngine") => vars.text_or("CREDENTIAL_IDENTITY_PROVIDER", "GoogleComputeEngine"),
            _ => vars.text_or("GKE_CLUSTER_URL", ""),
        };
        if provider.is_empty() {
            errors
                .add("GKE_CLUSTER_URL", "is empty: Google's token service has to be told which cluster made the token");
        }
        let audience = format!("identitynamespace:{}:{provider}", vars.text_or("TRUST_DOMAIN", "cluster.local"));
        errors.into_result(Exchange { url: TOKEN_SERVICE.to_owned(), audience, store: vars.system_store(), policy })
    }

    /// Google's token for this one.
    ///
    /// # Errors
    /// Why there is none, with the address; neither token is in the text.
    pub async fn exchange(&self, token: String) -> Result<String, String> {
        let exchanged = self.ask(token).await;
        exchanged.map_err(|why| format!("token exchange at {} for {}: {why}", self.url, self.audience))
    }

    async fn ask(&self, token: String) -> Result<String, String> {
        let text = |error: http1::Error| error.to_string();
        let body = json!({
            "audience": self.audience,
            "grantType": "urn:ietf:params:oauth:grant-type:token-exchange",
            "requestedTokenType": "urn:ietf:params:oauth:token-type:access_token",
            "subjectTokenType": "urn:ietf:params:oauth:token-type:jwt",
            "subjectToken": token,
            "scope": SCOPE,
        });
        let request = Request::post(&self.url, body.to_string()).map_err(text)?;
        let tls = request
            .url
            .tls
            .then(|| client_config(&Roots::System(self.store.clone()), None, self.policy, Protocol::Http1))
            .transpose()
            .map_err(|error| error.to_string())?;
        let request = request.header("Content-Type", "application/json").timeout(TIMEOUT);
        let mut response = request.send(tls.as_ref()).await.map_err(text)?;
        let body = response.body.collect(MAX_ANSWER).await.map_err(text)?;
        let answer: Json = serde_json::from_slice(&body).unwrap_or_default();
        match answer["access_token"].as_str() {
            Some(token) if response.status == 200 && !token.is_empty() => Ok(token.to_owned()),
            _ => {
                let why = answer["error_description"].as_str().or(answer["error"].as_str());
                Err(format!("it answered {}, {}", response.status, why.unwrap_or("and no token")))
            }
        }
    }
}
