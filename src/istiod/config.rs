//! Where istiod is and how it is spoken to, from the agent's configuration.

use std::{path::PathBuf, time::Duration};

use super::{
    Exchange, Proxy, RootSource, Token,
    google::Google,
    material::Pair,
    proxy,
    roots::{for_ca, for_xds, pair},
};
use crate::{
    config::{AuthPolicy, DISCOVERY_ANNOTATION, Errors, Vars, split_host_port},
    grpc::Keepalive,
    net::tls::Policy,
};

const TOKEN_FILE: &str = "./var/run/secrets/tokens/istio-token";
/// The token of the service account itself.
const FIRST_PARTY_TOKEN: &str = "./var/run/secrets/kubernetes.io/serviceaccount/token";
/// The field of ProxyConfig with istiod's address.
const DISCOVERY: &str = "discoveryAddress";
const DEFAULT_NAME: &str = "istiod.istio-system.svc";

/// Headers of gRPC itself; grpc-go leaves out others of these names.
const RESERVED: [&str; 8] = [
    "content-type",
    "user-agent",
    "grpc-message-type",
    "grpc-encoding",
    "grpc-message",
    "grpc-status",
    "grpc-timeout",
    "te",
];

/// One purpose of istiod: configuration, or certificates.
#[derive(Debug, Clone)]
pub struct Config {
    /// Whom to dial; two purposes with the same endpoint share a connection.
    pub endpoint: Endpoint,
    /// Sent with every call: name as it goes on the wire, value.
    pub headers: Vec<(String, String)>,
    /// The bearer token.
    pub token: Token,
    /// Where that token is exchanged first for the one that is sent.
    pub exchange: Option<Exchange>,
}

/// Everything that decides what a connection is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// `host:port` as configured, for people.
    pub address: String,
    /// Name or IP address.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// The HTTP proxy on the way.
    pub proxy: Option<Proxy>,
    /// `:authority` of calls.
    pub authority: String,
    /// `None`: plaintext.
    pub tls: Option<Tls>,
    /// Signs of life that are asked for while calls are open.
    pub keepalive: Keepalive,
}

/// How the connection is secured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tls {
    /// Whom to believe.
    pub roots: RootSource,
    /// The client certificate's files.
    pub pair: Option<Pair>,
    /// The name in the server's certificate.
    pub server_name: String,
    /// Versions and ciphers.
    pub policy: Policy,
}

impl Config {
    /// For configuration: `discoveryAddress`, `controlPlaneAuthPolicy`, `XDS_ROOT_CA`, `ISTIOD_SAN`, `XDS_HEADER_*` (spec 20 §6).
    ///
    /// # Errors
    /// Every setting that cannot work.
    pub fn for_discovery(vars: &Vars) -> Result<Config, Errors> {
        let mut errors = Errors::default();
        let proxy = vars.proxy();
        let tls = match proxy.control_plane_auth_policy {
            AuthPolicy::None => {
                let address = &proxy.discovery_address;
                vars.warn(format!(
                    "controlPlaneAuthPolicy: NONE: {address} is called without TLS, the token goes there as it is"
                ));
                None
            }
            AuthPolicy::MutualTls => match for_xds(vars) {
                Ok(roots) => Some((roots, pair(vars, false))),
                Err(reason) => {
                    errors.add("XDS_ROOT_CA", format!("failed to find root CA cert for XDS: {reason}"));
                    None
                }
            },
        };
        let san = vars.text_or("ISTIOD_SAN", "");
        let endpoint = endpoint(vars, (DISCOVERY, &proxy.discovery_address), &san, tls, &mut errors);
        config(vars, endpoint, "XDS_HEADER_", errors)
    }

    /// For certificates: `CA_ADDR`, else `discoveryAddress`; `CA_ROOT_CA`, `CA_HEADER_*` (spec 30 §5.2–5.5).
    ///
    /// # Errors
    /// Every setting that cannot work.
    pub fn for_ca(vars: &Vars) -> Result<Config, Errors> {
        let mut errors = Errors::default();
        let own = vars.text_or("CA_ADDR", "");
        let (source, address, san) = if own.is_empty() {
            (DISCOVERY, vars.proxy().discovery_address.clone(), vars.text_or("ISTIOD_SAN", ""))
        } else {
            ("CA_ADDR", own, String::new())
        };
        let tls = if address.ends_with(":15010") {
            vars.warn(format!("{source}: certificates are asked for without TLS at {address}: for debugging only"));
            None
        } else {
            match for_ca(vars) {
                Ok(roots) => Some((roots, pair(vars, true))),
                Err(reason) => {
                    errors.add("CA_ROOT_CA", format!("failed to find root CA cert for CA: {reason}"));
                    None
                }
            }
        };
        let endpoint = endpoint(vars, (source, &address), &san, tls, &mut errors);
        config(vars, endpoint, "CA_HEADER_", errors)
    }

    /// For certificates from one of Google's CAs at `address`, as Istio 1.19 and Higress speak to them: TLS by the system's roots
    /// always, no client certificate, none of istiod's headers, an exchanged token.
    ///
    /// # Errors
    /// Every setting that cannot work.
    pub fn for_google(vars: &Vars, address: &str) -> Result<Config, Errors> {
        let mut errors = Errors::default();
        let tls = Some((RootSource::System(vars.system_store()), None));
        let endpoint = endpoint(vars, ("CA_ADDR", address), "", tls, &mut errors);
        let exchange = errors.take(Exchange::from_vars(vars, policy(&vars.text_or("COMPLIANCE_POLICY", ""))));
        let config = config(vars, endpoint, "CA_HEADER_", errors)?;
        Ok(Config { headers: Vec::new(), exchange, ..config })
    }
}

fn config(vars: &Vars, endpoint: Endpoint, prefix: &str, mut errors: Errors) -> Result<Config, Errors> {
    let mut headers = vec![("clusterid".to_owned(), vars.text_or("ISTIO_META_CLUSTER_ID", ""))];
    for (set, value) in vars.prefixed(prefix) {
        let name = set.to_ascii_lowercase();
        if name.starts_with(':') || RESERVED.contains(&&*name) {
            vars.warn(format!("{prefix}{set}: not sent, for gRPC sets the header {name} itself"));
        } else {
            headers.push((name, value.to_owned()));
        }
    }
    let fetcher = vars.text_or("CREDENTIAL_FETCHER_TYPE", "");
    let token = match fetcher.as_str() {
        "" | "JWT" => Token::File(token_file(vars)),
        "GoogleComputeEngine" => {
            let audience = vars.text_or("TRUST_DOMAIN", "cluster.local");
            Token::Google(Google::new(&vars.text_or("GCE_METADATA_HOST", ""), &audience, vars.path(TOKEN_FILE)))
        }
        "Mock" => Token::Fixed("test_token"),
        other => {
            errors.add("CREDENTIAL_FETCHER_TYPE", format!("invalid credential fetcher type {other}"));
            Token::None
        }
    };
    errors.into_result(Config { endpoint, headers, token, exchange: None })
}

/// Where kubelet puts the token. Today's Istio looks at one place whatever `JWT_POLICY` says; Higress (Istio 1.19) takes
/// `first-party-jwt` at its word, and then mounts no other one.
fn token_file(vars: &Vars) -> PathBuf {
    let (projected, own) = (vars.path(TOKEN_FILE), vars.path(FIRST_PARTY_TOKEN));
    let is_own = vars.text("JWT_POLICY") == Some("first-party-jwt") && !projected.exists() && own.exists();
    if is_own { own } else { projected }
}

fn endpoint(
    vars: &Vars,
    (source, address): (&str, &str),
    san: &str,
    tls: Option<(RootSource, Option<Pair>)>,
    errors: &mut Errors,
) -> Endpoint {
    let (host, port) = split(address).unwrap_or_else(|why| {
        let parts = split_host_port(address);
        let is_annotated = vars.annotation(DISCOVERY_ANNOTATION) == Some(address);
        match parts {
            // Istio takes it as it stands; Envoy starts, and every dial fails with this address in its text.
            Ok((host, _)) if is_annotated && !host.is_empty() => {
                vars.warn(format!("annotation {DISCOVERY_ANNOTATION}: {why}; istiod cannot be reached there"));
                return (host.to_owned(), 0);
            }
            // `config` has said so with the place it was found at.
            _ if source == DISCOVERY && (parts.is_err() || !is_annotated) => {}
            _ => errors.add(source, why),
        }
        Default::default()
    });
    let proxy = proxy::for_host(vars, &host, port).unwrap_or_else(|why| {
        errors.add("HTTPS_PROXY", why);
        None
    });
    let server_name = if !san.is_empty() {
        san.to_owned()
    } else if host.contains("localhost") {
        DEFAULT_NAME.to_owned()
    } else {
        host.clone()
    };
    let policy = policy(&vars.text_or("COMPLIANCE_POLICY", ""));
    let authority = match &tls {
        None => address.to_owned(),
        // An IPv6 address has brackets in an authority (RFC 3986 §3.2.2), and none as the name in a certificate.
        Some(_) if server_name.contains(':') => format!("[{server_name}]"),
        Some(_) => server_name.clone(),
    };
    Endpoint {
        address: address.to_owned(),
        host,
        port,
        proxy,
        authority,
        tls: tls.map(|(roots, pair)| Tls { roots, pair, server_name, policy }),
        keepalive: Keepalive {
            interval: vars.duration("GRPC_KEEPALIVE_INTERVAL", Duration::from_secs(30)),
            timeout: vars.duration("GRPC_KEEPALIVE_TIMEOUT", Duration::from_secs(10)),
        },
    }
}

fn policy(name: &str) -> Policy {
    match name {
        "fips-140-2" => Policy::Fips140_2,
        "fips-140-3" => Policy::Fips140_3,
        // `config` warns of unknown names and refuses what ring cannot do.
        _ => Policy::Default,
    }
}

fn split(address: &str) -> Result<(String, u16), String> {
    let (host, port) = split_host_port(address)?;
    let port = port.parse().map_err(|_| format!("{address:?}: {port:?} is no port number"))?;
    if host.is_empty() { Err(format!("{address:?} has no host")) } else { Ok((host.to_owned(), port)) }
}
