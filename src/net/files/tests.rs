//! Every way in which a file changes, on a real file system.

use std::{os::unix::fs::symlink, time::Duration};

use super::*;
use crate::base::random_u64;

/// A directory of its own for one test, removed at its end.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Scratch {
        let path = std::env::temp_dir().join(format!("footman-files-{:x}", random_u64()));
        fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::create_dir_all(self.path(name).parent().unwrap()).unwrap();
        fs::write(self.path(name), text).unwrap();
    }

    /// Re-points a link by rename, as everybody does who does it well.
    fn link(&self, name: &str, target: &str) {
        let new = self.path(&format!("{name}.new"));
        symlink(target, &new).unwrap();
        fs::rename(new, self.path(name)).unwrap();
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

async fn seen(watcher: &mut Watcher) -> Vec<usize> {
    let changed = tokio::time::timeout(Duration::from_secs(10), watcher.changed()).await;
    changed.expect("the change is noticed").expect("inotify works").into_iter().collect()
}

/// Nothing more is to be read: a file that is watched as well changes last and is the only one seen.
async fn only_marker_is_seen(watcher: &mut Watcher, scratch: &Scratch, marker: usize) {
    scratch.write("marker", "x");
    let mut all: BTreeSet<usize> = BTreeSet::new();
    while !all.contains(&marker) {
        all.extend(seen(watcher).await);
    }
    assert_eq!(all.into_iter().collect::<Vec<_>>(), [marker]);
}

#[tokio::test]
async fn every_way_of_replacing_a_file_is_noticed_again_and_again() {
    let scratch = Scratch::new();
    scratch.write("certs/ca.pem", "0");
    let mut watcher = Watcher::new([scratch.path("certs/ca.pem")]);
    for round in 0..3 {
        fs::write(scratch.path("certs/ca.pem"), format!("in place {round}")).unwrap();
        assert_eq!(seen(&mut watcher).await, [0]);
        scratch.write("certs/new", "renamed");
        fs::rename(scratch.path("certs/new"), scratch.path("certs/ca.pem")).unwrap();
        assert_eq!(seen(&mut watcher).await, [0]);
        fs::remove_file(scratch.path("certs/ca.pem")).unwrap();
        assert_eq!(seen(&mut watcher).await, [0]);
        scratch.write("certs/ca.pem", "made anew");
        assert_eq!(seen(&mut watcher).await, [0]);
    }
}

#[tokio::test]
async fn kubelet_swaps_are_noticed_although_the_old_directory_is_gone() {
    let scratch = Scratch::new();
    scratch.write("..1/tls.crt", "1");
    scratch.link("..data", "..1");
    symlink("..data/tls.crt", scratch.path("tls.crt")).unwrap();
    let mut watcher = Watcher::new([scratch.path("tls.crt")]);
    for round in 2..6 {
        scratch.write(&format!("..{round}/tls.crt"), "next");
        scratch.link("..data", &format!("..{round}"));
        fs::remove_dir_all(scratch.path(&format!("..{}", round - 1))).unwrap();
        assert_eq!(seen(&mut watcher).await, [0]);
        // What is left of this swap is read before the next one begins.
        while tokio::time::timeout(Duration::from_millis(20), watcher.changed()).await.is_ok() {}
    }
}

#[tokio::test]
async fn links_on_the_way_are_followed_wherever_they_lead() {
    let scratch = Scratch::new();
    scratch.write("pki/v1/tls/ca.pem", "1");
    scratch.write("pki/v2/tls/ca.pem", "2");
    scratch.write("elsewhere/ca.pem", "3");
    scratch.link("pki/current", "v1");
    let mut watcher = Watcher::new([scratch.path("pki/current/tls/ca.pem")]);
    scratch.write("pki/v1/tls/ca.pem", "changed behind the link");
    assert_eq!(seen(&mut watcher).await, [0]);
    scratch.link("pki/current", "v2");
    assert_eq!(seen(&mut watcher).await, [0]);
    fs::remove_file(scratch.path("pki/v2/tls/ca.pem")).unwrap();
    assert_eq!(seen(&mut watcher).await, [0]);
    symlink("../../../elsewhere/ca.pem", scratch.path("pki/v2/tls/ca.pem")).unwrap();
    assert_eq!(seen(&mut watcher).await, [0]);
    scratch.write("elsewhere/ca.pem", "two links away");
    assert_eq!(seen(&mut watcher).await, [0]);
}

#[tokio::test]
async fn a_directory_may_come_late_go_and_come_again() {
    let scratch = Scratch::new();
    let mut watcher = Watcher::new([scratch.path("a/b/c.pem")]);
    for _ in 0..3 {
        scratch.write("a/b/c.pem", "1");
        assert_eq!(seen(&mut watcher).await, [0]);
        while tokio::time::timeout(Duration::from_millis(20), watcher.changed()).await.is_ok() {}
        fs::remove_dir_all(scratch.path("a")).unwrap();
        assert_eq!(seen(&mut watcher).await, [0]);
        while tokio::time::timeout(Duration::from_millis(20), watcher.changed()).await.is_ok() {}
    }
}

#[tokio::test]
async fn neighbours_are_left_alone() {
    let scratch = Scratch::new();
    scratch.write("a.pem", "1");
    scratch.write("marker", "0");
    let mut watcher = Watcher::new([scratch.path("a.pem"), scratch.path("marker")]);
    scratch.write("b.pem", "2");
    fs::create_dir(scratch.path("d")).unwrap();
    only_marker_is_seen(&mut watcher, &scratch, 1).await;
}

#[tokio::test]
async fn a_path_that_is_no_longer_watched_is_forgotten() {
    let scratch = Scratch::new();
    scratch.write("old/a.pem", "1");
    scratch.write("marker", "0");
    let mut watcher = Watcher::new([scratch.path("old/a.pem")]);
    watcher.watch([scratch.path("marker")]);
    scratch.write("old/a.pem", "2");
    only_marker_is_seen(&mut watcher, &scratch, 0).await;
}

#[tokio::test]
async fn paths_that_come_behind_others_are_watched_beside_them() {
    let scratch = Scratch::new();
    for name in ["a/a.pem", "b.pem", "c.pem"] {
        scratch.write(name, "1");
    }
    let paths = ["a/a.pem", "b.pem", "c.pem"].map(|name| scratch.path(name));
    let mut watcher = Watcher::new(&paths[..1]);
    // A change that nobody was told yet is not lost.
    scratch.write("a/a.pem", "2");
    watcher.watch(&paths);
    assert_eq!(seen(&mut watcher).await, [0]);
    scratch.write("c.pem", "2");
    while seen(&mut watcher).await != [2] {}
    watcher.watch([&paths[1], &paths[2]]);
    scratch.write("b.pem", "2");
    while seen(&mut watcher).await != [0] {}
}

#[tokio::test(start_paused = true)]
async fn without_inotify_time_stamps_tell_and_inotify_is_taken_up_again() {
    let scratch = Scratch::new();
    scratch.write("a.pem", "1");
    let mut watcher = Watcher::new([scratch.path("a.pem")]);
    watcher.fail(io::Error::other("no watches left"));
    scratch.write("a.pem", "longer than before");
    assert_eq!(watcher.changed().await.unwrap_err().to_string(), "no watches left");
    assert_eq!(watcher.changed().await.unwrap().into_iter().collect::<Vec<_>>(), [0]);
    assert!(watcher.inotify.is_some());
}

#[test]
fn walk_survives_links_that_go_in_circles() {
    let scratch = Scratch::new();
    symlink("b", scratch.path("a")).unwrap();
    symlink("a", scratch.path("b")).unwrap();
    let mut steps = 0;
    walk::walk(&scratch.path("a/c"), |_| steps += 1);
    assert!(steps < 100);
}
