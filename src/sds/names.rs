//! Secret names as Envoy asks for them. Pure.

use std::path::Path;

use crate::secrets::Source;

/// The workload's certificate.
pub(super) const DEFAULT: &str = "default";
/// The trust bundle.
pub(super) const ROOT_CA: &str = "ROOTCA";
const FILE_CERT: &str = "file-cert:";
const FILE_ROOT: &str = "file-root:";
/// The operating system's roots, under the prefix for root files.
const SYSTEM: &str = "system";

/// What a name means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Name {
    /// `default`.
    Workload,
    /// `ROOTCA`.
    Bundle,
    /// `file-cert:<chain>~<key>`, `file-root:<path>`, `file-root:system`.
    File(Source),
}

impl Name {
    /// Reads a name; `None` for one that the agent does not serve. `system` is the bundle of the operating system.
    pub(super) fn parse(text: &str, system: Option<&Path>) -> Option<Name> {
        let whole = |path: &str| !path.is_empty() && !path.contains('~');
        match text {
            DEFAULT => Some(Name::Workload),
            ROOT_CA => Some(Name::Bundle),
            _ => {
                if let Some(pair) = text.strip_prefix(FILE_CERT) {
                    let (chain, key) = pair.split_once('~').filter(|(chain, key)| whole(chain) && whole(key))?;
                    return Some(Name::File(Source::Pair { chain: chain.into(), key: key.into() }));
                }
                let path = text.strip_prefix(FILE_ROOT).filter(|path| whole(path))?;
                let path = if path == SYSTEM { system? } else { Path::new(path) };
                Some(Name::File(Source::Roots(path.to_owned())))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Option<Name> {
        Name::parse(text, Some(Path::new("/etc/ssl/roots.pem")))
    }

    #[test]
    fn names_that_are_served() {
        let roots = |path: &str| Some(Name::File(Source::Roots(path.into())));
        assert_eq!(parse("default"), Some(Name::Workload));
        assert_eq!(parse("ROOTCA"), Some(Name::Bundle));
        assert_eq!(parse("file-root:a/b.pem"), roots("a/b.pem"));
        assert_eq!(parse("file-root:system"), roots("/etc/ssl/roots.pem"));
        let pair = Source::Pair { chain: "/a".into(), key: "b".into() };
        assert_eq!(parse("file-cert:/a~b"), Some(Name::File(pair)));
    }

    #[test]
    fn names_that_are_not() {
        for text in [
            "",
            "Default",
            "rootca",
            "file-root:",
            "file-root:a~b",
            "file-cert:",
            "file-cert:a",
            "file-cert:~",
            "file-cert:a~",
            "file-cert:~b",
            "file-cert:a~b~c",
            "file:a",
            "kubernetes://x",
            "spiffe://cluster.local/ns/n/sa/s",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
        assert_eq!(Name::parse("file-root:system", None), None);
    }
}
