//! What a person may see of the certificates: everything but keys. Pure.

use std::time::SystemTime;

use serde_json::{Value, json};

use super::{
    answer::rfc3339,
    certificate,
    file::{Content, Source},
    files::Table,
};
use crate::wires::{self, Leaf, Snapshot};

/// The identity, the trust roots and all files that are watched, as `/debug/certs` shows them. Times are RFC 3339, ages and
/// remaining lives are seconds.
pub fn certificates(snapshot: &Snapshot, files: &Table, now: SystemTime) -> Value {
    let workload = snapshot.workload.as_deref().map(|workload| {
        let mut shown = leaf(&workload.leaf, now);
        shown["source"] = match workload.source {
            wires::Source::Authority => "CA".into(),
            wires::Source::Files => "files".into(),
        };
        shown["obtained"] = rfc3339(workload.obtained).into();
        shown["age_seconds"] = seconds_between(workload.obtained, now).into();
        shown
    });
    json!({
        "default": workload,
        "roots": snapshot.bundle.as_deref().map(|bundle| roots(&bundle.pem, now)),
        "next_rotation": snapshot.renewal.map(rfc3339),
        "last_error": snapshot.error.as_deref(),
        "files": files.iter().map(|(source, state)| {
            let content = match &state.content {
                Some(Content::Pair(pair)) => leaf(&pair.leaf, now),
                Some(Content::Roots(bundle)) => json!({ "roots": roots(&bundle.pem, now) }),
                None => json!({}),
            };
            let mut shown = content;
            shown["name"] = name(source).into();
            shown["last_error"] = json!(state.error.as_deref());
            shown
        }).collect::<Vec<_>>(),
    })
}

fn leaf(leaf: &Leaf, now: SystemTime) -> Value {
    json!({
        "subject": leaf.subject,
        "issuer": leaf.issuer,
        "san": leaf.names,
        "serial": leaf.serial,
        "not_before": rfc3339(leaf.not_before),
        "not_after": rfc3339(leaf.not_after),
        "expires_in_seconds": seconds_between(now, leaf.not_after),
    })
}

fn roots(pem: &[u8], now: SystemTime) -> Vec<Value> {
    // An operating system's bundle is counted, not listed.
    const LISTED: usize = 16;
    let ders = certificate::ders(pem);
    let parsed = ders.iter().take(LISTED).filter_map(|der| certificate::parse(der));
    let mut shown: Vec<Value> = parsed.map(|root| leaf(&root.leaf, now)).collect();
    if ders.len() > LISTED {
        shown.push(json!({ "more": ders.len() - LISTED }));
    }
    shown
}

fn name(source: &Source) -> String {
    match source {
        Source::Pair { chain, key } => format!("file-cert:{}~{}", chain.display(), key.display()),
        Source::Roots(path) => format!("file-root:{}", path.display()),
    }
}

fn seconds_between(from: SystemTime, to: SystemTime) -> i64 {
    let seconds = |duration: std::time::Duration| i64::try_from(duration.as_secs()).unwrap_or(i64::MAX);
    match to.duration_since(from) {
        Ok(after) => seconds(after),
        Err(before) => -seconds(before.duration()),
    }
}
