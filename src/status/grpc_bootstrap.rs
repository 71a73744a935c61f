//! Whether a proxyless gRPC application finds what its bootstrap names: the file itself, and the certificate files in it.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use serde_json::Value;

/// The bootstrap at `GRPC_XDS_BOOTSTRAP`.
pub struct GrpcBootstrap {
    path: PathBuf,
    /// Certificate files it names; `None` until it was read once. It is not read again.
    files: Mutex<Option<Vec<PathBuf>>>,
}

impl GrpcBootstrap {
    /// Nothing is read yet: the file may not exist before the agent has written it.
    pub fn new(path: PathBuf) -> GrpcBootstrap {
        GrpcBootstrap { path, files: Mutex::default() }
    }

    /// Succeeds when the bootstrap could be read once and its certificate files exist now.
    ///
    /// # Errors
    /// What is missing.
    pub fn check(&self) -> Result<(), String> {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        if files.is_none() {
            let failed = |error: &dyn std::fmt::Display| format!("failed loading {}: {error}", self.path.display());
            let text = std::fs::read(&self.path).map_err(|error| failed(&error))?;
            let bootstrap: Value = serde_json::from_slice(&text).map_err(|error| failed(&error))?;
            *files = Some(certificate_files(&bootstrap));
        }
        match files.iter().flatten().find(|file| is_missing(file)) {
            Some(file) => Err(format!("{} does not exist", file.display())),
            None => Ok(()),
        }
    }
}

/// Files of the first provider that watches files.
fn certificate_files(bootstrap: &Value) -> Vec<PathBuf> {
    let providers = bootstrap["certificate_providers"].as_object();
    let watcher = providers.into_iter().flat_map(|all| all.values()).find(|p| p["plugin_name"] == "file_watcher");
    let names = ["certificate_file", "private_key_file", "ca_certificate_file"];
    watcher
        .map(|watcher| names.iter().filter_map(|name| watcher["config"][name].as_str()).map(PathBuf::from).collect())
        .unwrap_or_default()
}

/// Only what certainly does not exist is missing: a folder that may not be looked into counts as there.
fn is_missing(file: &Path) -> bool {
    std::fs::metadata(file).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bootstrap_then_certificates() {
        let folder = std::env::temp_dir().join(format!("footman-grpc-bootstrap-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = |name: &str| folder.join(name);
        let bootstrap = GrpcBootstrap::new(path("bootstrap.json"));
        assert!(bootstrap.check().unwrap_err().starts_with("failed loading "));
        std::fs::write(path("bootstrap.json"), "{").unwrap();
        assert!(bootstrap.check().unwrap_err().starts_with("failed loading "));
        let config = serde_json::json!({"certificate_file": path("cert"), "private_key_file": path("key"),
            "ca_certificate_file": path("root"), "refresh_interval": "900s"});
        let text = serde_json::json!({"certificate_providers": {
            "other": {"plugin_name": "x"}, "default": {"plugin_name": "file_watcher", "config": config}}});
        std::fs::write(path("bootstrap.json"), text.to_string()).unwrap();
        for name in ["cert", "key", "root"] {
            assert_eq!(bootstrap.check(), Err(format!("{} does not exist", path(name).display())));
            std::fs::write(path(name), "").unwrap();
        }
        assert_eq!(bootstrap.check(), Ok(()));
        std::fs::remove_file(path("bootstrap.json")).unwrap();
        assert_eq!(bootstrap.check(), Ok(()), "it is not read again");
        std::fs::remove_file(path("key")).unwrap();
        assert!(bootstrap.check().is_err());
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
