//! How many connections there are, and who goes first when there are too many: of those that wait for their client (idle, or in the
//! middle of a head), the one that has waited longest. A flood of slow clients so pushes out itself, not a probe.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::Notify;

/// All connections of a server.
#[derive(Debug, Clone)]
pub(super) struct Slots(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    most: usize,
    state: Mutex<State>,
    left: Notify,
}

#[derive(Debug, Default)]
struct State {
    taken: usize,
    next: u64,
    /// Who waits, by when it began to.
    waiting: BTreeMap<u64, Arc<Notify>>,
}

/// One connection's place, given back when dropped.
#[derive(Debug)]
pub struct Slot {
    slots: Slots,
    evicted: Arc<Notify>,
}

/// That a connection waits for its client; dropped when the client did its part.
pub(super) struct Waiting<'a> {
    slot: &'a Slot,
    since: u64,
}

impl Slots {
    pub fn new(most: usize) -> Slots {
        Slots(Arc::new(Shared { most, state: Mutex::default(), left: Notify::new() }))
    }

    /// A place for a new connection; `None` when all are taken by connections that are being answered.
    pub fn enter(&self) -> Option<Slot> {
        let full = self.state().taken >= self.0.most;
        if full && !self.make_room() {
            return None;
        }
        self.state().taken += 1;
        Some(Slot { slots: self.clone(), evicted: Arc::default() })
    }

    /// Has the connection close that has waited longest; false when none waits.
    pub fn make_room(&self) -> bool {
        let first = self.state().waiting.pop_first();
        first.inspect(|(_, evicted)| evicted.notify_one()).is_some()
    }

    /// Waits until there are no connections.
    pub async fn empty(&self) {
        while self.state().taken > 0 {
            // One permit is kept when the last one leaves between the look and the wait.
            self.0.left.notified().await;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slot {
    /// Begins to wait for the client.
    pub(super) fn wait(&self) -> Waiting<'_> {
        let mut state = self.slots.state();
        let since = state.next;
        state.next += 1;
        state.waiting.insert(since, self.evicted.clone());
        Waiting { slot: self, since }
    }
}

impl Waiting<'_> {
    /// Ends when this connection has to make room. Cancel-safe.
    pub async fn evicted(&self) {
        self.slot.evicted.notified().await;
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.slot.slots.state().waiting.remove(&self.since);
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.slots.state().taken -= 1;
        self.slots.0.left.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn longest_waiting_makes_room() {
        let slots = Slots::new(2);
        let (first, second) = (slots.enter().unwrap(), slots.enter().unwrap());
        assert!(slots.enter().is_none(), "both are being answered");
        let early = first.wait();
        let late = second.wait();
        let third = slots.enter().unwrap();
        early.evicted().await;
        drop(early);
        drop(first);
        drop(late);
        assert!(slots.enter().is_none(), "second and third are being answered");
        drop((second, third));
        slots.empty().await;
        assert!(!slots.make_room());
    }
}
