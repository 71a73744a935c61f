//! Starts every room: one function each, which binds the room, hands it its ends of the channels and spawns its tasks.

use std::sync::Arc;

use super::{Error, House, Stage};
use crate::{
    config::{Errors, Vars},
    dns, process,
    wires::{NamesReceiver, names},
};

/// Every room's own configuration.
#[derive(Debug)]
pub(super) struct Config {
    dns: Option<dns::Config>,
}

impl Config {
    /// # Errors
    /// Everything that is wrong in any room.
    pub(super) fn from_vars(vars: &Vars) -> Result<Config, Errors> {
        let mut errors = Errors::default();
        let dns = errors.take(dns::Config::from_vars(vars)).flatten();
        errors.into_result(Config { dns })
    }
}

/// In the order of their start.
///
/// # Errors
/// The first room that cannot start.
pub(super) async fn start(house: &mut House, config: Config) -> Result<(), Error> {
    reaper(house);
    let (_publisher, names) = names::channel();
    if let Some(config) = config.dns {
        dns(house, config, names).await?;
    }
    Ok(())
}

/// Local DNS: first of all, for everything else in the pod needs names.
async fn dns(house: &mut House, config: dns::Config, names: NamesReceiver) -> Result<(), Error> {
    let gate = house.gates.gate("dns", "no table yet");
    let room = dns::Dns::bind(config, names, &house.registry, gate).await.map_err(|error| Error::new("dns", error))?;
    let (summary, table) = (room.names(), room.names());
    house.debug.push(("dns", Arc::new(move || summary.summary())));
    house.ndsz = Some(Arc::new(move || table.ndsz()));
    house.tasks.spawn(Stage::Dns, "dns", move |drain| room.run(drain));
    Ok(())
}

/// PID 1's duty towards orphans.
fn reaper(house: &mut House) {
    house.tasks.spawn(Stage::Files, "reaper", process::reap_orphans);
}
