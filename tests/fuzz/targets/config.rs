//! What people and tools write into configuration.

use footman::{
    bootstrap,
    config::{Sources, Vars, parse_downward_api, parse_go_duration, yaml::Node},
};
use serde_json::Value as Json;

/// Durations as Go writes them.
pub fn go_duration(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data) {
        let _ = parse_go_duration(text);
    }
}

/// What the agent makes of this `PROXY_CONFIG`: errors, or a document that a JSON parser takes.
pub fn proxy_config(data: &[u8]) {
    let text = String::from_utf8_lossy(data).into_owned();
    let env = [("PROXY_CONFIG".to_owned(), text), ("CLOUD_PLATFORM".to_owned(), "none".to_owned())].into();
    let (vars, errors) = Vars::load(Sources { env, root: "/nonexistent".into(), ..Sources::default() });
    let document = Json::Object(vars.proxy_document());
    if errors.0.is_empty() && bootstrap::Config::from_vars(&vars).is_ok() {
        // The effective document, read again, says the same, but for zeros: they are not written and fall to the defaults.
        let env = [("PROXY_CONFIG".to_owned(), document.to_string())].into();
        let (again, errors) = Vars::load(Sources { env, root: "/nonexistent".into(), ..Sources::default() });
        assert!(errors.0.is_empty(), "{errors}: {document}");
        let again = again.proxy_document();
        for (name, value) in document.as_object().into_iter().flatten() {
            assert_eq!(again.get(name), Some(value), "{name}");
        }
    }
}

/// A mesh file as a tree; as JSON it is printed and read back whole.
pub fn mesh_yaml(data: &[u8]) {
    let Ok(node) = Node::parse(&String::from_utf8_lossy(data)) else { return };
    let json = node.to_json();
    assert_eq!(serde_json::from_str::<Json>(&json.to_string()).unwrap(), json);
}

/// Labels and annotations files.
pub fn downward_api(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if let Ok(pairs) = parse_downward_api(&text) {
        assert!(pairs.len() <= text.matches('=').count());
    }
}

/// What `ISTIO_BOOTSTRAP_OVERRIDE` names becomes a JSON object, or an error.
pub fn bootstrap_override(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    for host_ip in ["", "10.0.0.1", "fd00::1"] {
        if let Ok(Some(json)) = bootstrap::override_json(&text, host_ip) {
            assert!(serde_json::from_str::<Json>(&json).unwrap().is_object());
        }
    }
}
