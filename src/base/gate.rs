//! Readiness gates: each room holds a [`Gate`] that it opens when it can serve; `status` asks [`Gates`] which are still shut.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// All gates of the agent, in the order in which they were made.
#[derive(Debug, Clone, Default)]
pub struct Gates(Arc<Mutex<Vec<Entry>>>);

#[derive(Debug)]
struct Entry {
    name: &'static str,
    /// Why it is shut; `None` when open.
    reason: Option<String>,
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
        entries.push(Entry { name, reason: Some(reason.to_owned()) });
        Gate { gates: self.clone(), index: entries.len() - 1 }
    }

    /// Names and reasons of the shut gates; empty when all are open.
    pub fn shut(&self) -> Vec<(&'static str, String)> {
        self.entries().iter().filter_map(|entry| entry.reason.clone().map(|reason| (entry.name, reason))).collect()
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

    fn set(&self, reason: Option<String>) {
        if let Some(entry) = self.gates.entries().get_mut(self.index) {
            entry.reason = reason;
        }
    }
}

#[cfg(test)]
mod tests {
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
}
