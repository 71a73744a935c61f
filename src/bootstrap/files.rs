//! Writes the bootstrap, the gRPC bootstrap and lightstep's token; knows the files that may stand in for the bootstrap.

use std::{
    fmt,
    fs::{self, DirBuilder, OpenOptions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use super::{Config, Surroundings};
use crate::config::{Errors, Vars};

/// Tokens are in the bootstrap; only Envoy has to read it.
const PRIVATE: u32 = 0o600;
/// Applications read the gRPC bootstrap.
const PUBLIC: u32 = 0o644;
const FOLDER: u32 = 0o700;

/// A file that stands in for the bootstrap.
#[derive(Debug, Clone)]
pub(super) enum Own {
    /// `customConfigFile`: Envoy reads it where it is.
    InPlace(PathBuf),
    /// `ISTIO_BOOTSTRAP`, `proxyBootstrapTemplatePath` or `--templateFile`: copied to where the bootstrap goes.
    Copied {
        /// Its text.
        text: String,
        /// Whether it is YAML, by its name.
        is_yaml: bool,
    },
}

/// Where Envoy finds its bootstrap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// The file.
    pub path: PathBuf,
    /// Whether the agent made it and takes it away when Envoy has ended.
    pub is_generated: bool,
}

/// A file or folder that cannot be written.
#[derive(Debug)]
pub struct Error {
    what: &'static str,
    path: PathBuf,
    source: io::Error,
}

impl Own {
    /// The file that is configured, highest precedence first.
    pub(super) fn from_vars(vars: &Vars, errors: &mut Errors) -> Option<Own> {
        let proxy = vars.proxy();
        let template = vars.text_or("ISTIO_BOOTSTRAP", "");
        if !proxy.custom_config_file.is_empty() {
            return Some(Own::InPlace(vars.path(&proxy.custom_config_file)));
        }
        let (source, path) = match (template.as_str(), proxy.proxy_bootstrap_template_path.as_str()) {
            ("", "") => return None,
            ("", path) => ("proxyBootstrapTemplatePath", path),
            (path, _) => ("ISTIO_BOOTSTRAP", path),
        };
        let text = match fs::read(vars.path(path)) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(error) => {
                errors.add(source, format!("{path}: {error}"));
                return None;
            }
        };
        if text.contains("{{") {
            errors.add(
                source,
                format!(
                    "{path} is a Go template ({{{{ … }}}}), which is not supported: use ISTIO_BOOTSTRAP_OVERRIDE for what \
                     differs from the built-in bootstrap, or customConfigFile for a bootstrap of your own"
                ),
            );
        }
        Some(Own::Copied { text, is_yaml: path.ends_with(".yaml") || path.ends_with(".yaml.tmpl") })
    }
}

/// Writes what Envoy and gRPC applications read, and says where Envoy's bootstrap is.
///
/// # Errors
/// A folder that cannot be made or a file that cannot be written.
pub fn write(config: &Config, around: &Surroundings) -> Result<Written, Error> {
    write_to(config, around, &config.config_dir)
}

/// The same with another folder than `configPath`: for a bootstrap that is only looked at.
///
/// # Errors
/// A folder that cannot be made or a file that cannot be written.
pub fn write_to(config: &Config, around: &Surroundings, folder: &Path) -> Result<Written, Error> {
    if let Some(Own::InPlace(path)) = &config.own {
        return Ok(Written { path: path.clone(), is_generated: false });
    }
    make_folder(folder, "the folder of the bootstrap (configPath)")?;
    if let Some(token) = config.lightstep_token() {
        let path = folder.join(super::TOKEN_FILE);
        put(&path, token.as_bytes(), PRIVATE, "lightstep's access token")?;
    }
    let (name, text) = match &config.own {
        Some(Own::Copied { text, is_yaml: true }) => ("envoy-rev.yaml", text.clone()),
        Some(Own::Copied { text, .. }) => ("envoy-rev.json", text.clone()),
        _ => ("envoy-rev.json", config.document(around).to_string()),
    };
    let path = folder.join(name);
    put(&path, text.as_bytes(), PRIVATE, "the bootstrap")?;
    Ok(Written { path, is_generated: true })
}

/// Writes the gRPC bootstrap, if it is wanted.
///
/// # Errors
/// A folder that cannot be made or a file that cannot be written.
pub fn write_grpc(config: &Config, around: &Surroundings) -> Result<(), Error> {
    let (Some(path), Some(document)) = (config.grpc.path(), config.grpc_document(around)) else { return Ok(()) };
    if let Some(folder) = path.parent() {
        make_folder(folder, "the folder of the gRPC bootstrap (GRPC_XDS_BOOTSTRAP)")?;
    }
    let text = format!("{document:#}");
    put(path, text.as_bytes(), PUBLIC, "the gRPC bootstrap (GRPC_XDS_BOOTSTRAP)")
}

fn make_folder(path: &Path, what: &'static str) -> Result<(), Error> {
    if path.as_os_str().is_empty() {
        return Ok(());
    }
    let made = DirBuilder::new().recursive(true).mode(FOLDER).create(path);
    made.map_err(|source| Error { what, path: path.to_owned(), source })
}

/// Atomically: a reader sees the old file or the new one, whole.
fn put(path: &Path, bytes: &[u8], mode: u32, what: &'static str) -> Result<(), Error> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(format!(".{}.tmp", std::process::id()));
    let temporary = PathBuf::from(temporary);
    let written = (|| {
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(&temporary)?;
        file.write_all(bytes)?;
        fs::rename(&temporary, path)
    })();
    written.map_err(|source| {
        let _ = fs::remove_file(&temporary);
        Error { what, path: path.to_owned(), source }
    })
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot write {}: {}: {}", self.what, self.path.display(), self.source)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}
