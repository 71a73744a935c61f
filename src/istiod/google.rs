//! The identity token of a Google Compute Engine machine (`CREDENTIAL_FETCHER_TYPE=GoogleComputeEngine`).
//!
//! Asked of the metadata server when a call needs it and the one at hand is about to end. It is also written to the token file,
//! where Istio's users look for it.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};

use crate::{base::random_u64, net::http1::client::Request};

/// The metadata server of Google's networks.
const METADATA: &str = "169.254.169.254";
const PATH: &str = "/computeMetadata/v1/instance/service-accounts/default/identity";
/// The metadata server is beside the machine; one that takes longer is away.
const TIMEOUT: Duration = Duration::from_secs(5);
/// A token that ends sooner is replaced, as in Istio.
const RESERVE: Duration = Duration::from_secs(25 * 60);
/// Identity tokens have some 2 KiB.
const MAX_TOKEN: usize = 64 * 1024;

/// The machine's token; clones share it.
#[derive(Debug, Clone)]
pub struct Google {
    url: String,
    file: PathBuf,
    /// The token with its end.
    held: Arc<Mutex<Option<(String, SystemTime)>>>,
}

impl Google {
    /// Tokens for `audience` from the metadata server at `host` (empty: Google's), kept in `file` as well.
    pub fn new(host: &str, audience: &str, file: PathBuf) -> Google {
        let host = if host.is_empty() { METADATA } else { host };
        let url = format!("http://{host}{PATH}?audience={}&format=full", escape(audience));
        Google { url, file, held: Arc::default() }
    }

    /// A token that is good for a while; for as long as it lasts where there is no other.
    ///
    /// # Errors
    /// Why the metadata server gave none.
    pub async fn token(&self) -> Result<String, String> {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some((token, end)) = &held
            && SystemTime::now() + RESERVE < *end
        {
            return Ok(token.clone());
        }
        let token = match (self.fetch().await, held) {
            (Ok(token), _) => token,
            (Err(error), held) => {
                let error = format!("fetch platform credential: {}: {error}", self.url);
                let (token, _) = held.filter(|(_, end)| SystemTime::now() < *end).ok_or_else(|| error.clone())?;
                log::warn!(target: "gcecred", "{error}; using the token at hand while it lasts");
                return Ok(token);
            }
        };
        if let Err(error) = write(&self.file, &token) {
            log::warn!(target: "gcecred", "the token cannot be written to {}: {error}", self.file.display());
        }
        // Without an end it is asked for anew each time.
        let held = expiry(&token).map(|end| (token.clone(), end));
        *self.held.lock().unwrap_or_else(PoisonError::into_inner) = held;
        Ok(token)
    }

    async fn fetch(&self) -> Result<String, String> {
        let text = |error: crate::net::http1::Error| error.to_string();
        let request = Request::get(&self.url).map_err(text)?.header("Metadata-Flavor", "Google").timeout(TIMEOUT);
        let mut response = request.send(None).await.map_err(text)?;
        if response.status != 200 {
            return Err(format!("the metadata server answered {}", response.status));
        }
        let body = response.body.collect(MAX_TOKEN).await.map_err(text)?;
        match std::str::from_utf8(&body).map(str::trim) {
            Ok(token) if !token.is_empty() => Ok(token.to_owned()),
            _ => Err("the metadata server answered without a token".to_owned()),
        }
    }
}

impl PartialEq for Google {
    fn eq(&self, other: &Google) -> bool {
        (&self.url, &self.file) == (&other.url, &other.file)
    }
}

impl Eq for Google {}

/// When a JWT ends (RFC 7519, `exp`); `None` when it does not say.
pub(super) fn expiry(token: &str) -> Option<SystemTime> {
    let mut parts = token.split('.');
    let (Some(_), Some(claims), Some(_), None) = (parts.next(), parts.next(), parts.next(), parts.next()) else {
        return None;
    };
    let claims = URL_SAFE_NO_PAD.decode(claims.trim_end_matches('=')).ok()?;
    let claims: serde_json::Value = serde_json::from_slice(&claims).ok()?;
    let seconds = Duration::try_from_secs_f64(claims.get("exp")?.as_f64()?).ok()?;
    SystemTime::UNIX_EPOCH.checked_add(seconds)
}

/// Replaces the file, readable for the owner and the group, as in Istio.
fn write(file: &Path, token: &str) -> io::Result<()> {
    if fs::read(file).is_ok_and(|old| old == token.as_bytes()) {
        return Ok(());
    }
    if let Some(directory) = file.parent() {
        fs::create_dir_all(directory)?;
    }
    let temporary = file.with_extension(format!("tmp.{:016x}", random_u64()));
    let mut open = OpenOptions::new();
    let written = open
        .write(true)
        .create_new(true)
        .mode(0o640)
        .open(&temporary)
        .and_then(|mut new| new.write_all(token.as_bytes()))
        .and_then(|()| fs::rename(&temporary, file));
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written
}

/// Percent-coding of a query value.
pub fn escape(text: &str) -> String {
    let mut escaped = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => escaped.push(char::from(byte)),
            _ => escaped.push_str(&format!("%{byte:02X}")),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;

    fn jwt(claims: &str) -> String {
        format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(claims))
    }

    #[test]
    fn expiry_is_read_where_there_is_one() {
        let at = |seconds| Some(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(expiry(&jwt(r#"{"exp": 1700000000}"#)), at(1_700_000_000));
        assert_eq!(expiry(&jwt(r#"{"exp": 17e8}"#)), at(1_700_000_000));
        for token in
            ["", "a.b", "a.b.c.d", "machine-token", "a.!!.c", &jwt("{}"), &jwt(r#"{"exp":-1}"#), &jwt(r#"{"exp":"1"}"#)]
        {
            assert_eq!(expiry(token), None, "{token}");
        }
    }

    /// A metadata server that gives these tokens, one after the other; the file, and how the requests began.
    async fn asked(tokens: Vec<String>, calls: usize) -> (Vec<Result<String, String>>, Vec<String>, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let server = tokio::spawn(async move {
            let mut requests = Vec::new();
            for token in tokens {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = vec![0; 4096];
                let read = stream.read(&mut request).await.unwrap();
                requests.push(String::from_utf8_lossy(&request[..read]).into_owned());
                let answer =
                    format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{token}", token.len());
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
            requests
        });
        let file = std::env::temp_dir().join(format!("footman-google-{:x}/token", random_u64()));
        let google = Google::new(&host, "a b", file.clone());
        let mut got = Vec::new();
        for _ in 0..calls {
            got.push(google.token().await);
        }
        let kept = fs::read_to_string(&file).unwrap_or_default();
        let _ = fs::remove_dir_all(file.parent().unwrap());
        (got, server.await.unwrap(), kept)
    }

    #[tokio::test]
    async fn a_lasting_token_is_asked_for_once_and_kept_in_the_file() {
        let end = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs() + 3600;
        let token = jwt(&format!(r#"{{"exp": {end}}}"#));
        let (got, requests, kept) = asked(vec![format!("{token}\n")], 2).await;
        assert_eq!(got, [Ok(token.clone()), Ok(token.clone())]);
        assert_eq!(kept, token);
        assert!(
            requests[0].starts_with(&format!("GET {PATH}?audience=a%20b&format=full HTTP/1.1\r\n")),
            "{}",
            requests[0]
        );
        assert!(requests[0].to_ascii_lowercase().contains("metadata-flavor: google"));
    }

    #[tokio::test]
    async fn a_token_that_ends_soon_or_never_says_is_replaced() {
        let end = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs() + 24 * 60;
        let tokens = vec![jwt(&format!(r#"{{"exp": {end}}}"#)), "opaque".to_owned(), "last".to_owned()];
        let (got, _, kept) = asked(tokens.clone(), 3).await;
        assert_eq!(got.into_iter().flatten().collect::<Vec<_>>(), tokens);
        assert_eq!(kept, "last");
    }

    #[tokio::test]
    async fn a_token_that_ends_soon_serves_where_there_is_no_other() {
        for (left, serves) in [(24 * 60, true), (-1, false)] {
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
            let token = jwt(&format!(r#"{{"exp": {}}}"#, now.saturating_add_signed(left)));
            let (got, ..) = asked(vec![token.clone(), " ".to_owned()], 2).await;
            assert_eq!(got[1].as_ref().ok(), serves.then_some(&token), "{left}");
        }
    }

    #[tokio::test]
    async fn what_is_no_token_is_said_with_the_address() {
        let error = asked(vec![" \n".to_owned()], 1).await.0.remove(0).unwrap_err();
        assert!(error.contains("without a token") && error.contains("127.0.0.1"), "{error}");
        let gone = Google::new("127.0.0.1:1", "td", "/nonexistent/token".into()).token().await.unwrap_err();
        assert!(gone.contains("127.0.0.1:1"), "{gone}");
    }
}
