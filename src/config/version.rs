//! What this build calls itself.

/// The Istio release whose agent this one replaces: node metadata, `version`; istiod decides by it.
pub const ISTIO_VERSION: &str = "1.31.0";

/// The commit that was built, from FOOTMAN_REVISION at build time.
pub const BUILD_REVISION: &str = match option_env!("FOOTMAN_REVISION") {
    Some(revision) => revision,
    None => "unknown",
};
