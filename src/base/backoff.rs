//! Delays between attempts: exponential, bounded, jittered.

use std::time::Duration;

use super::random_unit;

/// How delays grow.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Policy {
    /// The first delay, before jitter.
    pub initial: Duration,
    /// What each delay is multiplied by to give the next.
    pub factor: f64,
    /// The largest delay, before jitter.
    pub max: Duration,
    /// Share of the delay by which it varies either way: 0.2 is ±20 %.
    pub jitter: f64,
}

impl Policy {
    /// 1 s, doubled, at most 60 s, ±20 %: the policy towards istiod, for certificates and for streams.
    pub const ISTIOD: Policy =
        Policy { initial: Duration::from_secs(1), factor: 2.0, max: Duration::from_secs(60), jitter: 0.2 };
}

/// The delays of one series of attempts.
#[derive(Debug, Clone)]
pub struct Backoff {
    policy: Policy,
    attempt: u32,
}

impl Backoff {
    /// A series that begins with the policy's first delay.
    pub fn new(policy: Policy) -> Backoff {
        Backoff { policy, attempt: 0 }
    }

    /// The delay before the next attempt.
    pub fn next_delay(&mut self) -> Duration {
        self.next_with(random_unit())
    }

    /// Begins anew, after a success.
    pub fn reset(&mut self) {
        self.attempt = 0;
    }

    /// How many delays were given since the last reset.
    pub fn attempts(&self) -> u32 {
        self.attempt
    }

    fn next_with(&mut self, unit: f64) -> Duration {
        let exponent = i32::try_from(self.attempt.min(64)).unwrap_or(64);
        self.attempt = self.attempt.saturating_add(1);
        let policy = &self.policy;
        let base = (policy.initial.as_secs_f64() * policy.factor.powi(exponent)).min(policy.max.as_secs_f64());
        Duration::from_secs_f64(base * (1.0 + policy.jitter * (2.0 * unit - 1.0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_up_to_the_maximum() {
        let mut backoff = Backoff::new(Policy::ISTIOD);
        let seconds: Vec<u64> = (0..8).map(|_| backoff.next_with(0.5).as_secs()).collect();
        assert_eq!(seconds, [1, 2, 4, 8, 16, 32, 60, 60]);
        backoff.reset();
        assert_eq!(backoff.next_with(0.5), Duration::from_secs(1));
    }

    #[test]
    fn jitter_stays_within_its_share() {
        let mut backoff = Backoff::new(Policy::ISTIOD);
        assert_eq!(backoff.next_with(0.0), Duration::from_millis(800));
        assert!(backoff.next_with(0.999_999) < Duration::from_millis(2400));
    }

    #[test]
    fn endless_series_does_not_overflow() {
        let mut backoff = Backoff { policy: Policy::ISTIOD, attempt: u32::MAX };
        assert_eq!(backoff.next_with(0.5), Duration::from_secs(60));
    }
}
