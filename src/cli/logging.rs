//! The logging flags, as `proxy` and `wait` apply them; other commands log at info to standard output.

use log::LevelFilter;

use super::{Failure, args::Typed};
use crate::{
    config::Flags,
    telemetry::log::{self as telemetry, Callers, Config, Levels},
};

/// Installs the log that the flags ask for.
///
/// # Errors
/// A level that does not exist, a file that cannot be opened.
pub fn install(flags: &Flags) -> Result<(), Failure> {
    telemetry::install(config(flags)?).map_err(Failure::usage)
}

/// The same for what was typed beside a command's own flags.
///
/// # Errors
/// As [`install`].
pub fn install_typed(typed: &Typed) -> Result<(), Failure> {
    let mut flags = Flags::default();
    for (name, value) in &typed.flags {
        // All values were checked; the command's own flags are unknown here.
        let _ = flags.set(name, value);
    }
    install(&flags)
}

/// What the flags ask for.
///
/// # Errors
/// A level that does not exist.
pub fn config(flags: &Flags) -> Result<Config, Failure> {
    let mut levels = Levels::default();
    let apply = |levels: &mut Levels, name: &str| {
        levels.apply(flags.text(name)).map_err(|error| Failure::usage(format!("--{name}: {error}")))
    };
    apply(&mut levels, "log_output_level")?;
    if flags.int("vklog") > 0 {
        levels.set("klog", LevelFilter::Debug);
    }
    // Checked, and without effect: a stripped binary has no stack to show.
    apply(&mut Levels::default(), "log_stacktrace_level")?;
    Ok(Config {
        json: flags.bool("log_as_json"),
        levels,
        callers: Callers::parse(flags.text("log_caller")),
        targets: flags.all("log_target").into_iter().map(str::to_owned).collect(),
    })
}

/// Installs the log without flags, unless there is one already.
pub fn install_default(json: bool) {
    // Standard output needs no opening.
    let _ = telemetry::install(Config { json, ..Config::default() });
}
