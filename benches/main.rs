//! Footprint and speed of the static binary, seen from outside: `scripts/bench` builds it and runs this.
//!
//! A scripted istiod and a scripted Envoy run in this process, the agent in its own. CPU is the agent's (`/proc/PID/schedstat`),
//! memory its resident set (`VmRSS`, peak `VmHWM`). Each figure stands beside its goal; a missed one fails the run.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a measurement that fails has no value to print")]
#![allow(missing_docs, reason = "nobody links against a bench")]

mod config;
mod dns;
mod metrics;
mod process;
mod sds;
mod start;
#[allow(dead_code, reason = "shared with the tests, which use other parts of it")]
#[path = "../tests/support/mod.rs"]
mod support;
mod wasm;
mod xds;

use std::{future::Future, path::PathBuf, pin::Pin, time::Duration};

type Run = for<'a> fn(&'a Bench) -> Pin<Box<dyn Future<Output = Vec<Figure>> + 'a>>;

/// Name, how it is measured, and the measurement.
const BENCHES: &[(&str, &str, Run)] = &[
    ("start", start::METHOD, |bench| Box::pin(start::run(bench))),
    ("idle", start::IDLE_METHOD, |bench| Box::pin(start::idle(bench))),
    ("config", config::METHOD, |bench| Box::pin(config::run(bench))),
    ("push", xds::PUSH_METHOD, |bench| Box::pin(xds::push(bench))),
    ("small", xds::SMALL_METHOD, |bench| Box::pin(xds::small(bench))),
    ("reconnect", xds::RECONNECT_METHOD, |bench| Box::pin(xds::reconnect(bench))),
    ("sds", sds::METHOD, |bench| Box::pin(sds::run(bench))),
    ("dns", dns::METHOD, |bench| Box::pin(dns::run(bench))),
    ("metrics", metrics::METHOD, |bench| Box::pin(metrics::run(bench))),
    ("wasm", wasm::METHOD, |bench| Box::pin(wasm::run(bench))),
];

/// What is measured, and what with.
pub struct Bench {
    /// The agent.
    binary: PathBuf,
    /// This executable under the name `envoy`: it notes when it was started, and waits.
    envoy: PathBuf,
}

/// One line of the table.
pub struct Figure {
    what: String,
    value: f64,
    unit: &'static str,
    /// The most it may be.
    goal: Option<f64>,
}

impl Figure {
    fn new(what: impl Into<String>, value: f64, unit: &'static str) -> Figure {
        Figure { what: what.into(), value, unit, goal: None }
    }

    fn at_most(self, goal: f64) -> Figure {
        Figure { goal: Some(goal), ..self }
    }

    fn missed(&self) -> bool {
        self.goal.is_some_and(|goal| self.value > goal)
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if arguments[0].ends_with("/envoy") {
        start::play_envoy();
    }
    // cargo adds --bench.
    let mut arguments = arguments.into_iter().skip(1).filter(|argument| argument != "--bench");
    let binary = PathBuf::from(arguments.next().expect("usage: BINARY [NAME...]")).canonicalize().unwrap();
    let wanted: Vec<String> = arguments.collect();
    for name in &wanted {
        let known: Vec<&str> = BENCHES.iter().map(|(name, ..)| *name).collect();
        assert!(known.contains(&name.as_str()), "no bench {name}; there are: {}", known.join(" "));
    }
    let folder = support::TempDir::new();
    let envoy = folder.join("envoy");
    std::os::unix::fs::symlink(std::env::current_exe().unwrap(), &envoy).unwrap();
    let bench = Bench { binary, envoy };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut missed = 0;
    for (name, method, run) in BENCHES.iter().filter(|(name, ..)| wanted.is_empty() || wanted.iter().any(|w| w == name))
    {
        println!("\n{name}: {method}");
        for figure in runtime.block_on(run(&bench)) {
            let verdict = match figure.goal {
                Some(goal) if figure.missed() => format!("MISSED, at most {goal}"),
                Some(goal) => format!("at most {goal}"),
                None => String::new(),
            };
            println!("  {:<58} {:>10.2} {:<5} {verdict}", figure.what, figure.value, figure.unit);
            missed += usize::from(figure.missed());
        }
    }
    if missed > 0 {
        eprintln!("{missed} goals missed");
        std::process::exit(1);
    }
}

/// The middle one.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}
