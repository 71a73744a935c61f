//! `check`: takes what `proxy` takes, starts nothing, and says what would happen: every setting with its origin, every error and
//! warning, the bootstrap and Envoy's opinion of it, the way to istiod step by step.
//!
//! Exit code: 0 all is well; 1 istiod cannot be reached; 64 the configuration is wrong. Secrets are never printed.

mod hints;
mod report;
mod settings;
mod validate;

use report::{Report, Step};

use super::{
    Failure,
    args::Typed,
    commands::{BOOTSTRAP, CHECK, OUTPUT, REQUEST_CERTIFICATE},
    logging, proxy, redact,
};
use crate::{
    agent,
    bootstrap::{Surroundings, platform},
    config::{PROXY_FLAGS, Record, Vars},
    istiod, secrets,
};

/// Runs the checks; what is printed, and the exit code.
///
/// # Errors
/// A command line that is wrong.
pub async fn run(typed: Typed) -> Result<(String, u8), Failure> {
    let json = match typed.text(&OUTPUT) {
        "" => false,
        "json" => true,
        other => return Err(Failure::usage(format!("--output: {other:?} is not json"))),
    };
    let is_on = |flag| typed.text(flag).parse() == Ok(true);
    let (show_bootstrap, request_certificate) = (is_on(&BOOTSTRAP), is_on(&REQUEST_CERTIFICATE));
    let report = check(typed, show_bootstrap, request_certificate).await?;
    let code = report.exit_code();
    Ok((if json { report.json() } else { report.text() }, code))
}

async fn check(mut typed: Typed, show_bootstrap: bool, request_certificate: bool) -> Result<Report, Failure> {
    let unknown = typed.unknown.iter().map(|flag| CHECK.misspelt(flag, ": unknown, ignored")).collect();
    typed.flags.retain(|(name, _)| ![OUTPUT.name, BOOTSTRAP.name, REQUEST_CERTIFICATE.name].contains(name));
    let (vars, mut errors) = Vars::of_process(proxy::flags(typed)?, Record::All).await;
    if let Err(failure) = logging::config(vars.flags()) {
        errors.add("command line", failure.message);
    }
    let agent = errors.take(agent::Config::from_vars(&vars));
    if let Some(agent) = &agent {
        errors.append(agent.faults().await);
    }
    let mut report = Report::new(&vars);
    report.warnings = unknown;
    hints::add(&vars, !errors.0.is_empty(), &mut report.warnings);
    report.settings = settings::all(&vars);
    if let Some(agent) = agent.filter(|_| errors.0.is_empty()) {
        let platform = match platform::Config::from_vars(&vars) {
            Ok(config) => platform::detect(&config).await,
            Err(_) => platform::Platform::default(),
        };
        let around = Surroundings { platform, ..Surroundings::default() };
        if let Err(error) = agent.bootstrap().fits(&around) {
            errors.add(vars.proxy_origin("tracing").to_string(), error.to_string());
        } else if !vars.bool("DISABLE_ENVOY", false) {
            report.steps.push(validate::by_envoy(&vars, agent.bootstrap(), &around).await);
        }
        if show_bootstrap {
            report.bootstrap = Some(redact::document(agent.bootstrap().document(&around)));
        }
        report.steps.extend(control_plane(&vars, request_certificate).await);
    }
    report.errors = errors;
    report.warnings.extend(vars.warnings());
    Ok(report)
}

/// Discovery, the CA where it is another address, and a certificate if one is asked for.
async fn control_plane(vars: &Vars, request_certificate: bool) -> Vec<Step> {
    let mut steps = Vec::new();
    let discovery = istiod::Config::for_discovery(vars).ok();
    let secrets = secrets::Config::from_vars(vars).ok();
    let authority = secrets.as_ref().and_then(|secrets| secrets.authority.clone());
    if let Some(config) = &discovery {
        steps.extend(Step::of_way("istiod", config, istiod::probe(config).await));
    }
    let other = authority.filter(|ca| discovery.as_ref().is_none_or(|config| config.endpoint != ca.endpoint));
    if let Some(config) = other {
        steps.extend(Step::of_way("CA", &config, istiod::probe(&config).await));
    }
    if let Some(secrets) = secrets.filter(|_| request_certificate) {
        let advice =
            "istiod's log tells why it refuses; the token's audience and the trust domain are the usual reasons";
        steps.push(Step::new("certificate", secrets::try_out(&secrets).await, advice));
    }
    steps
}

/// The flags of `proxy` and its own.
pub const FLAGS: &[crate::config::Flag] = &{
    let mut all = [BOOTSTRAP; PROXY_FLAGS.len() + 3];
    let mut index = 0;
    while index < PROXY_FLAGS.len() {
        all[index] = PROXY_FLAGS[index];
        index += 1;
    }
    all[index] = OUTPUT;
    all[index + 1] = REQUEST_CERTIFICATE;
    all[index + 2] = BOOTSTRAP;
    all
};
