//! The Envoy beside the agent: one child process and its admin port.
//!
//! `agent` starts, asks and ends it as the lifecycle says; `status` asks its admin port. Nothing here decides when Envoy is to end,
//! or knows what its configuration says.

pub mod admin;
mod capture;
pub mod guard;
mod kill;
pub mod readiness;
mod run;
pub mod settle;
mod state;

use std::{
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
};

use log::warn;

use crate::config::{Errors, Vars};

pub use admin::Admin;
pub use readiness::Readiness;
pub use run::{Exit, Running};
pub use state::State;

/// What is needed to start Envoy.
#[derive(Debug, Clone, Default)]
pub struct Config {
    /// binaryPath.
    pub binary: PathBuf,
    /// Its arguments, without the name of the program.
    pub args: Vec<OsString>,
    /// Variables besides the agent's own environment.
    pub env: Vec<(String, String)>,
    /// The user and group to run as, where not the agent's own: 1337 when the agent is root and takes port 53 (rootless
    /// redirection in docker).
    pub user: Option<(u32, u32)>,
    /// Its soft limit of open files, where the agent has raised its own.
    pub open_files: Option<u64>,
    /// The generated bootstrap, removed in the end; `None` for a user's own file.
    pub bootstrap: Option<PathBuf>,
    /// The program that ties Envoy's life to the agent's (see [`guard`]): this one. `None` starts Envoy without it.
    pub guard: Option<PathBuf>,
    /// Envoy's stderr is read and written in the agent's log format (`FOOTMAN_CAPTURE_ENVOY_LOG`).
    pub capture: bool,
}

/// The user and group that Envoy gets when it must not share the agent's.
const ISTIO_PROXY: (u32, u32) = (1337, 1337);
/// This program, also where its file has been replaced meanwhile.
const SELF: &str = "/proc/self/exe";
/// Ciphers that `COMPLIANCE_POLICY` leaves to gRPC's own TLS in Envoy.
const FIPS_CIPHERS: &str = "ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-RSA-AES128-GCM-SHA256:\
                            ECDHE-ECDSA-AES256-GCM-SHA384:ECDHE-RSA-AES256-GCM-SHA384";

impl Config {
    /// What the environment and ProxyConfig say of the process; arguments and bootstrap are added by who writes the bootstrap.
    ///
    /// # Errors
    /// None today: a binary that is missing is an error of the start, with its own exit code.
    pub fn from_vars(vars: &Vars) -> Result<Config, Errors> {
        let fips = matches!(vars.text("COMPLIANCE_POLICY"), Some("fips-140-2" | "fips-140-3"));
        let takes_port_53 = vars.text_or("DNS_PROXY_ADDR", "").ends_with(":53");
        Ok(Config {
            binary: vars.path(&vars.proxy().binary_path),
            args: Vec::new(),
            env: Vec::from_iter(fips.then(|| ("GRPC_SSL_CIPHER_SUITES".to_owned(), FIPS_CIPHERS.to_owned()))),
            user: (takes_port_53 && nix::unistd::getuid().is_root()).then_some(ISTIO_PROXY),
            open_files: None,
            bootstrap: None,
            guard: Path::new(SELF).exists().then(|| SELF.into()),
            capture: vars.bool("FOOTMAN_CAPTURE_ENVOY_LOG", false),
        })
    }

    /// Takes the generated bootstrap away, when no Envoy will read it any more: it has addresses of a life that is over.
    pub fn remove_bootstrap(&self) {
        if let Some(path) = &self.bootstrap
            && let Err(error) = fs::remove_file(path)
            && error.kind() != io::ErrorKind::NotFound
        {
            warn!("{} cannot be removed: {error}", path.display());
        }
    }
}
