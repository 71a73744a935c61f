//! The agent under test: the binary, in a folder that looks like a pod's root.

use std::{
    collections::BTreeMap,
    fs::File,
    path::{Path, PathBuf},
    process::{Child, Command},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use super::{TempDir, envoy, free_port, istiod::Istiod};

/// Ends with the value; a failing test prints the agent's log.
pub struct Agent {
    pub folder: TempDir,
    pub status_port: u16,
    /// Where Envoy's own metrics are looked for.
    pub envoy_metrics_port: u16,
    pub dns_port: u16,
    child: Child,
}

/// How the agent is started.
pub struct Options<'a> {
    pub binary: &'a Path,
    /// Envoy; a stub that only waits when there is none.
    pub envoy: Option<&'a Path>,
    /// On top of a pod's usual environment.
    pub env: &'a [(&'a str, &'a str)],
}

impl Default for Options<'_> {
    fn default() -> Self {
        Options { binary: Path::new(env!("CARGO_BIN_EXE_footman")), envoy: None, env: &[] }
    }
}

impl Agent {
    /// `footman proxy sidecar` towards this istiod.
    pub fn start(istiod: &Istiod, options: Options<'_>) -> Agent {
        let folder = TempDir::new();
        folder.write("var/run/secrets/istio/root-cert.pem", istiod.ca.root_pem());
        folder.write("var/run/secrets/tokens/istio-token", "token");
        let discovery = format!("localhost:{}", istiod.address.port());
        let (status_port, envoy_metrics_port, dns_port) = (free_port(), free_port(), free_port());
        let proxy_config = serde_json::json!({
            "discoveryAddress": discovery,
            "statusPort": status_port,
            "proxyAdminPort": free_port(),
            "binaryPath": options.envoy.map_or_else(|| envoy::stub(&folder), Path::to_owned),
            "terminationDrainDuration": "1s",
        });
        let mut env: BTreeMap<&str, String> = [
            ("PATH", "/usr/bin:/bin".to_owned()),
            ("PROXY_CONFIG", proxy_config.to_string()),
            ("POD_NAME", "app-0".to_owned()),
            ("POD_NAMESPACE", "ns1".to_owned()),
            ("SERVICE_ACCOUNT", "sa1".to_owned()),
            ("INSTANCE_IP", "127.0.0.1".to_owned()),
            ("CA_ADDR", discovery),
            ("CLOUD_PLATFORM", "none".to_owned()),
            ("DNS_PROXY_ADDR", format!("127.0.0.1:{dns_port}")),
            ("ENVOY_PROMETHEUS_PORT", envoy_metrics_port.to_string()),
            ("ENVOY_STATUS_PORT", free_port().to_string()),
        ]
        .into();
        env.extend(options.env.iter().map(|(name, value)| (*name, (*value).to_owned())));
        let log = File::create(folder.join("agent.log")).unwrap();
        let child = Command::new(options.binary)
            .args(["proxy", "sidecar", "--domain", "ns1.svc.cluster.local", "--proxyLogLevel=warning"])
            .args(["--proxyComponentLogLevel=misc:error", "--log_output_level=default:info"])
            .current_dir(&*folder)
            .env_clear()
            .envs(env)
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        Agent { folder, status_port, envoy_metrics_port, dns_port, child }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }

    /// Waits for its end; its exit code.
    pub fn exit_code(&mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }

    /// What it has logged so far, Envoy's output included.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.join("agent.log")).unwrap()
    }

    /// The socket on which Envoy asks for its configuration.
    pub fn ads_socket(&self) -> PathBuf {
        self.folder.join("etc/istio/proxy/XDS")
    }

    /// The socket on which Envoy asks for secrets.
    pub fn sds_socket(&self) -> PathBuf {
        self.folder.join("var/run/secrets/workload-spiffe-uds/socket")
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // Envoy goes with the agent: its parent-death signal sees to that.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("{}", self.log());
        }
    }
}
