//! The composition root: every room is configured, bound and wired to the others here, and nowhere else.
//!
//! `cli` calls [`Config::from_vars`], [`build`] and [`Bound::run`]. Channels are made in [`House::new`], rooms are started by one
//! function each in [`rooms`], in the order in which [`build`] lists them; they close in the order of [`Stage`]. What happens to
//! the agent as a whole is decided by [`lifecycle`] and carried out by [`supervise`].

mod house;
pub mod lifecycle;
mod rooms;
mod signals;
mod supervise;
mod tasks;

use std::{
    fmt,
    os::unix::fs::chown,
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::sync::{mpsc, watch};

pub use house::House;
pub use signals::Signals;
pub use tasks::{Stage, Tasks};

use crate::{
    base::apart,
    bootstrap::{self, Surroundings, platform},
    config::{Errors, Origin, Role, Vars},
    envoy::{self, Admin, guard::Waiting},
    process, sds,
};
use lifecycle::{Plan, Wait};
use supervise::Supervisor;

/// Where a credential server beside a gateway answers; istiod is told whether one does.
const CREDENTIAL_SOCKET: &str = "./var/run/secrets/credential-uds/socket";

/// Everything the agent was told, ready to be bound.
#[derive(Debug)]
pub struct Config {
    plan: Plan,
    envoy: Box<envoy::Config>,
    bootstrap: Box<bootstrap::Config>,
    platform: Box<platform::Config>,
    credential_socket: PathBuf,
    admin_port: u16,
    own_ports: Vec<u16>,
    rooms: rooms::Config,
}

/// Why the agent could not start: a room's error, with the room's name.
#[derive(Debug)]
pub struct Error {
    room: &'static str,
    source: Box<dyn std::error::Error + Send + Sync>,
}

/// An agent whose sockets are bound and whose rooms run; Envoy is not started yet.
pub struct Bound {
    house: House,
    supervisor: Supervisor,
}

impl Config {
    /// Every room's configuration.
    ///
    /// # Errors
    /// Everything that is wrong in any room; the way to the CA apart, if that is all: see [`faults`](Config::faults).
    pub fn from_vars(vars: &Vars) -> Result<Config, Errors> {
        let mut errors = Errors::default();
        let plan = plan(vars, &mut errors);
        let rooms = errors.take(rooms::Config::from_vars(vars));
        let envoy = boxed(&mut errors, || envoy::Config::from_vars(vars).map(Some));
        let bootstrap = boxed(&mut errors, || bootstrap::Config::from_vars(vars).map(Some));
        let platform = boxed(&mut errors, || platform::Config::from_vars(vars).map(Some));
        let (Some(rooms), Some(mut envoy), Some(bootstrap), Some(platform)) = (rooms, envoy, bootstrap, platform)
        else {
            return Err(errors);
        };
        if !errors.0.is_empty() {
            errors.append(rooms.faults.clone());
        }
        envoy.args = bootstrap::envoy_args(&bootstrap, &bootstrap.file()).into_iter().map(Into::into).collect();
        let (admin_port, own_ports) = (vars.proxy().proxy_admin_port, own_ports(vars));
        let credential_socket = vars.path(CREDENTIAL_SOCKET);
        errors.into_result(Config { plan, envoy, bootstrap, platform, credential_socket, admin_port, own_ports, rooms })
    }

    /// What is wrong with the way to the CA; nothing where somebody else serves the workload's identity, for then no CA is asked.
    pub async fn faults(&self) -> Errors {
        self.rooms.faults().await
    }

    /// What Envoy will be started with.
    pub fn bootstrap(&self) -> &bootstrap::Config {
        &self.bootstrap
    }
}

/// A room's configuration, on the heap: ten of them on the stack, some twice, would stay touched memory for good.
#[inline(never)]
fn boxed<T>(errors: &mut Errors, make: impl FnOnce() -> Result<Option<T>, Errors>) -> Option<Box<T>> {
    errors.take(make()).flatten().map(Box::new)
}

/// Binds everything and starts every room but Envoy, in this order.
///
/// # Errors
/// The first room that cannot start.
pub async fn build(config: Config) -> Result<Bound, Error> {
    let mut envoy = config.envoy;
    envoy.open_files = process::raise_open_files();
    // Beside the rooms, so that Envoy need not wait for its guard. What keeps it from starting is told when Envoy is to start.
    let waiting =
        envoy.guard.as_ref().filter(|_| config.plan.envoy).and_then(|guard| Waiting::start(guard, &envoy).ok());
    let (events, received) = mpsc::channel(House::EVENTS);
    let (state, seen) = watch::channel(envoy::State::default());
    let mut house = House::new(events, seen);
    let server = house.gates.gate("server", "starting");
    // The cloud is asked while the rooms start; where nothing answers it takes no longer than they do.
    let (started, platform) =
        tokio::join!(apart(|| rooms::start(&mut house, config.rooms)), apart(|| platform::detect(&config.platform)));
    let started = started?;
    let around = Surroundings {
        platform,
        external_sds: started.mode == sds::Mode::Foreign,
        credential_socket: sds::is_served(&config.credential_socket).await.map_err(|error| Error::new("SDS", error))?,
    };
    if config.plan.envoy {
        configure(&mut envoy, &config.bootstrap, &around)?;
    } else {
        bootstrap::write_grpc(&config.bootstrap, &around).map_err(|error| Error::new("bootstrap", error))?;
    }
    server.open();
    let supervisor = Supervisor {
        plan: config.plan,
        envoy,
        waiting,
        farewell: started.farewell,
        admin: Admin::new(config.admin_port),
        own_ports: config.own_ports,
        events: received,
        server,
        state,
    };
    Ok(Bound { house, supervisor })
}

/// Writes the bootstrap for Envoy.
fn configure(envoy: &mut envoy::Config, config: &bootstrap::Config, around: &Surroundings) -> Result<(), Error> {
    let written = bootstrap::write(config, around).map_err(|error| Error::new("bootstrap", error))?;
    if let Some((uid, gid)) = envoy.user.filter(|_| written.is_generated) {
        // Written for its owner alone, and Envoy is another user: the file and its folder become Envoy's.
        let folder = written.path.parent().unwrap_or(Path::new("."));
        for path in written.files.iter().map(PathBuf::as_path).chain([folder]) {
            chown(path, Some(uid), Some(gid)).map_err(|error| Error::new("bootstrap", error))?;
        }
    }
    envoy.bootstrap = written.is_generated.then_some(written.path);
    Ok(())
}

impl Bound {
    /// Starts Envoy and runs until the end; the agent's exit code. Envoy is gone and every room is closed when it returns.
    pub async fn run(self, signals: &mut Signals) -> u8 {
        let code = self.supervisor.run(signals).await;
        self.house.tasks.close().await;
        log::info!("Agent has successfully terminated");
        code
    }
}

impl Error {
    /// What `room` says, with its name in front.
    pub fn new(room: &'static str, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
        Error { room, source: source.into() }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.room, self.source)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&*self.source)
    }
}

fn plan(vars: &Vars, errors: &mut Errors) -> Plan {
    let proxy = vars.proxy();
    let drain = proxy.termination_drain_duration.unwrap_or_default();
    let explicit = vars.proxy_origin("terminationDrainDuration") != Origin::Default;
    let minimum = vars.duration("MINIMUM_DRAIN_DURATION", Duration::from_secs(5));
    let wait = if vars.bool("EXIT_ON_ZERO_ACTIVE_CONNECTIONS", false) {
        Wait::Connections { minimum, limit: explicit.then_some(drain) }
    } else {
        Wait::Fixed(drain)
    };
    let restart = match vars.text_or("FOOTMAN_RESTART_ENVOY", "never").as_str() {
        "never" => false,
        "on-failure" => true,
        other => {
            errors.add("FOOTMAN_RESTART_ENVOY", format!("{other:?} is neither never nor on-failure"));
            false
        }
    };
    Plan {
        envoy: !vars.bool("DISABLE_ENVOY", false),
        inbound_only: vars.role() == Role::Sidecar,
        wait,
        pre_drain: vars.duration("FOOTMAN_PRE_DRAIN_DELAY", Duration::ZERO),
        farewell: vars.bool("FOOTMAN_UNHEALTHY_ON_DRAIN", false) && proxy.readiness_probe.is_some(),
        force_on_signal: u32::try_from(vars.count("FOOTMAN_FORCE_ON_SIGNAL", 0)).ok().filter(|count| *count > 0),
        restart,
    }
}

/// Listeners of Envoy that serve probes and scrapes.
fn own_ports(vars: &Vars) -> Vec<u16> {
    [
        ("ENVOY_STATUS_PORT", 15021),
        ("ENVOY_PROMETHEUS_PORT", 15090),
        ("ENVOY_SECURE_METRICS_PORT", 0),
        ("ENVOY_SECURE_MERGED_METRICS_PORT", 0),
    ]
    .into_iter()
    .filter_map(|(name, default)| u16::try_from(vars.int(name, default)).ok())
    .filter(|port| *port != 0)
    .collect()
}
