//! Which roots and which client certificate belong to a connection: Istio's `FindRootCAForXDS` and `FindRootCAForCA` as tables.

use std::path::PathBuf;

use rustls::pki_types::{CertificateDer, pem::PemObject};

use super::material::Pair;
use crate::{config::Vars, net::tls::SystemStore};

const MESH_ROOT: &str = "./var/run/secrets/istio/root-cert.pem";
const CERTS_ROOT: &str = "./etc/certs/root-cert.pem";
/// Where Kubernetes mounts its own CA.
const KUBERNETES_ROOT: &str = "./var/run/secrets/kubernetes.io/serviceaccount/ca.crt";
const SPIFFE_CREDENTIALS: &str = "./var/run/secrets/workload-spiffe-credentials";

/// Where trust roots come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RootSource {
    /// The system's store.
    System(SystemStore),
    /// A PEM file.
    File(PathBuf),
}

/// Whether certificates come from mounted files, so that no CA is called: because it was asked for, or because a set of
/// credentials lies where platforms put them (spec 30 §4.12).
pub fn is_file_mounted(vars: &Vars) -> bool {
    let spiffe = ["cert-chain.pem", "key.pem", "root-cert.pem"]
        .iter()
        .all(|file| vars.path(format!("{SPIFFE_CREDENTIALS}/{file}")).is_file());
    vars.bool("FILE_MOUNTED_CERTS", false) || spiffe || vars.text("CA_PROVIDER") == Some("GkeWorkloadCertificate")
}

/// Roots for configuration (`FindRootCAForXDS`); the error is one for a person.
pub(super) fn for_xds(vars: &Vars) -> Result<RootSource, String> {
    let provisioned = vars.text_or("PROV_CERT", "");
    let explicit = vars.text_or("XDS_ROOT_CA", "");
    let mounted = || vars.proxy().proxy_metadata.get("ISTIO_META_TLS_CLIENT_ROOT_CERT");
    let chosen = if explicit == "SYSTEM" {
        return Ok(RootSource::System(vars.system_store()));
    } else if !explicit.is_empty() {
        vars.path(explicit)
    } else if vars.path(CERTS_ROOT).is_file() {
        vars.path(CERTS_ROOT)
    } else if let Some(file) = kubernetes(vars) {
        file
    } else if !provisioned.is_empty() {
        // On a VM it may be written later than this.
        return Ok(RootSource::File(vars.path(provisioned).join("root-cert.pem")));
    } else if vars.bool("FILE_MOUNTED_CERTS", false) {
        vars.path(mounted().map_or("", String::as_str))
    } else if let Some(file) = mounted().filter(|_| is_file_mounted(vars)) {
        vars.path(file)
    } else if vars.text("PILOT_CERT_PROVIDER") == Some("none") {
        return Err("root CA file for XDS required but configured provider as none".to_owned());
    } else {
        vars.path(MESH_ROOT)
    };
    existing("XDS", chosen)
}

/// Roots for certificate requests (`FindRootCAForCA`).
pub(super) fn for_ca(vars: &Vars) -> Result<RootSource, String> {
    let provisioned = vars.text_or("PROV_CERT", "");
    let explicit = vars.text_or("CA_ROOT_CA", "");
    let provider = vars.text_or("PILOT_CERT_PROVIDER", "istiod");
    let chosen = if explicit == "SYSTEM" {
        return Ok(RootSource::System(vars.system_store()));
    } else if !explicit.is_empty() {
        vars.path(explicit)
    } else if provider == "custom" {
        vars.path(CERTS_ROOT)
    } else if let Some(file) = kubernetes(vars) {
        file
    } else if !provisioned.is_empty() {
        vars.path(provisioned).join("root-cert.pem")
    } else if provider == "none" {
        return Err("root CA file for CA required but configured provider as none".to_owned());
    } else {
        vars.path(MESH_ROOT)
    };
    existing("CA", chosen)
}

/// Kubernetes' CA, where `PILOT_CERT_PROVIDER=kubernetes` says that it has signed istiod's certificate: Higress (Istio 1.19) knows
/// that value; today's Istio does not, and takes the mesh's root, which is what is left where Kubernetes mounts nothing.
fn kubernetes(vars: &Vars) -> Option<PathBuf> {
    let file = vars.path(KUBERNETES_ROOT);
    (vars.text("PILOT_CERT_PROVIDER") == Some("kubernetes") && file.is_file()).then_some(file)
}

/// The client certificate shown to istiod; `None`: identified by token only.
pub(super) fn pair(vars: &Vars, ca: bool) -> Option<Pair> {
    let provisioned = vars.text_or("PROV_CERT", "");
    if !provisioned.is_empty() {
        let directory = vars.path(provisioned);
        return Some(Pair { chain: directory.join("cert-chain.pem"), key: directory.join("key.pem") });
    }
    let named = |name| vars.proxy().proxy_metadata.get(name).map(|file| vars.path(file));
    if ca || !is_file_mounted(vars) {
        return None;
    }
    Some(Pair { chain: named("ISTIO_META_TLS_CLIENT_CERT_CHAIN")?, key: named("ISTIO_META_TLS_CLIENT_KEY")? })
}

/// A file that can serve now; later on, a broken one keeps what was usable before.
fn existing(purpose: &str, file: PathBuf) -> Result<RootSource, String> {
    if !file.is_file() {
        let mut text = format!("root CA file for {purpose} does not exist {}", file.display());
        if let Some(folder) = std::env::current_dir().ok().filter(|_| file.is_relative()) {
            text = format!("{text} (working directory {})", folder.display());
        }
        if file.ends_with(&MESH_ROOT[2..]) {
            text = format!("{text}; mount the ConfigMap istio-ca-root-cert there, or set {purpose}_ROOT_CA");
        }
        return Err(text);
    }
    let pem =
        std::fs::read(&file).map_err(|error| format!("root CA file for {purpose} {}: {error}", file.display()))?;
    if CertificateDer::pem_slice_iter(&pem).flatten().next().is_none() {
        let why = "failed to create TLS dial option with root certificates";
        return Err(format!("{why}: there is no certificate in {}", file.display()));
    }
    Ok(RootSource::File(file))
}
