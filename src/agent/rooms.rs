//! Starts every room: one function each, which binds the room, hands it its ends of the channels and spawns its tasks.

use std::sync::Arc;

use tokio::sync::watch;

use super::{Error, House, Stage, boxed};
use crate::{
    base::{BoxFuture, Clock, apart},
    config::{Errors, Vars},
    dns,
    health::{self, Farewell, Health},
    istiod::{self, Istiod},
    process, sds,
    secrets::{self, Secrets},
    status,
    wasm::{self, Wasm},
    wires::{
        NamesReceiver, TrustBundle,
        ecds::{Rewritten, Update},
        names,
    },
    xds::{self, Xds},
};

/// Trust anchors as istiod announces them over xDS.
type Anchors = watch::Receiver<Option<Arc<TrustBundle>>>;

/// Every room's own configuration.
#[derive(Debug)]
pub(super) struct Config {
    /// `None` where statusPort is 0.
    status: Option<Box<status::Config>>,
    dns: Option<Box<dns::Config>>,
    /// The way to configuration.
    istiod: Box<istiod::Config>,
    secrets: Box<secrets::Config>,
    /// What is wrong with the way to the CA.
    pub(super) faults: Errors,
    /// `None` without Envoy, which is who asks for secrets.
    sds: Option<Box<sds::Config>>,
    xds: Box<xds::Config>,
    /// istiod is asked for trust anchors.
    anchors: bool,
    /// `None` where no workload probe is configured.
    health: Option<Box<health::Config>>,
    /// `None` when Envoy is to fetch Wasm plugins by itself.
    wasm: Option<Box<wasm::Config>>,
}

impl Config {
    /// # Errors
    /// Everything that is wrong in any room.
    pub(super) fn from_vars(vars: &Vars) -> Result<Config, Errors> {
        let mut errors = Errors::default();
        let status = boxed(&mut errors, || status::Config::from_vars(vars));
        let dns = boxed(&mut errors, || dns::Config::from_vars(vars));
        let istiod = boxed(&mut errors, || istiod::Config::for_discovery(vars).map(Some));
        let mut secrets = boxed(&mut errors, || secrets::Config::from_vars(vars).map(Some));
        let sds = boxed(&mut errors, || sds::Config::from_vars(vars).map(Some));
        let sds = sds.filter(|_| !vars.bool("DISABLE_ENVOY", false));
        let xds = boxed(&mut errors, || xds::Config::from_vars(vars).map(Some));
        let health = boxed(&mut errors, || health::Config::from_vars(vars));
        let anchors = vars.bool("PROXY_CONFIG_XDS_AGENT", false);
        let wasm = boxed(&mut errors, || wasm::Config::from_vars(vars).map(Some)).filter(|config| config.enabled);
        let faults = secrets.as_mut().map(|secrets| std::mem::take(&mut secrets.faults)).unwrap_or_default();
        if !errors.0.is_empty() {
            errors.append(faults.clone());
        }
        match (istiod, secrets, xds) {
            (Some(istiod), Some(secrets), Some(xds)) => {
                errors.into_result(Config { status, dns, istiod, secrets, faults, sds, xds, anchors, health, wasm })
            }
            _ => Err(errors),
        }
    }

    /// What is wrong with the way to the CA; nothing where somebody else serves the identity.
    pub(super) async fn faults(&self) -> Errors {
        match &self.sds {
            Some(sds) if !self.faults.0.is_empty() && sds::is_foreign(sds).await => Errors::default(),
            _ => self.faults.clone(),
        }
    }
}

/// What whoever starts the rooms needs to know of them.
pub(super) struct Started {
    /// Whether the workload's identity is the agent's own to serve.
    pub(super) mode: sds::Mode,
    /// Tells istiod that the workload is leaving; `None` where its health is not reported.
    pub(super) farewell: Option<Farewell>,
}

/// In the order of their start.
///
/// # Errors
/// The first room that cannot start.
pub(super) async fn start(house: &mut House, config: Config) -> Result<Started, Error> {
    reaper(house);
    if let Some(config) = config.status {
        status(house, *config)?;
    }
    let (publisher, names) = names::channel();
    let served = config.dns.is_some();
    if let Some(config) = config.dns {
        apart(|| dns(house, *config, names)).await?;
    }
    let istiod = Istiod::new(*config.istiod);
    let (publisher_of_anchors, anchors) = watch::channel(None);
    let mode = apart(|| identity(house, config.secrets, config.sds, &istiod, anchors)).await?;
    if mode == sds::Mode::Own && !config.faults.0.is_empty() {
        // Whoever served it when the configuration was read has gone.
        return Err(Error::new("secrets", config.faults));
    }
    let (publisher_of_health, health) = watch::channel(None);
    let links = xds::Links {
        istiod,
        names: served.then_some(publisher),
        anchors: config.anchors.then_some(publisher_of_anchors),
        rewrite: config.wasm.map(|config| wasm(house, *config)),
        health,
        gate: house.gates.gate("istiod", ""),
        registry: house.registry.clone(),
    };
    xds(house, &config.xds, links)?;
    let checker = config.health.map(|config| Health::new(*config, publisher_of_health));
    let farewell = checker.as_ref().map(Health::farewell);
    if let Some(checker) = checker {
        house.tasks.spawn(Stage::Xds, "health", move |drain| checker.run(drain));
    }
    Ok(Started { mode, farewell })
}

/// The status port: first, so that probes are answered from the beginning.
fn status(house: &mut House, config: status::Config) -> Result<(), Error> {
    let sources = status::Sources {
        gates: house.gates.clone(),
        registry: house.registry.clone(),
        pages: house.pages.clone(),
        envoy: house.envoy.clone(),
        events: house.events.clone(),
    };
    let bound = status::Bound::bind(config, sources).map_err(|error| Error::new("status", error))?;
    house.tasks.spawn(Stage::Status, "status", move |drain| bound.run(drain));
    Ok(())
}

/// Local DNS: first of all, for everything else in the pod needs names.
async fn dns(house: &mut House, config: dns::Config, names: NamesReceiver) -> Result<(), Error> {
    let gate = house.gates.gate("dns", "no table yet");
    let room = dns::Dns::bind(config, names, &house.registry, gate).await.map_err(|error| Error::new("dns", error))?;
    let (summary, table) = (room.names(), room.names());
    house.pages.add("dns", move || summary.summary());
    house.pages.add_document("ndsz", move || table.ndsz());
    house.tasks.spawn(Stage::Dns, "dns", move |drain| room.run(drain));
    Ok(())
}

/// Certificates, and the socket where Envoy asks for them. Where somebody else serves that socket, no CA is asked.
async fn identity(
    house: &mut House,
    config: Box<secrets::Config>,
    sds: Option<Box<sds::Config>>,
    istiod: &Istiod,
    anchors: Anchors,
) -> Result<sds::Mode, Error> {
    let mode = match &sds {
        Some(sds) => sds::mode(sds).await.map_err(|error| Error::new("SDS", error))?,
        None => sds::Mode::Own,
    };
    let authority = config
        .authority
        .clone()
        .filter(|_| mode == sds::Mode::Own)
        .map(|ca| config.provider.authority(istiod.beside(ca)));
    let has_authority = authority.is_some();
    let Secrets { task, reader, files, snapshots } =
        Secrets::new(&config, authority, anchors, (&house.gates, &house.registry), Clock::System);
    if let Some(sds) = sds {
        let sources = sds::Sources { identity: snapshots.clone(), files: files.clone(), has_authority };
        let sds = sds::Sds::bind(*sds, mode, sources, &house.registry, Clock::System);
        let sds = sds.map_err(|error| Error::new("SDS", error))?;
        house.tasks.spawn(Stage::Sds, "sds", move |drain| sds.run(drain));
    }
    house.tasks.spawn(Stage::Secrets, "certificate files", move |drain| reader.run(drain));
    house.tasks.spawn(Stage::Secrets, "identity", move |drain| task.run(drain));
    if let Some(output) = config.output {
        let snapshots = snapshots.clone();
        house
            .tasks
            .spawn(Stage::Secrets, "output certificates", move |drain| secrets::output::run(output, snapshots, drain));
    }
    let table = files.table();
    house.pages.add("certs", move || secrets::certificates(&snapshots.borrow(), &table.borrow(), Clock::System.now()));
    Ok(mode)
}

/// Fetches Wasm plugins for the relay.
fn wasm(house: &mut House, config: wasm::Config) -> Arc<dyn xds::Rewrite> {
    let wasm = Wasm::bind(config, &house.registry, Clock::System);
    let rewriter = wasm.rewriter();
    let shown = rewriter.clone();
    house.pages.add("wasm", move || shown.debug());
    house.tasks.spawn(Stage::Xds, "wasm", move |drain| wasm.run(drain));
    Arc::new(Plugins(rewriter))
}

/// What the relay asks for plugins: the two rooms do not know each other.
struct Plugins(wasm::Rewriter);

impl xds::Rewrite for Plugins {
    fn rewrite(&self, update: Update) -> BoxFuture<'static, Result<Rewritten, String>> {
        self.0.rewrite(update)
    }
}

/// Carries Envoy's configuration from istiod.
fn xds(house: &mut House, config: &xds::Config, links: xds::Links) -> Result<(), Error> {
    let xds = Xds::bind(config, links).map_err(|error| Error::new("xds", error))?;
    house.pages.add("xds", xds.debug());
    house.tasks.spawn(Stage::Xds, "xds", |drain| xds.run(drain));
    Ok(())
}

/// PID 1's duty towards orphans.
fn reaper(house: &mut House) {
    house.tasks.spawn(Stage::Files, "reaper", process::reap_orphans);
}
