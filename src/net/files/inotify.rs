//! The kernel's side of watching: one inotify instance, a watch per directory on the way to any of the paths.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    io,
    os::fd::{AsFd, AsRawFd, RawFd},
    path::Path,
};

use nix::{
    errno::Errno,
    sys::inotify::{AddWatchFlags, InitFlags, Inotify as Instance, InotifyEvent, WatchDescriptor},
};
use tokio::io::{Interest, unix::AsyncFd};

use super::walk;
use crate::net::registered;

/// `IN_MASK_ADD` of `inotify_add_watch(2)`, which nix does not name: a directory may be a step of several paths.
const MASK_ADD: AddWatchFlags = AddWatchFlags::from_bits_retain(0x2000_0000);
/// What can make a name mean something else.
const NAMES: AddWatchFlags = AddWatchFlags::IN_CREATE
    .union(AddWatchFlags::IN_DELETE)
    .union(AddWatchFlags::IN_MOVED_FROM)
    .union(AddWatchFlags::IN_MOVED_TO)
    .union(AddWatchFlags::IN_DELETE_SELF)
    .union(AddWatchFlags::IN_MOVE_SELF)
    .union(AddWatchFlags::IN_ONLYDIR)
    .union(MASK_ADD);
/// What can change a file under its name, permissions included.
const CONTENTS: AddWatchFlags =
    NAMES.union(AddWatchFlags::IN_MODIFY).union(AddWatchFlags::IN_CLOSE_WRITE).union(AddWatchFlags::IN_ATTRIB);

#[derive(Debug)]
pub(super) struct Inotify {
    instance: AsyncFd<Descriptor>,
    /// By watch: which names in that directory matter to which path.
    watches: BTreeMap<i32, Watch>,
}

#[derive(Debug)]
struct Watch {
    descriptor: WatchDescriptor,
    names: BTreeSet<(OsString, usize)>,
}

impl Inotify {
    pub(super) fn new() -> io::Result<Inotify> {
        let instance = Instance::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
        Ok(Inotify { instance: registered(Descriptor(instance), Interest::READABLE)?, watches: BTreeMap::new() })
    }

    /// Watches what leads to `paths`, and nothing else any more. A directory that does not exist is no error: its parent is
    /// watched.
    pub(super) fn arm<'a>(&mut self, paths: impl Iterator<Item = &'a Path>) -> io::Result<()> {
        let old = std::mem::take(&mut self.watches);
        let added = self.add(paths.enumerate());
        for (raw, watch) in old {
            if !self.watches.contains_key(&raw) {
                // The watch of a directory that is gone has gone with it.
                let _ = self.instance.get_ref().0.rm_watch(watch.descriptor);
            }
        }
        added
    }

    /// Watches what leads to these paths as well.
    pub(super) fn add<'a>(&mut self, paths: impl Iterator<Item = (usize, &'a Path)>) -> io::Result<()> {
        let mut failure = None;
        for (index, path) in paths {
            walk::walk(path, |step| {
                let mask = if step.last { CONTENTS } else { NAMES };
                match self.instance.get_ref().0.add_watch(&step.directory, mask) {
                    Ok(descriptor) => {
                        let watch = || Watch { descriptor, names: BTreeSet::new() };
                        self.watches
                            .entry(descriptor.as_raw())
                            .or_insert_with(watch)
                            .names
                            .insert((step.name.clone(), index));
                    }
                    Err(Errno::ENOENT | Errno::ENOTDIR | Errno::EACCES | Errno::ELOOP) => {}
                    Err(error) => failure = Some(error),
                }
            });
        }
        failure.map_or(Ok(()), |error| Err(error.into()))
    }

    /// Waits for events; the paths that they concern, often none.
    pub(super) async fn changed(&self) -> io::Result<BTreeSet<usize>> {
        let mut ready = self.instance.readable().await?;
        match ready.get_inner().0.read_events() {
            Ok(events) => Ok(events.iter().flat_map(|event| self.concerned(event)).collect()),
            Err(Errno::EAGAIN) => {
                ready.clear_ready();
                Ok(BTreeSet::new())
            }
            Err(error) => Err(error.into()),
        }
    }

    fn concerned(&self, event: &InotifyEvent) -> BTreeSet<usize> {
        if event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW) {
            return self.watches.values().flat_map(|watch| &watch.names).map(|(_, path)| *path).collect();
        }
        let watch = self.watches.get(&event.wd.as_raw());
        // An event without a name concerns the directory itself, so everything in it.
        let matches = |name: &OsString| event.name.as_ref().is_none_or(|changed| changed == name);
        watch
            .into_iter()
            .flat_map(|watch| &watch.names)
            .filter(|(name, _)| matches(name))
            .map(|(_, path)| *path)
            .collect()
    }
}

#[derive(Debug)]
struct Descriptor(Instance);

impl AsRawFd for Descriptor {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}
