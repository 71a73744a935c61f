//! The signals of the agent's own process. Handlers are installed before anything else is done, so that no signal kills an agent
//! that is still starting.

use std::io;

use nix::libc;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Signals that would end a process by default and mean nothing to an agent; Istio's agent lives on too. SIGHUP and SIGQUIT keep
/// their defaults.
const IGNORED: [i32; 8] = [
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGALRM,
    libc::SIGVTALRM,
    libc::SIGPROF,
    libc::SIGIO,
    libc::SIGPWR,
    libc::SIGSTKFLT,
];

/// SIGTERM and SIGINT as they come.
#[derive(Debug)]
pub struct Signals {
    term: Signal,
    int: Signal,
}

impl Signals {
    /// Installs the handlers; they stay for the life of the process. Not by SIG_IGN, which Envoy would inherit.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn install() -> io::Result<Signals> {
        for number in IGNORED {
            drop(signal(SignalKind::from_raw(number))?);
        }
        Ok(Signals { term: signal(SignalKind::terminate())?, int: signal(SignalKind::interrupt())? })
    }

    /// The next one, by number; cancel-safe.
    pub async fn recv(&mut self) -> i32 {
        tokio::select! {
            _ = self.term.recv() => libc::SIGTERM,
            _ = self.int.recv() => libc::SIGINT,
        }
    }
}
