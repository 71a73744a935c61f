//! Health of the application beside a proxy on a VM: checked as `readinessProbe` says, reported to istiod by `xds`.
//!
//! `agent` starts it where the configuration has such a probe. Publishes one value at the first decision and one at each change; never
//! talks to istiod itself.

mod check;
mod thresholds;

use std::time::Duration;

use tokio::{
    sync::watch,
    time::{MissedTickBehavior, interval_at, sleep},
};

use self::{check::Check, thresholds::Thresholds};
use crate::{
    base::Drain,
    config::{Errors, ReadinessProbe, Vars},
    envoy::{Admin, Readiness, readiness::Limits},
    wires::{AppHealth, Told},
};

/// What is checked, and how often.
#[derive(Debug, Clone)]
pub struct Config {
    initial_delay: Duration,
    period: Duration,
    thresholds: Thresholds,
    check: Check,
    /// Envoy's admin port, which has to be content before the application is asked, and how long it may take; `None` without Envoy.
    envoy: Option<(u16, Limits)>,
}

/// The checker.
pub struct Health {
    config: Config,
    envoy: Option<Readiness>,
    published: watch::Sender<Option<AppHealth>>,
}

impl Config {
    /// `None` without a `readinessProbe`. A probe that cannot work is no error: it makes the workload unhealthy, with the reason.
    ///
    /// # Errors
    /// None so far.
    pub fn from_vars(vars: &Vars) -> Result<Option<Config>, Errors> {
        let Some(probe) = &vars.proxy().readiness_probe else { return Ok(None) };
        let legacy_localhost = vars.bool("REWRITE_PROBE_LEGACY_LOCALHOST_DESTINATION", false);
        let address = vars.ip_addresses().first().filter(|_| !legacy_localhost);
        let host = address.map_or_else(|| "localhost".to_owned(), ToString::to_string);
        let envoy =
            (!vars.bool("DISABLE_ENVOY", false)).then(|| (vars.proxy().proxy_admin_port, Limits::from_vars(vars)));
        Ok(Some(Config::new(probe, &host, envoy)))
    }

    fn new(probe: &ReadinessProbe, host: &str, envoy: Option<(u16, Limits)>) -> Config {
        let or = |value: i64, default: u64| u64::try_from(value).ok().filter(|value| *value > 0).unwrap_or(default);
        let seconds = |value, default| Duration::from_secs(or(value, default));
        Config {
            initial_delay: seconds(probe.initial_delay_seconds, 0),
            period: seconds(probe.period_seconds, 10),
            thresholds: Thresholds::new(or(probe.success_threshold, 1), or(probe.failure_threshold, 1)),
            check: Check::new(probe.check.as_ref(), host, seconds(probe.timeout_seconds, 1)),
            envoy,
        }
    }
}

/// Reports the workload as unhealthy before its proxy drains (`FOOTMAN_UNHEALTHY_ON_DRAIN`).
#[derive(Debug, Clone)]
pub struct Farewell(watch::Sender<Option<AppHealth>>);

impl Farewell {
    /// Until istiod has been told.
    pub async fn tell(&self) {
        let told = Told::default();
        self.0.send_replace(Some(AppHealth::Leaving(told.clone())));
        told.wait().await;
    }
}

impl Health {
    /// What has the last word; nothing that this checker finds is reported after it.
    pub fn farewell(&self) -> Farewell {
        Farewell(self.published.clone())
    }

    /// A checker that publishes on `published`.
    pub fn new(config: Config, published: watch::Sender<Option<AppHealth>>) -> Health {
        let envoy = config.envoy.map(|(port, limits)| Readiness::new(Admin::new(port), limits));
        Health { config, envoy, published }
    }

    /// Checks until the drain starts. A check that takes longer than the period delays the next one; checks never overlap.
    pub async fn run(mut self, mut drain: Drain) {
        tokio::select! {
            () = drain.started() => {}
            () = self.check_for_ever() => {}
        }
    }

    async fn check_for_ever(&mut self) {
        sleep(self.config.initial_delay).await;
        let mut ticks = interval_at(tokio::time::Instant::now(), self.config.period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            ticks.tick().await;
            let outcome = self.check().await;
            let Some(health) = self.config.thresholds.observe(outcome) else { continue };
            match &health {
                AppHealth::Healthy => log::info!(target: "healthcheck", "the application is healthy"),
                AppHealth::Unhealthy(reason) => {
                    log::warn!(target: "healthcheck", "the application is unhealthy: {reason}");
                }
                AppHealth::Leaving(_) => {}
            }
            self.published.send_if_modified(|current| {
                let stays = !matches!(current, Some(AppHealth::Leaving(_)));
                if stays {
                    *current = Some(health);
                }
                stays
            });
        }
    }

    /// Envoy first, then the application.
    async fn check(&self) -> Result<(), String> {
        if let Some(envoy) = &self.envoy {
            envoy.check().await?;
        }
        self.config.check.run().await
    }
}

#[cfg(test)]
mod tests;
