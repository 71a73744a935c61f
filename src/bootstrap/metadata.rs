//! Metadata of the node: what `ISTIO_META_*`, `ISTIO_METAJSON_*`, labels, annotations and the agent's own settings tell istiod.
//!
//! Istio keeps it twice and so do we: *raw* (every key as it came) and *typed* (keys that it knows, checked and put into
//! their form). Envoy's bootstrap gets the typed part and every raw key that it lacks; the gRPC bootstrap the typed part.

use std::{borrow::Cow, collections::BTreeMap};

use serde_json::{Map, Value};

use super::json::{Json, Object};
use crate::config::{Errors, Vars};

/// Forms of typed keys.
#[derive(Clone, Copy)]
enum Form {
    Text,
    /// A boolean inside text.
    Flag,
    Number,
    /// A list of texts.
    List,
    Object,
    /// An object of texts.
    Texts,
    /// JSON text with the ports of the pod.
    Ports,
}

/// The keys that Istio knows (pkg/model/proxy.go, NodeMetadata).
const KEYS: &[(&str, Form)] = &[
    ("NAME", Form::Text),
    ("NAMESPACE", Form::Text),
    ("SERVICE_ACCOUNT", Form::Text),
    ("OWNER", Form::Text),
    ("PILOT_SAN", Form::List),
    ("OUTLIER_LOG_PATH", Form::Text),
    ("APP_CONTAINERS", Form::Text),
    ("ISTIO_PROXY_SHA", Form::Text),
    ("PROXY_CONFIG", Form::Object),
    ("ISTIO_VERSION", Form::Text),
    ("ISTIO_REVISION", Form::Text),
    ("LABELS", Form::Texts),
    ("STATIC_LABELS", Form::Texts),
    ("ANNOTATIONS", Form::Texts),
    ("INSTANCE_IPS", Form::Text),
    ("NODE_NAME", Form::Text),
    ("WORKLOAD_NAME", Form::Text),
    ("INTERCEPTION_MODE", Form::Text),
    ("HTTP_PROXY_PORT", Form::Text),
    ("MESH_ID", Form::Text),
    ("CLUSTER_ID", Form::Text),
    ("NETWORK", Form::Text),
    ("REQUESTED_NETWORK_VIEW", Form::Text),
    ("POD_PORTS", Form::Ports),
    ("TLS_SERVER_CERT_CHAIN", Form::Text),
    ("TLS_SERVER_KEY", Form::Text),
    ("TLS_SERVER_ROOT_CERT", Form::Text),
    ("TLS_CLIENT_CERT_CHAIN", Form::Text),
    ("TLS_CLIENT_KEY", Form::Text),
    ("TLS_CLIENT_ROOT_CERT", Form::Text),
    ("BASE", Form::Text),
    ("IDLE_TIMEOUT", Form::Text),
    ("HTTP10", Form::Text),
    ("GENERATOR", Form::Text),
    ("ENABLE_SELF_DISCOVERY", Form::Flag),
    ("DNS_CAPTURE", Form::Flag),
    ("DNS_AUTO_ALLOCATE", Form::Flag),
    ("ENABLE_HBONE", Form::Flag),
    ("DISABLE_HBONE_SEND", Form::Flag),
    ("INBOUND_LISTENER_EXACT_BALANCE", Form::Flag),
    ("OUTBOUND_LISTENER_EXACT_BALANCE", Form::Flag),
    ("DNS_PROXY_ADDR", Form::Text),
    ("AUTO_REGISTER_GROUP", Form::Text),
    ("WORKLOAD_ENTRY", Form::Text),
    ("UNPRIVILEGED_POD", Form::Text),
    ("CLOUDRUN_ADDR", Form::Text),
    ("PLATFORM_METADATA", Form::Texts),
    ("STS_PORT", Form::Text),
    ("ENVOY_STATUS_PORT", Form::Number),
    ("ENVOY_PROMETHEUS_PORT", Form::Number),
    ("ENVOY_SECURE_METRICS_PORT", Form::Number),
    ("ENVOY_SECURE_MERGED_METRICS_PORT", Form::Number),
    ("EXIT_ON_ZERO_ACTIVE_CONNECTIONS", Form::Flag),
    ("METADATA_DISCOVERY", Form::Flag),
    ("ENVOY_SKIP_DEPRECATED_LOGS", Form::Flag),
    ("WORKLOAD_IDENTITY_SOCKET_FILE", Form::Text),
];

/// The label by which a workload tells its place, and the one that overrides it.
const LOCALITY_LABELS: [&str; 2] = ["topology.istio.io/locality", "istio-locality"];
/// Changes with each roll-out and says nothing about the workload.
const TEMPLATE_HASH: &str = "pod-template-hash";

/// The node's metadata.
#[derive(Debug, Clone, Default)]
pub(super) struct Metadata {
    typed: Map<String, Value>,
    raw: Map<String, Value>,
}

/// Where the workload's labels come from.
#[derive(Debug, Clone, Default)]
pub(super) struct Labels {
    /// `ISTIO_METAJSON_LABELS`.
    fixed: Map<String, Value>,
    /// The pod's labels file.
    file: Option<BTreeMap<String, String>>,
}

impl Metadata {
    /// What environment and proxyMetadata say; the agent's own settings come with [`Metadata::set`]. Only the value that wins
    /// needs to fit its key.
    pub(super) fn from_vars(vars: &Vars, errors: &mut Errors) -> Metadata {
        let mut metadata = Metadata::default();
        for (key, source) in metadata.gather(vars) {
            let Some((_, form)) = KEYS.iter().find(|(known, _)| *known == key) else { continue };
            let value = &metadata.raw[&key];
            match typed(*form, value) {
                Ok(value) => metadata.set(&key, value),
                Err(wanted) => errors.add(source, format!("metadata {key}: {value} is not {wanted}")),
            }
        }
        metadata
    }

    /// Takes the raw values, later sources over earlier ones; for each key who set it.
    fn gather(&mut self, vars: &Vars) -> BTreeMap<String, String> {
        let mut sources = BTreeMap::new();
        let mut take = |key: &str, value: Value, source: &str| {
            self.raw.insert(key.to_owned(), value);
            sources.insert(key.to_owned(), source.to_owned());
        };
        for (name, value) in &vars.proxy().proxy_metadata {
            if let Some(key) = name.strip_prefix("ISTIO_META_") {
                take(key, value.as_str().into(), &format!("proxyMetadata.{name}"));
            }
        }
        for (key, value) in vars.prefixed("ISTIO_META_") {
            take(key, value.into(), &format!("ISTIO_META_{key}"));
        }
        for (suffix, value) in vars.prefixed("ISTIO_METAJSON_") {
            let name = format!("ISTIO_METAJSON_{suffix}");
            match serde_json::from_str::<Map<String, Value>>(value) {
                Ok(members) => {
                    members.into_iter().for_each(|(key, value)| take(&key, value, &name));
                }
                Err(error) => vars.warn(format!("{name}: not a JSON object ({error}); skipped")),
            }
        }
        if let Some(address) = vars.text("DNS_PROXY_ADDR").filter(|address| !address.is_empty()) {
            take("DNS_PROXY_ADDR", address.into(), "DNS_PROXY_ADDR");
        }
        sources
    }

    /// Sets a typed value; `None` takes it away, after which a raw one shows.
    pub(super) fn set(&mut self, key: &str, value: impl Into<Option<Value>>) {
        match value.into() {
            Some(value) => self.typed.insert(key.to_owned(), value),
            None => self.typed.remove(key),
        };
    }

    /// A typed text, or nothing where it is empty.
    pub(super) fn set_text(&mut self, key: &str, value: &str) {
        self.set(key, (!value.is_empty()).then(|| value.into()));
    }

    /// Whether there is a raw value.
    pub(super) fn has_raw(&self, key: &str) -> bool {
        self.raw.contains_key(key)
    }

    /// A raw value that is not typed.
    pub(super) fn set_raw(&mut self, key: &str, value: Value) {
        self.raw.insert(key.to_owned(), value);
    }

    /// A typed text; empty when it is not set.
    pub(super) fn text(&self, key: &str) -> &str {
        self.typed.get(key).and_then(Value::as_str).unwrap_or_default()
    }

    /// A typed boolean; false when it is not set.
    pub(super) fn flag(&self, key: &str) -> bool {
        self.text(key) == "true"
    }

    /// A raw text.
    pub(super) fn raw_text(&self, key: &str) -> Option<&str> {
        self.raw.get(key)?.as_str()
    }

    /// A label of the workload.
    pub(super) fn label(&self, name: &str) -> Option<&str> {
        self.typed.get("LABELS")?.get(name)?.as_str()
    }

    /// An annotation of the workload.
    pub(super) fn annotation(&self, name: &str) -> Option<&str> {
        self.typed.get("ANNOTATIONS")?.get(name)?.as_str()
    }

    /// Labels of the workload; `of_instance` are those that the platform gives a virtual machine.
    pub(super) fn set_labels(&mut self, labels: &Labels, of_instance: &BTreeMap<String, String>) {
        let mut fixed = match self.typed.get("STATIC_LABELS") {
            Some(Value::Object(own)) if labels.fixed.is_empty() => own.clone(),
            _ => labels.fixed.clone(),
        };
        fixed.extend(text_map(of_instance));
        let or_nothing = |map: Map<String, Value>| (!map.is_empty()).then_some(Value::Object(map));
        if !fixed.is_empty() {
            self.set("STATIC_LABELS", Value::Object(fixed.clone()));
        }
        if let Some(file) = &labels.file {
            fixed.extend(text_map(file).filter(|(key, _)| key != TEMPLATE_HASH));
            self.set("LABELS", or_nothing(fixed));
        } else if !labels.fixed.is_empty() {
            // One map serves as both in Istio, so LABELS has the platform's too.
            self.set("LABELS", or_nothing(fixed));
        }
    }

    /// Annotations of the pod, over those that metadata has.
    pub(super) fn set_annotations(&mut self, annotations: &BTreeMap<String, String>) {
        let mut all = match self.typed.remove("ANNOTATIONS") {
            Some(Value::Object(all)) => all,
            _ => Map::new(),
        };
        all.extend(text_map(annotations));
        self.set("ANNOTATIONS", (!all.is_empty()).then_some(Value::Object(all)));
    }

    /// The place that a label tells, as `region/zone/subzone`; puts the label `istio-locality` into this form.
    pub(super) fn label_locality(&mut self, labels: &Labels) -> Option<String> {
        let text = LOCALITY_LABELS.iter().find_map(|name| self.label(name))?;
        if text.is_empty() {
            return None;
        }
        let place = if text.contains('/') { text.to_owned() } else { text.replace('.', "/") };
        // Without a labels file LABELS and STATIC_LABELS are one map in Istio.
        let maps: &[&str] = if labels.file.is_some() { &["LABELS"] } else { &["LABELS", "STATIC_LABELS"] };
        for map in maps {
            if let Some(Value::Object(labels)) = self.typed.get_mut(*map) {
                labels.insert("istio-locality".to_owned(), place.as_str().into());
            }
        }
        Some(place)
    }

    /// The typed part.
    pub(super) fn typed(&self) -> Object<'_> {
        members(&self.typed).collect()
    }

    /// All of it: typed, and raw where typed has nothing.
    pub(super) fn all(&self) -> Object<'_> {
        members(&self.typed).chain(members(&self.raw).filter(|(key, _)| !self.typed.contains_key(&**key))).collect()
    }
}

impl Labels {
    pub(super) fn from_vars(vars: &Vars) -> Labels {
        let text = vars.text("ISTIO_METAJSON_LABELS").unwrap_or("{}");
        // What is no JSON object has been warned of already.
        let fixed = serde_json::from_str(text).map(|members| texts(members, vars)).unwrap_or_default();
        Labels { fixed, file: vars.labels().cloned() }
    }
}

/// The typed form of a raw value; `None` for an empty one, the form that is wanted when it does not fit.
fn typed(form: Form, value: &Value) -> Result<Option<Value>, &'static str> {
    let wanted = match (form, value) {
        (_, Value::Null) => return Ok(None),
        (Form::Text, Value::String(text)) => return Ok((!text.is_empty()).then(|| text.as_str().into())),
        (Form::Flag, Value::String(text)) => match text.as_str() {
            "1" | "t" | "T" | "TRUE" | "true" | "True" => return Ok(Some("true".into())),
            "0" | "f" | "F" | "FALSE" | "false" | "False" => return Ok(None),
            _ => "true or false",
        },
        (Form::Number, Value::Number(_)) | (Form::List, Value::Array(_)) | (Form::Object, Value::Object(_)) => {
            return Ok(Some(value.clone()));
        }
        (Form::Texts, Value::Object(members)) if members.values().all(|value| value.is_string() || value.is_null()) => {
            let text = |(key, value): (&String, &Value)| (key.clone(), Value::from(value.as_str().unwrap_or_default()));
            return Ok((!members.is_empty()).then(|| members.iter().map(text).collect()));
        }
        (Form::Ports, Value::String(text)) => match ports(text) {
            Ok(ports) => return Ok(ports.map(Value::String)),
            Err(wanted) => wanted,
        },
        (Form::Text, _) => "text",
        (Form::Flag, _) => "true or false in quotes",
        (Form::Number, _) => "a number",
        (Form::List, _) => "a list",
        (Form::Object, _) => "an object",
        (Form::Texts, _) => "an object of texts",
        (Form::Ports, _) => PORTS,
    };
    Err(wanted)
}

const PORTS: &str = "text with a JSON array of {name, containerPort, protocol}";

/// Ports of the pod with only the members that istiod reads; `None` for an empty array.
fn ports(text: &str) -> Result<Option<String>, &'static str> {
    let ports = match serde_json::from_str(text) {
        Ok(Value::Array(ports)) => ports,
        Ok(Value::Null) => return Ok(None),
        _ => return Err(PORTS),
    };
    let mut kept = Vec::with_capacity(ports.len());
    for port in ports {
        let mut members = Map::new();
        // Null is nothing at all, as Go reads it.
        let member = |name: &str| port.get(name).filter(|value| !value.is_null());
        let name = member("name").map_or(Some(""), Value::as_str).ok_or(PORTS)?;
        if !name.is_empty() {
            members.insert("name".to_owned(), name.into());
        }
        let number = member("containerPort").map_or(Some(0), Value::as_i64).ok_or(PORTS)?;
        let protocol = member("protocol").map_or(Some(""), Value::as_str).ok_or(PORTS)?;
        if !port.is_object() {
            return Err(PORTS);
        }
        members.insert("containerPort".to_owned(), number.into());
        members.insert("protocol".to_owned(), protocol.into());
        kept.push(Value::Object(members));
    }
    Ok((!kept.is_empty()).then(|| Value::Array(kept).to_string()))
}

/// Labels are texts; anything else counts as empty.
fn texts(members: Map<String, Value>, vars: &Vars) -> Map<String, Value> {
    let text = |(key, value): (String, Value)| {
        if value.is_string() {
            return (key, value);
        }
        vars.warn(format!("ISTIO_METAJSON_LABELS: {key}: {value} is not text; the label is empty"));
        (key, "".into())
    };
    members.into_iter().map(text).collect()
}

/// As the bootstrap has them.
fn members(map: &Map<String, Value>) -> impl Iterator<Item = (Cow<'_, str>, Json<'_>)> {
    map.iter().map(|(key, value)| (key.into(), value.into()))
}

fn text_map(map: &BTreeMap<String, String>) -> impl Iterator<Item = (String, Value)> {
    map.iter().map(|(key, value)| (key.clone(), value.as_str().into()))
}
