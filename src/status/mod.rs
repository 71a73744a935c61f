//! The status port (15020): what kubelet, Prometheus and people touch.
//!
//! `agent` binds it first and closes it last, so that probes and scrapes are answered while Envoy drains. It reads what the other rooms
//! publish and changes nothing: what others may ask for goes to the lifecycle as an event.

mod app;
mod body;
mod control;
mod deadlines;
mod debug;
mod grpc_bootstrap;
mod json;
pub mod merge;
pub mod negotiate;
mod openmetrics;
pub mod probers;
mod ready;
mod routes;
mod scrape;
pub mod targets;

use std::{fmt, io, net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use tokio::sync::{mpsc, watch};

use self::{
    app::Applications, control::Control, debug::Debug, grpc_bootstrap::GrpcBootstrap, ready::Ready, scrape::Scraper,
};
use crate::{
    base::{Drain, Gates, process_start},
    config::{Errors, Role, Vars},
    envoy::{self, Admin, Readiness, readiness},
    net::{
        http1::server::{Limits, Server, Service, serve_one},
        uds,
    },
    telemetry::{metrics::Registry, pages::Pages},
    wires::Event,
};

/// What the status port serves.
#[derive(Debug, Clone)]
pub struct Config {
    port: u16,
    /// Envoy's admin port and how long it may take; `None` without Envoy.
    envoy: Option<(u16, readiness::Limits)>,
    grpc_bootstrap: Option<PathBuf>,
    probes: app::Config,
    scrape: scrape::Config,
    metrics_local_only: bool,
    debug_remote: bool,
    control_socket: Option<PathBuf>,
    profiling: bool,
}

/// What the status port reads and writes of the rest of the agent.
pub struct Sources {
    /// Readiness.
    pub gates: Gates,
    /// The agent's metrics.
    pub registry: Registry,
    /// What the rooms show of themselves.
    pub pages: Pages,
    /// Envoy's process.
    pub envoy: watch::Receiver<envoy::State>,
    /// Where requests to the lifecycle go.
    pub events: mpsc::Sender<Event>,
}

/// The bound port.
pub struct Bound {
    server: Server,
    socket: Option<uds::Listener>,
    status: Arc<Status>,
}

/// Everything that answers.
struct Status {
    config: Config,
    ready: Ready,
    scraper: Scraper,
    applications: Applications,
    control: Control,
    debug: Debug,
}

/// Why the port is not served.
#[derive(Debug)]
pub enum Error {
    /// The port cannot be bound.
    Port(io::Error),
    /// The control socket cannot be bound.
    Socket(uds::Error),
}

impl Config {
    /// `None` where `statusPort` switches the port off.
    ///
    /// # Errors
    /// Every prober and scrape target that cannot be used.
    pub fn from_vars(vars: &Vars) -> Result<Option<Config>, Errors> {
        let mut errors = Errors::default();
        let proxy = vars.proxy();
        let has_envoy = !vars.bool("DISABLE_ENVOY", false);
        let instance_ip = vars.text_or("INSTANCE_IP", "");
        let probers = errors.take(probers::parse(&vars.text_or(probers::VARIABLE, ""))).unwrap_or_default();
        let annotations = vars.text(targets::VARIABLE).filter(|_| vars.role() == Role::Sidecar);
        let targets = annotations.and_then(|text| errors.take(targets::parse(text, proxy.status_port)));
        let stats_port = u16::try_from(vars.int("ENVOY_PROMETHEUS_PORT", 15090)).unwrap_or(0);
        let merge = vars.bool("PILOT_AGENT_MERGE_ENVOY_STATS", true) && has_envoy;
        let legacy_localhost = vars.bool("REWRITE_PROBE_LEGACY_LOCALHOST_DESTINATION", false);
        let bootstrap = vars.text_or("GRPC_XDS_BOOTSTRAP", "./etc/istio/proxy/grpc-bootstrap.json");
        let control_socket = vars.text_or("FOOTMAN_CONTROL_SOCKET", "");
        let config = Config {
            port: proxy.status_port,
            envoy: has_envoy.then(|| (proxy.proxy_admin_port, readiness::Limits::from_vars(vars))),
            grpc_bootstrap: (!bootstrap.is_empty()).then(|| vars.path(&bootstrap)),
            probes: app::Config {
                probers,
                host: if legacy_localhost { "localhost".to_owned() } else { instance_ip.clone() },
                http2: vars.bool("ISTIO_ENABLE_HTTP2_PROBING", true),
                keep_alive: vars.bool("ENABLE_PROBE_KEEPALIVE_CONNECTIONS", false),
                status_port: proxy.status_port,
            },
            scrape: scrape::Config {
                envoy: merge.then_some(stats_port),
                targets: targets.unwrap_or_default(),
                instance_ip,
            },
            metrics_local_only: vars.bool("METRICS_LOCALHOST_ACCESS_ONLY", false),
            debug_remote: vars.bool("FOOTMAN_DEBUG_REMOTE", false),
            control_socket: (!control_socket.is_empty()).then(|| vars.path(&control_socket)),
            profiling: vars.flags().bool("profiling"),
        };
        errors.into_result(Some(config).filter(|config| config.port > 0))
    }
}

impl Bound {
    /// Binds the port on all addresses, and the control socket where one is asked for.
    ///
    /// # Errors
    /// When one of them is taken.
    pub fn bind(config: Config, sources: Sources) -> Result<Bound, Error> {
        let server = Server::bind(config.port).map_err(Error::Port)?;
        let socket = config.control_socket.as_deref().map(|path| uds::bind(path, 0o600)).transpose();
        let envoy =
            config.envoy.map(|(port, limits)| Readiness::new(Admin::new(port), limits).of_runs(sources.envoy.clone()));
        let bootstrap = config.grpc_bootstrap.clone().map(GrpcBootstrap::new);
        let registry = &sources.registry;
        let status = Status {
            ready: Ready::new(envoy, bootstrap, sources.gates, registry, process_start()),
            scraper: Scraper::new(config.scrape.clone(), registry.clone()),
            applications: Applications::new(config.probes.clone()),
            control: Control(sources.events),
            debug: Debug { pages: sources.pages, envoy: sources.envoy, profiling: config.profiling },
            config,
        };
        Ok(Bound { server, socket: socket.map_err(Error::Socket)?, status: Arc::new(status) })
    }

    /// Where the port is.
    ///
    /// # Errors
    /// When the kernel does not say.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.server.address()
    }

    /// Serves until the drain starts.
    pub async fn run(self, drain: Drain) {
        let control: Arc<dyn Service> = Arc::new(self.status.control.clone());
        let socket = async {
            if let Some(socket) = &self.socket {
                serve_socket(socket, control, drain.clone()).await;
            }
        };
        tokio::join!(self.server.run(self.status, drain.clone()), socket);
    }
}

/// How long a silent client may hold the control socket, which serves one at a time.
const CONTROL_IDLE: Duration = Duration::from_secs(5);
/// Pause after a failed accept on the control socket: no descriptor is left for a moment.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Takes control requests, one connection at a time.
async fn serve_socket(socket: &uds::Listener, control: Arc<dyn Service>, mut drain: Drain) {
    let limits = Limits { idle: CONTROL_IDLE, ..Limits::default() };
    loop {
        let accepted = tokio::select! {
            () = drain.started() => return,
            accepted = socket.accept() => accepted,
        };
        match accepted {
            Ok(stream) if control::is_owner(&stream) => {
                serve_one(Box::new(stream), &*control, &limits, drain.clone()).await;
            }
            Ok(_) => log::warn!("control socket {}: a process of another user was refused", socket.path().display()),
            Err(error) => {
                log::warn!("control socket {}: {error}", socket.path().display());
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Port(error) => write!(f, "{error}; is another agent running, or statusPort in use?"),
            Error::Socket(error) => write!(f, "control socket: {error}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Port(error) => Some(error),
            Error::Socket(error) => Some(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::{io::AsyncWriteExt, net::UnixStream};

    use super::*;
    use crate::base::{Trigger, random_u64};

    #[tokio::test(start_paused = true)]
    async fn a_silent_client_does_not_hold_the_control_socket() {
        let path = std::env::temp_dir().join(format!("footman-control-{:x}", random_u64()));
        let socket = uds::bind(&path, 0o600).unwrap();
        let (sender, mut events) = mpsc::channel(1);
        let (_trigger, drain) = Trigger::new();
        let _silent = UnixStream::connect(&path).await.unwrap();
        let mut second = UnixStream::connect(&path).await.unwrap();
        second.write_all(b"POST /quitquitquit HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        tokio::select! {
            () = serve_socket(&socket, Arc::new(Control(sender)), drain) => unreachable!("it serves on"),
            event = tokio::time::timeout(CONTROL_IDLE * 2, events.recv()) => {
                assert!(matches!(event, Ok(Some(Event::Quit))), "{event:?}");
            }
        }
    }
}
