//! What istiod tells the agent about a plugin, hidden in the VM's environment variables.

use std::{collections::BTreeMap, fmt};

/// Variables with this prefix are the agent's; Envoy never sees them.
pub(super) const AGENT_PREFIX: &str = "ISTIO_META_";
const PULL_SECRET: &str = "ISTIO_META_WASM_IMAGE_PULL_SECRET";
const PULL_POLICY: &str = "ISTIO_META_WASM_IMAGE_PULL_POLICY";
const RESOURCE_VERSION: &str = "ISTIO_META_WASM_PLUGIN_RESOURCE_VERSION";

/// The agent's settings for one plugin.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Settings {
    pub(super) secret: PullSecret,
    pub(super) policy: PullPolicy,
    /// The plugin's version in Kubernetes; empty when unknown.
    pub(super) version: String,
}

/// The credentials that came with the plugin.
#[derive(Clone, Default, PartialEq, Eq)]
pub(super) enum PullSecret {
    /// None is wanted: the docker configuration of the agent's user counts.
    #[default]
    Absent,
    /// One is wanted, but istiod could not read it or may not send it.
    Missing,
    /// A docker configuration as JSON.
    DockerConfig(String),
}

/// When a module that is at hand is fetched anew (WasmPlugin's `imagePullPolicy`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum PullPolicy {
    #[default]
    Unspecified,
    IfNotPresent,
    Always,
}

impl Settings {
    pub(super) fn from_environment(environment: &BTreeMap<String, String>) -> Settings {
        let secret = match environment.get(PULL_SECRET) {
            None => PullSecret::Absent,
            Some(text) if text.is_empty() => PullSecret::Missing,
            Some(text) => PullSecret::DockerConfig(text.clone()),
        };
        let policy = match environment.get(PULL_POLICY).map(String::as_str) {
            Some("IfNotPresent") => PullPolicy::IfNotPresent,
            Some("Always") => PullPolicy::Always,
            _ => PullPolicy::Unspecified,
        };
        let version = environment.get(RESOURCE_VERSION).cloned().unwrap_or_default();
        Settings { secret, policy, version }
    }
}

impl PullPolicy {
    /// Whether what a URL last led to is good enough, although the plugin's version has changed.
    ///
    /// By default a moving `:latest` is looked at again; a reference without any tag is not (as Istio).
    pub(super) fn ignores_version(self, url: &str) -> bool {
        match self {
            PullPolicy::Always => false,
            PullPolicy::IfNotPresent => true,
            PullPolicy::Unspecified => {
                let path = url.split(['?', '#']).next().unwrap_or_default();
                !(url.starts_with("oci://") && path.ends_with(":latest"))
            }
        }
    }
}

impl fmt::Debug for PullSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PullSecret::Absent => "none",
            PullSecret::Missing => "missing",
            PullSecret::DockerConfig(_) => "\"…\"",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(pairs: &[(&str, &str)]) -> Settings {
        Settings::from_environment(&pairs.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect())
    }

    #[test]
    fn reads_the_three_variables() {
        let read = settings(&[(PULL_SECRET, "{}"), (PULL_POLICY, "Always"), (RESOURCE_VERSION, "7"), ("FOO", "bar")]);
        let secret = PullSecret::DockerConfig("{}".to_owned());
        assert_eq!(read, Settings { secret, policy: PullPolicy::Always, version: "7".to_owned() });
        assert_eq!(settings(&[(PULL_SECRET, "")]).secret, PullSecret::Missing);
        assert_eq!(settings(&[(PULL_POLICY, "always")]).policy, PullPolicy::Unspecified);
        assert_eq!(settings(&[]), Settings::default());
    }

    #[test]
    fn version_counts_under_always_and_for_latest() {
        for (policy, url, ignored) in [
            (PullPolicy::Always, "oci://r/x:v1", false),
            (PullPolicy::IfNotPresent, "oci://r/x:latest", true),
            (PullPolicy::Unspecified, "oci://r/x:latest", false),
            (PullPolicy::Unspecified, "oci://r/x:latest?y=1", false),
            (PullPolicy::Unspecified, "oci://r/x", true),
            (PullPolicy::Unspecified, "oci://r/x:v1", true),
            (PullPolicy::Unspecified, "https://r/x:latest", true),
        ] {
            assert_eq!(policy.ignores_version(url), ignored, "{policy:?} {url}");
        }
    }

    #[test]
    fn secrets_are_not_printed() {
        let text = format!("{:?}", settings(&[(PULL_SECRET, "hunter2")]));
        assert!(!text.contains("hunter2") && text.contains('…'), "{text}");
    }
}
