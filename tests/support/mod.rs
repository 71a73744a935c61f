//! What the integration tests play: a scripted istiod, a scripted Envoy, and the agent itself in a folder of its own.
//!
//! Nothing here sleeps or polls by time: a test waits for a message, a line or a file, and [`within`] bounds the wait.

pub mod agent;
#[path = "../../examples/control_plane/ca.rs"]
pub mod ca;
pub mod envoy;
pub mod istiod;
pub mod web;

use std::{
    fs,
    future::Future,
    net::TcpListener,
    ops::Deref,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU16, AtomicU32, Ordering},
    time::Duration,
};

use footman::net::files::Watcher;

/// So long a test may wait for anything at all, on a machine that is busy with others.
const PATIENCE: Duration = Duration::from_secs(60);

/// The value of a future that must not take longer than a test can wait.
pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(value) => value,
        Err(_) => panic!("{what}: nothing after {PATIENCE:?}"),
    }
}

/// Waits until a file is there with at least so many lines; its text.
pub async fn lines(path: &Path, count: usize) -> String {
    let mut watcher = Watcher::new([path]);
    let read = async {
        loop {
            match fs::read_to_string(path) {
                Ok(text) if text.lines().count() >= count => return text,
                _ => drop(watcher.changed().await.unwrap()),
            }
        }
    };
    within(&path.to_string_lossy(), read).await
}

/// A port that nobody uses and that no client is given meanwhile: below Linux's ephemeral range.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let base = 12_000 + (std::process::id() % 900) as u16 * 20;
    loop {
        let port = base + NEXT.fetch_add(1, Ordering::Relaxed);
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// A folder that goes when the test ends.
#[derive(Debug)]
pub struct TempDir(PathBuf);

impl TempDir {
    pub fn new() -> TempDir {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("footman-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        // Not below target/: paths of Unix sockets may have 107 bytes only.
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        TempDir(path)
    }

    /// Writes a file, with the folders on the way to it.
    pub fn write(&self, path: &str, contents: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, contents).unwrap();
        path
    }
}

impl Deref for TempDir {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
