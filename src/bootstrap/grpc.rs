//! The bootstrap of gRPC libraries that speak xDS themselves ("proxyless"): they go through the agent's XDS socket.

use std::path::{Path, PathBuf};

use super::{
    Config, GRPC_BOOTSTRAP,
    json::{Json, Object, json},
    node::Node,
};
use crate::config::{Vars, clean};

/// How often the libraries look at certificate files.
const REFRESH: &str = "900s";

/// Where the file goes and what it points to.
#[derive(Debug, Clone)]
pub(super) struct Target {
    path: Option<PathBuf>,
    xds_socket: String,
    output_certs: String,
}

impl Target {
    pub(super) fn from_vars(vars: &Vars) -> Target {
        let path = vars.text_or("GRPC_XDS_BOOTSTRAP", GRPC_BOOTSTRAP);
        Target {
            path: (!path.is_empty()).then(|| vars.path(&path)),
            xds_socket: vars.proxy().config_file("XDS").to_string_lossy().into_owned(),
            output_certs: vars.text_or("OUTPUT_CERTS", ""),
        }
    }

    /// `None` when it is turned off.
    pub(super) fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }
}

pub(super) fn document<'a>(config: &'a Config, node: &'a Node) -> Json<'a> {
    let mut metadata = node.metadata.typed();
    metadata.insert("GENERATOR", "grpc");
    let mut all = Object::default();
    let server = json!({
        "server_uri": format!("unix:///{}", config.grpc.xds_socket),
        "channel_creds": [{"type": "insecure"}],
        "server_features": ["xds_v3"]
    });
    all.insert("xds_servers", json!([server]));
    all.insert("node", json!({"id": node.id.as_str(), "metadata": metadata, "locality": node.locality()}));
    let folder = &config.grpc.output_certs;
    if !folder.is_empty() {
        let file = |name: &str| clean(&Path::new(folder).join(name)).to_string_lossy().into_owned();
        let provider = json!({
            "plugin_name": "file_watcher",
            "config": {
                "certificate_file": file("cert-chain.pem"),
                "private_key_file": file("key.pem"),
                "ca_certificate_file": file("root-cert.pem"),
                "refresh_interval": REFRESH
            }
        });
        all.insert("certificate_providers", json!({"default": provider}));
    }
    all.insert("server_listener_resource_name_template", "xds.istio.io/grpc/lds/inbound/%s");
    all.into()
}
