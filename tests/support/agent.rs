//! The agent under test: the binary, in a folder that looks like a pod's root.

use std::{
    fs::File,
    path::PathBuf,
    process::{Child, Command},
};

use super::{TempDir, envoy, free_port, istiod::Istiod};

/// Ends with the value; a failing test prints the agent's log.
pub struct Agent {
    pub folder: TempDir,
    child: Child,
}

impl Agent {
    /// `footman proxy sidecar` with a stub for Envoy, towards this istiod; `env` comes on top.
    pub fn start(istiod: &Istiod, env: &[(&str, &str)]) -> Agent {
        let folder = TempDir::new();
        folder.write("var/run/secrets/istio/root-cert.pem", istiod.ca.root_pem());
        folder.write("var/run/secrets/tokens/istio-token", "token");
        let discovery = format!("localhost:{}", istiod.address.port());
        let proxy_config = serde_json::json!({
            "discoveryAddress": discovery,
            "statusPort": free_port(),
            "proxyAdminPort": free_port(),
            "binaryPath": envoy::stub(&folder),
            "terminationDrainDuration": "1s",
        });
        let log = File::create(folder.join("agent.log")).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_footman"))
            .args(["proxy", "sidecar", "--domain", "ns1.svc.cluster.local"])
            .current_dir(&*folder)
            .env_clear()
            .envs([
                ("PATH", "/usr/bin:/bin"),
                ("PROXY_CONFIG", proxy_config.to_string().as_str()),
                ("POD_NAME", "app-0"),
                ("POD_NAMESPACE", "ns1"),
                ("SERVICE_ACCOUNT", "sa1"),
                ("INSTANCE_IP", "127.0.0.1"),
                ("CA_ADDR", discovery.as_str()),
                ("CLOUD_PLATFORM", "none"),
                ("DNS_PROXY_ADDR", format!("127.0.0.1:{}", free_port()).as_str()),
                ("ENVOY_PROMETHEUS_PORT", free_port().to_string().as_str()),
                ("ENVOY_STATUS_PORT", free_port().to_string().as_str()),
            ])
            .envs(env.iter().copied())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        Agent { folder, child }
    }

    /// The socket on which Envoy asks for its configuration.
    pub fn ads_socket(&self) -> PathBuf {
        self.folder.join("etc/istio/proxy/XDS")
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // Envoy goes with the agent: its parent-death signal sees to that.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("{}", std::fs::read_to_string(self.folder.join("agent.log")).unwrap_or_default());
        }
    }
}
