//! What the room is told.

use std::{path::PathBuf, time::Duration};

use crate::config::{Errors, Vars};

use super::{
    fetch::{Block, Client, Guard, Proxies},
    oci::{Keychain, PublicKey},
};

/// Where Istio keeps modules; the sidecar has an emptyDir there.
const FOLDER: &str = "/var/lib/istio/data";
/// Four modules of the largest size.
const MAX_TOTAL: u64 = 1 << 30;
const MAX_MODULE: i64 = 256 << 20;
/// What a request timeout of 0 means (Istio).
const SHORTEST_TIMEOUT: Duration = Duration::from_secs(5);

/// How plugins are made local.
#[derive(Debug, Clone)]
pub struct Config {
    /// `ISTIO_AGENT_ENABLE_WASM_REMOTE_LOAD_CONVERSION`; when off, ECDS passes unchanged and Envoy fetches by itself.
    pub enabled: bool,
    /// `FOOTMAN_WASM_CACHE_DIR`: the cache's folder, where root file systems are read-only or several agents share a machine.
    pub folder: PathBuf,
    /// `WASM_MODULE_EXPIRY`: how long a module is kept that no plugin uses.
    pub expiry: Duration,
    /// `WASM_PURGE_INTERVAL`.
    pub purge_interval: Duration,
    /// `WASM_HTTP_REQUEST_TIMEOUT`.
    pub request_timeout: Duration,
    /// `WASM_HTTP_REQUEST_MAX_RETRIES`: all attempts, at least one.
    pub attempts: u32,
    /// `ISTIO_WASM_MAX_BINARY_SIZE_BYTES`.
    pub max_module: u64,
    /// `FOOTMAN_WASM_CACHE_MAX_BYTES`: all modules together; those in use stay however large they are.
    pub max_total: u64,
    /// `FOOTMAN_WASM_NACK_ON_FAILURE`: a plugin that cannot be fetched refuses its response, as Higress's control plane wants it,
    /// instead of being replaced by an RBAC filter.
    pub nack_on_failure: bool,
    /// `FOOTMAN_WASM_PUBLIC_KEY`: only images signed by this key, and downloads with a checksum, are used.
    pub(super) key: Option<PublicKey>,
    pub(super) client: Client,
    pub(super) keychain: Keychain,
}

impl Config {
    /// # Errors
    /// Every variable that is wrong.
    pub fn from_vars(vars: &Vars) -> Result<Config, Errors> {
        let mut errors = Errors::default();
        let request_timeout = vars.duration("WASM_HTTP_REQUEST_TIMEOUT", Duration::from_secs(15));
        let config = Config {
            enabled: vars.bool("ISTIO_AGENT_ENABLE_WASM_REMOTE_LOAD_CONVERSION", true),
            folder: path(vars, "FOOTMAN_WASM_CACHE_DIR").unwrap_or_else(|| FOLDER.into()),
            expiry: vars.duration("WASM_MODULE_EXPIRY", Duration::from_secs(24 * 3600)),
            purge_interval: vars.duration("WASM_PURGE_INTERVAL", Duration::from_secs(3600)),
            request_timeout: if request_timeout.is_zero() { SHORTEST_TIMEOUT } else { request_timeout },
            attempts: u32::try_from(vars.int("WASM_HTTP_REQUEST_MAX_RETRIES", 5)).unwrap_or(0).max(1),
            max_module: u64::try_from(vars.int("ISTIO_WASM_MAX_BINARY_SIZE_BYTES", MAX_MODULE)).unwrap_or(0),
            max_total: vars.count("FOOTMAN_WASM_CACHE_MAX_BYTES", MAX_TOTAL),
            nack_on_failure: vars.bool("FOOTMAN_WASM_NACK_ON_FAILURE", false),
            key: public_key(vars, &mut errors),
            client: client(vars, &mut errors),
            keychain: Keychain {
                docker_config: path(vars, "DOCKER_CONFIG"),
                home: path(vars, "HOME"),
                auth_file: path(vars, "REGISTRY_AUTH_FILE"),
                runtime_dir: path(vars, "XDG_RUNTIME_DIR"),
            },
        };
        errors.into_result(config)
    }
}

fn client(vars: &Vars, errors: &mut Errors) -> Client {
    let list = |name| vars.text(name).unwrap_or_default().split(',').filter(|entry| !entry.is_empty());
    let mut blocks = Vec::new();
    for text in list("BLOCKED_CIDRS_IN_WASM_FETCH") {
        match Block::parse(text.trim()) {
            Some(block) => blocks.push(block),
            None => errors.add(
                "BLOCKED_CIDRS_IN_WASM_FETCH",
                format!("{text:?} is not an address range such as 10.0.0.0/8; separate several by commas"),
            ),
        }
    }
    // Go reads both spellings, capitals first.
    let either = |name: &str| match vars.text(name) {
        Some(value) if !value.is_empty() => value.to_owned(),
        _ => vars.text(&name.to_ascii_lowercase()).unwrap_or_default().to_owned(),
    };
    let proxies = Proxies::new(&either("HTTP_PROXY"), &either("HTTPS_PROXY"), &either("NO_PROXY"));
    let proxies = proxies.unwrap_or_else(|error| {
        let (name, why) = error.split_once(": ").unwrap_or(("HTTP_PROXY", &error));
        errors.add(name, why);
        Proxies::default()
    });
    let store = vars.system_store();
    let insecure = list("WASM_INSECURE_REGISTRIES").map(str::to_owned).collect();
    Client { guard: Guard { blocks }, proxies, insecure, store, ..Client::default() }
}

fn public_key(vars: &Vars, errors: &mut Errors) -> Option<PublicKey> {
    const NAME: &str = "FOOTMAN_WASM_PUBLIC_KEY";
    let path = path(vars, NAME)?;
    let key =
        std::fs::read_to_string(&path).map_err(|error| error.to_string()).and_then(|pem| PublicKey::from_pem(&pem));
    key.map_err(|error| {
        errors.add(NAME, format!("{}: {error}; give the file that cosign calls cosign.pub", path.display()))
    })
    .ok()
}

fn path(vars: &Vars, name: &str) -> Option<PathBuf> {
    vars.text(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_and_oddities() {
        let config = Config::from_vars(&Vars::from_pairs([("", ""); 0])).unwrap();
        assert!(config.enabled && !config.nack_on_failure && config.key.is_none());
        assert_eq!((config.attempts, config.max_module), (5, 268_435_456));
        assert_eq!(config.request_timeout, Duration::from_secs(15));
        let odd = [
            ("WASM_HTTP_REQUEST_MAX_RETRIES", "0"),
            ("WASM_HTTP_REQUEST_TIMEOUT", "0"),
            ("WASM_INSECURE_REGISTRIES", "a,b:1"),
        ];
        let config = Config::from_vars(&Vars::from_pairs(odd)).unwrap();
        assert_eq!((config.attempts, config.request_timeout), (1, Duration::from_secs(5)));
        assert_eq!(config.client.insecure, ["a", "b:1"]);
    }

    #[test]
    fn every_error_at_once() {
        let wrong = [
            ("BLOCKED_CIDRS_IN_WASM_FETCH", "10.0.0.0/8,x"),
            ("HTTPS_PROXY", "socks5://u:hunter2@p"),
            ("FOOTMAN_WASM_PUBLIC_KEY", "/nowhere/cosign.pub"),
        ];
        let text = Config::from_vars(&Vars::from_pairs(wrong)).unwrap_err().to_string();
        for part in
            ["BLOCKED_CIDRS_IN_WASM_FETCH: \"x\"", "HTTPS_PROXY: not the URL", "FOOTMAN_WASM_PUBLIC_KEY: /nowhere"]
        {
            assert!(text.contains(part), "{text}");
        }
        assert!(!text.contains("hunter2"));
    }
}
