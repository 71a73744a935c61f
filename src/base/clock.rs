//! Wall-clock time that follows tokio's clock in tests.
//!
//! Certificates live by wall time, timers by tokio's. Rooms that compare the two take a [`Clock`], so that a paused tokio clock
//! moves both.

use std::time::SystemTime;

use tokio::time::Instant;

/// Where wall time comes from.
#[derive(Debug, Clone, Copy)]
pub enum Clock {
    /// The machine's clock.
    System,
    /// `wall` at `start`, moving with tokio's clock: for tests on paused time.
    Following {
        /// Wall time at `start`.
        wall: SystemTime,
        /// The instant that belongs to it.
        start: Instant,
    },
}

impl Clock {
    /// A clock that begins at `wall` now and moves with tokio's clock.
    pub fn following(wall: SystemTime) -> Clock {
        Clock::Following { wall, start: Instant::now() }
    }

    /// Wall time now.
    pub fn now(&self) -> SystemTime {
        match self {
            Clock::System => SystemTime::now(),
            Clock::Following { wall, start } => *wall + start.elapsed(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn follows_paused_time() {
        let clock = Clock::following(SystemTime::UNIX_EPOCH);
        tokio::time::advance(Duration::from_secs(86_400)).await;
        assert_eq!(clock.now(), SystemTime::UNIX_EPOCH + Duration::from_secs(86_400));
    }
}
