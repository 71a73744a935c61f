//! Whether Envoy can take traffic: its first clusters and listeners have come, it is live, its workers run (Istio's readiness probe).
//!
//! Called by `status` for the kubelet and by `health` on VMs. Each stage is asked until it has passed once and never again: a busy
//! admin port must not make the pod flap. Only another run of Envoy (`FOOTMAN_RESTART_ENVOY`) begins anew, see [`Readiness::of_runs`].

use std::{
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
    time::Duration,
};

use tokio::{
    sync::{Mutex, watch},
    time::Instant,
};

use super::{Admin, State};
use crate::config::Vars;

const CONFIGURED: &str =
    "/stats?usedonly&filter=^(cluster_manager\\.cds|listener_manager\\.lds)\\.(update_success|update_rejected)$";
const LIVE: &str = "/stats?usedonly&filter=^(server\\.state|listener_manager\\.workers_started)";

/// Asks Envoy's admin port until both stages have passed.
#[derive(Debug)]
pub struct Readiness {
    admin: Admin,
    limits: Limits,
    configured: AtomicBool,
    live: AtomicBool,
    /// The last failed check, for those that waited while it ran: one question at a time, however many ask.
    last: Mutex<Option<(Instant, String)>>,
    /// The runs of Envoy, and the one that the stages are about.
    runs: Option<watch::Receiver<State>>,
    run: AtomicU32,
}

/// How long the admin port may take to answer.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Whether configuration has come; Istio's 1 s.
    pub configured: Duration,
    /// Whether the server is live; Istio's 3 s.
    pub live: Duration,
}

impl Limits {
    /// `FOOTMAN_READINESS_TIMEOUT`, one value for both questions.
    pub fn from_vars(vars: &Vars) -> Limits {
        let standard = Limits::default();
        let first = vars.duration("FOOTMAN_READINESS_TIMEOUT", standard.configured);
        Limits { configured: first, live: first.max(standard.live) }
    }
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { configured: Duration::from_secs(1), live: Duration::from_secs(3) }
    }
}

impl Readiness {
    /// Nothing has passed yet.
    pub fn new(admin: Admin, limits: Limits) -> Readiness {
        Readiness {
            admin,
            limits,
            configured: AtomicBool::new(false),
            live: AtomicBool::new(false),
            last: Mutex::new(None),
            runs: None,
            run: AtomicU32::new(1),
        }
    }

    /// Follows the runs of Envoy: not ready between two of them, and asked anew in each.
    #[must_use]
    pub fn of_runs(self, runs: watch::Receiver<State>) -> Readiness {
        Readiness { runs: Some(runs), ..self }
    }

    /// Succeeds from the moment on when Envoy can take traffic.
    ///
    /// # Errors
    /// What it still waits for, in Istio's words.
    pub async fn check(&self) -> Result<(), String> {
        let asked = Instant::now();
        self.follow()?;
        if self.is_ready() {
            return Ok(());
        }
        let mut last = self.last.lock().await;
        if let Some((begun, reason)) = &*last
            && *begun >= asked
        {
            return Err(reason.clone());
        }
        let begun = Instant::now();
        let checked = self.ask().await;
        *last = checked.as_ref().err().map(|reason| (begun, reason.clone()));
        checked
    }

    /// Whether both stages have passed.
    pub fn is_ready(&self) -> bool {
        self.configured.load(Ordering::Relaxed) && self.live.load(Ordering::Relaxed)
    }

    fn follow(&self) -> Result<(), String> {
        let Some(runs) = &self.runs else { return Ok(()) };
        let state = runs.borrow();
        if state.starts > self.run.load(Ordering::Relaxed) {
            self.run.store(state.starts, Ordering::Relaxed);
            self.configured.store(false, Ordering::Relaxed);
            self.live.store(false, Ordering::Relaxed);
        }
        match &state.last_exit {
            Some(exit) if state.running.is_none() => Err(format!("Envoy is not running: {exit}")),
            _ => Ok(()),
        }
    }

    async fn ask(&self) -> Result<(), String> {
        if !self.configured.load(Ordering::Relaxed) {
            has_configuration(&self.stats(CONFIGURED, self.limits.configured).await?)?;
            self.configured.store(true, Ordering::Relaxed);
        }
        if !self.live.load(Ordering::Relaxed) {
            let stats = self.stats(LIVE, self.limits.live).await;
            is_live(&stats.map_err(|error| format!("failed to get readiness stats: {error}"))?)?;
            self.live.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    async fn stats(&self, path: &str, limit: Duration) -> Result<String, String> {
        match self.admin.get(path, limit).await {
            Ok((200, body)) => Ok(body),
            Ok((status, _)) => Err(format!("unexpected status {status}")),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// First stage, of `/stats` text: clusters and listeners were taken at least once.
///
/// # Errors
/// Istio's words for what is missing.
pub fn has_configuration(stats: &str) -> Result<(), String> {
    let counter = |name| stat(stats, name).map(Option::unwrap_or_default);
    let cds_taken = counter("cluster_manager.cds.update_success")?;
    let cds_refused = counter("cluster_manager.cds.update_rejected")?;
    let lds_taken = counter("listener_manager.lds.update_success")?;
    let lds_refused = counter("listener_manager.lds.update_rejected")?;
    let what = match (cds_taken > 0, lds_taken > 0) {
        (true, true) => return Ok(()),
        (false, false) => "config not received from XDS server (is Istiod running?)",
        _ if cds_refused + lds_refused > 0 => "config received from XDS server, but was rejected",
        _ => "config not fully received from XDS server",
    };
    Err(format!(
        "{what}: cds updates: {cds_taken} successful, {cds_refused} rejected; \
         lds updates: {lds_taken} successful, {lds_refused} rejected"
    ))
}

/// Second stage, of `/stats` text: the server is live and its workers run.
///
/// # Errors
/// Istio's words for what is missing.
pub fn is_live(stats: &str) -> Result<(), String> {
    let needed = |name: &str| {
        let missing = || format!("failed to get readiness stats: {name} is not yet updated: {stats}");
        stat(stats, name)?.ok_or_else(missing)
    };
    let (state, workers) = (needed("server.state")?, needed("listener_manager.workers_started")?);
    match state {
        0 if workers == 1 => return Ok(()),
        0 => return Err("workers have not yet started".to_owned()),
        _ => {}
    }
    // envoy.admin.v3.ServerInfo.State
    let name = ["LIVE", "DRAINING", "PRE_INITIALIZING", "INITIALIZING"];
    let name = usize::try_from(state).ok().and_then(|state| name.get(state)).copied().unwrap_or("UNKNOWN");
    Err(format!("server is not live, current state is: {name}"))
}

/// The value of the first line that begins with `name`; `None` when there is none.
fn stat(stats: &str, name: &str) -> Result<Option<u64>, String> {
    let Some(line) = stats.lines().find(|line| line.starts_with(name)) else { return Ok(None) };
    let mut parts = line.split(':');
    match (parts.next(), parts.next().map(|value| value.trim().parse()), parts.next()) {
        (_, Some(Ok(value)), None) => Ok(Some(value)),
        _ => Err(format!("envoy stat {line:?} is not \"name: number\"")),
    }
}

#[cfg(test)]
mod tests {
    use std::{os::unix::process::ExitStatusExt, process::ExitStatus, time::SystemTime};

    use super::*;
    use crate::envoy::Exit;

    #[tokio::test]
    async fn another_run_of_envoy_is_asked_anew() {
        let (state, runs) = watch::channel(State::default());
        // Nobody listens on port 1: whoever is asked is not ready.
        let readiness = Readiness::new(Admin::new(1), Limits::default()).of_runs(runs);
        state.send_modify(|state| state.started(7, SystemTime::UNIX_EPOCH));
        readiness.configured.store(true, Ordering::Relaxed);
        readiness.live.store(true, Ordering::Relaxed);
        assert_eq!(readiness.check().await, Ok(()), "asked once and never again");
        state.send_modify(|state| state.exited(&Exit::Status(ExitStatus::from_raw(1 << 8))));
        assert_eq!(readiness.check().await, Err("Envoy is not running: exit status 1".to_owned()));
        state.send_modify(|state| state.started(8, SystemTime::UNIX_EPOCH));
        assert!(readiness.check().await.is_err_and(|reason| reason.contains(":1: ")));
    }

    #[test]
    fn configuration_has_come() {
        let counts = |cds: (u64, u64), lds: (u64, u64)| {
            has_configuration(&format!(
                "cluster_manager.cds.update_rejected: {}\ncluster_manager.cds.update_success: {}\n\
                 listener_manager.lds.update_rejected: {}\r\nlistener_manager.lds.update_success:  {} \n",
                cds.1, cds.0, lds.1, lds.0
            ))
        };
        assert_eq!(counts((1, 0), (1, 7)), Ok(()));
        let tail = |cds, lds| format!(": cds updates: {cds}; lds updates: {lds}");
        let none = "0 successful, 0 rejected";
        for (cds, lds, text) in [
            ((0, 0), (1, 0), "config not fully received from XDS server"),
            ((1, 0), (0, 0), "config not fully received from XDS server"),
            ((0, 1), (1, 0), "config received from XDS server, but was rejected"),
            ((0, 1), (0, 1), "config not received from XDS server (is Istiod running?)"),
        ] {
            let numbers = |(taken, refused)| format!("{taken} successful, {refused} rejected");
            assert_eq!(counts(cds, lds), Err(format!("{text}{}", tail(numbers(cds), numbers(lds)))));
        }
        let empty = has_configuration("").unwrap_err();
        assert!(empty.ends_with(&tail(none.to_owned(), none.to_owned())), "{empty}");
    }

    #[test]
    fn server_is_live() {
        let live = |state: &str, workers: &str| {
            is_live(&format!("listener_manager.workers_started: {workers}\nserver.state: {state}\n"))
        };
        assert_eq!(live("0", "1"), Ok(()));
        assert_eq!(live("0", "0").unwrap_err(), "workers have not yet started");
        for (state, name) in [("1", "DRAINING"), ("2", "PRE_INITIALIZING"), ("3", "INITIALIZING"), ("9", "UNKNOWN")] {
            assert_eq!(live(state, "1").unwrap_err(), format!("server is not live, current state is: {name}"));
        }
        for (state, workers) in [("x", "1"), ("0: 1", "1"), ("", "1"), ("-1", "1"), ("0", "1.0")] {
            assert!(live(state, workers).is_err(), "{state} {workers}");
        }
        let missing = is_live("server.state: 0\n").unwrap_err();
        assert_eq!(
            missing,
            "failed to get readiness stats: listener_manager.workers_started is not yet updated: server.state: 0\n"
        );
        assert!(is_live("").unwrap_err().contains("server.state is not yet updated"));
        assert!(is_live("server.state 0\nlistener_manager.workers_started: 1\n").is_err());
    }
}
