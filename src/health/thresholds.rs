//! When outcomes of checks become a decision. Pure.

use crate::wires::AppHealth;

/// Counts outcomes in a row.
///
/// ```text
///            successThreshold in a row          failureThreshold in a row
///  undecided ─────────────────────▶ healthy ────────────────────────────▶ unhealthy
///      └──── failureThreshold ────────────────────────────────────────────▶  │
///                                      ◀──────────── successThreshold ───────┘
/// ```
#[derive(Debug, Clone)]
pub struct Thresholds {
    success: u64,
    failure: u64,
    successes: u64,
    failures: u64,
    healthy: Option<bool>,
}

impl Thresholds {
    /// Nothing is decided yet.
    pub fn new(success: u64, failure: u64) -> Thresholds {
        Thresholds { success, failure, successes: 0, failures: 0, healthy: None }
    }

    /// Takes one outcome; the decision, when it is a new one.
    pub fn observe(&mut self, outcome: Result<(), String>) -> Option<AppHealth> {
        match outcome {
            Ok(()) => {
                self.failures = 0;
                self.successes += 1;
                if self.successes == self.success && self.healthy != Some(true) {
                    self.successes = 0;
                    self.healthy = Some(true);
                    return Some(AppHealth::Healthy);
                }
            }
            Err(reason) => {
                self.successes = 0;
                self.failures += 1;
                if self.failures == self.failure && self.healthy != Some(false) {
                    self.failures = 0;
                    self.healthy = Some(false);
                    return Some(AppHealth::Unhealthy(reason.into()));
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Decisions on a row of outcomes, `+` or `-`: `H`, `U` or `.` for none.
    fn decide(success: u64, failure: u64, outcomes: &str) -> String {
        let mut thresholds = Thresholds::new(success, failure);
        let decision = |outcome| {
            let outcome = if outcome == '+' { Ok(()) } else { Err("why".to_owned()) };
            match thresholds.observe(outcome) {
                None | Some(AppHealth::Leaving(_)) => '.',
                Some(AppHealth::Healthy) => 'H',
                Some(AppHealth::Unhealthy(reason)) => {
                    assert_eq!(&*reason, "why");
                    'U'
                }
            }
        };
        outcomes.chars().map(decision).collect()
    }

    #[test]
    fn one_decision_a_change() {
        assert_eq!(decide(1, 1, "+--+-"), "HU.HU");
        assert_eq!(decide(1, 1, "-"), "U");
        assert_eq!(decide(1, 3, "+--+---"), "H.....U");
        assert_eq!(decide(2, 2, "+-+-++--++"), ".....H.U.H");
        assert_eq!(decide(3, 1, "++-+++"), "..U..H");
        assert_eq!(decide(1, 1, "++++"), "H...");
    }
}
