//! The bearer token of each call.

use std::{path::PathBuf, time::SystemTime};

use super::google::{Google, expiry};
use crate::base::apart;

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
    /// What is wrong with the token as far as it can be seen from here, for whoever was refused with it.
    pub fn doubt(&self) -> Option<String> {
        let Token::File(path) = self else { return None };
        let token = std::fs::read_to_string(path).unwrap_or_default();
        if token.trim().is_empty() {
            return Some(format!("there is no token in {}", path.display()));
        }
        let over = SystemTime::now().duration_since(expiry(token.trim())?).ok()?;
        Some(format!("the token in {} ended {} s ago", path.display(), over.as_secs()))
    }

    /// The token now; `Ok(None)` when none is configured.
    ///
    /// # Errors
    /// Why the configured one is not there.
    pub async fn get(&self) -> Result<Option<String>, String> {
        match self {
            Token::None => Ok(None),
            Token::Fixed(token) => Ok(Some((*token).to_owned())),
            Token::Google(google) => apart(|| google.token()).await.map(Some),
            Token::File(path) => match std::fs::read_to_string(path) {
                Ok(text) if text.trim().is_empty() => Err(format!("token file {} is empty", path.display())),
                Ok(text) => Ok(Some(text.trim().to_owned())),
                Err(error) => Err(format!("token file {}: {error}", path.display())),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};

    use super::*;
    use crate::base::random_u64;

    #[test]
    fn a_token_that_is_over_or_missing_is_doubted() {
        let path = std::env::temp_dir().join(format!("footman-token-{:x}", random_u64()));
        let token = Token::File(path.clone());
        let jwt = |exp: u64| format!("e30.{}.c2ln\n", URL_SAFE_NO_PAD.encode(format!("{{\"exp\":{exp}}}")));
        for (text, doubt) in [
            (" \n".to_owned(), Some("there is no token in")),
            (jwt(1_000_000), Some("ended")),
            (jwt(99_999_999_999), None),
            ("opaque".to_owned(), None),
        ] {
            std::fs::write(&path, &text).unwrap();
            let said = token.doubt();
            assert_eq!(said.is_some(), doubt.is_some(), "{text}");
            assert!(said.unwrap_or_default().contains(doubt.unwrap_or_default()), "{text}");
        }
        std::fs::remove_file(&path).unwrap();
        assert!(token.doubt().is_some());
        assert!(Token::Fixed("x").doubt().is_none());
    }
}
