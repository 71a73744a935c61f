//! Istio's log: `<UTC time>\t<level>\t[<scope>\t][<caller>\t]<message>`, or JSON, per scope, to stdout, stderr or files.
//!
//! Rooms log with the macros of the `log` crate; a target without `::` is Istio's scope, any other is scope `default`.
//! Installed once by `cli`; before that nothing is printed, since nothing may be said in the wrong format.

mod levels;
mod line;

use std::{
    fmt,
    fs::{File, OpenOptions},
    io::{self, Write},
    sync::OnceLock,
    time::SystemTime,
};

use log::{Level, Log, Metadata, Record};

pub use levels::{Callers, DEFAULT_SCOPE, Levels};
pub use line::{Line, write_json, write_plain};

/// How the log is written.
#[derive(Debug, Clone, Default)]
pub struct Config {
    /// One JSON object a line instead of tabs.
    pub json: bool,
    /// Levels per scope.
    pub levels: Levels,
    /// Scopes that print the place in the source.
    pub callers: Callers,
    /// `stdout`, `stderr` or paths of files that are appended to; empty is stdout.
    pub targets: Vec<String>,
}

/// A log file that cannot be opened.
#[derive(Debug)]
pub struct Error {
    path: String,
    source: io::Error,
}

/// Makes this the log of the process. A second call changes nothing.
///
/// # Errors
/// A target that is a file and cannot be opened for appending.
pub fn install(config: Config) -> Result<(), Error> {
    let max = config.levels.max();
    let logger =
        Logger { json: config.json, outputs: open(&config.targets)?, levels: config.levels, callers: config.callers };
    if LOGGER.set(logger).is_ok() && log::set_logger(&Installed).is_ok() {
        log::set_max_level(max);
    }
    Ok(())
}

/// Writes a line that has the log's format already: Envoy's.
pub fn write_formatted(line: &str) {
    if let Some(logger) = LOGGER.get() {
        logger.write(&format!("{line}\n"));
    }
}

/// Writes why the process ends: an error that level `fatal` lets through.
pub fn write_last(message: &str) {
    if let Some(logger) = LOGGER.get() {
        logger.last(message);
    }
}

/// The log of the process, for [`write_formatted`]; `log` itself gives it back only as a trait object.
static LOGGER: OnceLock<Logger> = OnceLock::new();

struct Installed;

impl Log for Installed {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        LOGGER.get().is_some_and(|logger| logger.enabled(metadata))
    }

    fn log(&self, record: &Record<'_>) {
        if let Some(logger) = LOGGER.get() {
            logger.log(record);
        }
    }

    fn flush(&self) {}
}

struct Logger {
    json: bool,
    levels: Levels,
    callers: Callers,
    outputs: Vec<Output>,
}

enum Output {
    Stdout,
    Stderr,
    File(File),
}

impl Logger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        self.levels.of(scope(metadata.target())) >= metadata.level().to_level_filter()
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            self.print(record);
        }
    }

    fn last(&self, message: &str) {
        if !self.levels.is_silent(DEFAULT_SCOPE) {
            let mut record = Record::builder();
            self.print(&record.level(Level::Error).target(DEFAULT_SCOPE).args(format_args!("{message}")).build());
        }
    }

    fn print(&self, record: &Record<'_>) {
        let scope = scope(record.target());
        let caller = record.file().zip(record.line()).filter(|_| self.callers.includes(scope));
        let line = Line {
            time: SystemTime::now(),
            level: level_name(record.level()),
            scope: if scope == DEFAULT_SCOPE { "" } else { scope },
            caller: caller.map(|(file, line)| (file.trim_start_matches("src/"), line)),
            message: *record.args(),
        };
        let mut text = String::with_capacity(160);
        if self.json {
            write_json(&mut text, &line);
        } else {
            write_plain(&mut text, &line);
        }
        self.write(&text);
    }

    fn write(&self, line: &str) {
        for output in &self.outputs {
            output.write(line.as_bytes());
        }
    }
}

impl Output {
    /// One write for the whole line, so that lines of Envoy on the same stream stay whole. A log that cannot be written must not
    /// stop the agent, so errors are dropped.
    fn write(&self, line: &[u8]) {
        let _ = match self {
            Output::Stdout => {
                let mut out = io::stdout().lock();
                out.write_all(line).and_then(|()| out.flush())
            }
            Output::Stderr => io::stderr().lock().write_all(line),
            Output::File(file) => (&mut &*file).write_all(line),
        };
    }
}

fn open(targets: &[String]) -> Result<Vec<Output>, Error> {
    if targets.is_empty() {
        return Ok(vec![Output::Stdout]);
    }
    let open_one = |target: &String| match target.as_str() {
        "stdout" => Ok(Output::Stdout),
        "stderr" => Ok(Output::Stderr),
        path => OpenOptions::new()
            .create(true)
            .append(true)
            .open(path)
            .map(Output::File)
            .map_err(|source| Error { path: path.to_owned(), source }),
    };
    targets.iter().map(open_one).collect()
}

/// Istio's scope of a target: module paths, which `log` gives when a line names no target, are scope `default`.
fn scope(target: &str) -> &str {
    if target.contains("::") || target == env!("CARGO_PKG_NAME") { DEFAULT_SCOPE } else { target }
}

fn level_name(level: Level) -> &'static str {
    match level {
        Level::Error => "error",
        Level::Warn => "warn",
        Level::Info => "info",
        Level::Debug | Level::Trace => "debug",
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "--log_target {}: {}", self.path, self.source)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logger(levels: &str, outputs: Vec<Output>) -> Logger {
        let mut config = Config::default();
        config.levels.apply(levels).unwrap();
        Logger { json: true, levels: config.levels, callers: Callers::parse("ca"), outputs }
    }

    #[test]
    fn targets_are_scopes() {
        assert_eq!(scope("xdsproxy"), "xdsproxy");
        assert_eq!(scope("footman::agent::lifecycle"), DEFAULT_SCOPE);
        assert_eq!(scope("footman"), DEFAULT_SCOPE);
    }

    #[test]
    fn lines_reach_every_file_and_only_when_their_scope_speaks() {
        let dir = std::env::temp_dir().join(format!("footman-log-{}", std::process::id()));
        let path = dir.with_extension("txt").to_string_lossy().into_owned();
        let logger = logger("ca:warn", open(std::slice::from_ref(&path)).unwrap());
        for (level, message) in [(Level::Info, "quiet"), (Level::Error, "loud")] {
            let mut record = Record::builder();
            record.level(level).target("ca").file(Some("src/ca.rs")).line(Some(3));
            logger.log(&record.args(format_args!("{message}")).build());
        }
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(text.contains("\"caller\":\"ca.rs:3\",\"msg\":\"loud\""), "{text}");
    }

    #[test]
    fn level_fatal_tells_only_why_the_process_ends() {
        let path = std::env::temp_dir().join(format!("footman-fatal-{}.txt", std::process::id()));
        for (level, lines) in [("default:error", 2), ("default:fatal", 1), ("all:fatal", 1), ("default:none", 0)] {
            let logger = logger(level, open(&[path.to_string_lossy().into_owned()]).unwrap());
            let mut record = Record::builder();
            logger.log(&record.level(Level::Error).target("footman").args(format_args!("one of many")).build());
            logger.last("the end");
            let text = std::fs::read_to_string(&path).unwrap();
            std::fs::remove_file(&path).unwrap();
            assert_eq!((text.lines().count(), text.contains("the end")), (lines, lines > 0), "{level}: {text}");
        }
    }

    #[test]
    fn file_that_cannot_be_opened_is_named() {
        let error = open(&["stdout".to_owned(), "/does/not/exist/log".to_owned()]).err().expect("no such folder");
        assert!(error.to_string().starts_with("--log_target /does/not/exist/log: "), "{error}");
    }
}
