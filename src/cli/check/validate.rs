//! Envoy's own opinion of the bootstrap: `envoy --mode validate`, with the arguments that the agent would give it.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use super::report::{Outcome, Step};
use crate::{
    bootstrap::{self, Surroundings},
    config::Vars,
    process,
};

/// Envoy reads a bootstrap in tens of milliseconds.
const PATIENCE: Duration = Duration::from_secs(30);

/// Has Envoy read the bootstrap, where Envoy is there.
pub(super) async fn by_envoy(vars: &Vars, config: &bootstrap::Config, around: &Surroundings) -> Step {
    let binary = vars.path(&vars.proxy().binary_path);
    let name = format!("Envoy {}", binary.display());
    // A name without a folder is looked for in PATH, as when the agent starts it.
    if binary.components().count() > 1 && !binary.is_file() {
        let outcome = Outcome::Skipped("not there, so it could not be asked about the bootstrap".to_owned());
        return Step { name, outcome };
    }
    let folder = Folder(std::env::temp_dir().join(format!("footman-check-{}", std::process::id())));
    let outcome = match validate(&binary, config, around, &folder.0).await {
        Ok(()) => Outcome::Fine("accepts the bootstrap".to_owned()),
        Err(why) => Outcome::Wrong(why),
    };
    Step { name, outcome }
}

/// Removed with everything in it.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

async fn validate(
    binary: &Path,
    config: &bootstrap::Config,
    around: &Surroundings,
    folder: &Path,
) -> Result<(), String> {
    let written = bootstrap::write_to(config, around, folder).map_err(|error| error.to_string())?;
    let said = folder.join("said");
    let output = std::fs::File::create(&said).map_err(|error| format!("{}: {error}", said.display()))?;
    let mut command = Command::new(binary);
    command.args(bootstrap::envoy_args(config, &written.path)).args(["--mode", "validate"]);
    let both = output.try_clone().map_err(|error| error.to_string())?;
    command.stdin(Stdio::null()).stdout(both).stderr(output);
    let mut child = process::spawn(&mut command).map_err(|error| format!("cannot be started: {error}"))?;
    let ended = tokio::time::timeout(PATIENCE, child.wait()).await.map_err(|_| "does not answer".to_owned())?;
    let status = ended.map_err(|error| error.to_string())?;
    if status.success() {
        return Ok(());
    }
    let text = std::fs::read(&said).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let reason = lines.iter().rev().take(4).rev().copied().collect::<Vec<_>>().join("\n");
    Err(format!("refuses the bootstrap ({status}):\n{reason}"))
}
