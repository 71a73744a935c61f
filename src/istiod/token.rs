//! The bearer token of each call.

use std::path::PathBuf;

use super::google::Google;

/// Where the token comes from (`CREDENTIAL_FETCHER_TYPE`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Token {
    /// There is none; a client certificate has to do.
    None,
    /// A file that kubelet renews: read for every call.
    File(PathBuf),
    /// The machine's own, from Google's metadata server.
    Google(Google),
    /// Always the same (`Mock`).
    Fixed(&'static str),
}

impl Token {
    /// The token now; `Ok(None)` when none is configured.
    ///
    /// # Errors
    /// Why the configured one is not there; the call then goes without.
    pub async fn get(&self) -> Result<Option<String>, String> {
        match self {
            Token::None => Ok(None),
            Token::Fixed(token) => Ok(Some((*token).to_owned())),
            Token::Google(google) => google.token().await.map(Some),
            Token::File(path) => match std::fs::read_to_string(path) {
                Ok(text) if text.trim().is_empty() => Err(format!("token file {} is empty", path.display())),
                Ok(text) => Ok(Some(text.trim().to_owned())),
                Err(error) => Err(format!("token file {}: {error}", path.display())),
            },
        }
    }
}
