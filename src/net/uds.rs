//! Unix stream sockets that the agent serves on: stale files replaced, live ones refused, removed when closed.

use std::{
    fs::Permissions,
    io,
    os::unix::fs::{DirBuilderExt, FileTypeExt, PermissionsExt},
    path::{Path, PathBuf},
};

use tokio::net::UnixListener;

use super::Socket;

/// A bound socket; dropping it removes its file.
#[derive(Debug)]
pub struct Listener {
    listener: UnixListener,
    path: PathBuf,
}

/// Why a socket could not be bound.
#[derive(Debug)]
pub enum Error {
    /// What is at the path could not be removed.
    Remove(PathBuf, io::Error),
    /// Another process accepts connections there.
    InUse(PathBuf),
    /// The kernel refused to bind.
    Bind(PathBuf, io::Error),
    /// The permission bits could not be set.
    Mode(PathBuf, io::Error),
}

/// Binds `path` with permission bits `mode`. Missing parent directories are made (0750); a file, or a socket that nobody serves, is
/// replaced.
///
/// # Errors
/// When something that cannot be removed, or a live server, is at the path, or the kernel refuses.
pub fn bind(path: &Path, mode: u32) -> Result<Listener, Error> {
    if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        // A failure here shows up in bind, with the path in its text.
        let _ = std::fs::DirBuilder::new().recursive(true).mode(0o750).create(parent);
    }
    remove_stale(path)?;
    let listener = UnixListener::bind(path).map_err(|error| Error::Bind(path.to_owned(), error))?;
    let listener = Listener { listener, path: path.to_owned() };
    std::fs::set_permissions(path, Permissions::from_mode(mode))
        .map_err(|error| Error::Mode(path.to_owned(), error))?;
    Ok(listener)
}

fn remove_stale(path: &Path) -> Result<(), Error> {
    let socket = match std::fs::symlink_metadata(path) {
        Ok(metadata) => metadata.file_type().is_socket(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(Error::Remove(path.to_owned(), error)),
    };
    if socket && std::os::unix::net::UnixStream::connect(path).is_ok() {
        return Err(Error::InUse(path.to_owned()));
    }
    // An empty directory goes as well, as with Go's os.Remove.
    match std::fs::remove_file(path).or_else(|error| std::fs::remove_dir(path).map_err(|_| error)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::Remove(path.to_owned(), error)),
        _ => Ok(()),
    }
}

impl Listener {
    /// Waits for the next connection; cancel-safe.
    ///
    /// # Errors
    /// As `accept(2)`; running out of descriptors is worth another try.
    pub async fn accept(&self) -> io::Result<Socket> {
        let (socket, _) = self.listener.accept().await?;
        Socket::new(socket.into_std()?)
    }

    /// Where it is bound.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Error::Remove(path, error) => write!(f, "failed to remove unix://{}: {error}", path.display()),
            Error::InUse(path) => write!(f, "unix socket {path:?} is served by another process"),
            Error::Bind(path, error) => write!(f, "failed to listen on unix socket {path:?}: {error}"),
            Error::Mode(path, error) => write!(f, "failed to update {path:?} permission: {error}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Remove(_, error) | Error::Bind(_, error) | Error::Mode(_, error) => Some(error),
            Error::InUse(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("footman-uds-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        path
    }

    #[tokio::test]
    async fn replaces_stale_files_and_cleans_up() {
        let directory = directory("stale");
        std::fs::create_dir_all(&directory).unwrap();
        let path = directory.join("XDS");
        std::fs::write(&path, "stale").unwrap();
        drop(bind(&path, 0o666).unwrap());
        assert!(!path.exists());
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let listener = bind(&path, 0o666).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o666);
        drop(listener);
        std::fs::remove_dir_all(directory).unwrap();
    }

    #[tokio::test]
    async fn refuses_live_sockets_and_full_directories() {
        let directory = directory("live");
        let path = directory.join("sub/XDS");
        let live = bind(&path, 0o600).unwrap();
        let mode = std::fs::metadata(path.parent().unwrap()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o750);
        assert!(matches!(bind(&path, 0o600), Err(Error::InUse(_))));
        let error = bind(path.parent().unwrap(), 0o600).unwrap_err().to_string();
        assert!(error.starts_with("failed to remove unix://"), "{error}");
        drop(live);
        std::fs::remove_dir_all(directory).unwrap();
    }
}
