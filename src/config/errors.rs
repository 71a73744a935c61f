//! Configuration errors, gathered: a person sees all of them at once, each with the name of its source.

use std::fmt;

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// The variable, flag, field or file concerned: `ISTIO_KUBE_APP_PROBERS`, `PROXY_CONFIG: drainDuration`.
    pub source: String,
    /// What is wrong with it and what to do.
    pub message: String,
}

/// Everything that is wrong; empty while nothing is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Errors(pub Vec<ConfigError>);

impl Errors {
    /// Adds an error.
    pub fn add(&mut self, source: impl Into<String>, message: impl Into<String>) {
        self.0.push(ConfigError { source: source.into(), message: message.into() });
    }

    /// Adds another room's errors; what two rooms say is said once.
    pub fn append(&mut self, other: Errors) {
        for error in other.0 {
            if !self.0.contains(&error) {
                self.0.push(error);
            }
        }
    }

    /// `value` when nothing is wrong, else the errors.
    ///
    /// # Errors
    /// All that were added.
    pub fn into_result<T>(self, value: T) -> Result<T, Errors> {
        if self.0.is_empty() { Ok(value) } else { Err(self) }
    }

    /// Takes the value out of a result and keeps its errors.
    pub fn take<T>(&mut self, result: Result<T, Errors>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(errors) => {
                self.append(errors);
                None
            }
        }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.source, self.message)
    }
}

impl fmt::Display for Errors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            error.fmt(f)?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigError {}
impl std::error::Error for Errors {}
