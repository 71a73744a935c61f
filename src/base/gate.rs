//! Readiness gates: each room holds a [`Gate`] that it opens when it can serve; `status` asks [`Gates`] which are still shut.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::SystemTime,
};

/// All gates of the agent, in the order in which they were made.
#[derive(Debug, Clone, Default)]
pub struct Gates(Arc<Mutex<Vec<Entry>>>);

#[derive(Debug)]
struct Entry {
    name: &'static str,
    /// Why it is shut; `None` when open.
    reason: Option<String>,
    /// What is worth knowing whether it is open or not, and when that began.
    note: Option<(String, SystemTime)>,
}

/// One room's gate; shut with a reason when made.
#[derive(Debug, Clone)]
pub struct Gate {
    gates: Gates,
    index: usize,
}

impl Gates {
    /// Adds a gate, shut for `reason`.
    pub fn gate(&self, name: &'static str, reason: &str) -> Gate {
        let mut entries = self.entries();
        entries.push(Entry { name, reason: Some(reason.to_owned()), note: None });
        Gate { gates: self.clone(), index: entries.len() - 1 }
    }

    /// Names and reasons of the shut gates; empty when all are open.
    pub fn shut(&self) -> Vec<(&'static str, String)> {
        self.entries().iter().filter_map(|entry| entry.reason.clone().map(|reason| (entry.name, reason))).collect()
    }

    /// Names and notes of the gates that have one, open or shut, each with its age at `now`.
    pub fn notes(&self, now: SystemTime) -> Vec<(&'static str, String)> {
        let note = |entry: &Entry| {
            let (text, since) = entry.note.as_ref()?;
            let age = now.duration_since(*since).unwrap_or_default().as_secs();
            Some((entry.name, format!("{text} {age} s ago")))
        };
        self.entries().iter().filter_map(note).collect()
    }

    fn entries(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Gate {
    /// Opens the gate.
    pub fn open(&self) {
        self.set(None);
    }

    /// Shuts the gate, or changes why it is shut.
    pub fn shut(&self, reason: &str) {
        self.set(Some(reason.to_owned()));
    }

    /// Says something that does not shut the gate: `text`, which goes on with "... s ago", counted from `since`.
    pub fn note(&self, text: &str, since: SystemTime) {
        self.set_note(Some((text.to_owned(), since)));
    }

    /// Since when there is a note.
    pub fn noted_since(&self) -> Option<SystemTime> {
        self.gates.entries().get(self.index)?.note.as_ref().map(|(_, since)| *since)
    }

    /// The note no longer holds.
    pub fn clear_note(&self) {
        self.set_note(None);
    }

    fn set_note(&self, note: Option<(String, SystemTime)>) {
        if let Some(entry) = self.gates.entries().get_mut(self.index) {
            entry.note = note;
        }
    }

    fn set(&self, reason: Option<String>) {
        if let Some(entry) = self.gates.entries().get_mut(self.index) {
            entry.reason = reason;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn lists_shut_gates_in_order() {
        let gates = Gates::default();
        let envoy = gates.gate("envoy", "not started");
        let dns = gates.gate("dns", "no table yet");
        envoy.open();
        assert_eq!(gates.shut(), [("dns", "no table yet".to_owned())]);
        dns.open();
        envoy.shut("workers not started");
        assert_eq!(gates.shut(), [("envoy", "workers not started".to_owned())]);
    }

    #[test]
    fn note_stays_until_it_is_cleared() {
        let gates = Gates::default();
        let _dns = gates.gate("dns", "no table yet");
        let xds = gates.gate("xds", "not bound");
        let now = SystemTime::now();
        xds.note("accepted", now - Duration::from_secs(7));
        assert_eq!(gates.notes(now), [("xds", "accepted 7 s ago".to_owned())]);
        assert_eq!(xds.noted_since(), Some(now - Duration::from_secs(7)));
        xds.open();
        assert_eq!(gates.notes(now + Duration::from_secs(5)), [("xds", "accepted 12 s ago".to_owned())]);
        assert_eq!(
            gates.notes(now - Duration::from_secs(60)),
            [("xds", "accepted 0 s ago".to_owned())],
            "clock set back"
        );
        xds.clear_note();
        assert_eq!(gates.notes(now), []);
    }
}
