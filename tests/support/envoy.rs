//! A scripted Envoy: an executable that only waits, and the calls that a real one would make to the agent's sockets.

use std::{io::ErrorKind, os::unix::fs::PermissionsExt, path::PathBuf};

use footman::{
    grpc::{Call, Client, Receiver, Sender, Settings},
    net::files::Watcher,
};
use tokio::net::UnixStream;

use super::{TempDir, within};

/// An executable for `binaryPath`: it notes its arguments in `envoy-argv` and waits for a signal.
pub fn stub(folder: &TempDir) -> PathBuf {
    script(folder, "printf '%s\\n' \"$@\" > envoy-argv\nexec sleep infinity\n")
}

/// An executable for `binaryPath` that runs these shell commands.
pub fn script(folder: &TempDir, commands: &str) -> PathBuf {
    let path = folder.write("envoy-stub", format!("#!/bin/sh\n{commands}"));
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    path
}

/// The real Envoy that `scripts/test` names in `ENVOY`; `None` where tests are run without it.
#[allow(clippy::disallowed_methods, reason = "a test has no Vars of its own")]
pub fn real() -> Option<PathBuf> {
    std::env::var_os("ENVOY").map(PathBuf::from)
}

/// A connection to one of the agent's sockets, as soon as it is there.
pub async fn client(socket: PathBuf) -> Client {
    let connection = within("a connection to the agent", connect(&socket)).await;
    let (client, drive) = Client::handshake(Box::new(connection), Settings::default()).await.unwrap();
    tokio::spawn(drive);
    client
}

/// A stream on a connection of its own.
pub async fn stream(socket: PathBuf, path: &str) -> (Sender, Receiver) {
    let client = client(socket).await;
    client.stream(&Call { path, authority: "localhost", ..Call::default() }).await.unwrap()
}

async fn connect(socket: &PathBuf) -> UnixStream {
    let mut watcher = Watcher::new([socket]);
    loop {
        match UnixStream::connect(socket).await {
            Ok(connection) => return connection,
            Err(error) if error.kind() == ErrorKind::NotFound => drop(watcher.changed().await.unwrap()),
            // Between bind and listen.
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => tokio::task::yield_now().await,
            Err(error) => panic!("{}: {error}", socket.display()),
        }
    }
}
