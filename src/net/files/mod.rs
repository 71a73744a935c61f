//! Notices that what a path means has changed, however programs and people change it: in place, by rename, deleted and made
//! anew, a link on the way re-pointed (kubelet's `..data`, `current -> v2`), a directory removed and made again.
//!
//! The directory of every step on the way to a file is watched, never the file's inode. What inotify cannot see (network
//! file systems, bind mounts, no watches left) is found by a slow comparison of time stamps. It reads no contents: whoever
//! asks reads the file and decides whether it is news.

use std::{
    collections::BTreeSet,
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::time::Instant;

use self::inotify::Inotify;

mod inotify;
mod walk;

#[cfg(test)]
mod tests;

/// How often time stamps are compared while inotify works.
const POLL: Duration = Duration::from_secs(15);
/// How often they are while it does not.
const POLL_ALONE: Duration = Duration::from_secs(2);

/// Watches a set of paths.
#[derive(Debug, Default)]
pub struct Watcher {
    watched: Vec<Watched>,
    inotify: Option<Inotify>,
    /// An error that nobody was told yet.
    failure: Option<io::Error>,
    next_poll: Option<Instant>,
}

#[derive(Debug)]
struct Watched {
    path: PathBuf,
    stamp: Stamp,
}

/// What `stat` says of the file that a path means; `None` when there is none.
type Stamp = Option<(u64, u64, u64, (i64, i64), (i64, i64))>;

impl Watcher {
    /// A watcher of these paths. It always comes into being: without inotify it compares time stamps.
    pub fn new<P: AsRef<Path>>(paths: impl IntoIterator<Item = P>) -> Watcher {
        let mut watcher = Watcher::default();
        watcher.watch(paths);
        watcher
    }

    /// Watches these paths from now on, instead of those before. Read the files after this call, not before. Paths that only come
    /// behind those before cost no more than themselves: thousands may come one by one.
    pub fn watch<P: AsRef<Path>>(&mut self, paths: impl IntoIterator<Item = P>) {
        let absolute = |path: P| std::path::absolute(path.as_ref()).unwrap_or_else(|_| path.as_ref().to_owned());
        let mut paths: Vec<PathBuf> = paths.into_iter().map(absolute).collect();
        let known = self.watched.len();
        let is_longer =
            known < paths.len() && self.watched.iter().zip(&paths).all(|(watched, path)| watched.path == *path);
        if !is_longer {
            self.watched.clear();
        }
        let added = paths.drain(self.watched.len()..);
        self.watched.extend(added.map(|path| Watched { stamp: stamp(&path), path }));
        match self.inotify.as_mut() {
            Some(inotify) if is_longer => {
                let paths = self.watched.iter().map(|watched| watched.path.as_path()).enumerate().skip(known);
                if let Err(error) = inotify.add(paths) {
                    self.fail(error);
                }
            }
            _ => self.arm(),
        }
    }

    /// Waits until the meaning of some paths may have changed; their places in the list given to [`Watcher::watch`].
    ///
    /// Cancel-safe.
    ///
    /// # Errors
    /// Once each time inotify fails. The watcher goes on by time stamps and repairs itself: just call again.
    pub async fn changed(&mut self) -> io::Result<BTreeSet<usize>> {
        loop {
            if let Some(error) = self.failure.take() {
                return Err(error);
            }
            let pause = if self.inotify.is_some() { POLL } else { POLL_ALONE };
            let poll = *self.next_poll.get_or_insert_with(|| Instant::now() + pause);
            let changed = tokio::select! {
                events = read(self.inotify.as_ref()) => match events {
                    Ok(changed) => changed,
                    Err(error) => {
                        self.fail(error);
                        continue;
                    }
                },
                () = tokio::time::sleep_until(poll) => {
                    self.next_poll = None;
                    self.compare()
                }
            };
            if !changed.is_empty() {
                self.renew(&changed);
                return Ok(changed);
            }
        }
    }

    /// The paths whose time stamps differ from those last seen; also takes up inotify again after a failure.
    fn compare(&mut self) -> BTreeSet<usize> {
        if self.inotify.is_none() {
            self.arm();
            // It was reported when it happened.
            self.failure = None;
        }
        let differs = |watched: &Watched| watched.stamp != stamp(&watched.path);
        self.watched.iter().enumerate().filter(|(_, watched)| differs(watched)).map(|(index, _)| index).collect()
    }

    /// Takes new time stamps of the changed paths and follows where they lead now.
    fn renew(&mut self, changed: &BTreeSet<usize>) {
        self.arm();
        for &index in changed {
            if let Some(watched) = self.watched.get_mut(index) {
                watched.stamp = stamp(&watched.path);
            }
        }
    }

    fn arm(&mut self) {
        let armed = match self.inotify.as_mut() {
            _ if self.watched.is_empty() => return self.inotify = None,
            Some(inotify) => inotify.arm(self.watched.iter().map(|watched| watched.path.as_path())),
            None => Inotify::new().and_then(|mut inotify| {
                inotify.arm(self.watched.iter().map(|watched| watched.path.as_path()))?;
                self.inotify = Some(inotify);
                Ok(())
            }),
        };
        if let Err(error) = armed {
            self.fail(error);
        }
    }

    fn fail(&mut self, error: io::Error) {
        self.inotify = None;
        self.next_poll = None;
        self.failure = Some(error);
    }
}

/// The changed paths as inotify sees them; waits for ever without it.
async fn read(inotify: Option<&Inotify>) -> io::Result<BTreeSet<usize>> {
    match inotify {
        Some(inotify) => inotify.changed().await,
        None => std::future::pending().await,
    }
}

fn stamp(path: &Path) -> Stamp {
    let data = fs::metadata(path).ok()?;
    Some((data.dev(), data.ino(), data.size(), (data.mtime(), data.mtime_nsec()), (data.ctime(), data.ctime_nsec())))
}
