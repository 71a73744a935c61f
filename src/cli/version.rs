//! `version`, in the four forms that tools read.

use std::fmt::Write;

use super::{
    Failure,
    args::Typed,
    commands::{OUTPUT, SHORT},
};
use crate::config::{BUILD_REVISION, ISTIO_VERSION};

/// What is known of this build, with Istio's keys.
fn fields() -> [(&'static str, &'static str); 5] {
    [
        ("version", ISTIO_VERSION),
        ("revision", BUILD_REVISION),
        ("golang_version", "none"),
        ("status", concat!("footman-", env!("CARGO_PKG_VERSION"))),
        ("tag", ISTIO_VERSION),
    ]
}

/// The line that `proxy` logs at its start.
pub fn startup_line() -> String {
    let [(_, version), (_, revision), _, (_, status), _] = fields();
    format!("Version {version}-{revision}-{status}")
}

/// What `version` prints.
///
/// # Errors
/// An unknown `--output`.
pub fn run(typed: &Typed) -> Result<String, Failure> {
    let values = fields();
    let [version, ..] = values;
    match typed.text(&OUTPUT) {
        "" if typed.text(&SHORT).parse() == Ok(true) => Ok(format!("client version: {}\n", version.1)),
        "" => {
            let names = ["Version", "GitRevision", "GolangVersion", "BuildStatus", "GitTag"];
            let parts: Vec<_> =
                names.iter().zip(values).map(|(name, (_, value))| format!("{name}:{value:?}")).collect();
            Ok(format!("client version: version.BuildInfo{{{}}}\n", parts.join(", ")))
        }
        "json" => {
            let mut text = "{\n  \"clientVersion\": {\n".to_owned();
            let lines: Vec<_> = values.iter().map(|(key, value)| format!("    \"{key}\": {value:?}")).collect();
            let _ = write!(text, "{}\n  }}\n}}\n", lines.join(",\n"));
            Ok(text)
        }
        "yaml" => {
            let mut text = "clientVersion:\n".to_owned();
            for (key, value) in values {
                let _ = writeln!(text, "  {key}: {value}");
            }
            text.push('\n');
            Ok(text)
        }
        other => Err(Failure::usage(format!("--output must be 'yaml' or 'json', not {other:?}"))),
    }
}
