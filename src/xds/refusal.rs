//! How istiod's refusals hold back the next attempt: a control plane that lets a proxy connect and then turns it away is not asked
//! again at once for ever, however fast Envoy comes back. Pure; `now` is tokio's clock.

use tokio::time::Instant;

use crate::{
    base::{Backoff, Policy},
    grpc::{Code, Status},
};

/// Refusals that hold nothing back: one may be a race with a restart or a rotation.
const FREE: u32 = 2;

/// From this one on in a row, a refusal that names this proxy's own credentials or identity counts as permanent.
const PERMANENT: u32 = 5;

/// Refusals in a row: streams that istiod ended with an error before it had sent anything, or soon after.
pub struct Refusals {
    count: u32,
    last: Option<Status>,
    backoff: Backoff,
    /// When the next attempt may be made.
    earliest: Option<Instant>,
    /// The credentials that were refused.
    credentials: [u8; 32],
}

impl Default for Refusals {
    fn default() -> Refusals {
        Refusals { count: 0, last: None, backoff: Backoff::new(Policy::ISTIOD), earliest: None, credentials: [0; 32] }
    }
}

impl Refusals {
    /// istiod has sent something. Whether it goes on so is not known yet: the next attempt waits as long as if it had not.
    pub fn served(&mut self) {
        self.last = None;
    }

    /// istiod has served a stream for a while: what was before counts no more.
    pub fn healthy(&mut self) {
        *self = Refusals { credentials: self.credentials, ..Refusals::default() };
    }

    /// istiod has refused.
    pub fn refused(&mut self, status: &Status, now: Instant) {
        self.count = self.count.saturating_add(1);
        self.last = Some(status.clone());
        if self.count >= FREE {
            let delay = self.backoff.next_delay().max(status.pushback.unwrap_or_default());
            self.earliest = Some(now + delay);
        }
    }

    /// When an attempt with these credentials may be made; new ones may at once.
    pub fn earliest(&mut self, credentials: [u8; 32]) -> Option<Instant> {
        if self.credentials != credentials {
            self.healthy();
            self.credentials = credentials;
        }
        self.earliest
    }

    /// The refusal that will not go away by itself.
    pub fn permanent(&self) -> Option<&Status> {
        self.last.as_ref().filter(|last| {
            self.count >= PERMANENT
                && matches!(last.code, Code::Unauthenticated | Code::PermissionDenied | Code::InvalidArgument)
        })
    }

    /// How many in a row, and the last; none once istiod has sent something.
    pub fn series(&self) -> (u32, Option<&Status>) {
        (self.last.as_ref().map_or(0, |_| self.count), self.last.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn third_attempt_waits_and_longer_each_time() {
        let mut refusals = Refusals::default();
        let denied = Status::new(Code::PermissionDenied, "no");
        let now = Instant::now();
        refusals.refused(&denied, now);
        assert_eq!(refusals.earliest([0; 32]), None);
        let mut last = Duration::ZERO;
        for _ in 0..4 {
            assert!(refusals.permanent().is_none());
            refusals.refused(&denied, now);
            let wait = refusals.earliest([0; 32]).unwrap() - now;
            assert!(wait > last && wait < Duration::from_secs(10), "{wait:?}");
            last = wait;
        }
        assert_eq!(refusals.permanent(), Some(&denied));
        refusals.served();
        assert_eq!((refusals.series(), refusals.permanent()), ((0, None), None));
        refusals.refused(&denied, now);
        assert!(refusals.earliest([0; 32]).unwrap() - now > last, "one answer is no reason to ask more often");
        refusals.healthy();
        assert_eq!((refusals.earliest([0; 32]), refusals.permanent()), (None, None));
    }

    #[tokio::test(start_paused = true)]
    async fn new_credentials_begin_anew_and_pushback_counts() {
        let mut refusals = Refusals::default();
        let mut busy = Status::new(Code::ResourceExhausted, "busy");
        busy.pushback = Some(Duration::from_secs(30));
        let now = Instant::now();
        for _ in 0..6 {
            refusals.refused(&busy, now);
        }
        assert!(refusals.permanent().is_none());
        assert!(refusals.earliest([0; 32]).unwrap() >= now + Duration::from_secs(30));
        assert_eq!(refusals.earliest([1; 32]), None);
        assert_eq!(refusals.series(), (0, None));
    }
}
