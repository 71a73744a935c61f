//! One piece of work at a time for each key, however many wait for it.
//!
//! Nothing is spawned: whoever waits drives the work, and when one of them leaves, the next goes on with it. When nobody waits any more
//! the work is dropped.

use std::{
    collections::BTreeMap,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, OnceLock, PoisonError, Weak},
};

type Work<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The pieces of work that are under way.
pub(super) struct Flights<T>(Mutex<BTreeMap<String, Weak<Flight<T>>>>);

struct Flight<T> {
    work: tokio::sync::Mutex<Work<T>>,
    done: OnceLock<T>,
}

impl<T: Clone + Send + Sync> Flights<T> {
    /// The result of the work of that key: the one under way, or what `start` makes.
    pub(super) async fn join(&self, key: &str, start: impl FnOnce() -> Work<T>) -> T {
        let flight = self.flight(key, start);
        let mut work = flight.work.lock().await;
        if let Some(done) = flight.done.get() {
            return done.clone();
        }
        let result = work.as_mut().await;
        flight.done.get_or_init(|| result).clone()
    }

    fn flight(&self, key: &str, start: impl FnOnce() -> Work<T>) -> Arc<Flight<T>> {
        let mut flights = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        flights.retain(|_, flight| flight.upgrade().is_some_and(|flight| flight.done.get().is_none()));
        if let Some(flight) = flights.get(key).and_then(Weak::upgrade) {
            return flight;
        }
        let flight = Arc::new(Flight { work: tokio::sync::Mutex::new(start()), done: OnceLock::new() });
        flights.insert(key.to_owned(), Arc::downgrade(&flight));
        flight
    }
}

impl<T> Default for Flights<T> {
    fn default() -> Flights<T> {
        Flights(Mutex::default())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::oneshot;

    use super::*;

    struct Counted {
        flights: Flights<u32>,
        starts: AtomicUsize,
    }

    impl Counted {
        fn start(&self, gate: oneshot::Receiver<u32>) -> Work<u32> {
            self.starts.fetch_add(1, Ordering::Relaxed);
            Box::pin(async move { gate.await.unwrap_or(0) })
        }
    }

    fn counted() -> Counted {
        Counted { flights: Flights::default(), starts: AtomicUsize::new(0) }
    }

    #[tokio::test]
    async fn all_get_one_result_although_the_first_leaves() {
        let counted = counted();
        let (open, gate) = oneshot::channel();
        let never = || -> Work<u32> { unreachable!() };
        let mut first = Box::pin(counted.flights.join("k", || counted.start(gate)));
        let mut second = Box::pin(counted.flights.join("k", never));
        let mut third = Box::pin(counted.flights.join("k", never));
        assert!(is_pending(&mut first).await && is_pending(&mut second).await && is_pending(&mut third).await);
        drop(first);
        open.send(7).unwrap();
        assert_eq!(tokio::join!(second, third), (7, 7));
        assert_eq!(counted.starts.load(Ordering::Relaxed), 1);
        // What is done is not handed out again.
        let (open, gate) = oneshot::channel();
        open.send(8).unwrap();
        assert_eq!(counted.flights.join("k", || counted.start(gate)).await, 8);
    }

    #[tokio::test]
    async fn work_that_nobody_waits_for_ends() {
        let counted = counted();
        let (open, gate) = oneshot::channel();
        let mut only = Box::pin(counted.flights.join("k", || counted.start(gate)));
        assert!(is_pending(&mut only).await);
        drop(only);
        assert!(open.is_closed());
    }

    async fn is_pending<F: Future + Unpin>(future: &mut F) -> bool {
        std::future::poll_fn(|context| std::task::Poll::Ready(Pin::new(&mut *future).poll(context).is_pending())).await
    }
}
