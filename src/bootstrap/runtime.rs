//! The `layered_runtime` section: Istio's feature flags of Envoy, and those of the user over them.

use super::{
    Config,
    json::{Json, Object, json},
};

const REJECT_FRAGMENT: &str = "envoy.reloadable_features.http_reject_path_with_fragment";
const STRIP_FRAGMENT: &str = "envoy.reloadable_features.http_strip_fragment_from_path_unsafe_if_disabled";
const ORIGINAL_DST: &str =
    "envoy.deprecated_features:envoy.config.listener.v3.Listener.hidden_envoy_deprecated_use_original_dst";

pub(super) fn layered_runtime(config: &Config) -> Json<'_> {
    let mut flags = Object::default();
    flags.insert("re2.max_program_size.error_level", "32768");
    flags.insert(ORIGINAL_DST, true);
    flags.insert(REJECT_FRAGMENT, false);
    flags.insert("envoy.reloadable_features.fixed_heap_use_allocated", true);
    flags.insert("envoy.reloadable_features.coalesce_lb_rebuilds_on_batch_update", false);
    if config.google_grpc_without_tls_13 {
        flags.insert("envoy.reloadable_features.google_grpc_disable_tls_13", true);
    }
    if config.keep_fragments {
        flags.insert(STRIP_FRAGMENT, "false");
    }
    for (name, value) in &config.proxy.runtime_values {
        match value.as_str() {
            "" => flags.remove(name),
            "true" => flags.insert(name, true),
            "false" => flags.insert(name, false),
            text => flags.insert(name, text),
        }
    }
    json!({"layers": [{"name": "global config", "static_layer": flags}, {"name": "admin", "admin_layer": {}}]})
}
