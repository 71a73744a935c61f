//! What the identity is, who signs it and where it lies, from the agent's configuration (spec: Istio's `security.Options`).

use std::{path::PathBuf, time::Duration};

use super::{
    csr::{Curve, KeyStyle},
    file::Source,
    output,
    rotate::Reserve,
};
use crate::{
    config::{Errors, Vars},
    istiod,
};

/// Where platforms mount certificates (Istio's constants).
const CERTS: &str = "./etc/certs";
const WORKLOAD_CREDENTIALS: &str = "./var/run/secrets/workload-spiffe-credentials";
const FILES: [&str; 3] = ["cert-chain.pem", "key.pem", "root-cert.pem"];
const GKE_FILES: [&str; 3] = ["certificates.pem", "private_key.pem", "ca_certificates.pem"];
const DAY: Duration = Duration::from_secs(86_400);

/// How the workload gets its identity.
#[derive(Debug, Clone)]
pub struct Config {
    /// The SPIFFE ID that certificates are asked for.
    pub identity: String,
    /// How keys are made.
    pub key: KeyStyle,
    /// `SECRET_TTL`: the life that is asked for.
    pub validity: Duration,
    /// When certificates are renewed.
    pub reserve: Reserve,
    /// `ISTIO_META_CERT_SIGNER`: which of istiod's signers.
    pub signer: String,
    /// The way to the CA; `None` when certificates come from files.
    pub authority: Option<istiod::Config>,
    /// Where a mounted certificate and key may lie, which then count instead of the CA's.
    pub pair: Option<Source>,
    /// The same for trust roots.
    pub roots: Option<Source>,
    /// `FILE_DEBOUNCE_DURATION`.
    pub debounce: Duration,
    /// Where the identity is written to, when it is.
    pub output: Option<output::Config>,
}

impl Config {
    /// Reads everything that concerns the identity.
    ///
    /// # Errors
    /// Every setting that cannot work.
    pub fn from_vars(vars: &Vars) -> Result<Config, Errors> {
        let mut errors = Errors::default();
        let mounted = istiod::is_file_mounted(vars);
        let provisioned = vars.text_or("PROV_CERT", "");
        if vars.bool("FILE_MOUNTED_CERTS", false) && !provisioned.is_empty() {
            errors
                .add("PROV_CERT", "cannot be set together with FILE_MOUNTED_CERTS: choose one source of certificates");
        }
        let provider = provider(vars, &mut errors);
        let authority = if mounted || !errors.0.is_empty() { None } else { errors.take(istiod::Config::for_ca(vars)) };
        let output = errors.take(output::Config::from_vars(vars)).flatten();
        let [chain, key, roots] = well_known(vars, &provider);
        // Else the agent would take its own output for a mounted certificate, and never renew it.
        let own =
            output.as_ref().is_some_and(|output| chain.parent().is_some_and(|parent| same(parent, &output.directory)));
        let config = Config {
            identity: identity(vars, &mut errors),
            key: key_style(vars, &mut errors),
            validity: vars.duration("SECRET_TTL", DAY),
            reserve: Reserve {
                ratio: vars.float("SECRET_GRACE_PERIOD_RATIO", 0.5),
                jitter: vars.float("SECRET_GRACE_PERIOD_RATIO_JITTER", 0.01),
            },
            signer: vars.text_or("ISTIO_META_CERT_SIGNER", ""),
            authority,
            pair: (!own).then_some(Source::Pair { chain, key }),
            roots: (!own).then_some(Source::Roots(roots)),
            debounce: vars.duration("FILE_DEBOUNCE_DURATION", Duration::from_millis(100)),
            output,
        };
        errors.into_result(config)
    }
}

/// The CA provider's name, checked.
fn provider(vars: &Vars, errors: &mut Errors) -> String {
    let provider = vars.text_or("CA_PROVIDER", "Citadel");
    let own = vars.text_or("CA_ADDR", "");
    let address = if own.is_empty() { vars.proxy().discovery_address.clone() } else { own };
    match provider.as_str() {
        "GkeWorkloadCertificate" => {
            let missing: Vec<String> = GKE_FILES
                .iter()
                .map(|file| vars.path(WORKLOAD_CREDENTIALS).join(file))
                .filter(|path| !path.is_file())
                .map(|path| path.display().to_string())
                .collect();
            if !missing.is_empty() {
                errors.add(
                    "CA_PROVIDER",
                    format!("GkeWorkloadCertificate needs {}, which do not exist", missing.join(", ")),
                );
            }
            if !vars.text_or("PROV_CERT", "").is_empty() {
                errors.add("PROV_CERT", "must be empty with CA_PROVIDER=GkeWorkloadCertificate");
            }
        }
        _ if address.contains("googleapis.com") => errors.add(
            "CA_ADDR",
            format!(
                "{address:?} needs the CA provider GoogleCA, which is not part of this agent: use istiod, or files"
            ),
        ),
        "Citadel" => {}
        other => {
            errors.add("CA_PROVIDER", format!("{other:?} is not a CA provider of this agent: it has Citadel (istiod)"))
        }
    }
    provider
}

/// Chain, key and roots where they are mounted.
fn well_known(vars: &Vars, provider: &str) -> [PathBuf; 3] {
    let credentials = FILES.map(|file| vars.path(WORKLOAD_CREDENTIALS).join(file));
    if provider == "GkeWorkloadCertificate" {
        GKE_FILES.map(|file| vars.path(WORKLOAD_CREDENTIALS).join(file))
    } else if credentials.iter().all(|path| path.is_file()) {
        credentials
    } else {
        FILES.map(|file| vars.path(CERTS).join(file))
    }
}

fn identity(vars: &Vars, errors: &mut Errors) -> String {
    let [domain, namespace, account] =
        [("TRUST_DOMAIN", "cluster.local"), ("POD_NAMESPACE", ""), ("SERVICE_ACCOUNT", "")].map(|(name, default)| {
            let value = vars.text_or(name, default);
            if !value.is_ascii() {
                errors.add(name, format!("{value:?} cannot be part of a certificate: only ASCII can"));
            }
            value
        });
    format!("spiffe://{domain}/ns/{namespace}/sa/{account}")
}

fn key_style(vars: &Vars, errors: &mut Errors) -> KeyStyle {
    let algorithm = vars.text_or("ECC_SIGNATURE_ALGORITHM", "");
    let curve = vars.text_or("ECC_CURVE", "P256");
    match algorithm.as_str() {
        "" | "ECDSA" => {}
        other => {
            errors.add("ECC_SIGNATURE_ALGORITHM", format!("{other:?} is not supported: use ECDSA, or leave it empty"))
        }
    }
    if algorithm.is_empty() && vars.text("WORKLOAD_RSA_KEY_SIZE").is_some() {
        vars.warn("WORKLOAD_RSA_KEY_SIZE: this agent makes no RSA keys; using ECDSA P-256, which every Envoy and istiod takes");
    }
    let curve = if algorithm == "ECDSA" && curve == "P384" { Curve::P384 } else { Curve::P256 };
    KeyStyle { curve, pkcs8: vars.bool("PKCS8_KEY", false) }
}

fn same(a: &std::path::Path, b: &std::path::Path) -> bool {
    // As text, like Istio: neither has to exist yet.
    match (std::path::absolute(a), std::path::absolute(b)) {
        (Ok(a), Ok(b)) => a.components().eq(b.components()),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(pairs: &[(&str, &str)]) -> Result<Config, Errors> {
        // A system root needs no file to exist.
        let base = [("CA_ROOT_CA", "SYSTEM"), ("POD_NAMESPACE", "ns1"), ("SERVICE_ACCOUNT", "sa1")];
        Config::from_vars(&Vars::from_pairs(base.iter().chain(pairs).copied()))
    }

    #[test]
    fn identity_and_key_follow_the_environment() {
        let made = config(&[("TRUST_DOMAIN", "td"), ("ECC_CURVE", "P384"), ("SECRET_TTL", "90m")]).unwrap();
        assert_eq!(made.identity, "spiffe://td/ns/ns1/sa/sa1");
        assert_eq!(made.key, KeyStyle { curve: Curve::P256, pkcs8: false });
        assert_eq!(made.validity, Duration::from_secs(5400));
        assert!(made.authority.is_some() && made.pair.is_some() && made.output.is_none());
        let made =
            config(&[("ECC_SIGNATURE_ALGORITHM", "ECDSA"), ("ECC_CURVE", "P384"), ("PKCS8_KEY", "true")]).unwrap();
        assert_eq!(made.key, KeyStyle { curve: Curve::P384, pkcs8: true });
        let made = config(&[("ECC_SIGNATURE_ALGORITHM", "ECDSA"), ("ECC_CURVE", "P521")]).unwrap();
        assert_eq!(made.key.curve, Curve::P256);
    }

    #[test]
    fn what_cannot_work_is_refused_by_name() {
        for (pairs, name) in [
            (vec![("ECC_SIGNATURE_ALGORITHM", "ED25519")], "ECC_SIGNATURE_ALGORITHM"),
            (vec![("CA_PROVIDER", "NoSuchCA")], "CA_PROVIDER"),
            (vec![("CA_PROVIDER", "GkeWorkloadCertificate")], "CA_PROVIDER"),
            (vec![("CA_ADDR", "privateca.googleapis.com:443")], "CA_ADDR"),
            (vec![("PROV_CERT", "./etc/certs"), ("FILE_MOUNTED_CERTS", "true")], "PROV_CERT"),
            (vec![("CREDENTIAL_FETCHER_TYPE", "Vault")], "CREDENTIAL_FETCHER_TYPE"),
            (vec![("TRUST_DOMAIN", "bücher")], "TRUST_DOMAIN"),
        ] {
            let errors = config(&pairs).unwrap_err();
            assert!(errors.0.iter().any(|error| error.source == name), "{pairs:?}: {errors}");
        }
    }

    #[test]
    fn files_replace_the_authority_and_own_output_is_no_source() {
        assert!(config(&[("FILE_MOUNTED_CERTS", "true")]).unwrap().authority.is_none());
        let made = config(&[("OUTPUT_CERTS", "etc/../etc/certs/"), ("PROV_CERT", "./etc/certs")]).unwrap();
        assert!(made.pair.is_some(), "another spelling with a parent directory is another directory, as in Istio");
        let made = config(&[("OUTPUT_CERTS", "./etc/certs")]).unwrap();
        assert!(made.pair.is_none() && made.roots.is_none());
    }
}
