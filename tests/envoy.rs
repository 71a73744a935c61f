//! Envoy's process under the agent's guard, with shells in its place.

use std::{
    fs,
    io::{ErrorKind, Read},
    os::unix::{fs::PermissionsExt, process::ExitStatusExt},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use footman::envoy::{Config, Exit, Running, guard};

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
    Running::start(config).unwrap().ended().await.unwrap()
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

#[test]
fn envoy_does_not_outlive_its_parent() {
    // The shell is the agent: it becomes the guard's parent and is then killed.
    let script = format!("{FOOTMAN} {} $$ - - - /bin/sleep 1000 & echo started; wait", guard::WORD);
    let mut agent = Command::new("/bin/sh").args(["-c", &script]).stdout(Stdio::piped()).spawn().unwrap();
    let mut out = agent.stdout.take().unwrap();
    let mut line = [0; 8];
    out.read_exact(&mut line).unwrap();
    agent.kill().unwrap();
    agent.wait().unwrap();
    // Everybody who could write has gone when this returns.
    let mut rest = Vec::new();
    out.read_to_end(&mut rest).unwrap();
    assert_eq!((&line[..], rest.len()), (&b"started\n"[..], 0));
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
