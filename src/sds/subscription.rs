//! What one stream wants and what it was given: the rules of xDS for state of the world and delta. Pure.
//!
//! As in Istio, an answer on a state-of-the-world stream carries only what is new to the stream: names that were added, secrets
//! that changed. Envoy takes that for SDS.

use std::sync::Arc;

use super::names::Name;
use crate::secrets::Lease;

/// How a request was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// Its names count.
    Names,
    /// It answers an older response than the last one: it changes nothing.
    Stale,
}

/// One wanted name.
#[derive(Debug, Clone)]
pub(super) struct Item {
    pub name: Arc<str>,
    pub place: Place,
    /// The version of the encoding that was sent last; holding it keeps that encoding on the shelf.
    pub sent: Option<Arc<str>>,
    /// The version that a delta client had when it came.
    pub known: Option<Arc<str>>,
}

/// Where the secret of a name is looked up.
#[derive(Debug, Clone)]
pub(super) enum Place {
    /// Not yet known.
    New,
    /// There, as long as its files are leased.
    Known { name: Name, _lease: Option<Lease> },
    /// Nowhere: the agent serves no such name.
    Unknown,
    /// Nowhere: too many files are wanted.
    Refused,
}

/// The names of one stream.
#[derive(Debug, Default)]
pub struct Subscription {
    pub(super) items: Vec<Item>,
    /// Whether there has been a subscription since the stream began or was unsubscribed.
    is_open: bool,
    nonce: Option<String>,
}

impl Subscription {
    /// A state-of-the-world request with these names, in answer to `nonce`.
    pub fn request(&mut self, names: &[String], nonce: &str) -> Taken {
        if names.is_empty() {
            // Istio: an empty list unsubscribes, also with an old nonce.
            (self.items, self.is_open) = (Vec::new(), false);
        } else if nonce.is_empty() || !self.is_open {
            self.items.clear();
            self.nonce = None;
            self.is_open = true;
            self.replace(names);
        } else if self.nonce.as_deref() != Some(nonce) {
            return Taken::Stale;
        } else {
            self.replace(names);
        }
        Taken::Names
    }

    /// A delta request. `versions` are what the client still has from before, on the first request of a stream.
    pub(super) fn change<'a>(
        &mut self,
        subscribe: &[String],
        unsubscribe: &[String],
        versions: impl Fn(&str) -> Option<&'a String>,
    ) {
        self.items.retain(|item| !unsubscribe.iter().any(|name| **name == *item.name));
        for name in subscribe {
            let known = versions(name).map(|version| version.as_str().into());
            // Asked for again, it is sent again.
            self.items.retain(|item| *item.name != **name);
            self.items.push(Item { known, ..Item::new(name) });
        }
    }

    /// The wanted names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.items.iter().map(|item| &*item.name)
    }

    /// A response was sent under this nonce.
    pub(super) fn answered(&mut self, nonce: String) {
        self.nonce = Some(nonce);
    }

    /// These names and no others; what was sent of those that stay still counts.
    fn replace(&mut self, names: &[String]) {
        let old = std::mem::replace(&mut self.items, Vec::with_capacity(names.len()));
        for name in names {
            if self.items.iter().any(|item| *item.name == **name) {
                continue;
            }
            let item = old.iter().find(|item| *item.name == **name).cloned();
            self.items.push(item.unwrap_or_else(|| Item::new(name)));
        }
    }
}

impl Item {
    fn new(name: &str) -> Item {
        Item { name: name.into(), place: Place::New, sent: None, known: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    /// Takes what is due as sent and answered.
    fn serve(subscription: &mut Subscription, nonce: &str) -> Vec<String> {
        let due = subscription.items.iter_mut().filter(|item| item.sent.is_none());
        let served: Vec<String> = due
            .map(|item| {
                item.sent = Some("1".into());
                item.name.to_string()
            })
            .collect();
        if !served.is_empty() {
            subscription.answered(nonce.to_owned());
        }
        served
    }

    #[test]
    fn state_of_the_world_in_the_life_of_a_stream() {
        let mut stream = Subscription::default();
        for (step, (wanted, nonce, taken, due)) in [
            (vec!["a"], "old", Taken::Names, vec!["a"]),
            (vec!["a"], "0", Taken::Names, vec![]),
            (vec!["a", "b"], "0", Taken::Names, vec!["b"]),
            (vec!["a", "b", "c"], "0", Taken::Stale, vec![]),
            (vec!["b"], "2", Taken::Names, vec![]),
            (vec!["b", "a", "a"], "2", Taken::Names, vec!["a"]),
            (vec!["b"], "", Taken::Names, vec!["b"]),
            (vec!["b"], "", Taken::Names, vec!["b"]),
            (vec![], "7", Taken::Names, vec![]),
            (vec!["b"], "3", Taken::Names, vec!["b"]),
        ]
        .into_iter()
        .enumerate()
        {
            assert_eq!(stream.request(&names(&wanted), nonce), taken, "step {step}");
            assert_eq!(serve(&mut stream, &step.to_string()), due, "step {step}");
        }
    }

    #[test]
    fn delta_adds_removes_and_repeats() {
        let mut stream = Subscription::default();
        let had = "v1".to_owned();
        stream.change(&names(&["a", "b"]), &[], |name| (name == "b").then_some(&had));
        assert_eq!(stream.items[1].known.as_deref(), Some("v1"));
        assert_eq!(serve(&mut stream, "n"), ["a", "b"]);
        stream.change(&names(&["c"]), &names(&["a"]), |_| None);
        assert_eq!(serve(&mut stream, "n"), ["c"]);
        stream.change(&names(&["b"]), &names(&["unknown"]), |_| None);
        assert_eq!(serve(&mut stream, "n"), ["b"]);
    }
}
