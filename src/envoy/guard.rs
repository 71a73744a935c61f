//! Ties Envoy's life to the agent's, without unsafe code: the agent starts *itself* again, and that second process asks the kernel
//! to kill it when its parent dies (prctl PR_SET_PDEATHSIG), checks that the parent still lives, and becomes Envoy by exec.
//!
//! It is started while the agent's rooms are, and waits ([`Waiting`]) until Envoy has something to read: its own start is then over.
//! Both talk over a pair of sockets that exec closes: a byte from the agent is the word to go on, its end the word to leave, and
//! four bytes from the guard say why exec failed. Nothing is printed here, since the log's format is the agent's business.
//!
//! `main` calls [`run`] before anything else when the first argument is [`WORD`].

use std::{
    convert::Infallible,
    ffi::OsString,
    io::{self, Read, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::{net::UnixStream, process::CommandExt},
    },
    path::Path,
    process::{ChildStderr, Command, ExitCode, Stdio},
};

use nix::{
    sys::{prctl, signal::Signal},
    unistd::{Gid, Pid, Uid, getppid, setgid, setgroups, setuid},
};

use super::Config;
use crate::process::{self, Child};

/// The first argument by which `main` knows that it is to become Envoy. The others: parent, user, group, limit of open files (`-`
/// where the agent's own stands), program, its arguments.
pub const WORD: &str = "become-envoy";

/// The agent's word that Envoy's files are written.
const GO: u8 = b'!';
/// Signal that Envoy gets when the agent dies: a configuration that nobody renews must not be served on.
const ON_PARENT_DEATH: Signal = Signal::SIGKILL;

/// A guard that has everything it needs and waits; dropping it ends it.
#[derive(Debug)]
pub struct Waiting {
    child: Child,
    agent: UnixStream,
    stderr: Option<ChildStderr>,
}

/// The agent's end of the sockets, once the guard has been told to go on.
#[derive(Debug)]
pub(super) struct Report(UnixStream);

impl Waiting {
    /// Starts `guard`, which is this program, for the Envoy of `config`.
    ///
    /// # Errors
    /// When no sockets or no process can be made.
    pub fn start(guard: &Path, config: &Config) -> io::Result<Waiting> {
        let (agent, end) = UnixStream::pair()?;
        let text = |number: Option<u64>| number.map_or_else(|| "-".to_owned(), |number| number.to_string());
        let (user, group) = config.user.unzip();
        let mut command = Command::new(guard);
        command.arg0("footman").arg(WORD).arg(std::process::id().to_string());
        command.args([text(user.map(u64::from)), text(group.map(u64::from)), text(config.open_files)]);
        command.arg(&config.binary).stdin(Stdio::from(OwnedFd::from(end)));
        let (child, stderr) = config.launch(&mut command)?;
        Ok(Waiting { child, agent, stderr })
    }

    /// Lets it become Envoy.
    pub(super) fn release(self) -> (Child, Option<ChildStderr>, Report) {
        // Fails when the guard is gone already: how it ended says why.
        let _ = (&self.agent).write_all(&[GO]);
        (self.child, self.stderr, Report(self.agent))
    }
}

impl Report {
    /// Why exec failed, once the child has ended; `None` when it succeeded.
    pub(super) fn failure(&mut self) -> Option<io::Error> {
        let mut number = [0; 4];
        // Never blocks: with the child gone, nobody holds the other end.
        self.0.read_exact(&mut number).ok()?;
        Some(io::Error::from_raw_os_error(i32::from_le_bytes(number)))
    }
}

/// The second process: becomes Envoy, or fails.
pub fn run(mut args: impl Iterator<Item = OsString>) -> ExitCode {
    // Standard input is the socket to the agent; Envoy gets an empty one. This copy closes when exec succeeds.
    let error = match io::stdin().as_fd().try_clone_to_owned().map(UnixStream::from) {
        Ok(mut agent) => {
            let Err(error) = become_envoy(&mut args, &agent);
            // The agent is gone when this fails, and nobody is left to tell.
            let _ = agent.write_all(&error.raw_os_error().unwrap_or_default().to_le_bytes());
            error
        }
        Err(error) => error,
    };
    ExitCode::from(if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 })
}

fn become_envoy(args: &mut impl Iterator<Item = OsString>, mut agent: &UnixStream) -> io::Result<Infallible> {
    let mut next = || args.next().ok_or(io::ErrorKind::InvalidInput);
    let (parent, user, group) = (number(&next()?), number(&next()?), number(&next()?));
    let (open_files, binary) = (next()?, next()?);
    if let Some(limit) = number(&open_files) {
        process::set_open_files(limit.into())?;
    }
    if let (Some(user), Some(group)) = (user, group) {
        setgroups(&[])?;
        setgid(Gid::from_raw(group))?;
        setuid(Uid::from_raw(user))?;
    }
    // After the change of user, which clears it.
    prctl::set_pdeathsig(ON_PARENT_DEATH)?;
    let parent = parent.and_then(|parent| i32::try_from(parent).ok()).ok_or(io::ErrorKind::InvalidInput)?;
    if getppid() != Pid::from_raw(parent) {
        // The agent died before the kernel knew of the wish.
        return Err(io::ErrorKind::NotConnected.into());
    }
    agent.read_exact(&mut [0])?;
    Err(Command::new(binary).args(args).stdin(Stdio::null()).exec())
}

fn number(text: &OsString) -> Option<u32> {
    text.to_str()?.parse().ok()
}
