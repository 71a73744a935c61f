//! The secret discovery service: gives Envoy its certificate, its trust roots and every certificate in files, over a Unix socket,
//! and pushes each change.
//!
//! State of the world, delta and unary. Holds no certificate of its own: what there is comes from `secrets` over `watch` channels.
//! Asks no CA and never waits for one: a stream gets what is there, and the rest when it comes.

mod config;
mod inbox;
mod metrics;
mod names;
mod probe;
mod resource;
mod response;
mod service;
mod shelf;
mod stream;
mod subscription;

#[cfg(test)]
mod tests;

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tokio::{sync::watch, time::Instant};

pub use config::Config;
pub use probe::{ProbeError, is_served};
pub use subscription::{Subscription, Taken};

use crate::{
    base::{Clock, Drain},
    grpc::{self, Settings},
    net::{files::Watcher, uds},
    secrets::{Files, Table},
    telemetry::metrics::Registry,
    wires::Snapshot,
};
use metrics::Metrics;
use names::Name;
use shelf::Shelf;
use subscription::Place;

/// Streams on one connection, as in Istio.
const MAX_STREAMS: u32 = 100_000;
/// Requests are small; a first one with a large node is taken in several windows.
const STREAM_WINDOW: u32 = 64 * 1024;
/// The last revision: streams are to end.
const ENDING: u64 = u64::MAX;
/// The pace at which a server is looked for that must come.
const LOOK: Duration = Duration::from_millis(200);

/// Who serves the workload socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// The agent.
    Own,
    /// Somebody else (SPIRE): the agent serves files, on a socket of its own, and asks no CA.
    Foreign,
}

/// Why SDS cannot start.
#[derive(Debug)]
pub enum Error {
    /// The workload socket is to be served by somebody else, and is not.
    NotServed(PathBuf),
    /// A dead socket is in the way.
    Probe(ProbeError),
    /// The socket cannot be made.
    Bind(uds::Error),
}

/// What `secrets` has.
pub struct Sources {
    /// The identity.
    pub identity: watch::Receiver<Snapshot>,
    /// Files.
    pub files: Files,
    /// Whether an authority signs certificates, so that waiting for one makes sense.
    pub has_authority: bool,
}

/// The bound service.
pub struct Sds {
    listener: uds::Listener,
    shared: Arc<Shared>,
    identity: watch::Receiver<Snapshot>,
    table: watch::Receiver<Table>,
    crl: Option<PathBuf>,
}

/// What all streams share.
struct Shared {
    shelf: Shelf,
    files: Files,
    system_roots: Option<PathBuf>,
    /// Counts up whenever there may be something to send; [`ENDING`] at the end.
    revision: watch::Sender<u64>,
    metrics: Metrics,
}

/// Finds out who serves the workload socket, and waits for somebody who must. Removes a dead one.
///
/// # Errors
/// When it must be served by somebody else and is not, or a dead one cannot be removed.
pub async fn mode(config: &Config) -> Result<Mode, Error> {
    let served = match config.foreign {
        Some(wait) => appears(&config.workload, wait).await,
        None => is_served(&config.workload).await.map_err(Error::Probe)?,
    };
    if served {
        log::info!(target: "sds", "{} is served already: serving files only, on {}", config.workload.display(), config.files.display());
        Ok(Mode::Foreign)
    } else if config.foreign.is_some() {
        Err(Error::NotServed(config.workload.clone()))
    } else {
        Ok(Mode::Own)
    }
}

/// Whether somebody else serves the workload socket, or has to. Waits for nobody and removes nothing.
pub async fn is_foreign(config: &Config) -> bool {
    config.foreign.is_some() || probe::answers(&config.workload).await
}

/// Whether a server comes to a socket in time.
async fn appears(path: &Path, wait: Duration) -> bool {
    let give_up = Instant::now() + wait;
    let mut watcher = Watcher::new([path]);
    while !probe::answers(path).await {
        if Instant::now() >= give_up {
            return false;
        }
        log::debug!(target: "sds", "no SDS server at {} yet", path.display());
        // A socket is there before it is served: look again soon, events or not.
        let _ = tokio::time::timeout(LOOK, watcher.changed()).await;
    }
    true
}

impl Sds {
    /// Binds the socket that belongs to `mode`.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn bind(config: Config, mode: Mode, sources: Sources, registry: &Registry, clock: Clock) -> Result<Sds, Error> {
        let path = match mode {
            Mode::Own => &config.workload,
            Mode::Foreign => &config.files,
        };
        let listener = uds::bind(path, config.mode).map_err(Error::Bind)?;
        let table = sources.files.table();
        let shelf = Shelf::new(
            sources.identity.clone(),
            table.clone(),
            sources.has_authority,
            (config.provider, config.crl.clone()),
            clock,
        );
        let shared = Shared {
            shelf,
            files: sources.files,
            system_roots: config.system_roots,
            revision: watch::Sender::new(0),
            metrics: Metrics::new(registry),
        };
        Ok(Sds { listener, shared: Arc::new(shared), identity: sources.identity, table, crl: config.crl })
    }

    /// Where it is served.
    pub fn path(&self) -> &Path {
        self.listener.path()
    }

    /// Serves until `drain` starts.
    pub async fn run(self, drain: Drain) {
        // Both ends of a Unix socket notice when the other one is gone; an Envoy under a debugger is no dead one.
        let settings =
            Settings { max_streams: MAX_STREAMS, stream_window: STREAM_WINDOW, keepalive: None, ..Settings::default() };
        let service = service::Secrets { shared: Arc::clone(&self.shared) };
        let serving = grpc::listen(self.listener, Arc::new(service), settings, drain.clone());
        tokio::join!(serving, announce(self.shared, (self.identity, self.table), self.crl, drain));
    }
}

/// Tells the streams whenever there may be news, drops secrets that are no longer current, and ends the streams at last.
async fn announce(
    shared: Arc<Shared>,
    (mut identity, mut table): (watch::Receiver<Snapshot>, watch::Receiver<Table>),
    crl: Option<PathBuf>,
    mut drain: Drain,
) {
    let mut watcher = Watcher::new(crl.iter());
    loop {
        shared.shelf.set_crl(crl.as_ref().is_some_and(|path| path.exists()));
        shared.shelf.sweep(|text| shared.parse(text));
        shared.revision.send_modify(|revision| *revision += 1);
        tokio::select! {
            Ok(()) = identity.changed() => {}
            Ok(()) = table.changed() => {}
            // Without a watch its appearance shows by time stamps.
            _ = watcher.changed(), if crl.is_some() => {}
            () = drain.started() => break,
        }
    }
    shared.revision.send_replace(ENDING);
}

impl Shared {
    fn parse(&self, text: &str) -> Option<Name> {
        Name::parse(text, self.system_roots.as_deref())
    }

    /// What a name means, with its files read.
    async fn place(&self, text: &str) -> Place {
        match self.parse(text) {
            None => Place::Unknown,
            Some(Name::File(source)) => match self.files.lease(source.clone()).await {
                Some(lease) => Place::Known { name: Name::File(source), _lease: Some(lease) },
                None => Place::Refused,
            },
            Some(name) => Place::Known { name, _lease: None },
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // Istio's words: people search for them.
            Error::NotServed(path) => {
                write!(f, "agent configured for non-default SDS socket path: {} but no socket found", path.display())
            }
            Error::Probe(error) => error.fmt(f),
            Error::Bind(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::NotServed(_) => None,
            Error::Probe(error) => error.source(),
            Error::Bind(error) => error.source(),
        }
    }
}
