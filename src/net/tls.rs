//! TLS towards servers, on rustls with ring: trust roots, client identity, version and cipher policies. Reads nothing but the
//! system's trust store, and that only when asked to.

use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use rustls::{
    CipherSuite, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme, SupportedProtocolVersion,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject},
    version::{TLS12, TLS13},
};
use zeroize::Zeroizing;

use super::BoxIo;

mod stream;
#[cfg(test)]
pub(crate) mod testing;
use stream::Stream;

/// Whom to believe.
#[derive(Debug, Clone)]
pub enum Roots {
    /// PEM certificates, one after the other.
    Pem(Vec<u8>),
    /// The system's trust store.
    System(SystemStore),
    /// Everybody: for registries and probes that are marked as insecure.
    Unverified,
}

/// Where the system's trust store is, as Go's `crypto/x509` looks for it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SystemStore {
    /// `SSL_CERT_FILE`: instead of the distributions' usual files.
    pub file: Option<PathBuf>,
    /// `SSL_CERT_DIR`, split at colons: instead of the usual directories.
    pub directories: Vec<PathBuf>,
}

/// A client's certificate chain and key, PEM.
#[derive(Clone)]
pub struct Identity {
    /// Leaf first.
    pub chain: Vec<u8>,
    /// PKCS #8, SEC 1 or PKCS #1.
    pub key: Zeroizing<Vec<u8>>,
}

/// Versions and ciphers (`COMPLIANCE_POLICY`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Policy {
    /// TLS 1.2 and 1.3 with ring's suites.
    #[default]
    Default,
    /// `fips-140-2`: TLS 1.2, ECDHE with AES-GCM, P-256.
    Fips140_2,
    /// `fips-140-3`: TLS 1.2 and 1.3, AES-GCM, P-256 and P-384.
    Fips140_3,
}

/// What is spoken inside (ALPN).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// `h2`, which the server must choose.
    Http2,
    /// `http/1.1`.
    Http1,
    /// `h2` or `http/1.1`, as the server likes.
    Any,
    /// The server is asked for nothing.
    Unsaid,
}

/// The server of a connection, as it has shown itself.
#[derive(Debug)]
pub struct Peer {
    chain: Vec<CertificateDer<'static>>,
    name: String,
    provider: Arc<CryptoProvider>,
}

/// Why TLS failed.
#[derive(Debug)]
pub enum Error {
    /// The roots contain no usable certificate.
    NoRoots,
    /// The identity is unusable: no certificate, no key, or they do not belong together.
    Identity(String),
    /// The name cannot be one of a server.
    ServerName(String),
    /// The server does not speak HTTP/2.
    NotHttp2,
    /// The handshake failed.
    Handshake(io::Error),
    /// rustls does not accept the combination.
    Config(rustls::Error),
}

/// Where distributions keep their roots in one file; the first that exists counts.
pub const SYSTEM_FILES: [&str; 6] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/tls/cacert.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
];
const SYSTEM_DIRECTORIES: [&str; 2] = ["/etc/ssl/certs", "/etc/pki/tls/certs"];

/// Settings for connections to servers.
///
/// # Errors
/// When there is no usable root, or the identity is not usable.
pub fn client_config(
    roots: &Roots,
    identity: Option<&Identity>,
    policy: Policy,
    protocol: Protocol,
) -> Result<Arc<ClientConfig>, Error> {
    let provider = Arc::new(policy.provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(policy.versions())
        .map_err(Error::Config)?;
    let builder = match roots {
        Roots::Pem(pem) => builder.with_root_certificates(store(pem)?),
        Roots::System(system) => builder.with_root_certificates(system.load()?),
        Roots::Unverified => builder.dangerous().with_custom_certificate_verifier(Arc::new(BelieveEverybody(provider))),
    };
    let mut config = match identity {
        None => builder.with_no_client_auth(),
        Some(identity) => {
            let (chain, key) = identity.parse()?;
            builder.with_client_auth_cert(chain, key).map_err(|error| Error::Identity(error.to_string()))?
        }
    };
    config.alpn_protocols = match protocol {
        Protocol::Http2 => vec![b"h2".to_vec()],
        Protocol::Http1 => vec![b"http/1.1".to_vec()],
        Protocol::Any => vec![b"h2".to_vec(), b"http/1.1".to_vec()],
        Protocol::Unsaid => Vec::new(),
    };
    // A session would outlive roots and certificates that were replaced meanwhile.
    config.resumption = rustls::client::Resumption::disabled();
    Ok(Arc::new(config))
}

/// Speaks TLS over `io` to `server_name`, a DNS name or an IP address.
///
/// # Errors
/// When the server cannot be believed, or does not speak what `config` asks for.
pub async fn connect(io: BoxIo, config: Arc<ClientConfig>, server_name: &str) -> Result<BoxIo, Error> {
    let only_http2 = config.alpn_protocols == [b"h2"];
    let (io, http2) = connect_any(io, config, server_name).await?;
    if only_http2 && !http2 { Err(Error::NotHttp2) } else { Ok(io) }
}

/// Like [`connect`], for HTTP/2; tells whom we speak with, so that they can be judged again by other roots.
///
/// # Errors
/// As [`connect`].
pub async fn connect_to_peer(
    io: BoxIo,
    config: Arc<ClientConfig>,
    server_name: &str,
) -> Result<(BoxIo, Option<Peer>), Error> {
    let provider = Arc::clone(config.crypto_provider());
    let stream = handshake(io, config, server_name).await?;
    let session = stream.state();
    if session.alpn_protocol() != Some(b"h2") {
        return Err(Error::NotHttp2);
    }
    let chain = session.peer_certificates().map(|chain| chain.iter().map(|der| der.clone().into_owned()).collect());
    let peer = chain.map(|chain| Peer { chain, name: server_name.to_owned(), provider });
    Ok((Box::new(stream), peer))
}

/// Like [`connect`], for [`Protocol::Any`]; tells whether the server chose HTTP/2.
///
/// # Errors
/// As [`connect`].
pub async fn connect_any(io: BoxIo, config: Arc<ClientConfig>, server_name: &str) -> Result<(BoxIo, bool), Error> {
    let stream = handshake(io, config, server_name).await?;
    let http2 = stream.state().alpn_protocol() == Some(b"h2");
    Ok((Box::new(stream), http2))
}

async fn handshake(io: BoxIo, config: Arc<ClientConfig>, server_name: &str) -> Result<Stream, Error> {
    Stream::connect(io, config, name(server_name)?).await.map_err(Error::Handshake)
}

fn name(server_name: &str) -> Result<ServerName<'static>, Error> {
    ServerName::try_from(server_name.to_owned()).map_err(|_| Error::ServerName(server_name.to_owned()))
}

fn store(pem: &[u8]) -> Result<RootCertStore, Error> {
    let mut store = RootCertStore::empty();
    // A bundle may hold certificates that webpki does not take; the others count.
    store.add_parsable_certificates(CertificateDer::pem_slice_iter(pem).flatten());
    if store.is_empty() { Err(Error::NoRoots) } else { Ok(store) }
}

impl SystemStore {
    /// Files and directories that decide what the store holds, whether they exist or not.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        let files = self.file.as_deref().into_iter().chain(SYSTEM_FILES.iter().map(Path::new));
        let usual = SYSTEM_DIRECTORIES.iter().map(Path::new);
        files.chain(self.directories.iter().map(PathBuf::as_path)).chain(usual)
    }

    fn load(&self) -> Result<RootCertStore, Error> {
        let mut pem = match &self.file {
            Some(file) => std::fs::read(file).unwrap_or_default(),
            None => SYSTEM_FILES.iter().find_map(|file| std::fs::read(file).ok()).unwrap_or_default(),
        };
        if pem.is_empty() || !self.directories.is_empty() {
            let usual: Vec<PathBuf> = SYSTEM_DIRECTORIES.iter().map(PathBuf::from).collect();
            for directory in if self.directories.is_empty() { &usual } else { &self.directories } {
                append_directory(directory, &mut pem);
            }
        }
        store(&pem)
    }
}

fn append_directory(directory: &Path, pem: &mut Vec<u8>) {
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        // Sub-directories and unreadable files are passed over, as Go does.
        if let Ok(bytes) = std::fs::read(entry.path()) {
            pem.extend_from_slice(&bytes);
            pem.push(b'\n');
        }
    }
}

impl Peer {
    /// Whether these roots vouch for it now, as a new handshake would ask.
    ///
    /// # Errors
    /// Why not: as [`connect`], or [`Error::NoRoots`].
    pub fn verify(&self, roots: &Roots) -> Result<(), Error> {
        let store = match roots {
            Roots::Pem(pem) => store(pem)?,
            Roots::System(system) => system.load()?,
            Roots::Unverified => return Ok(()),
        };
        let (leaf, others) = self.chain.split_first().ok_or(Error::NoRoots)?;
        let refused = |error: rustls::Error| Error::Handshake(io::Error::new(io::ErrorKind::InvalidData, error));
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(store), Arc::clone(&self.provider))
            .build()
            .map_err(|_| Error::NoRoots)?;
        verifier.verify_server_cert(leaf, others, &name(&self.name)?, &[], UnixTime::now()).map(drop).map_err(refused)
    }
}

impl Identity {
    fn parse(&self) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), Error> {
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&self.chain).collect();
        let chain = chain.map_err(|error| Error::Identity(format!("certificate chain: {error}")))?;
        if chain.is_empty() {
            return Err(Error::Identity("certificate chain: no certificate in it".to_owned()));
        }
        let key = PrivateKeyDer::from_pem_slice(&self.key)
            .map_err(|error| Error::Identity(format!("private key: {error}")))?;
        Ok((chain, key))
    }
}

impl Policy {
    fn versions(self) -> &'static [&'static SupportedProtocolVersion] {
        static TLS12_ONLY: [&SupportedProtocolVersion; 1] = [&TLS12];
        static BOTH: [&SupportedProtocolVersion; 2] = [&TLS13, &TLS12];
        match self {
            Policy::Fips140_2 => &TLS12_ONLY,
            Policy::Default | Policy::Fips140_3 => &BOTH,
        }
    }

    fn provider(self) -> CryptoProvider {
        let mut provider = ring::default_provider();
        match self {
            Policy::Default => return provider,
            Policy::Fips140_2 => provider.kx_groups = vec![ring::kx_group::SECP256R1],
            Policy::Fips140_3 => provider.kx_groups = vec![ring::kx_group::SECP256R1, ring::kx_group::SECP384R1],
        }
        provider.cipher_suites.retain(|suite| {
            !matches!(
                suite.suite(),
                CipherSuite::TLS13_CHACHA20_POLY1305_SHA256
                    | CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256
                    | CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256
            )
        });
        provider
    }
}

/// Takes any certificate, and any signature of the handshake: it proves nothing where the certificate is not believed, and to check
/// it would refuse certificates that webpki cannot read (version 1, unknown critical extensions) and short RSA keys.
#[derive(Debug)]
struct BelieveEverybody(Arc<CryptoProvider>);

impl ServerCertVerifier for BelieveEverybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let mut schemes = self.0.signature_verification_algorithms.supported_schemes();
        // ring cannot verify these, which is not asked of it.
        schemes.push(SignatureScheme::ECDSA_NISTP521_SHA512);
        schemes
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NoRoots => f.write_str("no usable root certificate"),
            Error::Identity(what) => write!(f, "client certificate: {what}"),
            Error::ServerName(name) => write!(f, "{name:?} is no valid server name"),
            Error::NotHttp2 => f.write_str("the server does not speak HTTP/2 (ALPN h2)"),
            Error::Handshake(error) => write!(f, "TLS handshake: {error}"),
            Error::Config(error) => write!(f, "TLS: {error}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Handshake(error) => Some(error),
            Error::Config(error) => Some(error),
            Error::NoRoots | Error::Identity(_) | Error::ServerName(_) | Error::NotHttp2 => None,
        }
    }
}
