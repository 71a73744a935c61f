//! Ends a live connection whose basis is gone: its server is not vouched for by the roots that lie there now, or the certificate that
//! was shown to it ends soon and another lies there. Every connection's own task asks; new dials read the files anyway.
//!
//! ```text
//!   files as dialled ──differ──▶ server verifies, pair not near its end ──▶ stays (its streams are not disturbed)
//!                          └───▶ otherwise: 0–60 s later, if that is still so ──▶ ends; the callers dial anew
//! ```

use std::{
    error::Error as _,
    time::{Duration, SystemTime},
};

use tokio::time::sleep;

use super::{Tls, material::Fingerprint, material::Material};
use crate::{
    base::random_below,
    net::tls::{self, Peer},
};

/// How often the files are looked at; they are three small ones.
const LOOK: Duration = Duration::from_secs(10);

/// All pods of a mesh see new roots at about the same time: they spread their dials over so long.
const SPREAD: Duration = Duration::from_secs(60);

/// A certificate that was shown is replaced so long before its end at the latest: two looks and the spread, and some.
const RESERVE: Duration = Duration::from_secs(120);

/// What a connection rests on.
pub(super) struct Basis {
    /// How the server showed itself.
    pub(super) peer: Peer,
    /// Of the files as they were at the dial.
    pub(super) fingerprint: Fingerprint,
    /// When the certificate that was shown ends.
    pub(super) ends: Option<SystemTime>,
}

impl Basis {
    /// Waits until the connection should not go on; why.
    pub(super) async fn lost(self, tls: &Tls) -> String {
        let reserve = self.ends.map_or(RESERVE, |ends| RESERVE.min(left(ends) / 2));
        loop {
            sleep(LOOK).await;
            if self.is_lost(tls, reserve).is_none() {
                continue;
            }
            let most = self.ends.map_or(SPREAD, |ends| SPREAD.min(left(ends) / 2));
            sleep(Duration::from_millis(random_below(most.as_millis() as u64))).await;
            // What was put back meanwhile disturbs nobody.
            if let Some(reason) = self.is_lost(tls, reserve) {
                return reason;
            }
        }
    }

    pub(super) fn is_lost(&self, tls: &Tls, reserve: Duration) -> Option<String> {
        let material = Material::read(tls);
        if material.fingerprint == self.fingerprint {
            return None;
        }
        match self.peer.verify(&material.roots) {
            // A file that is being written counts for nothing.
            Ok(()) | Err(tls::Error::NoRoots) => {}
            Err(error) => {
                let why = error.source().map_or_else(|| error.to_string(), ToString::to_string);
                return Some(format!("{} no longer vouch for its certificate: {why}", tls.roots));
            }
        }
        let ends = self.ends.filter(|ends| left(*ends) < reserve)?;
        (material.ends? > ends)
            .then(|| "the client certificate that was shown to it ends; a newer one is there".to_owned())
    }
}

fn left(ends: SystemTime) -> Duration {
    ends.duration_since(SystemTime::now()).unwrap_or_default()
}
