//! Environment variables, typed as Istio's `pkg/env` types them; the only file that reads the process environment.

use std::{
    collections::BTreeMap,
    fmt::{self, Display},
    path::PathBuf,
    time::Duration,
};

use super::{Origin, Record, Setting, Vars, flags::parse_bool, parse_go_duration};
use crate::net::tls::SystemStore;

/// The environment of this process. What is not UTF-8 in a name or value is replaced.
#[allow(clippy::disallowed_methods, reason = "this is the one place that reads the environment")]
pub(super) fn of_process() -> BTreeMap<String, String> {
    std::env::vars_os()
        .map(|(name, value)| (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned()))
        .collect()
}

impl Vars {
    /// The value as it stands, an empty one included; `None` when the variable does not exist.
    pub fn text(&self, name: &str) -> Option<&str> {
        let value = self.env.get(name).map(String::as_str);
        self.note(name, value.unwrap_or_default(), if value.is_some() { Origin::Env } else { Origin::Default }, None);
        value
    }

    /// The value, or `default` when the variable does not exist. An empty value stays empty, as in Istio.
    pub fn text_or(&self, name: &str, default: &str) -> String {
        let value = self.env.get(name);
        let origin = if value.is_some() { Origin::Env } else { Origin::Default };
        let value = value.map_or(default, String::as_str).to_owned();
        self.note(name, &value, origin, None);
        value
    }

    /// A boolean as Go's `strconv.ParseBool` reads it; another value warns and counts as unset.
    pub fn bool(&self, name: &str, default: bool) -> bool {
        self.parsed(name, default, "a boolean (true or false)", parse_bool)
    }

    /// A whole number; another value warns and counts as unset.
    pub fn int(&self, name: &str, default: i64) -> i64 {
        self.parsed(name, default, "a whole number", |text| text.parse().ok())
    }

    /// A whole number that is not negative; another value warns and counts as unset.
    pub fn count(&self, name: &str, default: u64) -> u64 {
        self.parsed(name, default, "a whole number, 0 or more", |text| text.parse().ok())
    }

    /// A number; another value warns and counts as unset.
    pub fn float(&self, name: &str, default: f64) -> f64 {
        self.parsed(name, default, "a number", |text| text.parse().ok())
    }

    /// A duration as Go writes it; another value warns and counts as unset.
    pub fn duration(&self, name: &str, default: Duration) -> Duration {
        let shown = ShownDuration(default);
        self.parsed(name, shown, "a duration such as 5s or 1m30s", |text| parse_go_duration(text).map(ShownDuration)).0
    }

    /// All variables whose name begins with `prefix`, as (rest of the name, value), sorted by name.
    pub fn prefixed<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.env.range(prefix.to_owned()..).take_while(move |(name, _)| name.starts_with(prefix)).map(
            move |(name, value)| {
                self.note(name, value, Origin::Env, None);
                (&name[prefix.len()..], value.as_str())
            },
        )
    }

    /// The system's trust store, which `SSL_CERT_FILE` and `SSL_CERT_DIR` may put elsewhere.
    pub fn system_store(&self) -> SystemStore {
        let path = |name| self.text(name).filter(|path| !path.is_empty());
        let directories = path("SSL_CERT_DIR").unwrap_or_default().split(':');
        SystemStore {
            file: path("SSL_CERT_FILE").map(PathBuf::from),
            directories: directories.filter(|entry| !entry.is_empty()).map(PathBuf::from).collect(),
        }
    }

    /// Names of variables with this prefix that nobody has asked for.
    pub fn unasked(&self, prefix: &str) -> Vec<String> {
        let asked = self.asked.borrow();
        self.env.keys().filter(|name| name.starts_with(prefix) && !asked.contains_key(*name)).cloned().collect()
    }

    /// Every value that was asked for so far, by name.
    pub fn asked(&self) -> BTreeMap<String, Setting> {
        self.asked.borrow().clone()
    }

    fn parsed<T: Display>(&self, name: &str, default: T, wanted: &str, parse: impl Fn(&str) -> Option<T>) -> T {
        let (value, origin, warning) = match self.env.get(name) {
            None => (default, Origin::Default, None),
            Some(text) => match parse(text) {
                Some(value) => (value, Origin::Env, None),
                None => {
                    let warning = format!("{text:?} is not {wanted}; using {default}");
                    (default, Origin::Default, Some(warning))
                }
            },
        };
        self.note(name, &value.to_string(), origin, warning);
        value
    }

    pub(super) fn note(&self, name: &str, value: &str, origin: Origin, warning: Option<String>) {
        if self.record == Record::Set && origin == Origin::Default && warning.is_none() {
            return;
        }
        let mut asked = self.asked.borrow_mut();
        // A value that is none of its kind stays noticed when it is read as plain text, too.
        if warning.is_some() || asked.get(name).is_none_or(|setting| setting.warning.is_none()) {
            asked.insert(name.to_owned(), Setting { value: value.to_owned(), origin, warning });
        }
    }
}

/// A duration printed as Go prints short ones.
#[derive(Clone, Copy)]
struct ShownDuration(Duration);

impl Display for ShownDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Sources;

    #[test]
    fn typed_values_and_their_origin() {
        let vars = Vars::from_pairs([("A", "T"), ("B", "maybe"), ("C", ""), ("D", "1m"), ("N", "-1"), ("Z", "0")]);
        assert!(vars.bool("A", false));
        assert!(vars.bool("B", true));
        assert_eq!(vars.text("B"), Some("maybe"));
        assert_eq!(vars.int("C", 7), 7);
        assert_eq!((vars.count("N", 30), vars.count("Z", 30)), (30, 0));
        assert_eq!(vars.duration("D", Duration::ZERO), Duration::from_secs(60));
        assert_eq!(vars.text_or("C", "x"), "");
        assert_eq!(vars.text("E"), None);
        assert_eq!(vars.asked()["A"].origin, Origin::Env);
        assert_eq!(vars.asked()["E"].origin, Origin::Default);
        let warnings = [
            "B: \"maybe\" is not a boolean (true or false); using true",
            "C: \"\" is not a whole number; using 7",
            "N: \"-1\" is not a whole number, 0 or more; using 30",
        ];
        assert_eq!(vars.warnings(), warnings, "also of what is read as text afterwards");
    }

    #[test]
    fn defaults_are_forgotten_where_nobody_shows_them() {
        let env = [("A".to_owned(), "x".to_owned())].into();
        let (vars, _) = Vars::load(Sources { env, record: Record::Set, ..Sources::default() });
        assert_eq!((vars.text("A"), vars.text("B"), vars.int("A", 3)), (Some("x"), None, 3));
        assert_eq!(vars.asked().keys().collect::<Vec<_>>(), ["A"]);
        assert!(vars.warnings().iter().any(|warning| warning.starts_with("A: ")));
    }

    #[test]
    fn prefix_families() {
        let vars = Vars::from_pairs([("CA_HEADER_B", "=2"), ("CA_HEADER_A", "1"), ("CA_HEADS", "x")]);
        let pairs: Vec<_> = vars.prefixed("CA_HEADER_").collect();
        assert_eq!(pairs, [("A", "1"), ("B", "=2")]);
    }
}
