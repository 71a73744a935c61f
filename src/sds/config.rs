//! Where SDS is served and how, from the agent's configuration.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use crate::{
    config::{Errors, PrivateKeyProvider, Vars},
    net::tls::SYSTEM_FILES,
};

/// The folder of the workload socket.
const WORKLOAD: &str = "./var/run/secrets/workload-spiffe-uds";
/// The name of the agent's own socket in it.
const OWN: &str = "socket";
/// Where files are served from when somebody else serves the workload socket.
const FILES: &str = "./var/run/secrets/credential-uds/files-socket";
/// The revocation list of the mesh.
const CRL: &str = "/var/run/secrets/istio/crl/ca-crl.pem";
/// How long a server is waited for that must come (`FOOTMAN_EXTERNAL_SDS_WAIT`).
const LONG_WAIT: Duration = Duration::from_secs(60);
/// The same where only the socket's name says so: Istio does not wait at all, and people expect a quick answer to a wrong name.
const SHORT_WAIT: Duration = Duration::from_secs(3);
/// Envoy may run under another user than the agent.
const MODE: u32 = 0o666;
/// Where Istio looks for the system's roots besides.
const MORE_SYSTEM_ROOTS: [&str; 2] = ["/usr/local/etc/ssl/cert.pem", "/etc/ssl/certs/ca-certificates"];

/// How secrets are served.
#[derive(Debug, Clone)]
pub struct Config {
    /// The socket that Envoy asks for `default` and `ROOTCA`: ours, or somebody else's.
    pub workload: PathBuf,
    /// How long to wait for somebody else to serve it; `None` when nobody has to. A socket name of its own
    /// (`WORKLOAD_IDENTITY_SOCKET_FILE`) says that somebody must, and so does Higress's `USE_EXTERNAL_WORKLOAD_SDS`.
    pub foreign: Option<Duration>,
    /// Ours, in case the workload socket is served by somebody else.
    pub files: PathBuf,
    /// Permission bits of our socket (`FOOTMAN_SDS_SOCKET_MODE`, octal; 0666).
    pub mode: u32,
    /// Hardware that does private-key operations for Envoy.
    pub provider: Option<PrivateKeyProvider>,
    /// The mesh's revocation list, unless `PILOT_ENABLE_CA_CRL` is off.
    pub crl: Option<PathBuf>,
    /// The roots of the operating system.
    pub system_roots: Option<PathBuf>,
}

impl Config {
    /// Reads what concerns SDS.
    ///
    /// # Errors
    /// Every setting that cannot work.
    pub fn from_vars(vars: &Vars) -> Result<Config, Errors> {
        let mut errors = Errors::default();
        let name = vars.text_or("WORKLOAD_IDENTITY_SOCKET_FILE", OWN);
        if Path::new(&name).file_name().is_none_or(|base| *base != *name) {
            errors.add(
                "WORKLOAD_IDENTITY_SOCKET_FILE",
                format!("{name:?} must be the name of a file in {WORKLOAD}, not a path"),
            );
        }
        let foreign = if vars.bool("USE_EXTERNAL_WORKLOAD_SDS", false) {
            Some(vars.duration("FOOTMAN_EXTERNAL_SDS_WAIT", LONG_WAIT))
        } else {
            (name != OWN).then(|| vars.duration("FOOTMAN_EXTERNAL_SDS_WAIT", SHORT_WAIT))
        };
        let mut mode = MODE;
        if let Some(text) = vars.text("FOOTMAN_SDS_SOCKET_MODE").filter(|text| !text.is_empty()) {
            match u32::from_str_radix(text, 8) {
                Ok(wanted) if wanted <= 0o777 => mode = wanted,
                _ => errors.add(
                    "FOOTMAN_SDS_SOCKET_MODE",
                    format!("{text:?} is no file mode: write it in octal, such as 0660"),
                ),
            }
        }
        let config = Config {
            workload: vars.path(WORKLOAD).join(&name),
            foreign,
            files: vars.path(FILES),
            mode,
            provider: vars.proxy().private_key_provider.clone(),
            crl: vars.bool("PILOT_ENABLE_CA_CRL", true).then(|| CRL.into()),
            system_roots: SYSTEM_FILES.iter().chain(&MORE_SYSTEM_ROOTS).map(PathBuf::from).find(|path| path.exists()),
        };
        errors.into_result(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(pairs: &[(&str, &str)]) -> Result<Config, Errors> {
        Config::from_vars(&Vars::from_pairs(pairs.iter().copied()))
    }

    #[test]
    fn socket_names() {
        let own = config(&[]).unwrap();
        assert!(own.workload.ends_with("workload-spiffe-uds/socket") && own.foreign.is_none() && own.mode == 0o666);
        let foreign = config(&[("WORKLOAD_IDENTITY_SOCKET_FILE", "spire.sock")]).unwrap();
        assert!(foreign.workload.ends_with("workload-spiffe-uds/spire.sock") && foreign.foreign == Some(SHORT_WAIT));
        let required = config(&[("USE_EXTERNAL_WORKLOAD_SDS", "true")]).unwrap();
        assert!(required.workload.ends_with("socket") && required.foreign == Some(LONG_WAIT));
        for name in ["dir/other.sock", "/socket", "..", "", "socket/", "./socket"] {
            let errors = config(&[("WORKLOAD_IDENTITY_SOCKET_FILE", name)]).unwrap_err();
            assert_eq!(errors.0[0].source, "WORKLOAD_IDENTITY_SOCKET_FILE", "{name:?}");
        }
    }

    #[test]
    fn modes_and_switches() {
        assert_eq!(config(&[("FOOTMAN_SDS_SOCKET_MODE", "0600")]).unwrap().mode, 0o600);
        assert!(config(&[("FOOTMAN_SDS_SOCKET_MODE", "rw")]).is_err());
        assert!(config(&[("PILOT_ENABLE_CA_CRL", "false")]).unwrap().crl.is_none());
    }
}
