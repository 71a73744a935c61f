//! Reads a ProxyConfig document as Istio's proto-JSON decoder does: both spellings of names, quoted numbers, enums by name
//! or number, Go durations; unknown fields are noted, every type error is gathered with the field and the line it is on.

use serde_json::{Map, Number, Value as Json};

use super::{
    ConfigError, Errors, Origin, duration,
    schema::{Field, Fields, Kind, Names},
    yaml::{Node, Value},
};

/// A decoded value and where it stands.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Placed {
    pub(super) value: Json,
    pub(super) origin: Origin,
}

/// Reads one document.
pub(super) struct Decoder<'a> {
    /// Turns a line of the document into where it is.
    pub(super) origin: &'a dyn Fn(usize) -> Origin,
    /// What is prefixed to field names in messages: `defaultConfig.` in a mesh file.
    pub(super) prefix: &'a str,
    pub(super) errors: &'a mut Errors,
    pub(super) warnings: &'a mut Vec<String>,
}

impl Decoder<'_> {
    /// The fields that the document sets, as (index in `fields`, value); a null field is not set.
    pub(super) fn document(&mut self, node: &Node, fields: Fields) -> Vec<(usize, Placed)> {
        let mut found: Vec<(usize, Placed)> = Vec::new();
        let entries = match &node.value {
            Value::Null => return found,
            Value::Map(entries) => entries,
            _ => {
                let message = format!("a mapping of settings is wanted, not {}", node.kind());
                self.wrong(node.line, self.prefix.trim_end_matches('.'), message);
                return found;
            }
        };
        let path = self.prefix;
        let chosen = self.chosen(fields, entries, path);
        for (index, node) in &chosen {
            let field = &fields[*index];
            if let Some(value) = self.value(node, &field.kind, &format!("{path}{}", field.name))
                && !self.is_outdone(fields, *index, &chosen, path)
            {
                found.push((*index, Placed { value, origin: (self.origin)(node.line) }));
            }
        }
        found
    }

    /// The members that count, in document order: known ones that are not null, of two spellings of a name lowerCamelCase.
    fn chosen<'n>(&mut self, fields: Fields, entries: &'n [(String, Node)], path: &str) -> Vec<(usize, &'n Node)> {
        let mut chosen = Vec::with_capacity(entries.len());
        for (key, node) in entries {
            let Some(index) = fields.iter().position(|field| field.is_named(key)) else {
                let origin = (self.origin)(node.line);
                self.warnings.push(format!("{origin}: {path}{key}: unknown field ignored"));
                continue;
            };
            let name = fields[index].name;
            let is_spelt_twice = key != name && entries.iter().any(|(other, _)| other == name);
            if node.value != Value::Null && !is_spelt_twice {
                chosen.push((index, node));
            }
        }
        chosen
    }

    /// Whether a later choice of the same `oneof` is set too: that one counts, as in Istio, wherever it stands.
    fn is_outdone(&mut self, fields: Fields, index: usize, chosen: &[(usize, &Node)], path: &str) -> bool {
        let field = &fields[index];
        let rival = chosen.iter().find(|(other, _)| *other > index && same_oneof(&fields[*other], field));
        if let Some((rival, node)) = rival {
            let (origin, name, rival) = ((self.origin)(node.line), field.name, fields[*rival].name);
            self.warnings.push(format!("{origin}: {path}{name}: ignored, since {rival} is set too"));
        }
        rival.is_some()
    }

    fn message(&mut self, node: &Node, fields: Fields, path: &str) -> Option<Json> {
        let Value::Map(entries) = &node.value else { return self.unfit(node, path, "a mapping") };
        let mut found = Map::new();
        let path = format!("{path}.");
        let chosen = self.chosen(fields, entries, &path);
        for (index, node) in &chosen {
            let field = &fields[*index];
            if let Some(value) = self.value(node, &field.kind, &format!("{path}{}", field.name))
                && !self.is_outdone(fields, *index, &chosen, &path)
                && !field.is_zero(&value)
            {
                found.insert(field.name.to_owned(), value);
            }
        }
        Some(Json::Object(found))
    }

    fn value(&mut self, node: &Node, kind: &Kind, path: &str) -> Option<Json> {
        match kind {
            Kind::Text => match &node.value {
                Value::Text(text) => Some(text.as_str().into()),
                _ => self.unfit(node, path, "text (put it in quotes)"),
            },
            Kind::Bool | Kind::BoolValue => match node.value {
                Value::Bool(value) => Some(value.into()),
                _ => self.unfit(node, path, "true or false"),
            },
            Kind::Int32 | Kind::Int32Value => self.whole(node, path, i32::MIN.into(), i32::MAX.into()),
            Kind::UInt32 => self.whole(node, path, 0, u32::MAX.into()),
            // proto-JSON writes 64-bit numbers as text.
            Kind::Int64Value => self.whole(node, path, i64::MIN, i64::MAX).map(|value| value.to_string().into()),
            Kind::Double => match number_of(node).and_then(|number| number.as_f64()) {
                Some(value) => Number::from_f64(value).map(Json::Number),
                None => self.unfit(node, path, "a number"),
            },
            Kind::Duration => self.duration(node, path),
            Kind::Enum(names) => self.name(node, names, path),
            Kind::Message(fields) => self.message(node, fields, path),
            Kind::List(kind) => match &node.value {
                Value::List(items) => {
                    let items = items.iter().enumerate();
                    let values = items.filter_map(|(n, item)| self.element(item, kind, &format!("{path}[{n}]")));
                    Some(Json::Array(values.collect()))
                }
                _ => self.unfit(node, path, "a list"),
            },
            Kind::Map(kind) => match &node.value {
                Value::Map(entries) => {
                    let mut map = Map::new();
                    for (key, node) in entries {
                        if let Some(value) = self.element(node, kind, &format!("{path}.{key}")) {
                            map.insert(key.clone(), value);
                        }
                    }
                    Some(Json::Object(map))
                }
                _ => self.unfit(node, path, "a mapping"),
            },
        }
    }

    /// A member of a list or map: null counts as empty text, or as a message without members.
    fn element(&mut self, node: &Node, kind: &Kind, path: &str) -> Option<Json> {
        match (&node.value, kind) {
            (Value::Null, Kind::Text) => Some("".into()),
            (Value::Null, Kind::Message(_)) => Some(Json::Object(Map::new())),
            _ => self.value(node, kind, path),
        }
    }

    fn whole(&mut self, node: &Node, path: &str, min: i64, max: i64) -> Option<Json> {
        let value = match &node.value {
            Value::Text(text) => serde_json::from_str(text).ok(),
            _ => whole_of(node),
        };
        match value {
            Some(value) if (min..=max).contains(&value) => Some(value.into()),
            Some(value) => {
                self.wrong(node.line, path, format!("{value} is out of range ({min} to {max})"));
                None
            }
            None => self.unfit(node, path, "a whole number"),
        }
    }

    fn duration(&mut self, node: &Node, path: &str) -> Option<Json> {
        let nanos = match &node.value {
            Value::Text(text) => duration::go_nanos(text),
            _ => None,
        };
        match nanos {
            Some(nanos) => Some(duration::proto_text(nanos).into()),
            None => self.unfit(node, path, "a duration such as 5s or 1m30s"),
        }
    }

    fn name(&mut self, node: &Node, names: Names, path: &str) -> Option<Json> {
        let number = whole_of(node).and_then(|number| i32::try_from(number).ok());
        let is_it = |name: &str| matches!(&node.value, Value::Text(text) if text == name);
        let known = names.iter().find(|(name, value)| number == Some(*value) || is_it(name));
        let known = known.map(|(name, _)| (*name).into());
        known.or_else(|| number.map(Json::from)).or_else(|| {
            let known: Vec<&str> = names.iter().map(|(name, _)| *name).collect();
            self.unfit(node, path, &format!("one of {}", known.join(", ")))
        })
    }

    fn unfit(&mut self, node: &Node, path: &str, wanted: &str) -> Option<Json> {
        let shown = match &node.value {
            Value::Text(text) => format!("{text:?}"),
            Value::Number(number) => number.to_string(),
            Value::Bool(value) => value.to_string(),
            _ => node.kind().to_owned(),
        };
        self.wrong(node.line, path, format!("{shown} is not {wanted}"));
        None
    }

    fn wrong(&mut self, line: usize, path: &str, message: impl Into<String>) {
        let origin = (self.origin)(line);
        let source = if path.is_empty() { origin.to_string() } else { format!("{origin}: {path}") };
        self.errors.0.push(ConfigError { source, message: message.into() });
    }
}

fn same_oneof(one: &Field, other: &Field) -> bool {
    one.oneof != 0 && one.oneof == other.oneof
}

/// A whole number without quotes; YAML's `2.0` is one.
fn whole_of(node: &Node) -> Option<i64> {
    let Value::Number(number) = &node.value else { return None };
    number.as_i64().or_else(|| number.as_f64().filter(|v| v.fract() == 0.0 && v.abs() < 1e18).map(|v| v as i64))
}

/// A number, also in quotes.
fn number_of(node: &Node) -> Option<Number> {
    match &node.value {
        Value::Number(number) => Some(number.clone()),
        Value::Text(text) => serde_json::from_str(text).ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{super::schema::PROXY_CONFIG, *};

    fn decode(text: &str) -> (Json, Vec<String>, Vec<String>) {
        let (mut errors, mut warnings) = (Errors::default(), Vec::new());
        let node = Node::parse(text).unwrap();
        let origin = |_| Origin::Env;
        let mut decoder = Decoder { origin: &origin, prefix: "", errors: &mut errors, warnings: &mut warnings };
        let fields = decoder.document(&node, PROXY_CONFIG);
        let values = fields.into_iter().map(|(index, placed)| (PROXY_CONFIG[index].name.to_owned(), placed.value));
        (Json::Object(values.collect()), errors.0.iter().map(ToString::to_string).collect(), warnings)
    }

    #[test]
    fn lenient_forms() {
        let (values, errors, warnings) = decode(
            "drain_duration: 1m30s\nproxy_admin_port: \"15001\"\ncontrol_plane_auth_policy: 0\nstatsCompression: off\n\
             noSuchField: {a: 1}\nconcurrency: \"3\"\ninterceptionMode: 7\nsds: {k8s_sa_jwt_path: /x}\nmeshId:\n\
             tracing: {sampling: \"1.5\", stackdriver: {maxNumberOfAttributes: 5}}\ntracingServiceName: 2.0\n",
        );
        assert_eq!(errors, Vec::<String>::new());
        assert_eq!(
            values,
            serde_json::json!({
                "drainDuration": "90s", "proxyAdminPort": 15001, "controlPlaneAuthPolicy": "NONE",
                "statsCompression": false, "concurrency": 3, "interceptionMode": 7, "sds": {"k8sSaJwtPath": "/x"},
                "tracing": {"sampling": 1.5, "stackdriver": {"maxNumberOfAttributes": "5"}},
                "tracingServiceName": "CANONICAL_NAME_AND_NAMESPACE"
            })
        );
        assert_eq!(warnings.len(), 1);
        assert!(warnings[0].contains("noSuchField"));
    }

    #[test]
    fn every_type_error_names_its_field() {
        for (text, field) in [
            ("proxyMetadata: {A: true}", "proxyMetadata.A"),
            ("statusPort: x", "statusPort"),
            ("statusPort: 99999999999", "statusPort"),
            ("statusPort: 1.5", "statusPort"),
            ("statusPort: \"1.0\"", "statusPort"),
            ("drainDuration: 5", "drainDuration"),
            ("statsCompression: \"true\"", "statsCompression"),
            ("drainDuration: \"5\"", "drainDuration"),
            ("tracing: {tlsSettings: {mode: TLS}}", "tracing.tlsSettings.mode"),
            ("extraStatTags: a", "extraStatTags"),
            ("extraStatTags: [1]", "extraStatTags[0]"),
            ("fileFlushMinSizeKb: -1", "fileFlushMinSizeKb"),
            ("image: distroless", "image"),
            ("configPath: 7", "configPath"),
            ("tracing: {zipkin: 1, datadog: {}}", "tracing.zipkin"),
            ("[1]", "a mapping"),
        ] {
            let (_, errors, _) = decode(text);
            assert_eq!(errors.len(), 1, "{text}: {errors:?}");
            assert!(errors[0].contains(field), "{text}: {errors:?}");
        }
    }

    #[test]
    fn of_two_spellings_and_of_two_choices_one_counts() {
        for (text, wanted, warned) in [
            ("drainDuration: 1s\ndrain_duration: 2s", serde_json::json!({"drainDuration": "1s"}), 0),
            ("drain_duration: [no]\ndrainDuration: 1s", serde_json::json!({"drainDuration": "1s"}), 0),
            ("drainDuration: ~\ndrain_duration: 1s", serde_json::json!({}), 0),
            (
                "tracing: {datadog: {address: 'd:1'}, zipkin: {address: 'z:1'}}",
                serde_json::json!({"tracing": {"datadog": {"address": "d:1"}}}),
                1,
            ),
            (
                "tracing: {datadog: ~, zipkin: {address: 'z:1'}}",
                serde_json::json!({"tracing": {"zipkin": {"address": "z:1"}}}),
                0,
            ),
            (
                "tracingServiceName: 1\nserviceCluster: a",
                serde_json::json!({"tracingServiceName": "CANONICAL_NAME_ONLY"}),
                1,
            ),
        ] {
            let (values, errors, warnings) = decode(text);
            assert_eq!((values, errors, warnings.len()), (wanted, Vec::new(), warned), "{text}");
        }
    }

    #[test]
    fn zero_and_null_members() {
        let (values, errors, _) = decode(
            "gatewayTopology: {numTrustedProxies: 0, proxyProtocol: {}}\nproxyMetadata: {A: null}\n\
             tracing: {customTags: {t: null}}\nmeshId: ''\nimage: {imageType: ~}",
        );
        assert_eq!(errors, Vec::<String>::new());
        assert_eq!(
            values,
            serde_json::json!({
                "gatewayTopology": {"proxyProtocol": {}}, "proxyMetadata": {"A": ""},
                "tracing": {"customTags": {"t": {}}}, "meshId": "", "image": {}
            })
        );
    }
}
