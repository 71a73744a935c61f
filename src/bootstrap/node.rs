//! The `node` section: who this proxy is. The rules are those of Istio's pkg/bootstrap/config.go.

use serde_json::Value;

use super::{
    Config, Surroundings,
    json::{Json, Object, json},
    metadata::Metadata,
};
use crate::config::ClusterName;

/// The node as istiod will see it.
pub(super) struct Node {
    pub(super) id: String,
    pub(super) cluster: String,
    /// `region/zone/subzone`, each only if it is known.
    locality: String,
    pub(super) metadata: Metadata,
}

impl Node {
    /// `config` and what only shows when the agent starts.
    pub(super) fn new(config: &Config, around: &Surroundings) -> Node {
        let mut metadata = config.metadata.clone();
        let platform = &around.platform;
        metadata.set_labels(&config.labels, &platform.labels);
        if !platform.metadata.is_empty() {
            metadata.set("PLATFORM_METADATA", platform.metadata.clone().into_iter().collect::<Value>());
        }
        let locality = match metadata.label_locality(&config.labels) {
            Some(place) => place,
            None => platform.locality.join("/"),
        };
        if around.credential_socket {
            metadata.set_raw("credential", "true".into());
        }
        if around.external_sds {
            metadata.set_raw("file-credential", "true".into());
        }
        if metadata.text("METADATA_DISCOVERY").is_empty() {
            let enabled = if metadata.flag("ENABLE_HBONE") { "true" } else { "false" };
            metadata.set("METADATA_DISCOVERY", Value::from(enabled));
        }
        Node { id: config.node_id.clone(), cluster: cluster(&config.proxy.cluster_name, &metadata), locality, metadata }
    }

    /// As Envoy's bootstrap has it.
    pub(super) fn to_json(&self) -> Json<'_> {
        json!({
            "id": self.id.as_str(),
            "cluster": self.cluster.as_str(),
            "locality": self.locality(),
            "metadata": self.metadata.all()
        })
    }

    /// `region`, `zone` and `sub_zone`.
    pub(super) fn locality(&self) -> Object<'_> {
        ["region", "zone", "sub_zone"]
            .into_iter()
            .zip(self.locality.split('/'))
            .filter(|(_, part)| !part.is_empty())
            .map(|(key, part)| (key.into(), part.into()))
            .collect()
    }
}

fn cluster(name: &ClusterName, metadata: &Metadata) -> String {
    let namespace = metadata.text("NAMESPACE");
    match name {
        ClusterName::Service(name) => cluster_or_default(name, metadata),
        ClusterName::AppLabelAndNamespace => cluster_or_default("istio-proxy", metadata),
        ClusterName::CanonicalNameAndNamespace if !namespace.is_empty() => {
            format!("{}.{namespace}", canonical_name(metadata))
        }
        ClusterName::CanonicalName | ClusterName::CanonicalNameAndNamespace => {
            cluster_or_default(canonical_name(metadata), metadata)
        }
    }
}

fn cluster_or_default(name: &str, metadata: &Metadata) -> String {
    if !name.is_empty() && name != "istio-proxy" {
        return name.to_owned();
    }
    let namespace = metadata.text("NAMESPACE");
    let labels = ["app", "app.kubernetes.io/name", "service.istio.io/canonical-name"];
    let workload = Some(metadata.text("WORKLOAD_NAME")).filter(|name| !name.is_empty());
    match labels.into_iter().find_map(|label| metadata.label(label)).or(workload) {
        Some(name) => format!("{name}.{namespace}"),
        None if namespace.is_empty() => "istio-proxy".to_owned(),
        None => format!("istio-proxy.{namespace}"),
    }
}

/// The first label that is there, an empty one too.
fn canonical_name(metadata: &Metadata) -> &str {
    ["service.istio.io/canonical-name", "app.kubernetes.io/name", "app"]
        .into_iter()
        .find_map(|label| metadata.label(label))
        .or(Some(metadata.text("WORKLOAD_NAME")).filter(|name| !name.is_empty()))
        .unwrap_or("istio-proxy")
}
