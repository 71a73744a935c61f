//! What the worker asks of a certificate authority, whoever it is. The seam for CA providers: one implementation each.

use std::{fmt, future::Future, pin::Pin, time::Duration};

use bytes::Bytes;
use tokio::sync::watch;

/// A certificate authority.
pub trait Authority: Send + Sync {
    /// Asks for a certificate. One call is one attempt; the worker decides on the next one.
    fn sign<'a>(&'a self, order: &'a Order) -> Pin<Box<dyn Future<Output = Result<Answer, Failure>> + Send + 'a>>;

    /// Changes whenever somebody has reached the authority; `None` where nobody else calls it.
    fn reached(&self) -> Option<watch::Receiver<u64>> {
        None
    }
}

/// What is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    /// PKCS#10 request, PEM.
    pub csr: String,
    /// How long the certificate should live.
    pub validity: Duration,
    /// How long to wait for the answer.
    pub deadline: Duration,
}

impl Order {
    /// The validity as the protocols count it.
    pub(super) fn seconds(&self) -> i64 {
        i64::try_from(self.validity.as_secs()).unwrap_or(i64::MAX)
    }
}

/// What came back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// PEM texts: the leaf, intermediates, the root bundle last.
    pub chain: Vec<String>,
    /// Trust roots, PEM, when the authority keeps them apart from the chain.
    pub roots: Option<Bytes>,
}

/// Why an attempt brought no certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// What kind of failure, which decides on the next attempt.
    pub cause: Cause,
    /// The whole story: which CA, what it said.
    pub message: String,
    /// How long the CA asks to be left alone.
    pub pushback: Option<Duration>,
}

/// Kinds of failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// No connection, or the connection broke, or the CA said that it cannot now.
    Unavailable,
    /// No answer in time: the next attempt waits longer for one.
    Timeout,
    /// The CA said no to this request: token, rights or request are wrong.
    Refused,
    /// There was an answer that cannot be used.
    Unusable,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}
