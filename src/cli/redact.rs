//! Keeps secrets out of what is printed and logged of the configuration: tokens, passwords, header values, whole documents that may hold them.

use serde_json::Value as Json;

/// What stands in place of a secret.
const HIDDEN: &str = "…";
/// Variables that hold documents; their content is shown field by field where it is no secret.
const DOCUMENTS: &[&str] = &["PROXY_CONFIG", "ISTIO_KUBE_APP_PROBERS"];
/// Headers may carry credentials.
const PREFIXES: &[&str] = &["XDS_HEADER_", "CA_HEADER_"];

/// The value of a variable as it may be shown.
pub(super) fn variable(name: &str, value: &str) -> String {
    if value.is_empty() {
        String::new()
    } else if DOCUMENTS.contains(&name) {
        format!("(a document of {} bytes)", value.len())
    } else if is_secret(name) || PREFIXES.iter().any(|prefix| name.starts_with(prefix)) {
        HIDDEN.to_owned()
    } else {
        without_password(name, value)
    }
}

/// `http://user:password@proxy` without who and what; proxies are also written without scheme.
fn without_password(name: &str, value: &str) -> String {
    match value.split_once("://") {
        None if name.to_ascii_lowercase().ends_with("_proxy") && value.contains('@') => {
            let (_, host) = value.split_once('@').unwrap_or_default();
            format!("{HIDDEN}@{host}")
        }
        Some((scheme, rest)) if rest.split('/').next().is_some_and(|authority| authority.contains('@')) => {
            let (_, host) = rest.split_once('@').unwrap_or_default();
            format!("{scheme}://{HIDDEN}@{host}")
        }
        _ => value.to_owned(),
    }
}

/// A setting's value as it may be shown: JSON without its secrets, or text.
pub(super) fn setting(name: &str, value: &str) -> String {
    match serde_json::from_str::<Json>(value) {
        Ok(json @ (Json::Object(_) | Json::Array(_))) => document(json).to_string(),
        _ => variable(name.rsplit('.').next().unwrap_or(name), value),
    }
}

/// JSON without its secrets.
pub(super) fn document(mut value: Json) -> Json {
    hide(&mut value);
    value
}

fn hide(value: &mut Json) {
    match value {
        Json::Array(items) => items.iter_mut().for_each(hide),
        Json::Object(members) => {
            for (key, value) in members.iter_mut() {
                match value {
                    Json::String(text) if is_secret(key) && !text.is_empty() => *text = HIDDEN.to_owned(),
                    Json::Array(headers) if key == "httpHeaders" => {
                        headers
                            .iter_mut()
                            .filter_map(|header| header.get_mut("value"))
                            .for_each(|v| *v = HIDDEN.into());
                    }
                    other => hide(other),
                }
            }
        }
        _ => {}
    }
}

/// By its name: `accessToken`, `DB_PASSWORD`, `API_KEY`. Paths of key files are no secrets.
fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    ["token", "password", "passwd", "secret", "api_key", "apikey"].iter().any(|end| name.ends_with(end))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn secrets_by_name_and_place() {
        for (name, value, shown) in [
            ("ISTIO_META_API_TOKEN", "s3cret", "…"),
            ("XDS_HEADER_AUTHORIZATION", "Bearer s3cret", "…"),
            ("PROXY_CONFIG", "{\"a\": \"s3cret\"}", "(a document of 15 bytes)"),
            ("POD_NAME", "p", "p"),
            ("DB_PASSWORD", "", ""),
            ("HTTPS_PROXY", "http://u:s3cret@proxy:3128/x", "http://…@proxy:3128/x"),
            ("HTTPS_PROXY", "http://proxy:3128/@", "http://proxy:3128/@"),
            ("http_proxy", "u:s3cret@proxy:3128", "…@proxy:3128"),
            ("ISTIO_META_TLS_CLIENT_KEY", "/etc/key.pem", "/etc/key.pem"),
        ] {
            assert_eq!(variable(name, value), shown, "{name}");
        }
        assert_eq!(setting("proxyMetadata.DB_PASSWORD", "s3cret"), "…");
        assert_eq!(setting("statusPort", "15020"), "15020");
        let tracing = "{\"lightstep\":{\"address\":\"a:1\",\"accessToken\":\"s3cret\"}}";
        assert_eq!(setting("tracing", tracing), "{\"lightstep\":{\"accessToken\":\"…\",\"address\":\"a:1\"}}");
    }

    #[test]
    fn secrets_deep_in_a_bootstrap() {
        let probe = json!({"httpGet": {"httpHeaders": [{"name": "Authorization", "value": "s3cret"}]}});
        let document = document(json!({
            "node": {"metadata": {"PROXY_CONFIG": {"readinessProbe": probe}, "MY_TOKEN": "s3cret"}},
            "tls_certificate_sds_secret_configs": [{"name": "default"}],
            "access_token_file": "etc/t"
        }));
        let text = document.to_string();
        assert!(!text.contains("s3cret"), "{text}");
        assert!(text.contains("default") && text.contains("etc/t") && text.contains("Authorization"));
    }
}
