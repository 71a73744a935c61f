//! One run of Envoy: start, signals, exit.

use std::{
    io,
    os::unix::process::ExitStatusExt,
    process::{ChildStderr, Command, ExitStatus, Stdio},
    time::SystemTime,
};

use log::{error, info};
use nix::sys::signal::Signal;

use super::{
    Config,
    capture::Capture,
    guard::{Report, Waiting},
    kill,
};
use crate::{
    base::apart,
    process::{self, Child},
};

/// How a run ended.
#[derive(Debug)]
pub enum Exit {
    /// With this status.
    Status(ExitStatus),
    /// It never was an Envoy: the program could not be executed.
    Failed(io::Error),
}

/// An Envoy that runs; dropping it kills it.
#[derive(Debug)]
pub struct Running {
    child: Child,
    /// Where the guard tells why exec failed.
    report: Option<Report>,
    config: Config,
    since: SystemTime,
    /// It was told to end.
    asked: bool,
    oom_kills: Option<u64>,
    stderr: Option<Capture>,
}

impl Running {
    /// Starts Envoy, out of the guard that waits for it where there is one.
    ///
    /// # Errors
    /// When no process can be made. A program that cannot be executed shows in [`Running::ended`].
    pub fn start(config: &Config, waiting: Option<Waiting>) -> io::Result<Running> {
        let waiting = match (waiting, &config.guard) {
            (None, Some(guard)) => Some(Waiting::start(guard, config)?),
            (waiting, _) => waiting,
        };
        let (child, stderr, report) = match waiting {
            Some(waiting) => {
                let (child, stderr, report) = waiting.release();
                (child, stderr, Some(report))
            }
            None => {
                let (child, stderr) = config.launch(Command::new(&config.binary).stdin(Stdio::null()))?;
                (child, stderr, None)
            }
        };
        info!("Envoy command: {}", shown(&config.args));
        Ok(Running {
            child,
            report,
            config: config.clone(),
            since: SystemTime::now(),
            asked: false,
            oom_kills: kill::oom_kills(),
            stderr: stderr.map(Capture::new).transpose()?,
        })
    }

    /// Its process id.
    pub fn id(&self) -> i32 {
        self.child.id()
    }

    /// When it was started.
    pub fn since(&self) -> SystemTime {
        self.since
    }

    /// Waits for its end and logs how it ended; cancel-safe.
    ///
    /// # Errors
    /// When the status cannot be had.
    pub async fn ended(&mut self) -> io::Result<Exit> {
        let status = loop {
            tokio::select! {
                status = self.child.wait() => break status?,
                () = relay(&mut self.stderr) => {}
            }
        };
        if let Some(mut capture) = self.stderr.take() {
            capture.rest();
        }
        if let Some(error) = self.report.as_mut().and_then(Report::failure) {
            return Ok(Exit::Failed(io::Error::new(
                error.kind(),
                format!("{}: {error}", self.config.binary.display()),
            )));
        }
        match (status.code(), status.signal()) {
            (Some(0), _) => info!("Envoy exited normally"),
            _ if self.asked => info!("Envoy ended as asked: {}", exit_text(status)),
            (_, Some(9)) => error!("Envoy exited with error: signal: killed (9). {}", kill::explain(self.oom_kills)),
            // By its path: a file that is no program may have been run by a shell.
            _ => error!("Envoy exited with error: {}: {}", self.config.binary.display(), exit_text(status)),
        }
        Ok(Exit::Status(status))
    }

    /// Asks it to end.
    pub fn terminate(&mut self) {
        self.asked = true;
        self.child.signal(Signal::SIGTERM);
    }

    /// Kills it and whatever it started.
    pub fn kill(&mut self) {
        self.asked = true;
        self.child.kill();
    }
}

impl Config {
    /// Starts `command`, which is Envoy or becomes it, with what both have in common.
    pub(super) fn launch(&self, command: &mut Command) -> io::Result<(Child, Option<ChildStderr>)> {
        command.args(&self.args).envs(self.env.iter().map(|(name, value)| (name, value)));
        if self.capture {
            command.stderr(Stdio::piped());
        }
        let (child, pipes) = process::spawn_piped(command)?;
        Ok((child, pipes.stderr))
    }
}

/// Until Envoy closes its stderr; for ever where it is not captured.
async fn relay(stderr: &mut Option<Capture>) {
    match stderr {
        None => std::future::pending().await,
        Some(capture) => apart(|| capture.run()).await,
    }
    *stderr = None;
}

/// `exit status 1`, `signal: SIGSEGV`.
pub(super) fn exit_text(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(number)) => match Signal::try_from(number) {
            Ok(signal) => format!("signal: {signal}"),
            Err(_) => format!("signal: {number}"),
        },
        (None, None) => format!("{status}"),
    }
}

fn shown(args: &[std::ffi::OsString]) -> String {
    let words: Vec<_> = args.iter().map(|arg| arg.to_string_lossy()).collect();
    words.join(" ")
}
