//! Wall-clock time that follows tokio's clock in tests.
//!
//! Certificates live by wall time, timers by tokio's. Rooms that compare the two take a [`Clock`], so that a paused tokio clock
//! moves both.

use std::{
    sync::OnceLock,
    time::{Duration, SystemTime},
};

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

/// When this process began: the time of the first call, which is `main`'s.
pub fn process_start() -> SystemTime {
    static START: OnceLock<SystemTime> = OnceLock::new();
    *START.get_or_init(SystemTime::now)
}

/// `wait` after `now`, whatever number somebody wrote: one that no clock can hold is thirty years, as for tokio's timers.
pub fn later(now: Instant, wait: Duration) -> Instant {
    const FAR: Duration = Duration::from_secs(30 * 365 * 86_400);
    now.checked_add(wait).unwrap_or_else(|| now + FAR)
}

/// Year, month, day of a day count since 1970-01-01 in the Gregorian calendar, by whole eras of 400 years.
pub fn civil_date(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    // Years counted from March, so that the leap day is the last one.
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let (year, month) = (year_of_era + era * 400, if month < 10 { month + 3 } else { month - 9 });
    (year + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_wait_has_an_end() {
        let now = Instant::now();
        assert_eq!(later(now, Duration::from_secs(7)) - now, Duration::from_secs(7));
        for seconds in [9_300_000_000_000_000_000, u64::MAX] {
            assert!(later(now, Duration::from_secs(seconds)) > now, "{seconds}");
        }
        assert!(later(now, Duration::MAX) > now);
    }

    #[tokio::test(start_paused = true)]
    async fn follows_paused_time() {
        let clock = Clock::following(SystemTime::UNIX_EPOCH);
        tokio::time::advance(Duration::from_secs(86_400)).await;
        assert_eq!(clock.now(), SystemTime::UNIX_EPOCH + Duration::from_secs(86_400));
    }
}
