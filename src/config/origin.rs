//! Where values come from; what `footman check` prints beside each.

use std::fmt;

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// Nobody set it.
    Default,
    /// An environment variable of that name.
    Env,
    /// A command-line flag.
    Flag,
    /// The document in the environment variable `PROXY_CONFIG`, and the line in it.
    ProxyConfigEnv(usize),
    /// The pod annotation of that name.
    Annotation(&'static str),
    /// A file and the line in it.
    File(String, usize),
}

/// One value that was asked for, as `check` prints it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// The value in effect.
    pub value: String,
    /// Who set it.
    pub origin: Origin,
    /// Why the value that was set is not the one in effect.
    pub warning: Option<String>,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => f.write_str("default"),
            Origin::Env => f.write_str("env"),
            Origin::Flag => f.write_str("flag"),
            Origin::ProxyConfigEnv(line) => write!(f, "PROXY_CONFIG:{line}"),
            Origin::Annotation(name) => write!(f, "annotation {name}"),
            Origin::File(path, line) => write!(f, "{path}:{line}"),
        }
    }
}
