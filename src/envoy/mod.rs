//! The Envoy beside the agent: one child process and its admin port.
//!
//! `agent` starts, asks and ends it as the lifecycle says; `status` asks its admin port. Nothing here decides when Envoy is to end,
//! or knows what its configuration says.

pub mod admin;
pub mod guard;
mod kill;
mod run;
pub mod settle;
mod state;

use std::{ffi::OsString, path::PathBuf};

pub use admin::Admin;
pub use run::{Exit, Running};
pub use state::State;

/// What is needed to start Envoy.
#[derive(Debug, Clone, Default)]
pub struct Config {
    /// binaryPath.
    pub binary: PathBuf,
    /// Its arguments, without the name of the program.
    pub args: Vec<OsString>,
    /// Variables besides the agent's own environment.
    pub env: Vec<(String, String)>,
    /// The user and group to run as, where not the agent's own: 1337 when the agent is root and takes port 53 (rootless
    /// redirection in docker).
    pub user: Option<(u32, u32)>,
    /// The generated bootstrap, removed when Envoy has ended; `None` for a user's own file.
    pub bootstrap: Option<PathBuf>,
    /// The program that ties Envoy's life to the agent's (see [`guard`]): this one. `None` starts Envoy without it.
    pub guard: Option<PathBuf>,
    /// Envoy's stderr is read and written in the agent's log format (`FOOTMAN_CAPTURE_ENVOY_LOG`).
    pub capture: bool,
}
