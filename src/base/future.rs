//! Futures whose kind does not matter: on the heap, or several at once of which the first result counts, without a task for each.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    task::Poll,
};

/// A future whose kind does not matter.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The future that `make` gives, on the heap. Made and polled in frames of its own, which end with it: the stack never shrinks, and
/// what is large and runs seldom or once would otherwise be part of the frames of whoever waits for it.
#[inline(never)]
pub fn apart<'a, F: Future + Send + 'a>(make: impl FnOnce() -> F) -> BoxFuture<'a, F::Output> {
    Box::pin(make())
}

/// The result of the future that ends first; it is taken out of the list. Never returns for an empty list. Cancel-safe.
pub async fn first<T>(running: &mut Vec<BoxFuture<'_, T>>) -> T {
    poll_fn(|context| {
        for index in 0..running.len() {
            if let Poll::Ready(result) = running[index].as_mut().poll(context) {
                drop(running.swap_remove(index));
                return Poll::Ready(result);
            }
        }
        Poll::Pending
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn results_come_in_the_order_of_their_time() {
        let after = |seconds| -> BoxFuture<'_, u64> {
            Box::pin(async move {
                tokio::time::sleep(Duration::from_secs(seconds)).await;
                seconds
            })
        };
        let mut running = vec![after(3), after(1), after(2)];
        let mut order = Vec::new();
        while !running.is_empty() {
            order.push(first(&mut running).await);
        }
        assert_eq!(order, [1, 2, 3]);
    }
}
