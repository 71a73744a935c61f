//! How the time that a scraper waits is shared out. Pure.
//!
//! ```text
//!  0 ────────────────────────────── heads ── body 0 ── body 1 ── … ── (rest) ── the scraper gives up
//!  all sources are asked; the type of   │ a share for each page that is passed on
//!  the page depends on their answers    │
//! ```
//! So a source that hangs costs its own part only, and the page is there before the scraper gives up.

use std::time::Duration;

use tokio::time::Instant;

use crate::base::later;

/// Time that a scrape may take when the scraper does not say how long it waits: Prometheus' own default.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);

/// Longest time kept back for passing on what has been answered.
const MAX_RESERVE: Duration = Duration::from_secs(1);

/// When what has to be done.
#[derive(Debug, Clone, Copy)]
pub struct Deadlines {
    heads: Instant,
    bodies: Duration,
}

impl Deadlines {
    /// From the text of `X-Prometheus-Scrape-Timeout-Seconds`. A text that is no number counts as absent; no time left means that
    /// every source fails at once.
    pub fn new(header: Option<&str>, now: Instant) -> Deadlines {
        let seconds = header.and_then(|text| {
            let seconds = text.trim().parse::<f64>().ok().filter(|seconds| !seconds.is_nan());
            if seconds.is_none() {
                log::warn!("X-Prometheus-Scrape-Timeout-Seconds: {text:?} is not a number of seconds; it is ignored");
            }
            seconds
        });
        let wanted = seconds.map(|seconds| Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(DEFAULT_TIMEOUT));
        let timeout = wanted.unwrap_or(DEFAULT_TIMEOUT);
        let reserve = (timeout / 5).min(MAX_RESERVE);
        Deadlines { heads: later(now, timeout - reserve), bodies: reserve * 3 / 4 }
    }

    /// When every source must have begun to answer.
    pub fn heads(&self) -> Instant {
        self.heads
    }

    /// When page number `index` of `count` must have passed.
    pub fn body(&self, index: usize, count: usize) -> Instant {
        let share = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        self.heads + self.bodies * share(index + 1) / share(count.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_the_scrapers_time() {
        let now = Instant::now();
        let millis = |header: Option<&str>| {
            let deadlines = Deadlines::new(header, now);
            let since = |instant: Instant| (instant - now).as_millis();
            (since(deadlines.heads()), since(deadlines.body(0, 2)), since(deadlines.body(1, 2)))
        };
        assert_eq!(millis(Some("0.5")), (400, 437, 475));
        assert_eq!(millis(Some("2")), (1600, 1750, 1900));
        assert_eq!(millis(Some("20")), (19_000, 19_375, 19_750));
        for header in [None, Some("abc"), Some("NaN"), Some("inf"), Some("")] {
            assert_eq!(millis(header), (9_000, 9_375, 9_750), "{header:?}");
        }
        // More than any clock holds.
        for header in ["9.3e18", "1e19", "1.8e19"] {
            assert!(millis(Some(header)).0 > 1_000_000_000, "{header}");
        }
        for header in ["0", "-1", "-inf"] {
            assert_eq!(millis(Some(header)), (0, 0, 0), "{header}");
        }
    }
}
