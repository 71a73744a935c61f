//! `--log_output_level`, `--log_stacktrace_level` and `--log_caller`: which scope says how much. Pure.

use std::collections::BTreeMap;

use log::LevelFilter;

/// The scope of a line that names none.
pub const DEFAULT_SCOPE: &str = "default";

/// Levels per scope, as Istio reads `default:info,grpc:none`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Levels {
    /// What scopes without an own level have.
    rest: Level,
    scopes: BTreeMap<String, Level>,
}

/// `None` is silence; `Some(Off)` is level `fatal`: only why the process ends.
type Level = Option<LevelFilter>;

impl Default for Levels {
    /// `default:info,grpc:none`, all other scopes at info.
    fn default() -> Levels {
        Levels { rest: Some(LevelFilter::Info), scopes: BTreeMap::from([("grpc".to_owned(), None)]) }
    }
}

impl Levels {
    /// Applies a comma-separated list of `scope:level` on top; a bare level is that of scope `default`, scope `all` is every scope.
    /// A scope that does not exist is ignored.
    ///
    /// # Errors
    /// An unknown level or a second colon, with the item that has it.
    pub fn apply(&mut self, text: &str) -> Result<(), String> {
        // `all` first, wherever it stands: what is said of one scope is more precise.
        let mut single = Vec::new();
        for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
            let (scope, level) = parse_item(item)?;
            if scope == "all" {
                self.rest = level;
                self.scopes.clear();
            } else {
                single.push((scope.to_owned(), level));
            }
        }
        self.scopes.extend(single);
        Ok(())
    }

    /// Sets one scope.
    pub fn set(&mut self, scope: &str, level: LevelFilter) {
        self.scopes.insert(scope.to_owned(), Some(level));
    }

    /// The level of a scope.
    pub fn of(&self, scope: &str) -> LevelFilter {
        self.level(scope).unwrap_or(LevelFilter::Off)
    }

    /// Whether a scope does not even tell why the process ends.
    pub fn is_silent(&self, scope: &str) -> bool {
        self.level(scope).is_none()
    }

    fn level(&self, scope: &str) -> Level {
        self.scopes.get(scope).copied().unwrap_or(self.rest)
    }

    /// The most talkative level of all.
    pub fn max(&self) -> LevelFilter {
        self.scopes.values().copied().fold(self.rest, Level::max).unwrap_or(LevelFilter::Off)
    }
}

fn parse_item(item: &str) -> Result<(&str, Level), String> {
    let (scope, level) = item.split_once(':').unwrap_or((DEFAULT_SCOPE, item));
    let level = match level {
        "debug" => Some(LevelFilter::Debug),
        "info" => Some(LevelFilter::Info),
        "warn" => Some(LevelFilter::Warn),
        "error" => Some(LevelFilter::Error),
        "fatal" => Some(LevelFilter::Off),
        "none" => None,
        other => {
            return Err(format!(
                "{item:?}: {other:?} is no level; use scope:level with debug, info, warn, error, fatal or none"
            ));
        }
    };
    Ok((scope, level))
}

/// Which scopes print where in the source a line was written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Callers(Vec<String>);

impl Callers {
    /// A comma-separated list of scopes; `all` is every scope.
    pub fn parse(text: &str) -> Callers {
        Callers(text.split(',').map(str::trim).filter(|scope| !scope.is_empty()).map(str::to_owned).collect())
    }

    /// Whether this scope does.
    pub fn includes(&self, scope: &str) -> bool {
        self.0.iter().any(|named| named == scope || named == "all")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str, scope: &str) -> LevelFilter {
        let mut levels = Levels::default();
        levels.apply(text).expect(text);
        levels.of(scope)
    }

    #[test]
    fn grammar_of_istio() {
        for (text, scope, level) in [
            ("", "default", LevelFilter::Info),
            ("", "grpc", LevelFilter::Off),
            ("debug", "default", LevelFilter::Debug),
            ("debug", "xdsproxy", LevelFilter::Info),
            ("xdsproxy:debug", "xdsproxy", LevelFilter::Debug),
            ("xdsproxy:debug", "default", LevelFilter::Info),
            ("all:debug", "sds", LevelFilter::Debug),
            ("all:debug", "grpc", LevelFilter::Debug),
            ("sds:warn,all:debug", "sds", LevelFilter::Warn),
            ("default:none", "default", LevelFilter::Off),
            ("default:fatal", "default", LevelFilter::Off),
            ("nosuchscope:debug", "default", LevelFilter::Info),
            ("ca:error, dns:debug", "dns", LevelFilter::Debug),
        ] {
            assert_eq!(of(text, scope), level, "{text} for {scope}");
        }
    }

    #[test]
    fn mistakes_are_quoted() {
        for text in ["default:loud", "verbose", "a:b:info", "default:", ":", "info,sds:INFO"] {
            let error = Levels::default().apply(text).expect_err(text);
            assert!(error.contains("is no level"), "{error}");
        }
    }

    #[test]
    fn most_talkative_level_decides_what_is_looked_at() {
        let mut levels = Levels::default();
        levels.apply("all:error,sds:debug").unwrap();
        assert_eq!(levels.max(), LevelFilter::Debug);
    }

    #[test]
    fn callers() {
        assert!(Callers::parse("all").includes("sds"));
        assert!(Callers::parse("ca, sds").includes("sds"));
        assert!(!Callers::parse("ca").includes("sds"));
        assert!(!Callers::parse("").includes("default"));
    }
}
