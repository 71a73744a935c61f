//! When a certificate is renewed. Pure.

use std::time::{Duration, SystemTime};

/// The share of a certificate's life that is kept in reserve.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reserve {
    /// `SECRET_GRACE_PERIOD_RATIO`: 0.5 renews at half of the life, 0 at its end, 1 at once.
    pub ratio: f64,
    /// `SECRET_GRACE_PERIOD_RATIO_JITTER`: the ratio varies by up to this much either way, so that a fleet spreads out.
    pub jitter: f64,
}

impl Reserve {
    /// How long after `now` a certificate that lives from `begin` to `end` is renewed. `unit` in `[0, 1)` chooses within the
    /// jitter. Outside `[0, 1]` the ratio is clamped after the jitter, as Istio does.
    pub fn delay(&self, begin: SystemTime, end: SystemTime, now: SystemTime, unit: f64) -> Duration {
        let ratio = (self.ratio + self.jitter * (2.0 * unit - 1.0)).clamp(0.0, 1.0);
        // A ratio that is no number keeps half.
        let ratio = if ratio.is_nan() { 0.5 } else { ratio };
        let life = end.duration_since(begin).unwrap_or_default();
        let renewal = end - life.mul_f64(ratio);
        renewal.duration_since(now).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn minutes(ratio: f64, begin: i64, end: i64) -> u64 {
        let now = SystemTime::UNIX_EPOCH + 1_000_000 * MINUTE;
        let at = |minute: i64| {
            if minute < 0 { now - MINUTE * minute.unsigned_abs() as u32 } else { now + MINUTE * minute as u32 }
        };
        let reserve = Reserve { ratio, jitter: 0.0 };
        (reserve.delay(at(begin), at(end), now, 0.3).as_secs_f64() / 60.0).round() as u64
    }

    #[test]
    fn renewal_leaves_the_reserve() {
        for (ratio, begin, end, wanted) in [
            (0.5, 0, 60, 30),
            (0.25, 0, 60, 45),
            (0.75, 0, 60, 15),
            (1.0, 0, 60, 0),
            (0.0, 0, 60, 60),
            (0.25, 30, 90, 75),
            (0.5, -50, 10, 0),
            (0.5, -60, -1, 0),
            (0.5, 60, 0, 0),
            (7.0, 0, 60, 0),
            (-1.0, 0, 60, 60),
            (f64::NAN, 0, 60, 30),
        ] {
            assert_eq!(minutes(ratio, begin, end), wanted, "{ratio} {begin} {end}");
        }
    }

    #[test]
    fn jitter_spreads_but_never_leaves_the_life() {
        let now = SystemTime::UNIX_EPOCH;
        let end = now + 60 * MINUTE;
        let reserve = Reserve { ratio: 0.5, jitter: 0.01 };
        assert_eq!(reserve.delay(now, end, now, 0.0).as_secs(), 1836);
        assert_eq!(reserve.delay(now, end, now, 0.5).as_secs(), 1800);
        let wild = Reserve { ratio: 0.5, jitter: 9.0 };
        assert_eq!(wild.delay(now, end, now, 0.0), 60 * MINUTE);
        assert_eq!(wild.delay(now, end, now, 0.99), Duration::ZERO);
    }
}
