//! Certificates as they travel from `secrets` to SDS, to istiod's TLS and to files.

use std::{fmt, sync::Arc, time::SystemTime};

use bytes::Bytes;
use zeroize::Zeroizing;

/// What the agent knows of its identity at one time; published by `secrets` over a `watch` channel.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    /// The newest valid pair of certificate and key; `None` until the first one arrives.
    pub workload: Option<Arc<Workload>>,
    /// Trust roots, all sources merged; `None` until they are known.
    pub bundle: Option<Arc<TrustBundle>>,
    /// Why there is no newer certificate, while renewal fails.
    pub error: Option<Arc<str>>,
    /// When the next certificate is asked for; `None` for one from files.
    pub renewal: Option<SystemTime>,
}

/// A certificate with its chain and key.
#[derive(Debug)]
pub struct Workload {
    /// The chain as the CA or the file gave it, PEM: leaf first, then intermediates, often the root last.
    pub chain: Bytes,
    /// The key of the leaf, PEM.
    pub key: PrivateKey,
    /// What the leaf says.
    pub leaf: Leaf,
    /// Where it came from.
    pub source: Source,
    /// When it was obtained.
    pub obtained: SystemTime,
}

/// Where a certificate came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// A certificate authority signed it for this agent, which renews it.
    Authority,
    /// Files, which somebody else renews.
    Files,
}

/// The readable part of a leaf certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leaf {
    /// Subject, RFC 4514 text; often empty.
    pub subject: String,
    /// Issuer, RFC 4514 text.
    pub issuer: String,
    /// URI and DNS names; the SPIFFE ID is the first URI.
    pub names: Vec<String>,
    /// Serial number in lower-case hex.
    pub serial: String,
    /// Beginning of its validity.
    pub not_before: SystemTime,
    /// End of its validity.
    pub not_after: SystemTime,
}

/// Trust roots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrustBundle {
    /// PEM certificates, one after the other.
    pub pem: Bytes,
}

/// A private key in PEM: never printed; cheap to clone, wiped when the last clone is dropped.
#[derive(Clone, PartialEq, Eq)]
pub struct PrivateKey(Bytes);

impl PrivateKey {
    /// Takes over the PEM text.
    pub fn from_pem(pem: Zeroizing<Vec<u8>>) -> PrivateKey {
        PrivateKey(Bytes::from_owner(pem))
    }

    /// The PEM text, for the wire or a file that was asked for; never for a log.
    pub fn pem(&self) -> &[u8] {
        &self.0
    }

    /// The same text as a handle to the one copy there is.
    pub fn bytes(&self) -> Bytes {
        self.0.clone()
    }
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}
