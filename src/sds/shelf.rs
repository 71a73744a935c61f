//! What can be served now, by name: looks into the identity and the file table, keeps each secret encoded while it is current.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use tokio::sync::watch;

use super::{
    names::Name,
    resource::{self, Resource},
};
use crate::{
    base::Clock,
    config::PrivateKeyProvider,
    secrets::{Content, Table},
    wires::{Snapshot, TrustBundle, Workload},
};

/// So many encodings stay without a stream that was sent them: one source has any number of names (`/a`, `//a`), each with its copy.
const MAX_IDLE: usize = 256;

/// What there is under a name.
#[derive(Debug, Clone)]
pub(super) enum Slot {
    Ready(Resource),
    /// Nothing yet, and why, when that is known.
    Waiting(Option<Arc<str>>),
    /// Nothing, and nobody is there who could bring it.
    Hopeless(Arc<str>),
}

pub(super) struct Shelf {
    identity: watch::Receiver<Snapshot>,
    files: watch::Receiver<Table>,
    /// Whether `default` and `ROOTCA` come from an authority, which is asked again until it gives them.
    has_authority: bool,
    provider: Option<PrivateKeyProvider>,
    crl: Option<PathBuf>,
    crl_exists: AtomicBool,
    encoded: Mutex<BTreeMap<String, Encoded>>,
    count: AtomicU64,
    clock: Clock,
}

struct Encoded {
    of: Current,
    resource: Resource,
}

/// What is current under a name; held weakly would do, but comparing by address needs it alive.
#[derive(Clone)]
enum Current {
    Certificate(Arc<Workload>),
    Roots(Arc<TrustBundle>, bool),
}

impl Shelf {
    pub(super) fn new(
        identity: watch::Receiver<Snapshot>,
        files: watch::Receiver<Table>,
        has_authority: bool,
        (provider, crl): (Option<PrivateKeyProvider>, Option<PathBuf>),
        clock: Clock,
    ) -> Shelf {
        Shelf {
            identity,
            files,
            has_authority,
            provider,
            crl,
            crl_exists: AtomicBool::new(false),
            encoded: Mutex::default(),
            count: AtomicU64::new(0),
            clock,
        }
    }

    pub(super) fn get(&self, text: &str, name: &Name) -> Slot {
        match self.current(name) {
            Ok(current) => Slot::Ready(self.encode(text, current)),
            Err(error) => error,
        }
    }

    /// Notes whether there is a revocation list.
    pub(super) fn set_crl(&self, exists: bool) {
        self.crl_exists.store(exists, Ordering::Relaxed);
    }

    /// Drops what is no longer current, so that old keys do not outlive their use.
    pub(super) fn sweep(&self, parse: impl Fn(&str) -> Option<Name>) {
        let mut encoded = self.encoded.lock().unwrap_or_else(PoisonError::into_inner);
        encoded.retain(|text, entry| {
            parse(text).and_then(|name| self.current(&name).ok()).is_some_and(|current| current.is(&entry.of))
        });
    }

    fn current(&self, name: &Name) -> Result<Current, Slot> {
        let missing = |error: Option<Arc<str>>| match error {
            Some(error) if !self.has_authority => Slot::Hopeless(error),
            error => Slot::Waiting(error),
        };
        match name {
            Name::Workload => {
                let snapshot = self.identity.borrow();
                snapshot.workload.clone().map(Current::Certificate).ok_or_else(|| missing(snapshot.error.clone()))
            }
            Name::Bundle => {
                let snapshot = self.identity.borrow();
                let crl = self.crl_exists.load(Ordering::Relaxed);
                let bundle = snapshot.bundle.clone().filter(|bundle| !bundle.pem.is_empty());
                bundle.map(|bundle| Current::Roots(bundle, crl)).ok_or_else(|| missing(snapshot.error.clone()))
            }
            Name::File(source) => {
                let table = self.files.borrow();
                let state = table.get(source);
                match state.and_then(|state| state.content.clone()) {
                    Some(Content::Pair(pair)) => Ok(Current::Certificate(pair)),
                    Some(Content::Roots(roots)) => Ok(Current::Roots(roots, false)),
                    None => Err(Slot::Waiting(state.and_then(|state| state.error.clone()))),
                }
            }
        }
    }

    fn encode(&self, text: &str, current: Current) -> Resource {
        let mut encoded = self.encoded.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = encoded.get(text).filter(|entry| entry.of.is(&current)) {
            return entry.resource.clone();
        }
        let any = match &current {
            Current::Certificate(workload) => resource::certificate(text, workload, self.provider.as_ref()),
            Current::Roots(bundle, crl) => resource::roots(text, bundle, self.crl.as_deref().filter(|_| *crl)),
        };
        let number = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        let resource = Resource { any, version: resource::version(number, self.clock.now()), number };
        if encoded.len() >= MAX_IDLE {
            encoded.retain(|_, entry| Arc::strong_count(&entry.resource.version) > 1);
        }
        encoded.insert(text.to_owned(), Encoded { of: current, resource: resource.clone() });
        resource
    }
}

impl Current {
    fn is(&self, other: &Current) -> bool {
        match (self, other) {
            (Current::Certificate(a), Current::Certificate(b)) => Arc::ptr_eq(a, b),
            (Current::Roots(a, crl), Current::Roots(b, other)) => Arc::ptr_eq(a, b) && crl == other,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secrets::testing::{Authority, snapshot};

    #[test]
    fn what_no_stream_holds_makes_room() {
        let (_identity, snapshots) = watch::channel(snapshot(&Authority::new("a"), std::time::Duration::from_secs(60)));
        let (_table, files) = watch::channel(Table::default());
        let shelf = Shelf::new(snapshots, files, true, (None, None), Clock::System);
        let get = |text: &str| match shelf.get(text, &Name::Bundle) {
            Slot::Ready(resource) => resource,
            other => panic!("{other:?}"),
        };
        let held = get("held");
        let idle = get("idle").number;
        assert_eq!(get("idle").number, idle);
        for count in 0..10 * MAX_IDLE {
            get(&format!("file-root:{}a", "/".repeat(count)));
        }
        assert!(shelf.encoded.lock().unwrap().len() <= MAX_IDLE);
        assert_eq!(get("held").number, held.number);
    }
}
