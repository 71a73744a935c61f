//! Writes the bootstrap, the gRPC bootstrap and lightstep's token; knows the files that may stand in for the bootstrap.

use std::{
    fmt,
    fs::{self, DirBuilder, OpenOptions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use super::{Config, Surroundings, document, grpc, node::Node};
use crate::config::{Errors, Vars, clean};

/// Tokens are in the bootstrap; only Envoy has to read it.
const PRIVATE: u32 = 0o600;
/// Applications read the gRPC bootstrap.
const PUBLIC: u32 = 0o644;
const FOLDER: u32 = 0o700;
/// Templates that images of Istio and Higress have.
const OF_IMAGES: [&str; 2] =
    ["var/lib/istio/envoy/envoy_bootstrap_tmpl.json", "var/lib/istio/envoy/envoy_bootstrap_lite_tmpl.json"];

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
    /// Every file that the agent made for Envoy to read.
    pub files: Vec<PathBuf>,
}

/// Why there is no bootstrap.
#[derive(Debug)]
pub enum Error {
    /// A file or folder that cannot be written.
    Write {
        /// What it is.
        what: &'static str,
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// `tracing.stackdriver` outside of Google's cloud.
    NoProject,
}

impl Own {
    /// The file that is configured, highest precedence first; or else the text of a template that we have a counterpart of.
    pub(super) fn from_vars(vars: &Vars, errors: &mut Errors) -> (Option<Own>, Option<String>) {
        let proxy = vars.proxy();
        let template = vars.text_or("ISTIO_BOOTSTRAP", "");
        if !proxy.custom_config_file.is_empty() {
            return (Some(Own::InPlace(vars.path(&proxy.custom_config_file))), None);
        }
        let (source, path) = match (template.as_str(), proxy.proxy_bootstrap_template_path.as_str()) {
            ("", "") => return (None, None),
            ("", path) => ("proxyBootstrapTemplatePath", path),
            (path, _) => ("ISTIO_BOOTSTRAP", path),
        };
        // The working directory is / in images, so both spellings are meant.
        let is_of_image = OF_IMAGES.iter().any(|it| clean(Path::new(path.trim_start_matches('/'))) == Path::new(it));
        let text = match fs::read(vars.path(path)) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            // Our image has none, and what they make is built in.
            Err(error) if is_of_image && error.kind() == io::ErrorKind::NotFound => return (None, None),
            Err(error) => {
                errors.add(source, format!("{path}: {error}"));
                return (None, None);
            }
        };
        if !text.contains("{{") {
            let is_yaml = path.ends_with(".yaml") || path.ends_with(".yaml.tmpl");
            return (Some(Own::Copied { text, is_yaml }), None);
        }
        if is_of_image {
            vars.warn(format!(
                "{source}: the built-in bootstrap takes the place of {path}; what was changed there does not count"
            ));
            return (None, Some(text));
        }
        errors.add(
            source,
            format!(
                "{path} is a Go template ({{{{ … }}}}), which is not supported: use ISTIO_BOOTSTRAP_OVERRIDE for what \
                 differs from the built-in bootstrap, or customConfigFile for a bootstrap of your own"
            ),
        );
        (None, None)
    }
}

impl Config {
    /// What Envoy reads: the file that [`write()`] writes, or the user's own.
    pub fn file(&self) -> PathBuf {
        self.file_in(&self.config_dir)
    }

    fn file_in(&self, folder: &Path) -> PathBuf {
        match &self.own {
            Some(Own::InPlace(path)) => path.clone(),
            Some(Own::Copied { is_yaml: true, .. }) => folder.join("envoy-rev.yaml"),
            _ => folder.join("envoy-rev.json"),
        }
    }
}

/// Writes what Envoy and gRPC applications read, and says where Envoy's bootstrap is.
///
/// # Errors
/// A folder that cannot be made or a file that cannot be written.
pub fn write(config: &Config, around: &Surroundings) -> Result<Written, Error> {
    let node = Node::new(config, around);
    put_grpc(config, &node)?;
    config.fits(around)?;
    put_envoy(config, &node, &config.config_dir)
}

/// Writes what gRPC applications read, where there is no Envoy.
///
/// # Errors
/// A folder that cannot be made or a file that cannot be written.
pub fn write_grpc(config: &Config, around: &Surroundings) -> Result<(), Error> {
    put_grpc(config, &Node::new(config, around))
}

/// Writes what Envoy reads, into another folder than `configPath`: for a bootstrap that is only looked at.
///
/// # Errors
/// A folder that cannot be made or a file that cannot be written.
pub fn write_to(config: &Config, around: &Surroundings, folder: &Path) -> Result<Written, Error> {
    config.fits(around)?;
    put_envoy(config, &Node::new(config, around), folder)
}

fn put_envoy(config: &Config, node: &Node, folder: &Path) -> Result<Written, Error> {
    let path = config.file_in(folder);
    if let Some(Own::InPlace(_)) = &config.own {
        return Ok(Written { path, is_generated: false, files: Vec::new() });
    }
    make_folder(folder, "the folder of the bootstrap (configPath)")?;
    let mut files = Vec::new();
    if let Some(token) = config.lightstep_token() {
        let path = folder.join(super::TOKEN_FILE);
        put(&path, token.as_bytes(), PRIVATE, "lightstep's access token")?;
        files.push(path);
    }
    let what = "the bootstrap";
    match &config.own {
        Some(Own::Copied { text, .. }) => put(&path, text.as_bytes(), PRIVATE, what)?,
        _ => put(&path, &document::document(config, node).compact(), PRIVATE, what)?,
    }
    files.push(path.clone());
    Ok(Written { path, is_generated: true, files })
}

fn put_grpc(config: &Config, node: &Node) -> Result<(), Error> {
    let Some(path) = config.grpc.path() else { return Ok(()) };
    if let Some(folder) = path.parent() {
        make_folder(folder, "the folder of the gRPC bootstrap (GRPC_XDS_BOOTSTRAP)")?;
    }
    let text = grpc::document(config, node).pretty();
    put(path, &text, PUBLIC, "the gRPC bootstrap (GRPC_XDS_BOOTSTRAP)")
}

fn make_folder(path: &Path, what: &'static str) -> Result<(), Error> {
    if path.as_os_str().is_empty() {
        return Ok(());
    }
    let made = DirBuilder::new().recursive(true).mode(FOLDER).create(path);
    made.map_err(|source| Error::Write { what, path: path.to_owned(), source })
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
        Error::Write { what, path: path.to_owned(), source }
    })
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Write { what, path, source } => write!(f, "cannot write {what}: {}: {source}", path.display()),
            Error::NoProject => f.write_str(
                "tracing.stackdriver: the project (gcp_project) is not known: it needs Google's metadata server or GCP_METADATA",
            ),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Write { source, .. } => Some(source),
            Error::NoProject => None,
        }
    }
}
