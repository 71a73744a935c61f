//! Wasm plugins with remote code: fetched once, verified, kept, and handed to Envoy as local files (Istio's `pkg/wasm`).
//!
//! xds gives every ECDS response to the [`Rewriter`]; nothing else of the room is called from outside but [`Wasm::run`], which removes
//! what is no longer used and keeps the index on disk up to date. Envoy never fetches anything, and no pull secret leaves this room.

mod aot;
mod archive;
mod cache;
mod config;
mod error;
mod fetch;
#[doc(hidden)]
pub mod fuzz;
mod metrics;
mod oci;
mod resource;
mod rewrite;
mod settings;
mod spool;
mod standin;
mod structs;

pub use config::Config;
pub use rewrite::Rewriter;

use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};

use crate::{
    base::{Clock, Drain},
    telemetry::metrics::Registry,
};

use cache::Cache;
use metrics::Metrics;

/// The room.
pub struct Wasm {
    cache: Cache,
    rewriter: Rewriter,
    purge_interval: Duration,
}

impl Wasm {
    /// Opens the cache, with what an earlier start left in it. A folder that cannot be used is an error of each fetch, not of the start.
    pub fn bind(config: Config, registry: &Registry, clock: Clock) -> Wasm {
        let metrics = Metrics::new(registry);
        let (purge_interval, nack_on_failure) = (config.purge_interval, config.nack_on_failure);
        let cache = Cache::open(config, clock, metrics.clone());
        let rewriter = Rewriter::new(cache.clone(), metrics, nack_on_failure);
        Wasm { cache, rewriter, purge_interval }
    }

    /// What rewrites ECDS responses.
    pub fn rewriter(&self) -> Rewriter {
        self.rewriter.clone()
    }

    /// Purges and saves until the drain.
    pub async fn run(self, mut drain: Drain) {
        // An interval of 0 is no interval: nothing is purged.
        let purges = !self.purge_interval.is_zero();
        let mut purge = interval(self.purge_interval.max(Duration::from_millis(1)));
        purge.set_missed_tick_behavior(MissedTickBehavior::Delay);
        purge.tick().await;
        loop {
            tokio::select! {
                () = drain.started() => break,
                _ = purge.tick(), if purges => self.cache.purge(),
                () = self.cache.changed() => self.cache.save().await,
            }
        }
        self.cache.save().await;
    }
}

#[cfg(test)]
mod testing;
