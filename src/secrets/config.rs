//! What the identity is, who signs it and where it lies, from the agent's configuration (spec: Istio's `security.Options`).

use std::{path::PathBuf, sync::Arc, time::Duration};

use super::{
    Authority, Cas, Citadel, MeshCa,
    csr::{Curve, KeyStyle},
    file::Source,
    google, output,
    rotate::Reserve,
};
use crate::{
    config::{Errors, Vars},
    istiod::{self, Istiod},
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
    /// Who signs.
    pub provider: Provider,
    /// The way to the CA; `None` when certificates come from files.
    pub authority: Option<istiod::Config>,
    /// What is wrong with that way: of no concern where somebody else serves the identity.
    pub faults: Errors,
    /// Where a mounted certificate and key may lie, which then count instead of the CA's.
    pub pair: Option<Source>,
    /// The same for trust roots.
    pub roots: Option<Source>,
    /// `FILE_DEBOUNCE_DURATION`.
    pub debounce: Duration,
    /// Where the identity is written to, when it is.
    pub output: Option<output::Config>,
}

/// Who signs certificates (`CA_PROVIDER`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Provider {
    /// istiod, by one of its signers (`ISTIO_META_CERT_SIGNER`).
    Citadel(String),
    /// Google's Mesh CA, for the cluster of this URL (`GKE_CLUSTER_URL`).
    GoogleCa(String),
    /// A pool of Google's Certificate Authority Service.
    GoogleCas(String),
}

impl Provider {
    /// The authority behind `way`.
    pub fn authority(&self, way: Istiod) -> Arc<dyn Authority> {
        match self {
            Provider::Citadel(signer) => Arc::new(Citadel::new(way, signer.clone())),
            Provider::GoogleCa(cluster) => Arc::new(MeshCa::new(&way, cluster)),
            Provider::GoogleCas(pool) => Arc::new(Cas::new(&way, pool.clone())),
        }
    }
}

impl Config {
    /// Reads everything that concerns the identity.
    ///
    /// # Errors
    /// Every setting that cannot work, but for those in `faults`.
    pub fn from_vars(vars: &Vars) -> Result<Config, Errors> {
        let mut errors = Errors::default();
        let mounted = istiod::is_file_mounted(vars);
        let provisioned = vars.text_or("PROV_CERT", "");
        if vars.bool("FILE_MOUNTED_CERTS", false) && !provisioned.is_empty() {
            errors
                .add("PROV_CERT", "cannot be set together with FILE_MOUNTED_CERTS: choose one source of certificates");
        }
        let name = vars.text_or("CA_PROVIDER", "Citadel");
        let mut faults = Errors::default();
        let provider = provider(vars, &name, mounted, &mut faults);
        let authority = if mounted || !errors.0.is_empty() || !faults.0.is_empty() {
            None
        } else {
            faults.take(match provider {
                Provider::Citadel(_) => istiod::Config::for_ca(vars),
                Provider::GoogleCa(_) => istiod::Config::for_google(vars, &vars.text_or("CA_ADDR", "")),
                Provider::GoogleCas(_) => istiod::Config::for_google(vars, google::ADDRESS),
            })
        };
        let output = errors.take(output::Config::from_vars(vars)).flatten();
        let [chain, key, roots] = well_known(vars, &name);
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
            provider,
            authority,
            faults,
            pair: (!own).then_some(Source::Pair { chain, key }),
            roots: (!own).then_some(Source::Roots(roots)),
            debounce: vars.duration("FILE_DEBOUNCE_DURATION", Duration::from_millis(100)),
            output,
        };
        errors.into_result(config)
    }
}

/// The CA provider of this name, checked.
fn provider(vars: &Vars, name: &str, mounted: bool, errors: &mut Errors) -> Provider {
    let own = vars.text_or("CA_ADDR", "");
    let address = if own.is_empty() { vars.proxy().discovery_address.clone() } else { own.clone() };
    match name {
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
        "GoogleCA" => {
            if own.is_empty() && !mounted {
                errors.add("CA_ADDR", "is empty: CA_PROVIDER=GoogleCA needs Mesh CA's address, meshca.googleapis.com:443");
            }
            return Provider::GoogleCa(vars.text_or("GKE_CLUSTER_URL", ""));
        }
        "GoogleCAS" => {
            if !mounted && !google::is_pool(&own) {
                let form = "projects/PROJECT/locations/LOCATION/caPools/POOL";
                errors.add("CA_ADDR", format!("{own:?} is no CA pool: CA_PROVIDER=GoogleCAS needs {form}"));
            }
            return Provider::GoogleCas(own);
        }
        // Files are used whoever would sign.
        _ if mounted => {}
        _ if address.contains("googleapis.com") => errors.add(
            "CA_ADDR",
            format!(
                "{address:?} needs the CA provider GoogleCA, which is used only where CA_PROVIDER=GoogleCA asks for it: set it, or use istiod, or files"
            ),
        ),
        "Citadel" => {}
        other => {
            let has = "Citadel (istiod), GoogleCA, GoogleCAS, GkeWorkloadCertificate";
            errors.add("CA_PROVIDER", format!("{other:?} is not a CA provider of this agent: it has {has}"))
        }
    }
    Provider::Citadel(vars.text_or("ISTIO_META_CERT_SIGNER", ""))
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
        let mut config = Config::from_vars(&Vars::from_pairs(base.iter().chain(pairs).copied()))?;
        std::mem::take(&mut config.faults).into_result(config)
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
            (vec![("CA_ADDR", "meshca.googleapis.com:443"), ("CA_PROVIDER", "Citadel")], "CA_ADDR"),
            (vec![("CA_PROVIDER", "GoogleCA")], "CA_ADDR"),
            (vec![("CA_PROVIDER", "GoogleCA"), ("CA_ADDR", "meshca.googleapis.com:443")], "GKE_CLUSTER_URL"),
            (vec![("CA_PROVIDER", "GoogleCAS"), ("CA_ADDR", "privateca.googleapis.com:443")], "CA_ADDR"),
            (vec![("PROV_CERT", "./etc/certs"), ("FILE_MOUNTED_CERTS", "true")], "PROV_CERT"),
            (vec![("CREDENTIAL_FETCHER_TYPE", "Vault")], "CREDENTIAL_FETCHER_TYPE"),
            (vec![("TRUST_DOMAIN", "bücher")], "TRUST_DOMAIN"),
        ] {
            let errors = config(&pairs).unwrap_err();
            assert!(errors.0.iter().any(|error| error.source == name), "{pairs:?}: {errors}");
        }
    }

    #[test]
    fn googles_authorities_are_used_where_they_are_asked_for() {
        let (mesh, cluster) = ("meshca.googleapis.com:443", "https://c/v1/projects/p/locations/l/clusters/c");
        let made = config(&[("CA_PROVIDER", "GoogleCA"), ("CA_ADDR", mesh), ("GKE_CLUSTER_URL", cluster)]).unwrap();
        let way = made.authority.unwrap();
        assert_eq!(made.provider, Provider::GoogleCa(cluster.to_owned()));
        assert_eq!((way.endpoint.address.as_str(), way.headers.len()), (mesh, 0));
        assert_eq!(way.exchange.unwrap().audience, format!("identitynamespace:cluster.local:{cluster}"));

        let pool = "projects/p/locations/l/caPools/c";
        let machine = [("CREDENTIAL_FETCHER_TYPE", "GoogleComputeEngine"), ("PROV_CERT", "./etc/certs")];
        let made = config(&[[("CA_PROVIDER", "GoogleCAS"), ("CA_ADDR", pool)], machine].concat()).unwrap();
        let way = made.authority.unwrap();
        assert_eq!(made.provider, Provider::GoogleCas(pool.to_owned()));
        assert_eq!(way.endpoint.address, "privateca.googleapis.com:443");
        let tls = way.endpoint.tls.unwrap();
        assert!(tls.pair.is_none() && matches!(tls.roots, istiod::RootSource::System(_)));
        assert_eq!(way.exchange.unwrap().audience, "identitynamespace:cluster.local:GoogleComputeEngine");
    }

    #[test]
    fn files_replace_the_authority_and_own_output_is_no_source() {
        assert!(config(&[("FILE_MOUNTED_CERTS", "true")]).unwrap().authority.is_none());
        let google = [("FILE_MOUNTED_CERTS", "true"), ("CA_PROVIDER", "GoogleCAS")];
        assert!(config(&google).unwrap().authority.is_none(), "nobody is asked, so nobody has to be named");
        for other in [("CA_PROVIDER", "NoSuchCA"), ("CA_ADDR", "privateca.googleapis.com:443")] {
            assert!(config(&[("FILE_MOUNTED_CERTS", "true"), other]).unwrap().authority.is_none(), "{other:?}");
        }
        let made = config(&[("OUTPUT_CERTS", "etc/../etc/certs/"), ("PROV_CERT", "./etc/certs")]).unwrap();
        assert!(made.pair.is_some(), "another spelling with a parent directory is another directory, as in Istio");
        let made = config(&[("OUTPUT_CERTS", "./etc/certs")]).unwrap();
        assert!(made.pair.is_none() && made.roots.is_none());
    }
}
