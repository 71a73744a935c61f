//! `proxy`: the agent itself. Signals first, then the log, the configuration with all its errors at once, then `agent`.

use log::{info, warn};

use super::{Failure, args::Typed, logging, redact, version};
use crate::{
    agent::{self, Signals},
    base::apart,
    config::{Flags, GLOBAL_FLAGS, PROXY_FLAGS, Record, Vars},
};

/// Runs the agent to its end; its exit code.
///
/// # Errors
/// A configuration that cannot work (64), or a start that failed (1).
pub async fn run(typed: Typed) -> Result<u8, Failure> {
    let mut signals = Signals::install().map_err(|error| Failure::failed(format!("signal handlers: {error}")))?;
    let flags = flags(typed)?;
    logging::install(&flags)?;
    log_flags(&flags);
    info!("{}", version::startup_line());
    let bound = tokio::select! {
        biased;
        _ = signals.recv() => {
            info!("ended by a signal while starting");
            return Ok(0);
        }
        bound = apart(|| start(flags)) => bound?,
    };
    Ok(bound.run(&mut signals).await)
}

async fn start(flags: Flags) -> Result<agent::Bound, Failure> {
    let config = apart(|| configuration(flags)).await?;
    apart(|| agent::build(config)).await.map_err(Failure::failed)
}

async fn configuration(flags: Flags) -> Result<agent::Config, Failure> {
    let (vars, mut errors) = Vars::of_process(flags, Record::Set).await;
    let config = errors.take(agent::Config::from_vars(&vars));
    if let Some(config) = &config {
        errors.append(config.faults().await);
    }
    let (pod, namespace) = (vars.text_or("POD_NAME", ""), vars.text_or("POD_NAMESPACE", ""));
    let (ips, role, domain) = (vars.ip_addresses(), vars.role(), vars.domain());
    info!("Proxy role\tips={ips:?} type={role} id={pod}.{namespace} domain={domain}");
    info!("Effective config: {}", redact::document(vars.proxy_document().into()));
    for warning in vars.warnings() {
        warn!("{warning}");
    }
    config.filter(|_| errors.0.is_empty()).ok_or_else(|| Failure::usage(errors))
}

/// What was typed, for `config`.
pub fn flags(typed: Typed) -> Result<Flags, Failure> {
    let mut flags = Flags::default();
    for (name, value) in &typed.flags {
        flags.set(name, value).map_err(Failure::usage)?;
    }
    for word in typed.positionals {
        flags.positional(word);
    }
    Ok(flags)
}

fn log_flags(flags: &Flags) {
    let mut names: Vec<_> = GLOBAL_FLAGS.iter().chain(PROXY_FLAGS).map(|flag| flag.name).collect();
    names.sort_unstable();
    for name in names {
        info!("FLAG: --{name}={:?}", flags.text(name));
    }
}
