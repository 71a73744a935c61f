//! One-way shutdown signal: a [`Trigger`] starts it once, every clone of [`Drain`] sees it.

use tokio::sync::watch;

/// The side that starts the drain; dropping it starts the drain as well, so that no task outlives its owner.
#[derive(Debug)]
pub struct Trigger(watch::Sender<bool>);

/// The side that tasks wait on.
#[derive(Debug, Clone)]
pub struct Drain(watch::Receiver<bool>);

impl Trigger {
    /// A trigger and the drain it starts.
    pub fn new() -> (Trigger, Drain) {
        let (sender, receiver) = watch::channel(false);
        (Trigger(sender), Drain(receiver))
    }

    /// Starts the drain; further calls change nothing.
    pub fn start(&self) {
        self.0.send_replace(true);
    }
}

impl Drain {
    /// A drain that never starts, for one-shot commands and tests.
    pub fn never() -> Drain {
        let (trigger, drain) = Trigger::new();
        // The sender must live as long as the process: a dropped one means "started".
        std::mem::forget(trigger);
        drain
    }

    /// Waits until the drain has started; cancel-safe.
    pub async fn started(&mut self) {
        // An error means that the trigger is gone, which is a start as well.
        let _ = self.0.wait_for(|started| *started).await;
    }

    /// Whether it has started.
    pub fn is_started(&self) -> bool {
        *self.0.borrow() || self.0.has_changed().is_err()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn starts_once_and_for_all() {
        let (trigger, mut drain) = Trigger::new();
        let mut late = drain.clone();
        assert!(!drain.is_started());
        trigger.start();
        drain.started().await;
        late.started().await;
        assert!(late.is_started());
    }

    #[tokio::test]
    async fn dropped_trigger_starts_the_drain() {
        let (trigger, mut drain) = Trigger::new();
        drop(trigger);
        drain.started().await;
        assert!(drain.is_started());
    }

    #[tokio::test(start_paused = true)]
    async fn never_does_not_start() {
        let mut drain = Drain::never();
        let waited = tokio::time::timeout(std::time::Duration::from_secs(3600), drain.started()).await;
        assert!(waited.is_err());
        assert!(!drain.is_started());
    }
}
