//! What the lifecycle decides on: everything that happens to the agent as a whole, over one `mpsc` channel.

use std::process::ExitStatus;

use tokio::sync::oneshot;

/// Something that happened; `agent` turns it into what to do next.
#[derive(Debug)]
pub enum Event {
    /// SIGTERM, SIGINT or another signal that the agent handles, by number.
    Signal(i32),
    /// `POST /drain`: tell clients to leave, keep serving. Answered when Envoy was told, or could not be within two seconds.
    Drain(oneshot::Sender<()>),
    /// `POST /quitquitquit`: end without drain. Sent after the reply has left.
    Quit,
    /// Envoy ended by itself or after being asked to.
    EnvoyExited(ExitStatus),
    /// Envoy could not be started.
    EnvoyFailed(std::io::Error),
    /// A long-lived task ended although nobody asked it to.
    TaskEnded {
        /// The task's name.
        name: &'static str,
        /// Why, when it knows.
        error: Option<String>,
    },
}
