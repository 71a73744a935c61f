//! A Wasm plugin inside a TypedStruct: protobuf's JSON mapping in a `google.protobuf.Struct`, checked strictly and edited in place.
//!
//! Field names may be spelt as in the proto or in lowerCamelCase; unknown fields and values of the wrong type are errors, as
//! protobuf's JSON rules say. `Any` values are looked at only as far as their `@type`: their types are the plugin's affair.

use std::{collections::BTreeMap, time::Duration};

use crate::proto::google::protobuf::{Struct, Value, value::Kind as Json};

use super::{
    resource::{Code, Local, Plugin, Source, source},
    settings::AGENT_PREFIX,
};

/// What a JSON value has to look like.
enum Shape {
    Text,
    /// Base64.
    Bytes,
    Flag,
    /// A number or its text.
    Number,
    /// `"1.5s"`.
    Duration,
    /// An enum's value names, in the order of their numbers.
    Enum(&'static [&'static str]),
    /// An object with `@type`.
    Any,
    /// An object that maps texts to one shape.
    Map(&'static Shape),
    List(&'static Shape),
    Message(&'static [Field]),
    /// A message in which at most one of the fields may be set.
    OneOf(&'static [Field]),
}

type Field = (&'static str, Shape);

const FAILURE_POLICIES: &[&str] = &["UNSPECIFIED", "FAIL_RELOAD", "FAIL_CLOSED", "FAIL_OPEN"];
const BACKOFF: Shape = Shape::Message(&[("base_interval", Shape::Duration), ("max_interval", Shape::Duration)]);
const EXTENSION: Shape = Shape::Message(&[("name", Shape::Text), ("typed_config", Shape::Any)]);
const DATA_SOURCE: Shape = Shape::Message(&[
    ("filename", Shape::Text),
    ("inline_bytes", Shape::Bytes),
    ("inline_string", Shape::Text),
    ("environment_variable", Shape::Text),
    ("watched_directory", Shape::Message(&[("path", Shape::Text)])),
]);
const REMOTE_SOURCE: Shape = Shape::Message(&[
    ("http_uri", Shape::Message(&[("uri", Shape::Text), ("cluster", Shape::Text), ("timeout", Shape::Duration)])),
    ("sha256", Shape::Text),
    (
        "retry_policy",
        Shape::Message(&[
            ("retry_back_off", BACKOFF),
            ("num_retries", Shape::Number),
            ("retry_on", Shape::Text),
            ("retry_priority", EXTENSION),
            ("retry_host_predicate", Shape::List(&EXTENSION)),
            ("host_selection_retry_max_attempts", Shape::Number),
        ]),
    ),
]);
const VM: Shape = Shape::Message(&[
    ("vm_id", Shape::Text),
    ("runtime", Shape::Text),
    ("code", Shape::OneOf(&[("local", DATA_SOURCE), ("remote", REMOTE_SOURCE)])),
    ("configuration", Shape::Any),
    ("allow_precompiled", Shape::Flag),
    ("nack_on_code_cache_miss", Shape::Flag),
    (
        "environment_variables",
        Shape::Message(&[("host_env_keys", Shape::List(&Shape::Text)), ("key_values", Shape::Map(&Shape::Text))]),
    ),
]);
/// `envoy.extensions.filters.{http,network}.wasm.v3.Wasm`.
const WASM: Shape = Shape::Message(&[(
    "config",
    Shape::Message(&[
        ("name", Shape::Text),
        ("root_id", Shape::Text),
        ("vm_config", VM),
        ("configuration", Shape::Any),
        ("fail_open", Shape::Flag),
        (
            "capability_restriction_config",
            Shape::Message(&[("allowed_capabilities", Shape::Map(&Shape::Message(&[])))]),
        ),
        ("failure_policy", Shape::Enum(FAILURE_POLICIES)),
        ("reload_config", Shape::Message(&[("backoff", BACKOFF)])),
        ("allow_on_headers_stop_iteration", Shape::Flag),
    ]),
)]);

/// The plugin that the struct spells; the error names the field.
pub(super) fn plugin(wasm: &Struct) -> Result<Plugin, String> {
    let Shape::Message(fields) = WASM else { return Ok(Plugin::default()) };
    check_message(wasm, fields, "")?;
    let empty = Struct::default();
    let config = object(wasm, "config").unwrap_or(&empty);
    let vm = object(config, "vm_config").unwrap_or(&empty);
    let code = object(vm, "code").unwrap_or(&empty);
    let environment = object(vm, "environment_variables").and_then(|variables| object(variables, "key_values"));
    Ok(Plugin {
        name: text(config, "name"),
        fail_open: matches!(get(config, "fail_open"), Some(Json::BoolValue(true))),
        failure_policy: failure_policy(config),
        environment: environment.map(texts).unwrap_or_default(),
        code: match (object(code, "remote"), object(code, "local")) {
            (Some(remote), _) => Code::Remote(remote_source(remote)),
            (None, Some(_)) => Code::Local,
            (None, None) => Code::Absent,
        },
    })
}

/// The struct with local code and without the agent's own variables.
pub(super) fn with_code(mut wasm: Struct, local: &Local) -> Struct {
    let Some(vm) = object_mut(&mut wasm, "config").and_then(|config| object_mut(config, "vm_config")) else {
        return wasm;
    };
    let filename = object_of("filename", Json::StringValue(local.path.clone()));
    put(vm, "code", object_of("local", filename));
    if let Some(variables) = object_mut(vm, "environment_variables") {
        if let Some(pairs) = object_mut(variables, "key_values") {
            pairs.fields.retain(|key, _| !key.starts_with(AGENT_PREFIX));
            if pairs.fields.is_empty() {
                remove(variables, "key_values");
            }
        }
        if variables.fields.is_empty() {
            remove(vm, "environment_variables");
        }
    }
    if local.aot {
        put(vm, "runtime", Json::StringValue(super::resource::AOT_RUNTIME.to_owned()));
        put(vm, "allow_precompiled", Json::BoolValue(true));
    }
    wasm
}

fn remote_source(remote: &Struct) -> Option<Source> {
    let uri = object(remote, "http_uri")?;
    let timeout = match get(uri, "timeout") {
        Some(Json::StringValue(text)) => duration(text),
        _ => None,
    };
    Some(source(text(uri, "uri"), &text(remote, "sha256"), timeout))
}

fn failure_policy(config: &Struct) -> i32 {
    match get(config, "failure_policy") {
        Some(Json::NumberValue(number)) => *number as i32,
        Some(Json::StringValue(name)) => {
            FAILURE_POLICIES.iter().position(|known| known == name).unwrap_or_default() as i32
        }
        _ => 0,
    }
}

fn check_message(value: &Struct, fields: &[Field], path: &str) -> Result<(), String> {
    let mut seen = Vec::new();
    for (key, value) in &value.fields {
        let Some((name, shape)) = fields.iter().find(|(name, _)| names(key, name)) else {
            return Err(format!("{path}: unknown field {key:?}"));
        };
        let path = if path.is_empty() { (*name).to_owned() } else { format!("{path}.{name}") };
        if seen.contains(name) {
            return Err(format!("{path}: given twice"));
        }
        seen.push(name);
        check(value, shape, &path)?;
    }
    Ok(())
}

fn check(value: &Value, shape: &Shape, path: &str) -> Result<(), String> {
    let Some(value) = present(value) else { return Ok(()) };
    let fits = match (shape, value) {
        (Shape::Text, Json::StringValue(_)) | (Shape::Flag, Json::BoolValue(_)) => true,
        (Shape::Bytes, Json::StringValue(text)) => {
            text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+/-_=".contains(&byte))
        }
        (Shape::Number, Json::NumberValue(number)) => number.fract() == 0.0,
        (Shape::Number, Json::StringValue(text)) => text.parse::<i64>().is_ok(),
        (Shape::Duration, Json::StringValue(text)) => duration(text).is_some(),
        (Shape::Enum(names), Json::StringValue(name)) => names.contains(&name.as_str()),
        (Shape::Enum(_), Json::NumberValue(number)) => number.fract() == 0.0,
        (Shape::Any, Json::StructValue(object)) => {
            object.fields.is_empty() || matches!(get(object, "@type"), Some(Json::StringValue(_)))
        }
        (Shape::Map(shape), Json::StructValue(object)) => {
            return object.fields.values().try_for_each(|value| match present(value) {
                Some(_) => check(value, shape, path),
                None => Err(format!("{path}: a value is null")),
            });
        }
        (Shape::List(shape), Json::ListValue(list)) => {
            return list.values.iter().try_for_each(|value| check(value, shape, path));
        }
        (Shape::Message(fields), Json::StructValue(object)) => return check_message(object, fields, path),
        (Shape::OneOf(fields), Json::StructValue(object)) => {
            if object.fields.values().filter(|value| present(value).is_some()).count() > 1 {
                return Err(format!("{path}: only one source may be given"));
            }
            return check_message(object, fields, path);
        }
        _ => false,
    };
    if fits { Ok(()) } else { Err(format!("{path}: the value has the wrong type or form")) }
}

/// Whether a JSON key spells the proto field `name`.
fn names(key: &str, name: &str) -> bool {
    key == name || {
        let mut camel = String::with_capacity(name.len());
        for part in name.split('_') {
            let (first, rest) = part.split_at(usize::from(!camel.is_empty()));
            camel.push_str(&first.to_ascii_uppercase());
            camel.push_str(rest);
        }
        key == camel
    }
}

/// A value that is not null: null means the field's default in protobuf's JSON.
fn present(value: &Value) -> Option<&Json> {
    value.kind.as_ref().filter(|kind| !matches!(kind, Json::NullValue(_)))
}

fn get<'a>(object: &'a Struct, name: &str) -> Option<&'a Json> {
    let (_, value) = object.fields.iter().find(|(key, _)| names(key, name))?;
    present(value)
}

fn object<'a>(parent: &'a Struct, name: &str) -> Option<&'a Struct> {
    match get(parent, name)? {
        Json::StructValue(object) => Some(object),
        _ => None,
    }
}

fn object_mut<'a>(parent: &'a mut Struct, name: &str) -> Option<&'a mut Struct> {
    let (_, value) = parent.fields.iter_mut().find(|(key, _)| names(key, name))?;
    match &mut value.kind {
        Some(Json::StructValue(object)) => Some(object),
        _ => None,
    }
}

fn text(parent: &Struct, name: &str) -> String {
    match get(parent, name) {
        Some(Json::StringValue(text)) => text.clone(),
        _ => String::new(),
    }
}

fn texts(object: &Struct) -> BTreeMap<String, String> {
    object
        .fields
        .iter()
        .filter_map(|(key, value)| match &value.kind {
            Some(Json::StringValue(text)) => Some((key.clone(), text.clone())),
            _ => None,
        })
        .collect()
}

fn remove(parent: &mut Struct, name: &str) {
    parent.fields.retain(|key, _| !names(key, name));
}

fn put(parent: &mut Struct, name: &str, kind: Json) {
    remove(parent, name);
    parent.fields.insert(name.to_owned(), Value { kind: Some(kind) });
}

fn object_of(name: &str, kind: Json) -> Json {
    let mut object = Struct::default();
    put(&mut object, name, kind);
    Json::StructValue(object)
}

/// Protobuf's JSON form of a duration; a negative one is over at once.
fn duration(text: &str) -> Option<Duration> {
    let seconds = text.strip_suffix('s')?;
    let (negative, digits) = match seconds.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, seconds),
    };
    if !digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
        return None;
    }
    let duration = Duration::try_from_secs_f64(digits.parse().ok()?).ok()?;
    Some(if negative { Duration::ZERO } else { duration })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(json: &serde_json::Value) -> Value {
        let kind = match json {
            serde_json::Value::Null => Json::NullValue(0),
            serde_json::Value::Bool(flag) => Json::BoolValue(*flag),
            serde_json::Value::Number(number) => Json::NumberValue(number.as_f64().unwrap()),
            serde_json::Value::String(text) => Json::StringValue(text.clone()),
            serde_json::Value::Array(list) => {
                Json::ListValue(crate::proto::google::protobuf::ListValue { values: list.iter().map(value).collect() })
            }
            serde_json::Value::Object(fields) => Json::StructValue(Struct {
                fields: fields.iter().map(|(key, field)| (key.clone(), value(field))).collect(),
            }),
        };
        Value { kind: Some(kind) }
    }

    fn wasm(json: &str) -> Struct {
        match value(&serde_json::from_str(json).unwrap()).kind {
            Some(Json::StructValue(object)) => object,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn reads_either_spelling() {
        for json in [
            r#"{"config": {"name": "p", "failure_policy": "FAIL_OPEN", "vm_config": {"code": {"remote": {"sha256": "nil",
                "http_uri": {"uri": "http://h/x", "timeout": "1.5s"}}}, "environment_variables": {"key_values": {"A": "b"}}}}}"#,
            r#"{"config": {"name": "p", "failurePolicy": 3, "vmConfig": {"code": {"local": null, "remote": {"httpUri": {"uri": "http://h/x",
                "timeout": "1.500s"}}}, "environmentVariables": {"keyValues": {"A": "b"}}}}}"#,
        ] {
            let plugin = plugin(&wasm(json)).unwrap();
            assert_eq!((plugin.name.as_str(), plugin.failure_policy), ("p", 3));
            assert_eq!(plugin.environment["A"], "b");
            let Code::Remote(Some(source)) = plugin.code else { panic!("{:?}", plugin.code) };
            assert_eq!(source.uri, "http://h/x");
            assert_eq!(source.timeout, Duration::from_millis(1500));
            assert_eq!(source.sha256, "");
        }
    }

    #[test]
    fn absent_and_local_code() {
        for (json, local) in [
            ("{}", false),
            (r#"{"config": {"vm_config": {"code": {}}}}"#, false),
            (r#"{"config": {"vm_config": {"code": {"local": {"inline_bytes": "AGFz"}}}}}"#, true),
        ] {
            assert_eq!(matches!(plugin(&wasm(json)).unwrap().code, Code::Local), local, "{json}");
        }
    }

    #[test]
    fn refuses_what_protobuf_refuses() {
        for (json, error) in [
            (r#"{"config": {"no_such": 1}}"#, "config: unknown field \"no_such\""),
            (r#"{"conf": {}}"#, ": unknown field \"conf\""),
            (r#"{"config": 1}"#, "config: the value has the wrong type or form"),
            (
                r#"{"config": {"vm_config": {"code": "text"}}}"#,
                "config.vm_config.code: the value has the wrong type or form",
            ),
            (
                r#"{"config": {"vm_config": {"code": {"local": {}, "remote": {}}}}}"#,
                "config.vm_config.code: only one source may be given",
            ),
            (r#"{"config": {"fail_open": "yes"}}"#, "config.fail_open: the value has the wrong type or form"),
            (r#"{"config": {"fail_open": true, "failOpen": true}}"#, "config.fail_open: given twice"),
            (
                r#"{"config": {"configuration": {"value": 1}}}"#,
                "config.configuration: the value has the wrong type or form",
            ),
            (
                r#"{"config": {"failure_policy": "MAYBE"}}"#,
                "config.failure_policy: the value has the wrong type or form",
            ),
            (
                r#"{"config": {"vm_config": {"environment_variables": {"key_values": {"A": 1}}}}}"#,
                "config.vm_config.environment_variables.key_values: the value has the wrong type or form",
            ),
            (
                r#"{"config": {"vm_config": {"code": {"remote": {"http_uri": {"timeout": "5"}}}}}}"#,
                "config.vm_config.code.remote.http_uri.timeout: the value has the wrong type or form",
            ),
        ] {
            assert_eq!(plugin(&wasm(json)).unwrap_err(), error, "{json}");
        }
    }

    #[test]
    fn edits_in_place() {
        let before = wasm(
            r#"{"config": {"configuration": {"@type": "acme/Unheard", "x": [1, null]}, "vmConfig": {"vm_id": "v", "code": {"remote": {}},
                "environmentVariables": {"key_values": {"ISTIO_META_X": "1"}}}}}"#,
        );
        let after = wasm(
            r#"{"config": {"configuration": {"@type": "acme/Unheard", "x": [1, null]}, "vmConfig": {"vm_id": "v", "code": {"local": {"filename": "/m"}}}}}"#,
        );
        assert_eq!(with_code(before, &Local { path: "/m".to_owned(), aot: false }), after);
    }

    #[test]
    fn variables_of_others_stay() {
        let json = |pairs: &str| {
            wasm(&format!(
                r#"{{"config": {{"vm_config": {{"code": {{"local": {{"filename": "/m"}}}}, "environment_variables": {{"host_env_keys": ["H"]{pairs}}}}}}}}}"#,
            ))
        };
        let local = Local { path: "/m".to_owned(), aot: false };
        assert_eq!(
            with_code(json(r#", "key_values": {"A": "1", "ISTIO_META_B": "2"}"#), &local),
            json(r#", "key_values": {"A": "1"}"#)
        );
        assert_eq!(with_code(json(r#", "key_values": {"ISTIO_META_B": "2"}"#), &local), json(""));
    }
}
