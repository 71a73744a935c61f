//! `WWW-Authenticate` (RFC 9110 §11.6.1): what a registry wants to see, and whether its token server may be asked.

use std::net::IpAddr;

use crate::net::http1::Url;

/// One challenge of a registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::wasm) enum Challenge {
    Basic,
    /// Where to get a token, and for which service and scope.
    Bearer {
        realm: String,
        service: Option<String>,
        scope: Option<String>,
    },
}

/// The challenges of all the header's values, unknown schemes left out. Names compare without case; values may be quoted or not.
pub(in crate::wasm) fn challenges<'a>(values: impl Iterator<Item = &'a [u8]>) -> Vec<Challenge> {
    let mut found = Vec::new();
    for value in values {
        let text = String::from_utf8_lossy(value);
        for (scheme, parameters) in split(&text) {
            let parameter = |name: &str| {
                parameters.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.clone())
            };
            if scheme.eq_ignore_ascii_case("basic") {
                found.push(Challenge::Basic);
            } else if scheme.eq_ignore_ascii_case("bearer") {
                // Every realm counts for the guard, also when one challenge names several.
                for (_, realm) in parameters.iter().filter(|(key, _)| key.eq_ignore_ascii_case("realm")) {
                    let (service, scope) = (parameter("service"), parameter("scope"));
                    found.push(Challenge::Bearer { realm: realm.clone(), service, scope });
                }
            }
        }
    }
    found
}

type Parameters = Vec<(String, String)>;

/// Schemes with their parameters.
fn split(text: &str) -> Vec<(&str, Parameters)> {
    let mut found: Vec<(&str, Parameters)> = Vec::new();
    let mut rest = text;
    loop {
        rest = rest.trim_start_matches([' ', '\t', ',']);
        let end = rest.find([' ', '\t', ',', '=']).unwrap_or(rest.len());
        let (name, tail) = rest.split_at(end);
        if name.is_empty() && tail.is_empty() {
            return found;
        }
        let after = tail.trim_start_matches([' ', '\t']);
        if let (Some(value), false) = (after.strip_prefix('='), name.is_empty()) {
            let (value, tail) = parameter_value(value.trim_start_matches([' ', '\t']));
            if let Some((_, parameters)) = found.last_mut() {
                parameters.push((name.to_owned(), value));
            }
            rest = tail;
        } else {
            if !name.is_empty() {
                found.push((name, Vec::new()));
            }
            // A stray "=" is passed over, so that every step makes the rest shorter.
            rest = if name.is_empty() { tail.strip_prefix('=').unwrap_or(tail) } else { tail };
        }
    }
}

/// A token or a quoted string, and what follows it.
fn parameter_value(text: &str) -> (String, &str) {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find([' ', '\t', ',']).unwrap_or(text.len());
        return (text[..end].to_owned(), &text[end..]);
    };
    let mut value = String::new();
    let mut characters = quoted.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return (value, &quoted[at + 1..]),
            '\\' => value.extend(characters.next().map(|(_, escaped)| escaped)),
            _ => value.push(character),
        }
    }
    (value, "")
}

/// Whether credentials may be sent to `realm`, the token server that a registry names (Istio 1.31's guard against a registry
/// that makes the agent call the pod, the node or the cloud's metadata server).
///
/// `over_tls`: the registry was reached by TLS; its login must not travel in the clear then.
pub(in crate::wasm) fn check_realm(realm: &str, over_tls: bool) -> Result<Url, String> {
    let reject = |why: String| Err(format!("rejected unsafe bearer realm: {why}"));
    let scheme = realm.split_once(':').map_or("", |(scheme, _)| scheme).to_ascii_lowercase();
    if scheme != "http" && scheme != "https" {
        return reject(format!("realm scheme {scheme:?} not allowed"));
    }
    let authority = realm.split_once("://").map_or("", |(_, rest)| rest);
    if authority.split(['/', '?', '#']).next().unwrap_or_default().is_empty() {
        return reject("realm missing host".to_owned());
    }
    let url = match Url::parse(realm) {
        Ok(url) => url,
        Err(error) => return reject(format!("invalid realm URL: {error}")),
    };
    let host = url.host.trim_end_matches('.').to_ascii_lowercase();
    if host == "metadata.google.internal" {
        return reject("realm targets cloud metadata service".to_owned());
    }
    if host == "localhost" || host.ends_with(".localhost") {
        return reject("realm targets localhost".to_owned());
    }
    if numeric_address(&host).is_some_and(is_internal) {
        return reject("realm targets private/loopback/link-local IP".to_owned());
    }
    if over_tls && !url.tls {
        return reject("realm without TLS for a registry with TLS".to_owned());
    }
    Ok(url)
}

/// An address literal, also in the forms that `inet_aton` takes: one decimal, octal or hexadecimal number, or up to four.
fn numeric_address(host: &str) -> Option<IpAddr> {
    if let Ok(ip) = host.parse() {
        return Some(ip);
    }
    let parts: Vec<u64> = host.split('.').map(number).collect::<Option<_>>()?;
    let (last, leading) = parts.split_last()?;
    if leading.len() > 3 || leading.iter().any(|part| *part > 255) {
        return None;
    }
    let mut value = *last;
    for (index, part) in leading.iter().enumerate() {
        value |= part << (24 - 8 * index);
    }
    Some(IpAddr::V4(u32::try_from(value).ok()?.into()))
}

fn number(text: &str) -> Option<u64> {
    let (digits, radix) = match text.strip_prefix("0x") {
        Some(digits) => (digits, 16),
        None if text.len() > 1 && text.starts_with('0') => (&text[1..], 8),
        None => (text, 10),
    };
    u64::from_str_radix(digits, radix).ok().filter(|_| !digits.starts_with('+'))
}

fn is_internal(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(ip) => ip.is_private() || ip.is_loopback() || ip.is_link_local() || ip.is_unspecified(),
        IpAddr::V6(ip) => ip.is_loopback() || ip.is_unspecified() || ip.is_unique_local() || ip.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(values: &[&str]) -> Vec<Challenge> {
        challenges(values.iter().map(|value| value.as_bytes()))
    }

    fn bearer(realm: &str, service: Option<&str>, scope: Option<&str>) -> Challenge {
        Challenge::Bearer {
            realm: realm.to_owned(),
            service: service.map(str::to_owned),
            scope: scope.map(str::to_owned),
        }
    }

    #[test]
    fn reads_challenges() {
        for (value, expected) in [
            (
                r#"Bearer realm="https://a/t",service="s",scope="repository:x:pull""#,
                vec![bearer("https://a/t", Some("s"), Some("repository:x:pull"))],
            ),
            (r#"bearer REALM=https://a/t , Service = s"#, vec![bearer("https://a/t", Some("s"), None)]),
            (r#"Basic realm="Registry, \"Realm\"", Bearer realm="r""#, vec![Challenge::Basic, bearer("r", None, None)]),
            (r#"Negotiate, Basic"#, vec![Challenge::Basic]),
            (r#"Digest realm="x",nonce="y""#, vec![]),
            (r#"Bearer realm="a",realm="b""#, vec![bearer("a", None, None), bearer("b", None, None)]),
            ("Bearer", vec![]),
            ("", vec![]),
            ("=,==\"", vec![]),
            (r#"Bearer realm="open"#, vec![bearer("open", None, None)]),
        ] {
            assert_eq!(parse(&[value]), expected, "{value}");
        }
        assert_eq!(parse(&["Basic", r#"Bearer realm="r""#]), [Challenge::Basic, bearer("r", None, None)]);
    }

    #[test]
    fn realms_inside_are_refused() {
        for (realm, why) in [
            ("http://169.254.169.254/x", "realm targets private/loopback/link-local IP"),
            ("http://169.254.1.1/", "realm targets private/loopback/link-local IP"),
            ("http://127.0.0.1/", "realm targets private/loopback/link-local IP"),
            ("https://127.0.0.5/", "realm targets private/loopback/link-local IP"),
            ("http://10.0.0.1/", "realm targets private/loopback/link-local IP"),
            ("http://192.168.1.1/", "realm targets private/loopback/link-local IP"),
            ("http://172.16.0.1/", "realm targets private/loopback/link-local IP"),
            ("http://[::1]/", "realm targets private/loopback/link-local IP"),
            ("http://[fe80::1]/", "realm targets private/loopback/link-local IP"),
            ("http://[fd00:ec2::254]/", "realm targets private/loopback/link-local IP"),
            ("http://[fc00::1]/", "realm targets private/loopback/link-local IP"),
            ("http://[::ffff:127.0.0.1]/", "realm targets private/loopback/link-local IP"),
            ("http://2130706433/", "realm targets private/loopback/link-local IP"),
            ("http://0x7f.1/", "realm targets private/loopback/link-local IP"),
            ("http://0177.0.0.1/", "realm targets private/loopback/link-local IP"),
            ("http://metadata.google.internal/t", "realm targets cloud metadata service"),
            ("http://Metadata.Google.Internal./t", "realm targets cloud metadata service"),
            ("http://localhost:8080/", "realm targets localhost"),
            ("http://LOCALHOST./", "realm targets localhost"),
            ("file:///etc/passwd", "realm scheme \"file\" not allowed"),
            ("gopher://a/", "realm scheme \"gopher\" not allowed"),
            ("dict://a:1/", "realm scheme \"dict\" not allowed"),
            ("Registry Realm", "realm scheme \"\" not allowed"),
            ("http:///token", "realm missing host"),
            ("https://", "realm missing host"),
        ] {
            assert_eq!(
                check_realm(realm, false).unwrap_err(),
                format!("rejected unsafe bearer realm: {why}"),
                "{realm}"
            );
        }
        assert!(check_realm("http://a b/", false).unwrap_err().contains("invalid realm URL: "));
    }

    #[test]
    fn realm_without_tls_only_for_a_registry_without() {
        assert!(check_realm("http://auth.example.test/token", false).is_ok());
        assert!(check_realm("https://auth.elsewhere.test/token", true).is_ok());
        assert!(
            check_realm("http://auth.example.test/token", true)
                .unwrap_err()
                .ends_with("realm without TLS for a registry with TLS")
        );
    }
}
