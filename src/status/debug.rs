//! `/debug/…`: the state of every room as JSON, the same for people as one page, and the pprof paths that scripts look for.

use std::io;

use serde_json::{Map, Value, json};
use tokio::sync::watch;

use super::{
    ready::Ready,
    routes::{HTML, JSON, PLAIN, not_found},
};
use crate::{config, envoy, net::http1::server::Reply, telemetry::pages::Pages};

/// The page for people; it asks for `/debug/state` and shows it.
const PAGE: &str = include_str!("page.html");

/// The page needs its own text and `/debug/state`, nothing else.
const POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:";

/// Go's profiles, which a process without Go's runtime does not have.
const PROFILES: [&str; 9] =
    ["heap", "goroutine", "allocs", "block", "mutex", "threadcreate", "profile", "symbol", "trace"];

/// Serves what the rooms show.
pub struct Debug {
    /// The rooms' pages.
    pub pages: Pages,
    /// Envoy's process.
    pub envoy: watch::Receiver<envoy::State>,
    /// `--profiling`.
    pub profiling: bool,
}

impl Debug {
    /// Answers for the page called `name`.
    pub async fn answer(&self, name: &str, ready: &Ready, reply: Reply<'_>) -> io::Result<()> {
        match name {
            "" => {
                let reply = reply.header("Content-Security-Policy", POLICY);
                reply.send(200, HTML, PAGE.as_bytes()).await
            }
            "state" => reply.send(200, JSON, self.state(ready).await.to_string().as_bytes()).await,
            _ => match name.strip_prefix("pprof/").or((name == "pprof").then_some("")) {
                Some(profile) if self.profiling => pprof(profile, reply).await,
                Some(_) => not_found(reply).await,
                None => match self.pages.get(name) {
                    Some(Some(page)) => reply.send(200, JSON, page.as_bytes()).await,
                    Some(None) => reply.send(404, PLAIN, b"{}").await,
                    // Istio serves this path whether or not there is local DNS.
                    None if name == "ndsz" => reply.send(404, PLAIN, b"{}").await,
                    None => not_found(reply).await,
                },
            },
        }
    }

    /// Everything that is known of the agent, in one object.
    async fn state(&self, ready: &Ready) -> Value {
        let waits_for = object(ready.waits_for().await);
        let envoy = self.envoy.borrow().clone();
        let mut state = json!({
            "agent": {
                "version": env!("CARGO_PKG_VERSION"),
                "istio": config::ISTIO_VERSION,
                "pid": std::process::id(),
                "memory": memory("self"),
            },
            "ready": waits_for.is_empty(),
            "waitsFor": waits_for,
            "notes": object(ready.notes()),
            "envoy": {
                "pid": envoy.running.map(|(pid, _)| pid),
                "runningSeconds": envoy.running.and_then(|(_, since)| since.elapsed().ok()).map(|age| age.as_secs()),
                "starts": envoy.starts,
                "lastExit": envoy.last_exit,
                "memory": envoy.running.map(|(pid, _)| memory(&pid.to_string())),
            },
        });
        for (name, room) in self.pages.all() {
            state[name] = room;
        }
        state
    }
}

fn object(details: Vec<(&'static str, String)>) -> Map<String, Value> {
    details.into_iter().map(|(name, detail)| (name.to_owned(), detail.into())).collect()
}

async fn pprof(profile: &str, reply: Reply<'_>) -> io::Result<()> {
    match profile {
        "" => {
            let text = "<!DOCTYPE html><title>/debug/pprof/</title><p><a href=\"cmdline\">cmdline</a>\n";
            reply.send(200, HTML, text.as_bytes()).await
        }
        "cmdline" => {
            let words: Vec<String> = std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
            reply.send(200, PLAIN, words.join("\0").as_bytes()).await
        }
        _ if PROFILES.contains(&profile) => {
            let text = "There is no Go runtime here to profile: use perf or a debugger from outside\n";
            reply.send(501, PLAIN, text.as_bytes()).await
        }
        _ => not_found(reply).await,
    }
}

/// Resident memory of a process now and at its highest, in kB.
fn memory(process: &str) -> Value {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|value| value.trim().trim_end_matches(" kB").parse::<u64>().ok())
    };
    json!({"residentKilobytes": field("VmRSS:"), "highestKilobytes": field("VmHWM:")})
}
