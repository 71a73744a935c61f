//! Child processes: spawn, wait, signal, and the reaping that PID 1 owes to everybody else's orphans.
//!
//! `envoy` and `probe` start their children here and nowhere else: one place waits for them all, so that the reaping of orphans
//! never takes an exit status that somebody waits for. Nothing here knows what the children are.

use std::{
    collections::BTreeMap,
    io,
    os::unix::process::{CommandExt, ExitStatusExt},
    process::{Command, ExitStatus},
    sync::{Mutex, MutexGuard, PoisonError},
};

use nix::{
    errno::Errno,
    sys::{
        resource::{Resource, getrlimit, setrlimit},
        signal::{Signal, kill, killpg},
        wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid},
    },
    unistd::{Pid, getpid},
};
use tokio::signal::unix::{SignalKind, signal};

use crate::base::Drain;

/// Children that run or whose status nobody has fetched yet: `None` while they run. A child whose owner is gone stays until it
/// has been reaped.
static CHILDREN: Mutex<BTreeMap<i32, Entry>> = Mutex::new(BTreeMap::new());

#[derive(Debug)]
struct Entry {
    process: std::process::Child,
    status: Option<ExitStatus>,
    abandoned: bool,
}

/// A running child, leader of its own process group; dropping it kills the whole group.
#[derive(Debug)]
pub struct Child {
    pid: Pid,
    ended: bool,
}

/// Starts `command` as the leader of a process group of its own, so that a signal to the agent's group misses it.
///
/// # Errors
/// As [`Command::spawn`].
pub fn spawn(command: &mut Command) -> io::Result<Child> {
    spawn_piped(command).map(|(child, _)| child)
}

/// Like [`spawn`], with the pipes that `command` asks for.
///
/// # Errors
/// As [`Command::spawn`].
pub fn spawn_piped(command: &mut Command) -> io::Result<(Child, Pipes)> {
    // The lock is held across the spawn: nobody may reap before the child is known.
    let mut children = children();
    let mut process = command.process_group(0).spawn()?;
    let pid = Pid::from_raw(i32::try_from(process.id()).map_err(io::Error::other)?);
    let pipes = Pipes { stdout: process.stdout.take(), stderr: process.stderr.take() };
    children.insert(pid.as_raw(), Entry { process, status: None, abandoned: false });
    Ok((Child { pid, ended: false }, pipes))
}

/// The ends of a child's pipes that stay here.
#[derive(Debug)]
pub struct Pipes {
    /// What the child writes to standard output, where piped.
    pub stdout: Option<std::process::ChildStdout>,
    /// What the child writes to standard error, where piped.
    pub stderr: Option<std::process::ChildStderr>,
}

impl Child {
    /// Its process id.
    pub fn id(&self) -> i32 {
        self.pid.as_raw()
    }

    /// Waits for its end; cancel-safe.
    ///
    /// # Errors
    /// When the process has no room for a signal handler, or somebody else took the status.
    pub async fn wait(&mut self) -> io::Result<ExitStatus> {
        let mut died = signal(SignalKind::child())?;
        loop {
            reap();
            let status = match children().get(&self.pid.as_raw()) {
                None => return Err(io::Error::other("somebody else took the exit status")),
                Some(entry) => entry.status,
            };
            if let Some(status) = status {
                self.ended = true;
                return Ok(status);
            }
            // `None` would mean that signals are no longer delivered, which tokio does not do while the runtime lives.
            let _ = died.recv().await;
        }
    }

    /// Sends a signal to the child alone; nothing once it has ended.
    pub fn signal(&self, signal: Signal) {
        if !self.ended {
            // It may have ended a moment ago; its id is not reused before it is reaped, and `ended` is set with that.
            let _ = kill(self.pid, signal);
        }
    }

    /// Kills the child and whatever it started in its process group.
    pub fn kill(&self) {
        if !self.ended {
            let _ = killpg(self.pid, Signal::SIGKILL);
            self.signal(Signal::SIGKILL);
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
        if self.ended {
            children().remove(&self.pid.as_raw());
        } else if let Some(entry) = children().get_mut(&self.pid.as_raw()) {
            entry.abandoned = true;
        }
        reap();
    }
}

/// Raises the soft limit of open files to the hard one, as Go's runtime does: sockets of clients and forwarded queries each take
/// one. The limit before, which children should get back; `None` when it stays as it is.
pub fn raise_open_files() -> Option<u64> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).ok()?;
    (soft < hard && setrlimit(Resource::RLIMIT_NOFILE, hard, hard).is_ok()).then_some(soft)
}

/// Sets the soft limit of open files, for a process that is about to become another program.
///
/// # Errors
/// When the system refuses.
pub fn set_open_files(soft: u64) -> io::Result<()> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    Ok(setrlimit(Resource::RLIMIT_NOFILE, soft.min(hard), hard)?)
}

/// As PID 1, collects children that nobody waits for: the orphans of exec probes and of `kubectl exec`. Runs until the drain; does
/// nothing elsewhere, where init has that duty.
///
/// # Errors
/// When no signal handler can be installed.
pub async fn reap_orphans(mut drain: Drain) -> io::Result<()> {
    if !is_init() {
        drain.started().await;
        return Ok(());
    }
    let mut died = signal(SignalKind::child())?;
    loop {
        reap();
        tokio::select! {
            _ = died.recv() => {}
            () = drain.started() => return Ok(()),
        }
    }
}

fn is_init() -> bool {
    getpid().as_raw() == 1
}

fn children() -> MutexGuard<'static, BTreeMap<i32, Entry>> {
    CHILDREN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Fetches the status of every child that has ended: all children as PID 1, else only those that were started here.
fn reap() {
    let mut children = children();
    look(&mut children);
    if is_init() {
        while reap_one(&mut children) {}
    }
    children.retain(|_, entry| !(entry.abandoned && entry.status.is_some()));
}

/// Fetches what those that were started here have to tell; whether one of them has ended. By std, which knows every status: nix has
/// no name for real-time signals and loses the status of whom one has killed.
fn look(children: &mut BTreeMap<i32, Entry>) -> bool {
    let mut ended = false;
    children.retain(|_, entry| {
        if entry.status.is_some() {
            return true;
        }
        let status = entry.process.try_wait();
        entry.status = status.as_ref().copied().unwrap_or_default();
        ended |= entry.status.is_some();
        // Somebody else has taken the status.
        !status.is_err_and(|error| error.raw_os_error() == Some(Errno::ECHILD as i32))
    });
    ended
}

/// Lets one child go that has ended, whoever started it; whether there was one.
fn reap_one(children: &mut BTreeMap<i32, Entry>) -> bool {
    match waitid(Id::All, WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT) {
        Ok(status) => match status.pid() {
            None => false,
            // An orphan, which may have got the id of one whose status still waits for its owner.
            Some(pid) if children.get(&pid.as_raw()).is_none_or(|entry| entry.status.is_some()) => {
                waitpid(pid, Some(WaitPidFlag::WNOHANG)).is_ok()
            }
            Some(_) => look(children),
        },
        // A real-time signal has killed it, and nix does not say whom: an orphan, when it is nobody of ours.
        Err(Errno::EINVAL) if look(children) => true,
        Err(Errno::EINVAL) => {
            let (pid, raw) = match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
                // One of ours has ended meanwhile.
                Ok(WaitStatus::Exited(pid, code)) => (pid, code << 8),
                Ok(WaitStatus::Signaled(pid, signal, _)) => (pid, signal as i32),
                other => return other == Err(Errno::EINVAL),
            };
            if let Some(entry) = children.get_mut(&pid.as_raw()).filter(|entry| entry.status.is_none()) {
                entry.status = Some(ExitStatus::from_raw(raw));
            }
            true
        }
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use nix::libc;

    use super::*;

    fn shell(script: &str) -> Child {
        spawn(Command::new("/bin/sh").args(["-c", script])).expect("a shell")
    }

    #[tokio::test]
    async fn status_of_each_child_reaches_its_owner() {
        let mut children: Vec<(i32, Child)> = (0..5).map(|code| (code, shell(&format!("exit {code}")))).collect();
        for (code, child) in children.iter_mut().rev() {
            assert_eq!(child.wait().await.unwrap().code(), Some(*code));
        }
    }

    #[tokio::test]
    async fn death_by_signal_is_told() {
        let mut child = shell("kill -SEGV $$");
        assert_eq!(child.wait().await.unwrap().signal(), Some(libc::SIGSEGV));
        assert_eq!(child.wait().await.unwrap().signal(), Some(libc::SIGSEGV), "asked again");
    }

    #[tokio::test]
    async fn death_by_a_real_time_signal_is_told() {
        assert_eq!(shell("kill -40 $$").wait().await.unwrap().signal(), Some(40));
    }

    #[tokio::test]
    async fn child_leads_its_own_group_and_dies_with_it() {
        let mut child = shell("sleep 1000 & wait");
        let group = nix::unistd::getpgid(Some(Pid::from_raw(child.id()))).unwrap();
        assert_eq!(group.as_raw(), child.id());
        child.kill();
        assert_eq!(child.wait().await.unwrap().signal(), Some(libc::SIGKILL));
    }

    #[tokio::test]
    async fn dropped_child_is_killed_and_reaped() {
        let child = shell("exec sleep 1000");
        let pid = child.id();
        drop(child);
        let mut died = signal(SignalKind::child()).unwrap();
        loop {
            reap();
            if !children().contains_key(&pid) {
                break;
            }
            died.recv().await;
        }
        assert_eq!(kill(Pid::from_raw(pid), None), Err(Errno::ESRCH));
    }

    #[test]
    fn program_that_is_missing_is_an_error_at_once() {
        let error = spawn(&mut Command::new("/does/not/exist")).expect_err("no such program");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
