//! The life of the whole agent around a scripted Envoy: start, signals, exits. The admin port is closed in all of them, so that
//! drain requests fail at once.

use std::path::Path;

use nix::sys::signal::Signal;

use crate::support::{
    TempDir,
    agent::{Agent, Options},
    envoy,
    istiod::Istiod,
    lines,
};

/// Says what happens to it in the file `events` and lives until it is told to end.
const POLITE: &str =
    "trap 'echo term >> events; exit 0' TERM\necho start >> events\nwhile :; do sleep 1000 & wait; done\n";

/// An agent whose Envoy runs these shell commands.
async fn agent(commands: &str, env: &[(&str, &str)]) -> (Agent, TempDir) {
    let folder = TempDir::new();
    let envoy = envoy::script(&folder, commands);
    (Agent::start(&Istiod::start().await, Options { envoy: Some(&envoy), env, ..Options::default() }), folder)
}

#[tokio::test]
async fn sigterm_ends_envoy_politely_and_the_agent_with_zero() {
    let (mut agent, _folder) = agent(POLITE, &[]).await;
    lines(&agent.folder.join("events"), 1).await;
    agent.signal(Signal::SIGUSR1);
    agent.signal(Signal::SIGTERM);
    agent.signal(Signal::SIGINT);
    assert_eq!(agent.exit_code(), Some(0));
    assert_eq!(lines(&agent.folder.join("events"), 2).await, "start\nterm\n");
    assert!(agent.log().contains("received signal: terminated"), "{}", agent.log());
    assert!(!agent.folder.join("etc/istio/proxy/envoy-rev.json").exists());
}

#[tokio::test]
async fn envoys_exit_is_the_agents() {
    for (commands, code) in [("exit 0", 0), ("exit 7", 7), ("kill -SEGV $$", 139), ("kill -KILL $$", 137)] {
        let (mut agent, _folder) = agent(commands, &[]).await;
        assert_eq!(agent.exit_code(), Some(code), "{commands}");
        assert_eq!(agent.log().contains("out of memory"), code == 137, "{}", agent.log());
    }
}

#[tokio::test]
async fn envoy_that_cannot_be_executed_is_named() {
    let missing = Path::new("/missing/envoy");
    let options = Options { envoy: Some(missing), ..Options::default() };
    let mut agent = Agent::start(&Istiod::start().await, options);
    assert_eq!(agent.exit_code(), Some(127));
    assert!(agent.log().contains("Envoy cannot be started: /missing/envoy: No such file"), "{}", agent.log());
}

#[tokio::test]
async fn envoy_that_will_not_end_is_killed() {
    let stubborn = "trap '' TERM\necho start >> events\nwhile :; do sleep 1000; done\n";
    let (mut agent, _folder) = agent(stubborn, &[]).await;
    lines(&agent.folder.join("events"), 1).await;
    agent.signal(Signal::SIGTERM);
    assert_eq!(agent.exit_code(), Some(0));
    assert!(agent.log().contains("it is killed"), "{}", agent.log());
}

#[tokio::test]
async fn failed_envoy_starts_again_where_asked_for() {
    // The second run needs its bootstrap ($2) as the first did.
    let commands = format!("[ -e events ] || {{ echo failed >> events; exit 3; }}\n[ -s \"$2\" ] || exit 4\n{POLITE}");
    let (mut agent, _folder) = agent(&commands, &[("FOOTMAN_RESTART_ENVOY", "on-failure")]).await;
    lines(&agent.folder.join("events"), 2).await;
    agent.signal(Signal::SIGTERM);
    assert_eq!(agent.exit_code(), Some(0));
    assert_eq!(lines(&agent.folder.join("events"), 3).await, "failed\nstart\nterm\n");
}

#[tokio::test]
async fn third_signal_cuts_the_drain_short_where_asked_for() {
    let env = [("FOOTMAN_FORCE_ON_SIGNAL", "3"), ("FOOTMAN_PRE_DRAIN_DELAY", "1h")];
    let (mut agent, _folder) = agent(POLITE, &env).await;
    lines(&agent.folder.join("events"), 1).await;
    // One after the other: the kernel keeps only one of a kind waiting.
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        agent.signal(signal);
    }
    let log = agent.folder.join("agent.log");
    while !agent.log().contains("already terminating") {
        let count = agent.log().lines().count();
        lines(&log, count + 1).await;
    }
    agent.signal(Signal::SIGTERM);
    assert_eq!(agent.exit_code(), Some(0));
    assert_eq!(lines(&agent.folder.join("events"), 1).await, "start\n", "killed, not asked");
}

#[tokio::test]
async fn envoys_stderr_gets_the_logs_format_where_asked_for() {
    let commands = "printf 'early text\\nlast words' >&2; echo to stdout; exit 1\n";
    let (mut agent, _folder) = agent(commands, &[("FOOTMAN_CAPTURE_ENVOY_LOG", "true")]).await;
    assert_eq!(agent.exit_code(), Some(1));
    let log = agent.log();
    for line in ["\tinfo\tenvoy\tearly text\n", "\tinfo\tenvoy\tlast words\n", "\nto stdout\n"] {
        assert!(log.contains(line), "{line:?} is not in\n{log}");
    }
}
