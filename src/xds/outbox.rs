//! The agent's own answers to istiod that wait for their turn: the newest of each type, so that an istiod that does not read makes
//! nothing grow.

use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::Notify;

/// At most one request of each type, in the order in which the types came first.
#[derive(Default)]
pub struct Outbox {
    waiting: Mutex<Vec<(&'static str, Bytes)>>,
    filled: Notify,
}

impl Outbox {
    /// Puts a request in; an older one of its type that still waits is dropped.
    pub fn put(&self, type_url: &'static str, request: Bytes) {
        let mut waiting = self.waiting();
        match waiting.iter_mut().find(|(waits, _)| *waits == type_url) {
            Some((_, older)) => *older = request,
            None => waiting.push((type_url, request)),
        }
        drop(waiting);
        self.filled.notify_one();
    }

    /// Waits until there is something; cancel-safe. One waiter at a time.
    pub async fn filled(&self) {
        while self.waiting().is_empty() {
            self.filled.notified().await;
        }
    }

    /// The request that has waited longest.
    pub fn take(&self) -> Option<(&'static str, Bytes)> {
        let mut waiting = self.waiting();
        if waiting.is_empty() { None } else { Some(waiting.remove(0)) }
    }

    fn waiting(&self) -> MutexGuard<'_, Vec<(&'static str, Bytes)>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn newest_of_each_type_in_order() {
        let outbox = Outbox::default();
        for (type_url, request) in [("a", "1"), ("b", "2"), ("a", "3")] {
            outbox.put(type_url, Bytes::from_static(request.as_bytes()));
        }
        outbox.filled().await;
        assert_eq!(outbox.take(), Some(("a", Bytes::from_static(b"3"))));
        assert_eq!(outbox.take(), Some(("b", Bytes::from_static(b"2"))));
        assert_eq!(outbox.take(), None);
        let waits = async { outbox.filled().await };
        let ((), ()) = tokio::join!(waits, async { outbox.put("c", Bytes::new()) });
    }
}
