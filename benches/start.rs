//! From the start of the agent to a running Envoy and to its first secret; what an idle agent costs.

use std::{
    fs,
    path::Path,
    time::{Duration, SystemTime},
};

use footman::net::files::Watcher;

use crate::{
    Bench, Figure, median, metrics, milliseconds, process, sds,
    support::{
        TempDir,
        agent::{Agent, Options},
        istiod::{DELTA, Istiod},
        within,
    },
    xds,
};

pub const METHOD: &str =
    "15 starts, medians: from fork of the agent until its Envoy runs, and until an SDS client has \"default\"";
pub const IDLE_METHOD: &str = "an agent that has passed configuration and secrets and was asked for readiness and metrics once, 5 s later, watched for 20 s";

/// Written by the played Envoy into its working directory.
const STAMP: &str = "envoy-started";

pub async fn run(bench: &Bench) -> Vec<Figure> {
    let (mut to_envoy, mut to_secret) = (Vec::new(), Vec::new());
    for _ in 0..15 {
        let istiod = Istiod::start().await;
        let began = SystemTime::now();
        let agent = start(bench, &istiod);
        let secret = sds::subscribe(agent.sds_socket()).await;
        to_secret.push(milliseconds(began.elapsed().unwrap()));
        to_envoy.push(within("the start of Envoy", envoy_started(&agent.folder.join(STAMP), began)).await);
        drop(secret);
    }
    vec![
        Figure::new("binary", fs::metadata(&bench.binary).unwrap().len() as f64 / 1e6, "MB").at_most(3.1457),
        Figure::new("until Envoy runs", median(to_envoy), "ms").at_most(5.0),
        Figure::new("until the first secret", median(to_secret), "ms").at_most(15.0),
    ]
}

pub async fn idle(bench: &Bench) -> Vec<Figure> {
    let mut istiod = Istiod::start().await;
    let mut relayed = xds::relayed(bench, &mut istiod, DELTA).await;
    let pid = relayed.agent.pid();
    relayed.configure().await;
    // One Envoy goes, the next one comes.
    drop(sds::subscribe(relayed.agent.sds_socket()).await);
    let _secret = sds::subscribe(relayed.agent.sds_socket()).await;
    for path in ["/healthz/ready", "/stats/prometheus"] {
        metrics::get(&relayed.agent, path).await;
    }
    // Something happens beside the agent's folder, as it does in every /tmp.
    drop(TempDir::new());
    tokio::time::sleep(Duration::from_secs(5)).await;
    let (cpu, wakeups) = (process::cpu(pid), process::wakeups(pid));
    tokio::time::sleep(Duration::from_secs(20)).await;
    vec![
        Figure::new("resident memory", process::rss(pid), "MB").at_most(2.5),
        Figure::new("peak", process::peak(pid), "MB"),
        Figure::new("private dirty memory", process::private_dirty(pid) / 1e3, "MB"),
        Figure::new("threads", process::threads(pid), "").at_most(1.0),
        Figure::new("CPU per second", (process::cpu(pid) - cpu) / 20.0 * 1e3, "ms"),
        Figure::new("wake-ups per minute", (process::wakeups(pid) - wakeups) * 3.0, ""),
    ]
}

/// An agent with the played Envoy.
pub fn start(bench: &Bench, istiod: &Istiod) -> Agent {
    Agent::start(istiod, Options { binary: &bench.binary, envoy: Some(&bench.envoy), env: &[] })
}

/// What this executable does under the name `envoy`.
pub fn play_envoy() -> ! {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    fs::write(format!("{STAMP}.new"), now.as_nanos().to_string()).unwrap();
    fs::rename(format!("{STAMP}.new"), STAMP).unwrap();
    loop {
        std::thread::park();
    }
}

async fn envoy_started(stamp: &Path, began: SystemTime) -> f64 {
    let mut watcher = Watcher::new([stamp]);
    loop {
        if let Ok(text) = fs::read_to_string(stamp) {
            let started = SystemTime::UNIX_EPOCH + Duration::from_nanos(text.parse().unwrap());
            return milliseconds(started.duration_since(began).unwrap());
        }
        watcher.changed().await.unwrap();
    }
}
