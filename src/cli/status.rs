//! `status`: what a running agent says of itself, over its status port; once, or again and again with `--watch`.

use std::{
    io::{IsTerminal, Write, stdout},
    time::Duration,
};

use serde_json::Value;

use super::{
    Failure,
    args::Typed,
    commands::{STATUS_OUTPUT, STATUS_PORT, WATCH},
    report::{Style, render},
};
use crate::net::http1::client::Request;

/// Between two looks with `--watch`.
const PERIOD: Duration = Duration::from_secs(2);
/// For one look; readiness may have to wait for Envoy's admin port.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The largest state that is shown.
const MAX_STATE: usize = 16 << 20;
/// Clears the terminal.
const CLEAR: &str = "\x1b[H\x1b[2J";

/// Runs it.
///
/// # Errors
/// An output form that does not exist, or an agent that does not answer.
pub async fn run(typed: &Typed) -> Result<(), Failure> {
    let json = match typed.text(&STATUS_OUTPUT) {
        "" | "text" => false,
        "json" => true,
        other => return Err(Failure::usage(format!("--output must be text or json, not {other:?}"))),
    };
    let port = typed.count(&STATUS_PORT)?;
    let (watch, terminal) = (typed.text(&WATCH) == "true", stdout().is_terminal());
    loop {
        let mut text = match look(port).await {
            Ok(state) if json => format!("{state:#}\n"),
            Ok(state) => render(&state, Style { colour: terminal }),
            // The agent may be about to start again.
            Err(failure) if watch => format!("{}\n", failure.message),
            Err(failure) => return Err(failure),
        };
        if watch && terminal && !json {
            text.insert_str(0, CLEAR);
        }
        // A reader that has seen enough has gone; that is the end of a watch, too.
        if stdout().write_all(text.as_bytes()).and_then(|()| stdout().flush()).is_err() || !watch {
            return Ok(());
        }
        tokio::time::sleep(PERIOD).await;
    }
}

async fn look(port: u64) -> Result<Value, Failure> {
    let url = format!("http://localhost:{port}/debug/state");
    let failed = |error: &dyn std::fmt::Display| {
        Failure::failed(format!("{url}: {error}; is the agent running, and is --status-port right?"))
    };
    let request = Request::get(&url).map_err(|error| failed(&error))?.timeout(TIMEOUT);
    let mut response = request.send(None).await.map_err(|error| failed(&error))?;
    let body = response.body.collect(MAX_STATE).await.map_err(|error| failed(&error))?;
    match response.status {
        200 => serde_json::from_slice(&body).map_err(|error| failed(&error)),
        status => Err(failed(&format!("status {status}"))),
    }
}
