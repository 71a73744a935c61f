//! Starts every room: one function each, which binds the room, hands it its ends of the channels and spawns its tasks.

use super::{Error, House, Stage};
use crate::{
    config::{Errors, Vars},
    process,
};

/// Every room's own configuration.
#[derive(Debug)]
pub(super) struct Config {}

impl Config {
    /// # Errors
    /// Everything that is wrong in any room.
    pub(super) fn from_vars(_vars: &Vars) -> Result<Config, Errors> {
        let errors = Errors::default();
        errors.into_result(Config {})
    }
}

/// In the order of their start.
///
/// # Errors
/// The first room that cannot start.
pub(super) async fn start(house: &mut House, _config: Config) -> Result<(), Error> {
    reaper(house);
    Ok(())
}

/// PID 1's duty towards orphans.
fn reaper(house: &mut House) {
    house.tasks.spawn(Stage::Files, "reaper", process::reap_orphans);
}
