//! The CA's answer to a certificate request: taken apart, compared with what was asked for, refused when it cannot work. Pure.

use std::{fmt, sync::Arc, time::SystemTime};

use bytes::Bytes;

use crate::wires::{Leaf, Source, Workload};

use super::{bundle, certificate, csr::Request};

/// A certificate that passed, with the roots that came with it.
#[derive(Debug)]
pub(crate) struct Issued {
    pub workload: Arc<Workload>,
    /// The CA's roots, PEM as they came.
    pub roots: Bytes,
    /// The end of the shortest validity in the chain, roots apart.
    pub expires: SystemTime,
    /// What is odd about it, for the log.
    pub warnings: Vec<String>,
}

/// Why an answer is not used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// There are fewer elements than a leaf and a root.
    Incomplete,
    /// The first element is no certificate.
    NoCertificate,
    /// The certificate belongs to another key.
    OtherKey,
    /// It speaks for somebody else: its names.
    OtherIdentity(String),
    /// It does not chain to the roots that came with it.
    UnknownRoot {
        /// Who signed it.
        issuer: String,
    },
    /// It was over when it came.
    Expired {
        /// The end of its validity.
        ended: SystemTime,
        /// The time here.
        now: SystemTime,
    },
}

/// What an answer says, once it is found good.
#[derive(Debug)]
pub struct Verdict {
    leaf: Leaf,
    roots: Bytes,
    expires: SystemTime,
    warnings: Vec<String>,
}

/// Checks the answer `chain` (leaf, intermediates, root bundle last) to `request`. `roots` replaces the last element as trust
/// roots where the CA has them apart.
pub(crate) fn check(
    request: Request,
    chain: &[String],
    roots: Option<Bytes>,
    identity: &str,
    now: SystemTime,
) -> Result<Issued, Refusal> {
    let Verdict { leaf, roots, expires, warnings } = judge(chain, roots, &request.public_key, identity, now)?;
    let workload =
        Workload { chain: bundle::concat(chain), key: request.key, leaf, source: Source::Authority, obtained: now };
    Ok(Issued { workload: Arc::new(workload), roots, expires, warnings })
}

/// Whether a chain can be used by whoever has the key of `public_key` and is called `identity`.
///
/// # Errors
/// Why not.
pub fn judge(
    chain: &[String],
    roots: Option<Bytes>,
    public_key: &[u8],
    identity: &str,
    now: SystemTime,
) -> Result<Verdict, Refusal> {
    let [first, signers @ .., last] = chain else { return Err(Refusal::Incomplete) };
    let leaf = certificate::ders(first.as_bytes()).first().and_then(|der| certificate::parse(der));
    let leaf = leaf.ok_or(Refusal::NoCertificate)?;
    if leaf.public_key != public_key {
        return Err(Refusal::OtherKey);
    }
    let leaf = leaf.leaf;
    let mut warnings = Vec::new();
    match compare(identity, &leaf.names) {
        Likeness::Same => {}
        Likeness::OtherTrustDomain(name) => warnings.push(format!("the CA signed {name} instead of {identity}")),
        Likeness::Other(name) => return Err(Refusal::OtherIdentity(name)),
    }
    // Where the roots came apart, the last element is one of the signers.
    let signers = if roots.is_some() { &chain[1..] } else { signers };
    let roots = roots.unwrap_or_else(|| Bytes::copy_from_slice(last.as_bytes()));
    let ders: Vec<Vec<u8>> = chain.iter().flat_map(|text| certificate::ders(text.as_bytes())).collect();
    if !bundle::chains_to(&ders, &certificate::ders(&roots), now) {
        return Err(Refusal::UnknownRoot { issuer: leaf.issuer });
    }
    let expires = signers
        .iter()
        .flat_map(|text| certificate::ders(text.as_bytes()))
        .filter_map(|der| certificate::parse(&der))
        .map(|signer| signer.leaf.not_after)
        .fold(leaf.not_after, SystemTime::min);
    if expires <= now {
        return Err(Refusal::Expired { ended: expires, now });
    }
    warnings.extend(early(&leaf, now));
    Ok(Verdict { leaf, roots, expires, warnings })
}

/// A word on a certificate that is not valid yet.
fn early(leaf: &Leaf, now: SystemTime) -> Option<String> {
    let wait = leaf.not_before.duration_since(now).ok().filter(|wait| !wait.is_zero())?;
    Some(format!(
        "the certificate is valid from {} on, {} s after this machine's time {}: compare the clocks of this machine and of istiod",
        rfc3339(leaf.not_before),
        wait.as_secs() + 1,
        rfc3339(now)
    ))
}

enum Likeness {
    Same,
    /// Only the trust domain differs, which a CA may rewrite.
    OtherTrustDomain(String),
    Other(String),
}

/// Compares what was asked for with what a certificate says. Parts that the agent does not know itself (an empty namespace or
/// account) match anything: istiod signs for whom it authenticated.
fn compare(identity: &str, names: &[String]) -> Likeness {
    if names.iter().any(|name| name == identity) {
        return Likeness::Same;
    }
    let wanted = parts(identity);
    let alike = |name: &&String| {
        let same = |(wanted, got): (&str, &str)| wanted.is_empty() || wanted == got;
        match (&wanted, parts(name)) {
            (Some(wanted), Some(got)) => same((wanted.1, got.1)) && same((wanted.2, got.2)),
            _ => false,
        }
    };
    match names.iter().find(alike) {
        Some(name) => Likeness::OtherTrustDomain(name.clone()),
        None => Likeness::Other(names.join(", ")),
    }
}

/// Trust domain, namespace and service account of a SPIFFE ID as Istio writes them.
fn parts(identity: &str) -> Option<(&str, &str, &str)> {
    let (domain, path) = identity.strip_prefix("spiffe://")?.split_once("/ns/")?;
    let (namespace, account) = path.split_once("/sa/")?;
    Some((domain, namespace, account))
}

/// `2026-01-31T23:59:59Z`.
pub fn rfc3339(time: SystemTime) -> String {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    der::DateTime::from_unix_duration(since).map_or_else(|_| "never".to_owned(), |time| time.to_string())
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // Istio's words: people search for them.
            Refusal::Incomplete => f.write_str("invalid empty CertChain: the CA must send a certificate and a root"),
            Refusal::NoCertificate => f.write_str("the first element of the CA's answer is not a certificate"),
            Refusal::OtherKey => f.write_str("the certificate in the CA's answer is for another key"),
            Refusal::OtherIdentity(names) => write!(f, "the CA signed another identity: {names:?}"),
            Refusal::UnknownRoot { issuer } => {
                write!(
                    f,
                    "the certificate in the CA's answer (issuer {issuer:?}) does not chain to the roots sent with it"
                )
            }
            Refusal::Expired { ended, now } => write!(
                f,
                "the certificate in the CA's answer ended {}; this machine's time is {}: compare the clocks",
                rfc3339(*ended),
                rfc3339(*now)
            ),
        }
    }
}

impl std::error::Error for Refusal {}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::secrets::{
        csr::{self, Curve, KeyStyle},
        testing::Authority,
    };

    const ID: &str = "spiffe://cluster.local/ns/ns1/sa/sa1";

    fn request() -> Request {
        csr::request(ID, KeyStyle { curve: Curve::P256, pkcs8: false }).unwrap()
    }

    /// The verdict over what `answer` makes of a signed request.
    fn verdict(answer: impl Fn(&Authority, String) -> Vec<String>) -> Result<Issued, Refusal> {
        let (authority, request) = (Authority::new("root"), request());
        let leaf = authority.sign(&request.csr, Duration::from_secs(3600));
        check(request, &answer(&authority, leaf), None, ID, SystemTime::now())
    }

    #[test]
    fn a_good_answer_is_used_as_it_is() {
        let issued = verdict(|ca, leaf| vec![format!("words\n{leaf}"), ca.pem()]).unwrap();
        assert_eq!(issued.workload.leaf.names, [ID]);
        assert!(issued.workload.chain.starts_with(b"words\n-----BEGIN") && issued.workload.chain.ends_with(b"-----\n"));
        assert_eq!(issued.expires, issued.workload.leaf.not_after);
        assert!(issued.warnings.is_empty());
    }

    #[test]
    fn the_shortest_validity_of_leaf_and_signers_counts() {
        let root = Authority::new("root");
        let signer = root.intermediate("signer");
        // The signers of these tests end in the year 4096.
        let life = Duration::from_secs(3000 * 365 * 86_400);
        for (apart, chain) in [(true, vec![signer.pem()]), (false, vec![signer.pem(), root.pem()])] {
            let request = request();
            let leaf = signer.sign(&request.csr, life);
            let roots = apart.then(|| root.pem().into());
            let issued = check(request, &[vec![leaf], chain].concat(), roots, ID, SystemTime::now()).unwrap();
            assert!(issued.expires < issued.workload.leaf.not_after, "{apart}");
        }
    }

    #[test]
    fn answers_that_cannot_work_are_refused() {
        assert_eq!(verdict(|_, _| vec![]).unwrap_err(), Refusal::Incomplete);
        assert_eq!(verdict(|_, leaf| vec![leaf]).unwrap_err(), Refusal::Incomplete);
        assert_eq!(verdict(|ca, _| vec!["no certificate".into(), ca.pem()]).unwrap_err(), Refusal::NoCertificate);
        assert_eq!(verdict(|ca, _| vec![ca.pem(), ca.pem()]).unwrap_err(), Refusal::OtherKey);
        let other = |_: &Authority, leaf| vec![leaf, Authority::new("other").pem()];
        assert!(matches!(verdict(other).unwrap_err(), Refusal::UnknownRoot { .. }));
        assert!(matches!(verdict(|_, leaf| vec![leaf, "no root".into()]).unwrap_err(), Refusal::UnknownRoot { .. }));
    }

    #[test]
    fn an_expired_certificate_is_refused_and_both_clocks_named() {
        let (authority, request) = (Authority::new("root"), request());
        let leaf = authority.sign(&request.csr, Duration::from_secs(60));
        let now = SystemTime::now() + Duration::from_secs(3600);
        let error = check(request, &[leaf, authority.pem()], None, ID, now).unwrap_err();
        assert!(error.to_string().contains(&rfc3339(now)), "{error}");
    }

    #[test]
    fn a_certificate_of_the_future_is_used_with_a_warning() {
        let (authority, request) = (Authority::new("root"), request());
        let leaf = authority.sign(&request.csr, Duration::from_secs(3600));
        let now = SystemTime::now() - Duration::from_secs(3600);
        let issued = check(request, &[leaf, authority.pem()], None, ID, now).unwrap();
        assert!(issued.warnings[0].contains("compare the clocks"), "{:?}", issued.warnings);
    }

    #[test]
    fn identity_may_differ_in_the_trust_domain_only() {
        let likeness = |wanted: &str, got: &str| match compare(wanted, &[got.to_owned()]) {
            Likeness::Same => "same",
            Likeness::OtherTrustDomain(_) => "other domain",
            Likeness::Other(_) => "other",
        };
        for (wanted, got, verdict) in [
            (ID, ID, "same"),
            (ID, "spiffe://td/ns/ns1/sa/sa1", "other domain"),
            (ID, "spiffe://cluster.local/ns/ns1/sa/sa2", "other"),
            (ID, "spiffe://cluster.local/ns/ns2/sa/sa1", "other"),
            (ID, "sa1.example.com", "other"),
            ("spiffe://cluster.local/ns//sa/", ID, "other domain"),
        ] {
            assert_eq!(likeness(wanted, got), verdict, "{wanted} {got}");
        }
    }

    #[test]
    fn times_are_written_as_the_log_writes_them() {
        assert_eq!(rfc3339(SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000)), "2023-11-14T22:13:20Z");
    }
}
