//! Ties Envoy's life to the agent's, without unsafe code: the agent starts *itself* again, and that second process asks the kernel
//! to kill it when its parent dies (prctl PR_SET_PDEATHSIG), checks that the parent still lives, and becomes Envoy by exec.
//!
//! `main` calls [`run`] before anything else when the first argument is [`WORD`]. Why exec failed goes back over a pipe that exec
//! closes; nothing is printed here, since the log's format is the agent's business.

use std::{
    ffi::OsString,
    io::{self, PipeReader, Read, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::process::CommandExt,
    },
    path::Path,
    process::{Command, ExitCode, Stdio},
};

use nix::{
    sys::{prctl, signal::Signal},
    unistd::{Gid, Pid, Uid, getppid, setgid, setgroups, setuid},
};

use super::Config;
use crate::process;

/// The first argument by which `main` knows that it is to become Envoy. The others: parent, user, group, limit of open files (`-`
/// where the agent's own stands), program, its arguments.
pub const WORD: &str = "become-envoy";

/// Signal that Envoy gets when the agent dies: a configuration that nobody renews must not be served on.
const ON_PARENT_DEATH: Signal = Signal::SIGKILL;

/// A command by which `guard` becomes the Envoy of `config`, without its arguments; and the pipe on which [`failure`] learns why it
/// could not.
///
/// # Errors
/// When no pipe can be made.
pub fn command(guard: &Path, config: &Config) -> io::Result<(Command, PipeReader)> {
    let (reader, writer) = io::pipe()?;
    let text = |number: Option<u64>| number.map_or_else(|| "-".to_owned(), |number| number.to_string());
    let (user, group) = config.user.unzip();
    let mut command = Command::new(guard);
    command.arg0("footman").arg(WORD).arg(std::process::id().to_string());
    command.args([text(user.map(u64::from)), text(group.map(u64::from)), text(config.open_files)]).arg(&config.binary);
    command.stdin(Stdio::from(OwnedFd::from(writer)));
    Ok((command, reader))
}

/// Why exec failed, once the child has ended; `None` when it succeeded.
pub fn failure(reader: &mut PipeReader) -> Option<io::Error> {
    let mut number = [0; 4];
    // Never blocks: with the child gone, nobody holds the other end.
    reader.read_exact(&mut number).ok()?;
    Some(io::Error::from_raw_os_error(i32::from_le_bytes(number)))
}

/// The second process: becomes Envoy, or fails.
pub fn run(mut args: impl Iterator<Item = OsString>) -> ExitCode {
    // Standard input is the pipe to the agent; Envoy gets an empty one. This copy closes when exec succeeds.
    let pipe = io::stdin().as_fd().try_clone_to_owned();
    let Err(error) = become_envoy(&mut args);
    if let Ok(pipe) = pipe {
        // The agent is gone when this fails, and nobody is left to tell.
        let _ = io::PipeWriter::from(pipe).write_all(&error.raw_os_error().unwrap_or_default().to_le_bytes());
    }
    ExitCode::from(if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 })
}

fn become_envoy(args: &mut impl Iterator<Item = OsString>) -> io::Result<std::convert::Infallible> {
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
    Err(Command::new(binary).args(args).stdin(Stdio::null()).exec())
}

fn number(text: &OsString) -> Option<u32> {
    text.to_str()?.parse().ok()
}
