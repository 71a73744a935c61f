//! Logins for registries, out of a docker configuration (`config.json`, the content of Kubernetes' `kubernetes.io/dockerconfigjson`).
//!
//! Pure but for [`Keychain`], which reads the files of the agent's user. Credential helpers are not run: the agent executes nothing
//! that a configuration names.

use std::{fmt, fs, path::PathBuf};

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::Value;

use super::reference::{DOCKER_HUB, Reference};

/// Under this key docker configurations keep the login of Docker Hub.
const DOCKER_HUB_KEY: &str = "https://index.docker.io/v1/";

/// A login.
#[derive(Clone, Default, PartialEq, Eq)]
pub(in crate::wasm) enum Credentials {
    #[default]
    Anonymous,
    Password {
        user: String,
        password: String,
    },
    /// An OAuth2 refresh token.
    Identity(String),
    /// A bearer token for the registry itself.
    Registry(String),
}

/// The docker configuration of the agent's user, for plugins without a pull secret.
#[derive(Debug, Clone, Default)]
pub(in crate::wasm) struct Keychain {
    /// `$DOCKER_CONFIG`; a folder.
    pub(in crate::wasm) docker_config: Option<PathBuf>,
    /// `$HOME`.
    pub(in crate::wasm) home: Option<PathBuf>,
    /// `$REGISTRY_AUTH_FILE`, as podman and buildah use it.
    pub(in crate::wasm) auth_file: Option<PathBuf>,
    /// `$XDG_RUNTIME_DIR`.
    pub(in crate::wasm) runtime_dir: Option<PathBuf>,
}

impl Keychain {
    /// The login for `reference`; without any file it is anonymous.
    ///
    /// `$DOCKER_CONFIG` wins over `$HOME/.docker` once either holds a `config.json`, even if it is the one that does not
    /// (go-containerregistry's rule); podman's files count when there is neither.
    pub(in crate::wasm) fn resolve(&self, reference: &Reference) -> Result<Credentials, String> {
        let config = |folder: &PathBuf| folder.join("config.json");
        let docker = self.docker_config.as_ref().map(config);
        let home = self.home.as_ref().map(|home| config(&home.join(".docker")));
        let file = if docker.iter().chain(&home).any(|file| file.exists()) {
            docker.or(home)
        } else {
            let podman = self.runtime_dir.as_ref().map(|folder| folder.join("containers/auth.json"));
            self.auth_file.iter().chain(&podman).find(|file| file.exists()).cloned()
        };
        match file.map(|file| (fs::read_to_string(&file), file)) {
            Some((Ok(text), file)) => Credentials::from_docker_config(&text, reference)
                .map_err(|error| format!("{}: {error}", file.display())),
            // Absent or unreadable: there is no login.
            _ => Ok(Credentials::Anonymous),
        }
    }
}

impl Credentials {
    /// The login for `reference` in a docker configuration; anonymous when it has none. No error quotes the text.
    pub(in crate::wasm) fn from_docker_config(text: &str, reference: &Reference) -> Result<Credentials, String> {
        if text.is_empty() {
            return Ok(Credentials::Anonymous);
        }
        let config: Value = serde_json::from_str(text)
            .map_err(|error| format!("docker config is not JSON: line {} column {}", error.line(), error.column()))?;
        let Some(config) = config.as_object() else {
            return Err("docker config is not a JSON object".to_owned());
        };
        let Some(auths) = config.get("auths").and_then(Value::as_object) else {
            return Ok(Credentials::Anonymous);
        };
        let entry = keys(reference).into_iter().find_map(|wanted| {
            auths.get(&wanted).or_else(|| auths.iter().find(|(key, _)| hostname(key) == wanted).map(|(_, entry)| entry))
        });
        entry.map_or(Ok(Credentials::Anonymous), Credentials::from_entry)
    }

    fn from_entry(entry: &Value) -> Result<Credentials, String> {
        let field = |name: &str| entry.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
        if let Some(token) = field("registrytoken") {
            return Ok(Credentials::Registry(token.to_owned()));
        }
        if let Some(token) = field("identitytoken") {
            return Ok(Credentials::Identity(token.to_owned()));
        }
        if let Some(auth) = field("auth") {
            let bytes = STANDARD.decode(auth.trim()).map_err(|_| "docker config: auth is not base64".to_owned())?;
            let text = String::from_utf8(bytes).map_err(|_| "docker config: auth is not text".to_owned())?;
            let (user, password) = text.split_once(':').ok_or("docker config: auth is not user:password")?;
            let password = password.trim_end_matches('\0').to_owned();
            return Ok(Credentials::Password { user: user.to_owned(), password });
        }
        match (field("username"), field("password")) {
            (None, None) => Ok(Credentials::Anonymous),
            (user, password) => Ok(Credentials::Password {
                user: user.unwrap_or_default().to_owned(),
                password: password.unwrap_or_default().to_owned(),
            }),
        }
    }

    /// A text that equals another's exactly when the logins are equal; empty for none. Never shown, only hashed.
    pub(in crate::wasm) fn identity(&self) -> String {
        match self {
            Credentials::Anonymous => String::new(),
            Credentials::Password { user, password } => format!("password {user}:{password}"),
            Credentials::Identity(token) => format!("identity {token}"),
            Credentials::Registry(token) => format!("registry {token}"),
        }
    }

    /// The value of `Authorization` for Basic.
    pub(in crate::wasm) fn basic(&self) -> Option<String> {
        match self {
            Credentials::Password { user, password } => {
                Some(format!("Basic {}", STANDARD.encode(format!("{user}:{password}"))))
            }
            _ => None,
        }
    }
}

/// The keys under which a login may stand, the most specific first: repository, its parents, registry.
fn keys(reference: &Reference) -> Vec<String> {
    let mut keys = Vec::new();
    let mut path = Some(reference.repository.as_str());
    while let Some(prefix) = path {
        keys.push(format!("{}/{prefix}", reference.registry));
        path = prefix.rsplit_once('/').map(|(parent, _)| parent);
    }
    if reference.registry == DOCKER_HUB {
        keys.extend([DOCKER_HUB_KEY.to_owned(), DOCKER_HUB.to_owned(), "docker.io".to_owned()]);
    } else {
        keys.push(reference.registry.clone());
    }
    keys
}

/// The host in an old-style key such as `https://registry.example/v1/`, or `registry.example/v2/`.
fn hostname(key: &str) -> &str {
    let bare = key.strip_prefix("https://").or_else(|| key.strip_prefix("http://")).unwrap_or(key);
    bare.split('/').next().unwrap_or_default()
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if matches!(self, Credentials::Anonymous) { "anonymous" } else { "\"…\"" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(text: &str, url: &str) -> Result<Credentials, String> {
        Credentials::from_docker_config(text, &Reference::from_url(url).unwrap())
    }

    fn password(user: &str, password: &str) -> Credentials {
        Credentials::Password { user: user.to_owned(), password: password.to_owned() }
    }

    #[test]
    fn finds_the_login() {
        for (text, url, expected) in [
            (r#"{"auths":{"test.io":{"auth":"Zm9vOmJhcg=="}}}"#, "oci://test.io/x/y", password("foo", "bar")),
            (
                r#"{"auths":{"test.io":{"username":"foo","password":"bar"}}}"#,
                "oci://test.io/x/y",
                password("foo", "bar"),
            ),
            (
                r#"{"auths":{"https://test.io/v1/":{"auth":"Zm9vOmJhcg=="}}}"#,
                "oci://test.io/x/y",
                password("foo", "bar"),
            ),
            (r#"{"auths":{"test.io/v2/":{"auth":"Zm9vOmJhcg=="}}}"#, "oci://test.io/x/y", password("foo", "bar")),
            (
                r#"{"auths":{"test.io:5000":{"identitytoken":"t"}}}"#,
                "oci://test.io:5000/x/y",
                Credentials::Identity("t".to_owned()),
            ),
            (
                r#"{"auths":{"test.io":{"registrytoken":"t"}}}"#,
                "oci://test.io/x/y",
                Credentials::Registry("t".to_owned()),
            ),
            (r#"{"auths":{"test.io":{}}}"#, "oci://test.io/x/y", Credentials::Anonymous),
            (r#"{"auths":{"test.io:5000":{"auth":"Zm9vOmJhcg=="}}}"#, "oci://test.io/x/y", Credentials::Anonymous),
            (
                r#"{"auths":{"https://index.docker.io/v1/":{"auth":"Zm9vOmJhcg=="}}}"#,
                "oci://team/filter",
                password("foo", "bar"),
            ),
            (
                r#"{"auths":{"test.io":{"username":"a"},"test.io/x":{"username":"b"}}}"#,
                "oci://test.io/x/y",
                password("b", ""),
            ),
            ("{}", "oci://test.io/x/y", Credentials::Anonymous),
            ("", "oci://test.io/x/y", Credentials::Anonymous),
        ] {
            assert_eq!(resolve(text, url).unwrap(), expected, "{text} {url}");
        }
    }

    #[test]
    fn unusable_configurations_are_errors_without_their_content() {
        for text in [
            "null",
            "{hunter2",
            "[1]",
            r#"{"auths":{"test.io":{"auth":"hunter2"}}}"#,
            r#"{"auths":{"test.io":{"auth":"aHVudGVyMg=="}}}"#,
        ] {
            let error = resolve(text, "oci://test.io/x/y").unwrap_err();
            assert!(!error.contains("hunter2"), "{error}");
        }
        assert_eq!(format!("{:?}", password("hunter2", "hunter2")), "\"…\"");
    }

    #[test]
    fn basic_authorization() {
        assert_eq!(password("foo", "bar").basic().unwrap(), "Basic Zm9vOmJhcg==");
        assert_eq!(Credentials::Anonymous.basic(), None);
    }
}
