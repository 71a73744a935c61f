//! `ISTIO_BOOTSTRAP_OVERRIDE`: a YAML or JSON file that Envoy merges over its bootstrap (`--config-yaml`).

use crate::config::{
    Errors, Vars,
    yaml::{Node, Value},
};

const VARIABLE: &str = "ISTIO_BOOTSTRAP_OVERRIDE";
const PLACEHOLDER: &str = "$(HOST_IP)";
const BRACKETED: &str = "[$(HOST_IP)]";
/// What the kernel lets one argument of a program have (MAX_ARG_STRLEN), its final zero included.
const LONGEST: usize = 128 * 1024;

/// The file's content as JSON text; `None` where none is configured.
///
/// A file that cannot be read, or is no YAML, only warns, as in Istio; YAML that is no mapping, or more than an argument can
/// have, is an error, since Envoy could not start with it. So is what is YAML but for an IPv6 address: the pod next door has it.
pub(super) fn read(vars: &Vars, errors: &mut Errors) -> Option<String> {
    let path = vars.text(VARIABLE).filter(|path| !path.is_empty())?;
    let bytes = match std::fs::read(vars.path(path)) {
        Ok(bytes) => bytes,
        Err(error) => {
            vars.warn(format!("{VARIABLE}: {path}: {error}; Envoy starts without it"));
            return None;
        }
    };
    let text = String::from_utf8_lossy(&bytes);
    match override_json(&text, &vars.text_or("HOST_IP", "")) {
        Ok(Some(json)) if json.len() >= LONGEST => {
            let message = format!(
                "{path}: {} KiB as JSON, but Envoy takes it as an argument, which can have {} KiB: shorten it, or put it into a \
                 bootstrap of your own (customConfigFile)",
                json.len() / 1024,
                LONGEST / 1024
            );
            errors.add(VARIABLE, message);
            None
        }
        Ok(json) => json,
        Err(OverrideError::Syntax(message)) => {
            vars.warn(format!("{VARIABLE}: {path}: {message}; Envoy starts without it"));
            None
        }
        Err(OverrideError::NoMapping(message) | OverrideError::Unquoted(message)) => {
            errors.add(VARIABLE, format!("{path}: {message}"));
            None
        }
    }
}

/// What is wrong with an override, and in which line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OverrideError {
    /// It is not YAML.
    Syntax(String),
    /// It is something else than a mapping: text in quotes, a list.
    NoMapping(String),
    /// It is not YAML with an IPv6 address in place of `$(HOST_IP)`.
    Unquoted(String),
}

/// An override as JSON, `$(HOST_IP)` filled in; `None` for an empty document.
///
/// # Errors
/// What is wrong with it, and in which line.
pub fn override_json(text: &str, host_ip: &str) -> Result<Option<String>, OverrideError> {
    let node = Node::parse(&with_host_ip(text, host_ip)).map_err(|error| {
        let is_yaml_without = || Node::parse(&text.replace(BRACKETED, "x").replace(PLACEHOLDER, "x")).is_ok();
        if host_ip.contains(':') && is_yaml_without() {
            OverrideError::Unquoted(format!(
                "{error}: an IPv6 address needs quotes around all of \"[{PLACEHOLDER}]:port\""
            ))
        } else {
            OverrideError::Syntax(error.to_string())
        }
    })?;
    match node.value {
        Value::Null => Ok(None),
        Value::Map(_) => Ok(Some(node.to_json().to_string())),
        _ => Err(OverrideError::NoMapping(format!("line {}: a mapping is wanted, not {}", node.line, node.kind()))),
    }
}

/// Puts HOST_IP in place of every `$(HOST_IP)`; an IPv6 address gets brackets, once, and quotes where YAML needs them.
fn with_host_ip(text: &str, host_ip: &str) -> String {
    if !host_ip.contains(':') {
        return text.replace(PLACEHOLDER, host_ip);
    }
    let bracketed = format!("[{host_ip}]");
    let text = text.replace(BRACKETED, &bracketed);
    let mut out = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        out.push_str(&line_with_host_ip(line, &bracketed));
    }
    out
}

/// A plain scalar that begins with the address would be a YAML list, so the whole scalar is quoted.
fn line_with_host_ip(line: &str, bracketed: &str) -> String {
    let Some(at) = line.find(PLACEHOLDER) else { return line.to_owned() };
    let (before, rest) = line.split_at(at);
    let starts_plain = before.ends_with([' ', '\t']) && before.trim_end().ends_with([':', '-', ',', '{', '[']);
    let end = rest.find([' ', '\t', ',', '}', '\n', '\r']).unwrap_or(rest.len());
    if !starts_plain {
        return line.replace(PLACEHOLDER, bracketed);
    }
    let (scalar, after) = rest.split_at(end);
    let after = line_with_host_ip(after, bracketed);
    format!("{before}\"{}\"{after}", scalar.replace(PLACEHOLDER, bracketed))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(text: &str, host_ip: &str) -> serde_json::Value {
        let text = override_json(text, host_ip).unwrap().unwrap();
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn the_host_address_in_every_spelling() {
        let of =
            |value: &str, host_ip: &str| json(&format!("tracing:\n  a: {value}\n"), host_ip)["tracing"]["a"].clone();
        assert_eq!(of("\"[$(HOST_IP)]:8126\"", "dead::beef"), "[dead::beef]:8126");
        assert_eq!(of("\"[$(HOST_IP)]:8126\"", "169.254.169.254"), "[169.254.169.254]:8126");
        assert_eq!(of("'$(HOST_IP):8127'", "dead::beef"), "[dead::beef]:8127");
        assert_eq!(of("$(HOST_IP):8126", "dead::beef"), "[dead::beef]:8126");
        assert_eq!(of("$(HOST_IP):8126", "10.0.0.1"), "10.0.0.1:8126");
        assert_eq!(of("{b: $(HOST_IP):1, c: x}", "dead::beef"), serde_json::json!({"b": "[dead::beef]:1", "c": "x"}));
        assert_eq!(of("'$(HOST_IP):1'", ""), ":1");
    }

    #[test]
    fn more_than_an_argument_can_have_is_refused() {
        let path = std::env::temp_dir().join(format!("footman-override-{}", std::process::id()));
        for (length, refused) in [(LONGEST - 9, false), (LONGEST - 8, true)] {
            std::fs::write(&path, format!("a: {}", "x".repeat(length))).unwrap();
            let mut errors = Errors::default();
            let vars = Vars::from_pairs([(VARIABLE, path.to_str().unwrap())]);
            assert_eq!(read(&vars, &mut errors).is_none(), refused);
            assert_eq!(errors.0.iter().any(|error| error.message.contains("customConfigFile")), refused, "{errors}");
        }
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn an_ipv6_address_without_quotes_is_an_error() {
        for value in ["[$(HOST_IP):8126]", "[$(HOST_IP)]:8126"] {
            let text = format!("tracing:\n  a: {value}\n");
            let error = override_json(&text, "dead::beef").unwrap_err();
            assert!(
                matches!(&error, OverrideError::Unquoted(message) if message.contains("line 2") && message.contains("quotes")),
                "{value}: {error:?}"
            );
        }
        assert!(
            matches!(override_json("a: [$(HOST_IP)", "dead::beef"), Err(OverrideError::Syntax(_))),
            "no YAML anyway"
        );
        let path = std::env::temp_dir().join(format!("footman-unquoted-{}", std::process::id()));
        std::fs::write(&path, "a: [$(HOST_IP):8126]").unwrap();
        for (host_ip, refused) in [("dead::beef", true), ("10.0.0.1", false)] {
            let mut errors = Errors::default();
            let vars = Vars::from_pairs([(VARIABLE, path.to_str().unwrap()), ("HOST_IP", host_ip)]);
            assert_eq!(
                (read(&vars, &mut errors).is_none(), errors.0.len()),
                (refused, usize::from(refused)),
                "{host_ip}"
            );
        }
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn documents() {
        assert_eq!(override_json("# nothing", ""), Ok(None));
        assert_eq!(override_json("a: yes\n", ""), Ok(Some("{\"a\":true}".to_owned())));
        let text = override_json("'{\"a\": 1}'", "").unwrap_err();
        assert_eq!(text, OverrideError::NoMapping("line 1: a mapping is wanted, not text".to_owned()));
        assert!(matches!(override_json("a: [1", ""), Err(OverrideError::Syntax(message)) if message.contains("line")));
    }
}
