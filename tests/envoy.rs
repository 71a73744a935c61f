//! Envoy's process under the agent's guard, with shells in its place.

use std::{
    fs,
    io::{ErrorKind, Read, Write},
    os::{
        fd::OwnedFd,
        unix::{fs::PermissionsExt, net::UnixStream, process::ExitStatusExt},
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use footman::envoy::{
    Config, Exit, Running,
    guard::{self, Waiting},
};

use crate::support::TempDir;

const FOOTMAN: &str = env!("CARGO_BIN_EXE_footman");

fn config(binary: impl Into<PathBuf>, args: &[&str]) -> Config {
    Config {
        binary: binary.into(),
        args: args.iter().map(Into::into).collect(),
        guard: Some(FOOTMAN.into()),
        ..Config::default()
    }
}

async fn exit(config: &Config) -> Exit {
    Running::start(config, None).unwrap().ended().await.unwrap()
}

#[tokio::test]
async fn status_passes_through_the_guard() {
    for (script, code, signal) in
        [("exit 0", Some(0), None), ("exit 127", Some(127), None), ("kill -SEGV $$", None, Some(11))]
    {
        let exit = exit(&config("/bin/sh", &["-c", script])).await;
        let Exit::Status(status) = exit else { panic!("{script}: {exit:?}") };
        assert_eq!((status.code(), status.signal()), (code, signal), "{script}");
    }
}

#[tokio::test]
async fn program_that_cannot_run_is_told_apart_from_one_that_fails() {
    let folder = TempDir::new();
    let script = folder.write("script", "#!/missing/interpreter\n");
    let plain = folder.write("plain", "#!/bin/sh\n");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(&plain, fs::Permissions::from_mode(0o644)).unwrap();
    for (path, kind) in [
        (folder.join("missing"), ErrorKind::NotFound),
        (plain, ErrorKind::PermissionDenied),
        (folder.to_path_buf(), ErrorKind::PermissionDenied),
        (script, ErrorKind::NotFound),
    ] {
        let exit = exit(&config(&path, &[])).await;
        let Exit::Failed(error) = exit else { panic!("{}: {exit:?}", path.display()) };
        assert!(error.to_string().contains(&*path.to_string_lossy()), "{error}");
        assert!(error.kind() == kind, "{error}");
    }
}

#[tokio::test]
async fn envoy_sees_its_arguments_and_nothing_of_the_agent() {
    let folder = TempDir::new();
    let out = folder.join("out");
    let script = "{ echo \"$@\"; echo $X; readlink /proc/self/fd/0; ls -l /proc/self/fd | grep -cE 'socket|anon_inode'; ps -o pgid= -p $$; echo $$; ulimit -Sn; } > $OUT";
    let mut config = config("/bin/sh", &["-c", script, "envoy", "-c", "a b.json"]);
    config.env = vec![("X".to_owned(), "y".to_owned()), ("OUT".to_owned(), out.to_string_lossy().into_owned())];
    config.open_files = Some(100);
    assert!(matches!(exit(&config).await, Exit::Status(status) if status.success()));
    let text = fs::read_to_string(out).unwrap();
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    assert_eq!(&lines[..3], ["-c a b.json", "y", "/dev/null"], "{text}");
    assert_eq!(lines[3], "0", "no socket, event queue or signal pipe of the agent: {text}");
    assert_eq!(lines[4], lines[5], "leader of its own group: {text}");
    assert_eq!(lines[6], "100", "its own limit of open files: {text}");
}

#[tokio::test]
async fn guard_waits_until_envoy_is_started() {
    let folder = TempDir::new();
    let (made, config) = (folder.join("made"), config("/bin/sh", &["-c", "exit $(cat $FILE)"]));
    let config = Config { env: vec![("FILE".to_owned(), made.to_string_lossy().into_owned())], ..config };
    let waiting = Waiting::start(Path::new(FOOTMAN), &config).unwrap();
    folder.write("made", "3");
    let exit = Running::start(&config, Some(waiting)).unwrap().ended().await.unwrap();
    assert!(matches!(exit, Exit::Status(status) if status.code() == Some(3)), "{exit:?}");
}

#[tokio::test]
async fn guard_that_is_gone_meanwhile_counts_as_an_envoy_that_ended() {
    let config = Config { user: Some((u32::MAX, u32::MAX)), ..config("/bin/true", &[]) };
    let waiting = Waiting::start(Path::new(FOOTMAN), &config).unwrap();
    let exit = Running::start(&config, Some(waiting)).unwrap().ended().await.unwrap();
    assert!(matches!(&exit, Exit::Failed(error) if error.kind() == ErrorKind::InvalidInput), "{exit:?}");
}

#[test]
fn neither_guard_nor_envoy_outlives_the_agent() {
    // The shell is the agent: it becomes the guard's parent and is then killed.
    // Not by descriptor 0, which it takes away from whatever runs beside it.
    let script = format!(
        "exec 3<&0; {FOOTMAN} {} $$ - - - /bin/sh -c 'echo envoy; exec sleep 1000' <&3 & echo agent; wait",
        guard::WORD
    );
    for envoy in [false, true] {
        let (mut end, stdin) = UnixStream::pair().unwrap();
        let mut command = Command::new("/bin/sh");
        command.args(["-c", &script]).stdin(OwnedFd::from(stdin)).stdout(Stdio::piped());
        let mut agent = command.spawn().unwrap();
        drop(command);
        let mut out = agent.stdout.take().unwrap();
        let mut lines = vec![0; if envoy { 12 } else { 6 }];
        if envoy {
            end.write_all(b"!").unwrap();
        }
        out.read_exact(&mut lines).unwrap();
        agent.kill().unwrap();
        agent.wait().unwrap();
        // Everybody who could write has gone when this returns.
        let mut rest = Vec::new();
        out.read_to_end(&mut rest).unwrap();
        assert_eq!(String::from_utf8(rest).unwrap(), "", "envoy: {envoy}");
    }
}

#[test]
fn guard_leaves_when_the_agent_closes_its_end() {
    let (end, stdin) = UnixStream::pair().unwrap();
    let mut command = Command::new(FOOTMAN);
    command.args([guard::WORD, &std::process::id().to_string(), "-", "-", "-", "/bin/echo", "envoy"]);
    let child = command.stdin(OwnedFd::from(stdin)).stdout(Stdio::piped()).spawn().unwrap();
    drop((end, command));
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), &*output.stdout), (Some(126), &b""[..]));
}

#[test]
fn guard_refuses_when_its_parent_is_another() {
    for args in [&["1", "-", "-", "-", "/bin/true"][..], &["x", "-", "-", "-", "/bin/true"], &["1"], &[]] {
        let output =
            Command::new(Path::new(FOOTMAN)).arg(guard::WORD).args(args).stdin(Stdio::null()).output().unwrap();
        assert_eq!(output.status.code(), Some(126), "{args:?}");
        assert!(output.stdout.is_empty() && output.stderr.is_empty(), "{args:?}");
    }
}
