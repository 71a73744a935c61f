//! ProxyConfig's sources laid over one another by Istio's rules: defaults, mesh file, PROXY_CONFIG, annotation.

use std::collections::BTreeMap;

use serde_json::{Map, Value as Json};

use super::{
    Origin,
    decode::Placed,
    schema::{Field, PROXY_CONFIG},
};

/// The layers laid over one another: for each field of the schema its value and where it came from.
#[derive(Debug, Clone)]
pub(super) struct Layers {
    fields: Vec<Option<Placed>>,
    /// Where each key of proxyMetadata came from.
    metadata: BTreeMap<String, Origin>,
}

const DEFAULTS: &[(&str, &str)] = &[
    ("configPath", "./etc/istio/proxy"),
    ("binaryPath", "/usr/local/bin/envoy"),
    ("serviceCluster", "istio-proxy"),
    ("drainDuration", "45s"),
    ("terminationDrainDuration", "5s"),
    ("controlPlaneAuthPolicy", "MUTUAL_TLS"),
    ("discoveryAddress", "istiod.istio-system.svc:15012"),
];
const DEFAULT_NUMBERS: &[(&str, i64)] = &[("proxyAdminPort", 15000), ("statNameLength", 189), ("statusPort", 15020)];

/// The parts of proxyHeaders that a layer without them takes from the layer below.
const INHERITED_HEADERS: &[&str] = &["forwardedClientCert", "requestId", "attemptCount", "server", "envoyDebugHeaders"];

impl Layers {
    /// Istio's defaults.
    pub(super) fn new() -> Layers {
        let mut layers = Layers { fields: PROXY_CONFIG.iter().map(|_| None).collect(), metadata: BTreeMap::new() };
        DEFAULTS.iter().for_each(|(name, value)| layers.set(name, (*value).into(), Origin::Default));
        DEFAULT_NUMBERS.iter().for_each(|(name, value)| layers.set(name, (*value).into(), Origin::Default));
        layers
    }

    /// Lays a decoded document over what is there.
    pub(super) fn lay(&mut self, document: Vec<(usize, Placed)>) {
        for (index, mut placed) in document {
            let field = &PROXY_CONFIG[index];
            match field.name {
                "proxyMetadata" => {
                    if let Json::Object(keys) = &placed.value {
                        self.metadata.extend(keys.keys().map(|key| (key.clone(), placed.origin.clone())));
                    }
                    let lower = self.fields[index].take().map(|lower| lower.value);
                    placed.value = over(lower, placed.value, |_| true);
                }
                "proxyHeaders" => {
                    let lower = self.fields[index].take().map(|lower| lower.value);
                    placed.value = over(lower, placed.value, |key| INHERITED_HEADERS.contains(&key));
                }
                _ => {}
            }
            self.set(field.name, placed.value, placed.origin);
        }
    }

    /// Sets one field.
    pub(super) fn set(&mut self, name: &str, value: Json, origin: Origin) {
        let Some(index) = index_of(name) else { return };
        if PROXY_CONFIG[index].oneof != 0 {
            PROXY_CONFIG
                .iter()
                .zip(&mut self.fields)
                .filter(|(field, _)| field.oneof != 0)
                .for_each(|(_, v)| *v = None);
        }
        self.fields[index] = Some(Placed { value, origin });
    }

    /// The value of a field.
    pub(super) fn get(&self, name: &str) -> Option<&Json> {
        self.placed(name).map(|placed| &placed.value)
    }

    /// Where the value of a field came from.
    pub(super) fn origin(&self, name: &str) -> Origin {
        self.placed(name).map_or(Origin::Default, |placed| placed.origin.clone())
    }

    fn placed(&self, name: &str) -> Option<&Placed> {
        self.fields[index_of(name)?].as_ref()
    }

    /// Every field that is set: name, value, origin; the keys of proxyMetadata each for itself.
    pub(super) fn settings(&self) -> Vec<(String, String, Origin)> {
        let mut settings = Vec::new();
        for (field, placed) in self.set_fields() {
            if let ("proxyMetadata", Json::Object(keys)) = (field.name, &placed.value) {
                for (key, value) in keys {
                    let origin = self.metadata.get(key).unwrap_or(&placed.origin);
                    settings.push((format!("proxyMetadata.{key}"), plain(value), origin.clone()));
                }
            } else {
                settings.push((field.name.to_owned(), plain(&without_token(&placed.value)), placed.origin.clone()));
            }
        }
        settings
    }

    /// Proto-JSON of the whole, as metadata `PROXY_CONFIG` carries it: plain fields at zero are left out.
    pub(super) fn document(&self) -> Map<String, Json> {
        self.set_fields()
            .filter(|(field, placed)| !field.is_zero(&placed.value))
            .map(|(field, placed)| (field.name.to_owned(), placed.value.clone()))
            .collect()
    }

    fn set_fields(&self) -> impl Iterator<Item = (&'static Field, &Placed)> {
        PROXY_CONFIG.iter().zip(&self.fields).filter_map(|(field, placed)| Some((field, placed.as_ref()?)))
    }
}

fn index_of(name: &str) -> Option<usize> {
    PROXY_CONFIG.iter().position(|field| field.name == name)
}

/// The members of `upper`, and those members of `lower` that `inherited` names and `upper` lacks.
fn over(lower: Option<Json>, upper: Json, inherited: impl Fn(&str) -> bool) -> Json {
    match (lower, upper) {
        (Some(Json::Object(lower)), Json::Object(mut upper)) => {
            let rest: Vec<_> =
                lower.into_iter().filter(|(key, _)| inherited(key) && !upper.contains_key(key)).collect();
            upper.extend(rest);
            Json::Object(upper)
        }
        (_, upper) => upper,
    }
}

/// Text as it is, everything else as JSON.
fn plain(value: &Json) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Lightstep's access token is a secret.
fn without_token(value: &Json) -> Json {
    let mut value = value.clone();
    if let Some(token) = value.pointer_mut("/lightstep/accessToken") {
        *token = "…".into();
    }
    value
}
