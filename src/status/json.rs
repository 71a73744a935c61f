//! Members of JSON objects as Go's decoder finds them: names without case, null as absent, the last of several. Pure.

use serde_json::{Map, Value};

/// A member by its name.
pub fn member<'a>(object: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    let found = object.iter().rev().find(|(other, _)| other.eq_ignore_ascii_case(name));
    found.map(|(_, value)| value).filter(|value| !value.is_null())
}

/// A text; empty when it is absent.
///
/// # Errors
/// When it is something else.
pub fn text(object: &Map<String, Value>, name: &str) -> Result<String, String> {
    match member(object, name) {
        None => Ok(String::new()),
        Some(Value::String(text)) => Ok(text.clone()),
        Some(_) => Err(format!("{name} must be a string")),
    }
}
