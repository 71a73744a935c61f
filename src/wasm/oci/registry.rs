//! One session with a registry (OCI distribution spec 1.1): scheme, login, manifests, blobs.
//!
//! Called by `pull`. Everything that comes by digest is checked against it.

use std::{path::Path, time::Duration};

use serde_json::Value;
use tokio::time::Instant;

use crate::{
    net::http1::{Url, client::Response},
    wasm::{
        error::{Error, Stage},
        fetch::{self, Ask, Client, pause, retry_after},
        spool::{Spool, Spooled, sha256_hex},
    },
};

use super::{
    challenge::{self, Challenge},
    credentials::Credentials,
    manifest,
    reference::Reference,
};

/// Attempts of each request while the registry is busy or the connection breaks: three, 1 s and 3 s apart (Istio's).
const DELAYS: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(3)];
/// Statuses after which the same request is sent again.
const TEMPORARY: [u16; 8] = [408, 429, 499, 500, 502, 503, 504, 522];
/// Largest manifest (the distribution spec lets registries refuse more than 4 MiB) and token answer.
const MAX_DOCUMENT: usize = 4 << 20;

/// A registry that has been reached.
pub(in crate::wasm) struct Session<'a> {
    client: &'a Client,
    reference: &'a Reference,
    credentials: &'a Credentials,
    deadline: Instant,
    /// Whether the registry was reached by TLS.
    tls: bool,
    authorization: Option<String>,
}

/// A manifest or index as it came.
pub(in crate::wasm) struct Document {
    pub(in crate::wasm) body: Vec<u8>,
    pub(in crate::wasm) content_type: String,
    /// Hexadecimal digits of its SHA-256.
    pub(in crate::wasm) digest: String,
}

/// Why a request failed.
pub(in crate::wasm) struct Failure {
    pub(in crate::wasm) text: String,
    pub(in crate::wasm) retryable: bool,
    pub(in crate::wasm) after: Option<Duration>,
}

impl Failure {
    pub(in crate::wasm) fn last(text: String) -> Failure {
        Failure { text, retryable: false, after: None }
    }

    fn of(url: &Url, error: &fetch::Error) -> Failure {
        Failure { text: format!("Get \"{url}\": {error}"), retryable: error.is_retryable(), after: None }
    }

    pub(in crate::wasm) fn into_error(self, stage: Stage, context: &str) -> Error {
        let Failure { text, retryable, after } = self;
        Error::Fetch { stage, text: format!("{context}: {text}"), retryable, after }
    }
}

impl<'a> Session<'a> {
    /// Finds out how the registry is spoken to, and logs in.
    ///
    /// By TLS; without it only registries near by, and those that answer a TLS handshake in plain HTTP, as Istio does.
    pub(in crate::wasm) async fn open(
        client: &'a Client,
        reference: &'a Reference,
        credentials: &'a Credentials,
        deadline: Instant,
    ) -> Result<Session<'a>, Failure> {
        let mut session = Session { client, reference, credentials, deadline, tls: true, authorization: None };
        let url = session.url("")?;
        let response = match session.send_patiently(&url, None).await {
            Err(Unanswered { error: fetch::Error::PlainServer, .. }) => session.ping_without_tls().await?,
            Err(failed) if reference.may_be_plain() && !failed.error.is_timeout() => session.ping_without_tls().await?,
            Err(failed) => return Err(Failure::of(&url, &failed.error)),
            Ok(response) => response,
        };
        match response.status {
            200 => Ok(session),
            401 => {
                session.log_in(challenges(&response)).await?;
                Ok(session)
            }
            status => Err(session.unexpected(&session.url("")?, status, &response)),
        }
    }

    async fn ping_without_tls(&mut self) -> Result<Response, Failure> {
        self.tls = false;
        let url = self.url("")?;
        self.send_patiently(&url, None).await.map_err(|failed| Failure::of(&url, &failed.error))
    }

    /// The manifest or index of that tag or digest; a digest is checked.
    pub(in crate::wasm) async fn manifest(&mut self, version: &str) -> Result<Document, Failure> {
        let url = self.url(&format!("{}/manifests/{version}", self.reference.repository))?;
        let mut response = self.get(&url, Some(manifest::ACCEPT)).await?;
        let content_type = response.headers.get("content-type").unwrap_or_default().to_owned();
        let body = response.body.collect(MAX_DOCUMENT).await;
        let body = body.map_err(|error| Failure::of(&url, &fetch::Error::Http(error)))?;
        let digest = sha256_hex(&body);
        match version.strip_prefix("sha256:") {
            Some(expected) if expected != digest => Err(Failure::last(format!(
                "manifest digest: \"sha256:{digest}\" does not match requested digest: \"{version}\" for {}",
                self.reference
            ))),
            _ => Ok(Document { body, content_type, digest }),
        }
    }

    /// A blob, in a file in `folder`; size and digest are checked.
    pub(in crate::wasm) async fn blob(
        &mut self,
        blob: &manifest::Descriptor,
        folder: &Path,
        limit: u64,
    ) -> Result<Spooled, Error> {
        let failed = |failure: Failure| failure.into_error(Stage::Download, "could not fetch Wasm binary");
        let url = self.url(&format!("{}/blobs/{}", self.reference.repository, blob.digest)).map_err(failed)?;
        let too_large = |error| Error::from_spool(&self.reference.to_string(), error);
        if blob.size > limit {
            return Err(too_large(crate::wasm::spool::Error::TooLarge(limit)));
        }
        let mut spool = Spool::create(folder, blob.size).map_err(too_large)?;
        let mut response = self.get(&url, None).await.map_err(failed)?;
        let wrong = |what: &str| failed(Failure::last(format!("error verifying {what} of blob {}", blob.digest)));
        loop {
            let piece = response.body.chunk().await;
            match piece.map_err(|error| failed(Failure::of(&url, &fetch::Error::Http(error))))? {
                None => break,
                Some(piece) => spool.write(&piece).await.map_err(|error| match error {
                    crate::wasm::spool::Error::TooLarge(_) => wrong("size"),
                    error => Error::from_spool(&self.reference.to_string(), error),
                })?,
            }
        }
        let spooled = spool.finish().map_err(|error| Error::from_spool(&self.reference.to_string(), error))?;
        if spooled.size != blob.size {
            return Err(wrong("size"));
        }
        if blob.digest.strip_prefix("sha256:") != Some(spooled.sha256.as_str()) {
            return Err(wrong("sha256 checksum"));
        }
        Ok(spooled)
    }

    /// A blob that is a document, in memory; its digest is checked.
    pub(in crate::wasm) async fn small_blob(&mut self, blob: &manifest::Descriptor) -> Result<Vec<u8>, Failure> {
        let url = self.url(&format!("{}/blobs/{}", self.reference.repository, blob.digest))?;
        let mut response = self.get(&url, None).await?;
        let body = response.body.collect(MAX_DOCUMENT).await;
        let body = body.map_err(|error| Failure::of(&url, &fetch::Error::Http(error)))?;
        match blob.digest.strip_prefix("sha256:") {
            Some(digest) if digest == sha256_hex(&body) => Ok(body),
            _ => Err(Failure::last(format!("error verifying sha256 checksum of blob {}", blob.digest))),
        }
    }

    /// GET; logs in anew when the registry asks for it, once.
    async fn get(&mut self, url: &Url, accept: Option<&'static str>) -> Result<Response, Failure> {
        let mut logged_in = false;
        loop {
            let response = self.send_patiently(url, accept).await.map_err(|failed| Failure::of(url, &failed.error))?;
            match response.status {
                200 => return Ok(response),
                401 if !logged_in => {
                    self.log_in(challenges(&response)).await?;
                    logged_in = true;
                }
                status => return Err(self.unexpected(url, status, &response)),
            }
        }
    }

    fn unexpected(&self, url: &Url, status: u16, response: &Response) -> Failure {
        let text = format!("GET {url}: unexpected status code {status}");
        Failure { text, retryable: TEMPORARY.contains(&status), after: retry_after(response) }
    }

    /// Sends until something final comes.
    async fn send_patiently(&self, url: &Url, accept: Option<&'static str>) -> Result<Response, Unanswered> {
        let authorization = self.authorization.clone();
        let ask = Ask { authorization, accept, ..Ask::get(url.clone(), self.deadline) };
        let mut delays = DELAYS.into_iter();
        loop {
            let answer = self.client.send(&ask).await;
            let after = match &answer {
                Ok(response) if TEMPORARY.contains(&response.status) => retry_after(response),
                Err(error) if is_broken_connection(error) => None,
                _ => return answer.map_err(|error| Unanswered { error }),
            };
            let patient = match delays.next() {
                Some(delay) => pause(after.unwrap_or(delay), self.deadline).await,
                None => false,
            };
            if !patient {
                return answer.map_err(|error| Unanswered { error });
            }
        }
    }

    /// Answers the challenges of a 401.
    async fn log_in(&mut self, challenges: Vec<Challenge>) -> Result<(), Failure> {
        let mut bearer = None;
        // One unsafe realm condemns the registry, whichever of them would be used.
        for challenge in &challenges {
            if let Challenge::Bearer { realm, service, .. } = challenge {
                let url = challenge::check_realm(realm, self.tls).map_err(Failure::last)?;
                bearer.get_or_insert((url, service));
            }
        }
        if let Some((realm, service)) = bearer {
            let token = self.token(realm, service.as_deref().unwrap_or_default()).await?;
            self.authorization = Some(format!("Bearer {token}"));
        } else if challenges.contains(&Challenge::Basic) || challenges.is_empty() {
            // Without a challenge that is known, too, as Istio's client.
            self.authorization = self.credentials.basic();
        }
        Ok(())
    }

    /// A token from the registry's token server (Docker's token authentication; OAuth2 for identity tokens).
    async fn token(&self, realm: Url, service: &str) -> Result<String, Failure> {
        let scope = format!("repository:{}:pull", self.reference.repository);
        let mut ask = Ask::get(realm, self.deadline);
        match self.credentials {
            Credentials::Registry(token) => return Ok(token.clone()),
            Credentials::Identity(token) => {
                ask.form = Some(form(&[
                    ("client_id", "footman"),
                    ("grant_type", "refresh_token"),
                    ("refresh_token", token),
                    ("scope", &scope),
                    ("service", service),
                ]));
            }
            Credentials::Password { .. } | Credentials::Anonymous => {
                let separator = if ask.url.target.contains('?') { '&' } else { '?' };
                let query = form(&[("scope", &scope), ("service", service)]);
                ask.url.target = format!("{}{separator}{query}", ask.url.target);
                ask.authorization = self.credentials.basic();
            }
        }
        let failed = |error| Failure::of(&ask.url, &error);
        let mut response = self.client.send(&ask).await.map_err(failed)?;
        if response.status != 200 {
            return Err(self.unexpected(&ask.url, response.status, &response));
        }
        let body = response.body.collect(MAX_DOCUMENT).await.map_err(|error| failed(fetch::Error::Http(error)))?;
        let answer: Value = serde_json::from_slice(&body).unwrap_or_default();
        let token = ["token", "access_token"].iter().find_map(|name| answer.get(name).and_then(Value::as_str));
        token
            .filter(|token| !token.is_empty())
            .map(str::to_owned)
            .ok_or_else(|| Failure::last(format!("no token in bearer response of {}", ask.url)))
    }

    fn url(&self, path: &str) -> Result<Url, Failure> {
        let scheme = if self.tls { "https" } else { "http" };
        Url::parse(&format!("{scheme}://{}/v2/{path}", self.reference.registry))
            .map_err(|error| Failure::last(error.to_string()))
    }
}

fn challenges(response: &Response) -> Vec<Challenge> {
    challenge::challenges(response.headers.all("www-authenticate").map(|value| &**value))
}

/// No answer at all.
struct Unanswered {
    error: fetch::Error,
}

/// Whether the connection ended before the answer did; a name that does not exist or a refusal is the caller's to judge.
fn is_broken_connection(error: &fetch::Error) -> bool {
    use crate::net::http1::Error as Http;
    match error {
        fetch::Error::Http(Http::Closed) => true,
        fetch::Error::Http(Http::Io(error)) => {
            use std::io::ErrorKind as Kind;
            // Aborted: the end came within a TLS record.
            matches!(error.kind(), Kind::ConnectionReset | Kind::BrokenPipe | Kind::ConnectionAborted)
        }
        _ => false,
    }
}

/// `application/x-www-form-urlencoded`.
fn form(pairs: &[(&str, &str)]) -> String {
    let mut out = String::new();
    for (name, value) in pairs.iter().filter(|(_, value)| !value.is_empty()) {
        if !out.is_empty() {
            out.push('&');
        }
        out.push_str(name);
        out.push('=');
        for byte in value.bytes() {
            match byte {
                b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(byte.into()),
                _ => out.push_str(&format!("%{byte:02X}")),
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_are_encoded() {
        let pairs = [("scope", "repository:a/b:pull"), ("service", ""), ("x", "a b&c")];
        assert_eq!(form(&pairs), "scope=repository%3Aa%2Fb%3Apull&x=a%20b%26c");
    }
}
