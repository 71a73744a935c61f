//! The flags of `proxy` and of every sub-command: their names, types and defaults (pilot-agent 1.31), and what was typed.
//!
//! `cli` splits the command line and hands name and value over; types are checked here, once.

use std::fmt;

use super::Origin;

/// What a flag's value has to look like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlagKind {
    /// Any text.
    Text,
    /// Any text; each use adds one.
    Texts,
    /// `true` or `false`; no value means `true`.
    Bool,
    /// A whole number.
    Int,
}

/// One flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flag {
    /// Its name without dashes.
    pub name: &'static str,
    /// What it takes.
    pub kind: FlagKind,
    /// Its value when it is not given.
    pub default: &'static str,
    /// One line for `--help`.
    pub help: &'static str,
}

const fn flag(name: &'static str, kind: FlagKind, default: &'static str, help: &'static str) -> Flag {
    Flag { name, kind, default, help }
}

impl Flag {
    /// Whether `value` fits.
    ///
    /// # Errors
    /// What the flag takes instead, with its name.
    pub fn check(&self, value: &str) -> Result<(), String> {
        let wanted = match self.kind {
            FlagKind::Bool if parse_bool(value).is_none() => "true or false",
            FlagKind::Int if parse_int(value).is_none() => "a whole number",
            _ => return Ok(()),
        };
        Err(format!("--{}: {value:?} is not {wanted}", self.name))
    }
}

/// Flags that every sub-command accepts.
pub const GLOBAL_FLAGS: &[Flag] = &[
    flag("log_as_json", FlagKind::Bool, "false", "log lines are JSON, Envoy's too"),
    flag("log_caller", FlagKind::Text, "", "scopes whose lines tell the place in the source, comma separated"),
    flag("log_output_level", FlagKind::Text, "", "levels by scope: scope:level,... (debug info warn error fatal none)"),
    flag("log_stacktrace_level", FlagKind::Text, "default:none", "levels from which a stack trace is added"),
    flag("log_target", FlagKind::Texts, "stdout", "where log lines go: stdout, stderr or a path; repeatable"),
    flag("vklog", FlagKind::Int, "0", "verbosity of the Kubernetes client; more than 0 sets scope klog to debug"),
];

/// Flags of `proxy` (and of `check`, which takes the same).
pub const PROXY_FLAGS: &[Flag] = &[
    flag("concurrency", FlagKind::Int, "0", "Envoy's worker threads; 0 leaves it to the configuration"),
    flag("domain", FlagKind::Text, "", "DNS domain of the node (default ${POD_NAMESPACE}.svc.cluster.local)"),
    flag("meshConfig", FlagKind::Text, "./etc/istio/config/mesh", "file with the mesh configuration"),
    flag("outlierLogPath", FlagKind::Text, "", "where Envoy logs outlier detection events"),
    flag("profiling", FlagKind::Bool, "true", "serve /debug/pprof on the status port, to loopback clients"),
    flag("proxyComponentLogLevel", FlagKind::Text, "", "Envoy's log levels by component"),
    flag("proxyLogLevel", FlagKind::Text, "warning", "Envoy's log level; component:level items may be mixed in"),
    flag("serviceCluster", FlagKind::Text, "istio-proxy", "service cluster when the configuration has an empty one"),
    flag("stsPort", FlagKind::Int, "0", "put into node metadata; there is no STS server"),
    flag("templateFile", FlagKind::Text, "", "bootstrap file in place of the built-in one"),
    flag("tokenManagerPlugin", FlagKind::Text, "", "accepted, without effect"),
];

/// What was typed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Flags {
    given: Vec<(&'static str, String)>,
    positionals: Vec<String>,
}

/// Why a flag is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FlagError {
    /// No flag has this name.
    Unknown,
    /// The value does not fit; says what does.
    Invalid(String),
}

impl Flags {
    /// Records a flag; `name` without dashes.
    ///
    /// # Errors
    /// An unknown name, or a value of the wrong type.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), FlagError> {
        let flag = find(name).ok_or(FlagError::Unknown)?;
        flag.check(value).map_err(FlagError::Invalid)?;
        self.given.push((flag.name, value.to_owned()));
        Ok(())
    }

    /// Records an argument that is not a flag.
    pub fn positional(&mut self, text: impl Into<String>) {
        self.positionals.push(text.into());
    }

    /// The role as typed: the first positional.
    pub fn role_text(&self) -> Option<&str> {
        self.positionals.first().map(String::as_str)
    }

    /// The value in effect of a text flag.
    pub fn text(&self, name: &str) -> &str {
        match self.last(name) {
            Some(value) => value,
            None => find(name).map_or("", |flag| flag.default),
        }
    }

    /// The value in effect of a whole-number flag.
    pub fn int(&self, name: &str) -> i64 {
        parse_int(self.text(name)).unwrap_or_default()
    }

    /// The value in effect of a true-or-false flag.
    pub fn bool(&self, name: &str) -> bool {
        parse_bool(self.text(name)).unwrap_or_default()
    }

    /// All values of a repeatable flag; its default when it was not given.
    pub fn all(&self, name: &str) -> Vec<&str> {
        let given: Vec<&str> = self.given.iter().filter(|(n, _)| *n == name).map(|(_, v)| v.as_str()).collect();
        if given.is_empty() { vec![self.text(name)] } else { given }
    }

    /// Whether the flag was typed.
    pub fn origin(&self, name: &str) -> Origin {
        if self.last(name).is_some() { Origin::Flag } else { Origin::Default }
    }

    fn last(&self, name: &str) -> Option<&str> {
        self.given.iter().rev().find(|(n, _)| *n == name).map(|(_, value)| value.as_str())
    }
}

impl fmt::Display for FlagError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FlagError::Unknown => f.write_str("unknown flag"),
            FlagError::Invalid(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for FlagError {}

fn find(name: &str) -> Option<&'static Flag> {
    GLOBAL_FLAGS.iter().chain(PROXY_FLAGS).find(|flag| flag.name == name)
}

/// Go's `strconv.ParseBool`.
pub(crate) fn parse_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Some(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Some(false),
        _ => None,
    }
}

/// Go's `strconv.ParseInt` with base 0: decimal, `0x`, `0o` or `0` octal, `0b`.
pub(crate) fn parse_int(text: &str) -> Option<i64> {
    let (negative, digits) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let lower = digits.to_ascii_lowercase();
    let (radix, digits) = match lower.get(..2) {
        Some("0x") => (16, &lower[2..]),
        Some("0o") => (8, &lower[2..]),
        Some("0b") => (2, &lower[2..]),
        Some(two) if two.starts_with('0') => (8, &lower[1..]),
        _ => (10, lower.as_str()),
    };
    if !digits.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        return None; // a second sign
    }
    let value = i128::from(u64::from_str_radix(digits, radix).ok()?);
    i64::try_from(if negative { -value } else { value }).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_types_and_origins() {
        let mut flags = Flags::default();
        assert_eq!(flags.text("proxyLogLevel"), "warning");
        assert_eq!(flags.set("concurrency", "0x10"), Ok(()));
        assert_eq!(flags.set("profiling", "F"), Ok(()));
        assert_eq!(flags.set("domain", "a"), Ok(()));
        assert_eq!(flags.set("domain", "b"), Ok(()));
        assert_eq!((flags.int("concurrency"), flags.bool("profiling"), flags.text("domain")), (16, false, "b"));
        assert_eq!((flags.origin("domain"), flags.origin("stsPort")), (Origin::Flag, Origin::Default));
        assert_eq!(flags.set("oldflag", ""), Err(FlagError::Unknown));
        assert!(matches!(flags.set("stsPort", "x"), Err(FlagError::Invalid(text)) if text.contains("--stsPort")));
        assert!(matches!(flags.set("log_as_json", "yes"), Err(FlagError::Invalid(_))));
    }

    #[test]
    fn repeated_targets_replace_the_default() {
        let mut flags = Flags::default();
        assert_eq!(flags.all("log_target"), ["stdout"]);
        flags.set("log_target", "stderr").unwrap();
        flags.set("log_target", "/tmp/x").unwrap();
        assert_eq!(flags.all("log_target"), ["stderr", "/tmp/x"]);
    }

    #[test]
    fn whole_numbers_as_go_reads_them() {
        for (text, value) in [("7", Some(7)), ("-7", Some(-7)), ("+7", Some(7)), ("0x1F", Some(31)), ("017", Some(15))]
        {
            assert_eq!(parse_int(text), value, "{text}");
        }
        for text in ["", "-", "+-3", "--3", "0x", "08", "1.5", "99999999999999999999", "é"] {
            assert_eq!(parse_int(text), None, "{text}");
        }
        assert_eq!(parse_int("0"), Some(0));
    }
}
