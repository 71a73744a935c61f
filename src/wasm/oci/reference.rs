//! Image references: `oci://[registry/]repository[:tag][@digest]` (the Docker grammar, as go-containerregistry reads it).

use std::{fmt, net::Ipv4Addr};

/// The registry of references that name none.
pub(in crate::wasm) const DOCKER_HUB: &str = "index.docker.io";
/// How people spell it.
const DOCKER_HUB_ALIAS: &str = "docker.io";
/// Docker Hub's namespace of single-component names.
const OFFICIAL: &str = "library";
const MAX_REPOSITORY: usize = 255;
const MAX_TAG: usize = 128;

/// Where an image is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::wasm) struct Reference {
    /// Host with its port, as the user wrote it.
    pub(in crate::wasm) registry: String,
    pub(in crate::wasm) repository: String,
    pub(in crate::wasm) version: Version,
}

/// Which image of the repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::wasm) enum Version {
    Tag(String),
    /// `sha256:…`; never moves.
    Digest(String),
}

impl Reference {
    /// Reads a URL `oci://…`; scheme and query do not count.
    pub(in crate::wasm) fn from_url(url: &str) -> Result<Reference, String> {
        let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
        let text = rest.split(['?', '#']).next().unwrap_or_default();
        Reference::parse(text).map_err(|error| format!("could not parse url in image reference: {error}"))
    }

    fn parse(text: &str) -> Result<Reference, String> {
        let (name, digest) = match text.split_once('@') {
            Some((name, digest)) => (name, Some(checked_digest(digest)?)),
            None => (text, None),
        };
        let (name, tag) = match name.rsplit_once(':') {
            Some((name, tag)) if !tag.contains('/') => (name, Some(checked_tag(tag)?)),
            _ => (name, None),
        };
        let (registry, repository) = match name.split_once('/') {
            Some((first, rest)) if first.contains(['.', ':']) || first == "localhost" => (first, rest),
            _ => (DOCKER_HUB, name),
        };
        let registry = if registry == DOCKER_HUB_ALIAS { DOCKER_HUB } else { registry };
        check_registry(registry)?;
        check_repository(repository)?;
        let official = registry == DOCKER_HUB && !repository.contains('/');
        let repository = if official { format!("{OFFICIAL}/{repository}") } else { repository.to_owned() };
        let version = match (digest, tag) {
            (Some(digest), _) => Version::Digest(digest),
            (None, tag) => Version::Tag(tag.unwrap_or("latest").to_owned()),
        };
        Ok(Reference { registry: registry.to_owned(), repository, version })
    }

    /// What goes behind `/manifests/`.
    pub(in crate::wasm) fn version(&self) -> &str {
        match &self.version {
            Version::Tag(text) | Version::Digest(text) => text,
        }
    }

    /// Lower-case hexadecimal digits of the pinned digest.
    pub(in crate::wasm) fn pinned(&self) -> Option<&str> {
        match &self.version {
            Version::Digest(digest) => digest.strip_prefix("sha256:"),
            Version::Tag(_) => None,
        }
    }

    /// Host name or address without port and brackets.
    pub(in crate::wasm) fn host(&self) -> &str {
        host_of(&self.registry)
    }

    /// Whether the registry may be spoken to without TLS although nobody said so: this machine and private networks
    /// (RFC 1918), as Docker and Istio do.
    pub(in crate::wasm) fn may_be_plain(&self) -> bool {
        let host = self.host();
        host == "localhost"
            || host.ends_with(".localhost")
            || host == "::1"
            || host.parse::<Ipv4Addr>().is_ok_and(|ip| ip.is_private() || ip == Ipv4Addr::LOCALHOST)
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let separator = if matches!(self.version, Version::Tag(_)) { ':' } else { '@' };
        write!(f, "{}/{}{separator}{}", self.registry, self.repository, self.version())
    }
}

fn host_of(registry: &str) -> &str {
    match registry.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => registry.split(':').next().unwrap_or_default(),
    }
}

fn checked_digest(digest: &str) -> Result<String, String> {
    let hex = digest.strip_prefix("sha256:").ok_or_else(|| format!("unsupported digest algorithm: {digest}"))?;
    if hex.len() != 64 || !hex.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
        return Err(format!("digest must be 64 lower-case hexadecimal digits: {digest}"));
    }
    Ok(digest.to_owned())
}

fn checked_tag(tag: &str) -> Result<&str, String> {
    let known = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    if tag.is_empty() || tag.len() > MAX_TAG || !tag.bytes().all(known) {
        return Err(format!("tag must be 1 to {MAX_TAG} letters, digits, '_', '-' or '.': {tag}"));
    }
    Ok(tag)
}

fn check_repository(repository: &str) -> Result<(), String> {
    let known = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' | b'.' | b'/');
    let parts = || repository.split('/');
    if !(2..=MAX_REPOSITORY).contains(&repository.len()) || !repository.bytes().all(known) {
        return Err(format!(
            "repository must be 2 to {MAX_REPOSITORY} lower-case letters, digits, '_', '-', '.' or '/': {repository}"
        ));
    }
    if parts().any(|part| part.is_empty() || part == "." || part == "..") {
        return Err(format!("repository has an empty or relative component: {repository}"));
    }
    Ok(())
}

fn check_registry(registry: &str) -> Result<(), String> {
    let wrong = || format!("registry must be a host with an optional port: {registry}");
    let tail = match registry.strip_prefix('[') {
        Some(rest) => {
            let (host, tail) = rest.split_once(']').ok_or_else(wrong)?;
            host.parse::<std::net::Ipv6Addr>().map_err(|_| wrong())?;
            tail
        }
        None => {
            let host = host_of(registry);
            let known = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
            if host.is_empty() || !host.bytes().all(known) {
                return Err(wrong());
            }
            &registry[host.len()..]
        }
    };
    match tail.strip_prefix(':') {
        None if tail.is_empty() => Ok(()),
        Some(port) if port.parse::<u16>().is_ok() => Ok(()),
        _ => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    #[test]
    fn reads_references() {
        for (url, shown) in [
            ("oci://r.io/team/filter:v1", "r.io/team/filter:v1"),
            ("oci://r.io/team/filter", "r.io/team/filter:latest"),
            ("oci://r.io:5000/x/y:v1?z#f", "r.io:5000/x/y:v1"),
            ("oci://localhost/xy", "localhost/xy:latest"),
            ("oci://localhost:5000/xy", "localhost:5000/xy:latest"),
            ("oci://nginx", "index.docker.io/library/nginx:latest"),
            ("oci://team/filter:1", "index.docker.io/team/filter:1"),
            ("oci://docker.io/nginx", "index.docker.io/library/nginx:latest"),
            ("oci://[::1]:5000/xy:t", "[::1]:5000/xy:t"),
        ] {
            assert_eq!(Reference::from_url(url).unwrap().to_string(), shown, "{url}");
        }
    }

    #[test]
    fn digest_wins_over_tag() {
        let reference = Reference::from_url(&format!("oci://r.io/x/y:v1@{DIGEST}")).unwrap();
        assert_eq!(reference.to_string(), format!("r.io/x/y@{DIGEST}"));
        assert_eq!(reference.pinned(), DIGEST.strip_prefix("sha256:"));
        assert_eq!(Reference::from_url("oci://r.io/x/y:v1").unwrap().pinned(), None);
    }

    #[test]
    fn refuses_what_is_no_reference() {
        for url in [
            "oci://",
            "oci:///",
            "oci://r.io/",
            "oci://r.io/x",
            "oci://r.io/UPPER",
            "oci://r.io/a b",
            "oci://r.io/x/y:",
            "oci://r.io/x/y:ta/g:",
            "oci://r.io/x/y@sha256:12",
            "oci://r.io/x/y@md5:12",
            "oci://r.io:port/x/y",
            "oci://r.io/x//y",
            "oci://r.io/../y",
            "oci://u@r.io/x/y",
            "oci://[::1/x/y",
            "oci://r.io:99999/x/y",
            "oci://r.io/x/y\u{7f}",
            "oci://r.io/x/ü",
        ] {
            let error = Reference::from_url(url).unwrap_err();
            assert!(error.starts_with("could not parse url in image reference: "), "{url}: {error}");
        }
    }

    #[test]
    fn plain_http_only_near_by() {
        for (registry, plain) in [
            ("localhost:5000", true),
            ("x.localhost", true),
            ("127.0.0.1:5000", true),
            ("[::1]:5000", true),
            ("10.1.2.3", true),
            ("192.168.0.1:1", true),
            ("172.16.0.1", true),
            ("172.32.0.1", false),
            ("127.0.0.2", false),
            ("r.io", false),
            ("8.8.8.8", false),
            ("169.254.1.1", false),
        ] {
            let reference = Reference::from_url(&format!("oci://{registry}/x/y")).unwrap();
            assert_eq!(reference.may_be_plain(), plain, "{registry}");
        }
    }
}
