//! `status`: what a running agent says of itself, over its status port; once, or again and again with `--watch`.

use std::{
    io::{IsTerminal, Write, stdout},
    time::Duration,
};

use serde_json::Value;
use tokio::time::Instant;

use super::{
    Failure,
    args::Typed,
    commands::{STATUS_OUTPUT, STATUS_PORT, WATCH},
    fetch::fetch,
    report::{Style, render},
};
use crate::{
    config::{Flags, Vars},
    net::http1::Url,
};

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
    let (vars, _) = Vars::at_hand(Flags::default());
    let port = if typed.has(&STATUS_PORT) { typed_port(typed)? } else { configured_port(&vars)? };
    let (watch, terminal) = (typed.text(&WATCH) == "true", stdout().is_terminal());
    let style = style(&vars, terminal);
    loop {
        let mut text = match look(port).await {
            Ok(state) if json => format!("{state:#}\n"),
            Ok(state) => render(&state, style),
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

/// Colours for a terminal whose user has not refused them (<https://no-color.org>).
fn style(vars: &Vars, terminal: bool) -> Style {
    Style { colour: terminal && vars.text_or("NO_COLOR", "").is_empty() }
}

/// The status port as typed.
fn typed_port(typed: &Typed) -> Result<u16, Failure> {
    let port = u16::try_from(typed.int(&STATUS_PORT)).ok().filter(|port| *port > 0);
    port.ok_or_else(|| Failure::usage(format!("--status-port: {:?} is not a port", typed.text(&STATUS_PORT))))
}

/// The status port of an agent with the same environment and files.
fn configured_port(vars: &Vars) -> Result<u16, Failure> {
    match vars.proxy().status_port {
        0 => {
            let origin = vars.proxy_origin("statusPort");
            Err(Failure::usage(format!("{origin}: statusPort: the agent has no status port; --status-port names one")))
        }
        port => Ok(port),
    }
}

async fn look(port: u16) -> Result<Value, Failure> {
    let url = format!("http://localhost:{port}/debug/state");
    let failed = |error: String| Failure::failed(format!("{error}; is the agent running, and is --status-port right?"));
    let parsed = Url::parse(&url).map_err(|error| failed(error.to_string()))?;
    let answer = fetch("GET", &parsed, "", Instant::now() + TIMEOUT, MAX_STATE).await.map_err(failed)?;
    match answer.status {
        200 => serde_json::from_slice(&answer.body).map_err(|error| failed(format!("{url}: {error}"))),
        status => Err(failed(format!("{url}: status {status}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{cli::commands::STATUS, config::Sources};

    #[test]
    fn colours_are_for_terminals_and_for_who_wants_them() {
        let colour = |env: &[(&str, &str)], terminal| style(&Vars::from_pairs(env.to_vec()), terminal).colour;
        assert!(colour(&[], true) && colour(&[("NO_COLOR", "")], true));
        assert!(!colour(&[("NO_COLOR", "1")], true) && !colour(&[("NO_COLOR", "0")], true) && !colour(&[], false));
    }

    #[test]
    fn the_port_is_that_of_the_agent() {
        let port = |config: &str| {
            let env = [("PROXY_CONFIG".to_owned(), config.to_owned())].into();
            configured_port(&Vars::load(Sources { env, ..Sources::default() }).0).map_err(|failure| failure.message)
        };
        assert_eq!(port(""), Ok(15020));
        assert_eq!(port("statusPort: 15030"), Ok(15030));
        let message = port("statusPort: 0").unwrap_err();
        assert!(message.starts_with("PROXY_CONFIG:1: statusPort: ") && message.contains("--status-port"), "{message}");
        let typed = |port: &str| {
            typed_port(&STATUS.parse([format!("--status-port={port}").into()]).unwrap()).map_err(|failure| failure.code)
        };
        for (text, port) in [("15020", Ok(15020)), ("0", Err(64)), ("-1", Err(64)), ("99999", Err(64))] {
            assert_eq!(typed(text), port, "{text}");
        }
    }
}
