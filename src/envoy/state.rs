//! What is known of the Envoy process from outside, for `status` and its pages.

use std::time::SystemTime;

use super::{Exit, run::exit_text};

/// Envoy's process as the agent sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct State {
    /// Process id and start time while it runs.
    pub running: Option<(i32, SystemTime)>,
    /// How often it was started.
    pub starts: u32,
    /// How the last run ended, as text.
    pub last_exit: Option<String>,
}

impl State {
    /// A run began.
    pub fn started(&mut self, pid: i32, since: SystemTime) {
        self.running = Some((pid, since));
        self.starts += 1;
    }

    /// The run ended.
    pub fn exited(&mut self, exit: &Exit) {
        self.running = None;
        self.last_exit = Some(match exit {
            Exit::Status(status) => exit_text(*status),
            Exit::Failed(error) => error.to_string(),
        });
    }
}
