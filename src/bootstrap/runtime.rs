//! The `layered_runtime` section: Istio's feature flags of Envoy, and those of the user over them.

use serde_json::{Map, Value as Json};

use super::{Config, json::json};

const REJECT_FRAGMENT: &str = "envoy.reloadable_features.http_reject_path_with_fragment";
const STRIP_FRAGMENT: &str = "envoy.reloadable_features.http_strip_fragment_from_path_unsafe_if_disabled";
const ORIGINAL_DST: &str =
    "envoy.deprecated_features:envoy.config.listener.v3.Listener.hidden_envoy_deprecated_use_original_dst";

pub(super) fn layered_runtime(config: &Config) -> Json {
    let mut flags: Map<String, Json> = [
        ("re2.max_program_size.error_level", Json::from("32768")),
        (ORIGINAL_DST, true.into()),
        (REJECT_FRAGMENT, false.into()),
        ("envoy.reloadable_features.fixed_heap_use_allocated", true.into()),
        ("envoy.reloadable_features.coalesce_lb_rebuilds_on_batch_update", false.into()),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value))
    .collect();
    if config.google_grpc_without_tls_13 {
        flags.insert("envoy.reloadable_features.google_grpc_disable_tls_13".to_owned(), true.into());
    }
    if config.keep_fragments {
        flags.insert(STRIP_FRAGMENT.to_owned(), "false".into());
    }
    for (name, value) in &config.proxy.runtime_values {
        match value.as_str() {
            "" => drop(flags.remove(name)),
            "true" => drop(flags.insert(name.clone(), true.into())),
            "false" => drop(flags.insert(name.clone(), false.into())),
            text => drop(flags.insert(name.clone(), text.into())),
        }
    }
    json!({"layers": [{"name": "global config", "static_layer": flags}, {"name": "admin", "admin_layer": {}}]})
}
