//! One ECDS resource: is it a Wasm plugin with remote code, and what does it become.
//!
//! Pure; called by `rewrite`. A plugin's bytes are patched, never decoded and encoded again: fields and `Any` types that the
//! agent does not know reach Envoy as istiod sent them. Texts made here never quote values, since a pull secret may be one.

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;
use prost::Message;

use crate::proto::{
    envoy::{
        config::core::v3::{TypedExtensionConfig, async_data_source::Specifier},
        extensions::wasm::v3::{FailurePolicy, Wasm},
    },
    google::protobuf::Any,
    udpa::r#type::v1::TypedStruct,
    wire,
};

use super::{
    settings::{AGENT_PREFIX, Settings},
    structs,
};

const EXTENSION: &str = "envoy.config.core.v3.TypedExtensionConfig";
const HTTP_WASM: &str = "type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm";
const NETWORK_WASM: &str = "type.googleapis.com/envoy.extensions.filters.network.wasm.v3.Wasm";
/// The two are the same message; Istio knows the first only.
const TYPED_STRUCTS: [&str; 2] =
    ["type.googleapis.com/udpa.type.v1.TypedStruct", "type.googleapis.com/xds.type.v3.TypedStruct"];
/// How long a fetch may take when the plugin does not say (Istio's value; istiod always says 30 s).
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);
/// What istiod writes for a checksum that nobody gave, since Envoy's validation wants one.
const NO_CHECKSUM: &str = "nil";
/// The runtime of ahead-of-time compiled modules (Higress).
pub(super) const AOT_RUNTIME: &str = "envoy.wasm.runtime.wamr";

/// Which chain the filter stands in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Http,
    Network,
}

/// What to do with one resource.
#[derive(Debug)]
pub(super) enum Resource {
    /// Not Wasm, or its code is local: it passes as it is.
    Other,
    /// Its module has to be fetched.
    Remote(Box<Remote>),
}

/// A plugin whose code is remote.
#[derive(Debug)]
pub(super) struct Remote {
    /// `TypedExtensionConfig.name`, the resource's name.
    pub(super) name: String,
    /// `PluginConfig.name`, for messages.
    pub(super) plugin: String,
    pub(super) kind: Kind,
    /// Whether requests pass when the module cannot be had.
    pub(super) fail_open: bool,
    /// What the agent was told in the VM's environment.
    pub(super) settings: Settings,
    /// `None` when the remote source names no URI.
    pub(super) source: Option<Source>,
    in_struct: bool,
    original: Bytes,
}

/// Where the module comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Source {
    pub(super) uri: String,
    /// Lower-case hexadecimal; empty when nobody gave one.
    pub(super) sha256: String,
    pub(super) timeout: Duration,
}

/// A module as Envoy is to load it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Local {
    pub(super) path: String,
    /// Compiled ahead of time for WAMR.
    pub(super) aot: bool,
}

/// The fields of a plugin that the agent reads, from either spelling of it.
#[derive(Debug, Default)]
pub(super) struct Plugin {
    pub(super) name: String,
    pub(super) fail_open: bool,
    pub(super) failure_policy: i32,
    pub(super) environment: BTreeMap<String, String>,
    pub(super) code: Code,
}

#[derive(Debug, Default)]
pub(super) enum Code {
    #[default]
    Absent,
    Local,
    Remote(Option<Source>),
}

/// Tells what `resource`, an encoded `google.protobuf.Any`, is (Istio's `MaybeConvertWasmExtensionConfig`).
///
/// The error is what istiod is told in a NACK.
pub(super) fn recognise(resource: &Bytes) -> Result<Resource, String> {
    let outer = Any::decode(resource.as_ref()).map_err(|error| broken("", &error.to_string()))?;
    if outer.type_url.rsplit('/').next() != Some(EXTENSION) {
        return Err(broken("", &format!("mismatched message type: got {:?}, want {EXTENSION:?}", outer.type_url)));
    }
    let extension = TypedExtensionConfig::decode(outer.value).map_err(|error| broken("", &error.to_string()))?;
    let name = extension.name;
    let Some(typed) = extension.typed_config else {
        return Err(broken(&name, "typed_config is missing"));
    };
    let (kind, plugin, in_struct) = match typed.type_url.as_str() {
        HTTP_WASM => (Kind::Http, decode_plugin(typed.value), false),
        NETWORK_WASM => (Kind::Network, decode_plugin(typed.value), false),
        url if TYPED_STRUCTS.contains(&url) => {
            let inner = TypedStruct::decode(typed.value).map_err(|error| broken(&name, &error.to_string()))?;
            let kind = match inner.type_url.as_str() {
                HTTP_WASM => Kind::Http,
                NETWORK_WASM => Kind::Network,
                _ => return Ok(Resource::Other),
            };
            (kind, structs::plugin(&inner.value.unwrap_or_default()), true)
        }
        _ => return Ok(Resource::Other),
    };
    let plugin = plugin.map_err(|error| broken(&name, &error))?;
    let source = match plugin.code {
        Code::Absent => return Err(broken(&name, "the Wasm plugin has neither remote nor local code")),
        Code::Local => return Ok(Resource::Other),
        Code::Remote(source) => source,
    };
    let fail_open = if plugin.failure_policy == FailurePolicy::Unspecified as i32 {
        plugin.fail_open
    } else {
        plugin.failure_policy == FailurePolicy::FailOpen as i32
    };
    Ok(Resource::Remote(Box::new(Remote {
        settings: Settings::from_environment(&plugin.environment),
        name,
        plugin: plugin.name,
        kind,
        fail_open,
        source,
        in_struct,
        original: resource.clone(),
    })))
}

fn broken(name: &str, why: &str) -> String {
    let name = if name.is_empty() { String::new() } else { format!("{name}: ") };
    format!("failed to unmarshal extension config resource: {name}{why}")
}

fn decode_plugin(value: Bytes) -> Result<Plugin, String> {
    let config = Wasm::decode(value).map_err(|error| error.to_string())?.config.unwrap_or_default();
    let vm = config.vm_config.unwrap_or_default();
    let code = match vm.code.and_then(|code| code.specifier) {
        None => Code::Absent,
        Some(Specifier::Local(_)) => Code::Local,
        Some(Specifier::Remote(remote)) => Code::Remote(remote.http_uri.map(|uri| {
            let timeout = uri.timeout.map(|timeout| {
                // A negative time is over at once.
                Duration::new(timeout.seconds.try_into().unwrap_or(0), timeout.nanos.try_into().unwrap_or(0))
            });
            source(uri.uri, &remote.sha256, timeout)
        })),
    };
    Ok(Plugin {
        name: config.name,
        fail_open: config.fail_open,
        failure_policy: config.failure_policy,
        environment: vm.environment_variables.unwrap_or_default().key_values,
        code,
    })
}

/// A source as istiod means it.
pub(super) fn source(uri: String, sha256: &str, timeout: Option<Duration>) -> Source {
    let sha256 = if sha256 == NO_CHECKSUM { String::new() } else { sha256.to_ascii_lowercase() };
    Source { uri, sha256, timeout: timeout.unwrap_or(DEFAULT_TIMEOUT) }
}

impl Remote {
    /// The resource with its code in a local file and without the agent's own settings: an encoded `google.protobuf.Any`.
    ///
    /// A plugin that came in a TypedStruct stays in one, as Envoy accepts both and its nested messages need not be known then.
    pub(super) fn with_code(&self, local: &Local) -> Result<Bytes, String> {
        let patched = patch(&self.original, &[2, 2], &|typed| {
            if self.in_struct {
                let TypedStruct { value, .. } =
                    TypedStruct::decode(&*wire::message_field(typed, 2)?.unwrap_or_default())?;
                let edited = structs::with_code(value.unwrap_or_default(), local);
                let inner = wire::message_field(typed, 2)?.unwrap_or_default();
                wire::replace(typed, 2, Some(&wire::replace(&inner, 2, Some(&edited.encode_to_vec()))?))
            } else {
                patch(typed, &[2, 1, 3], &|vm| patch_vm(vm, local))
            }
        });
        patched.map(Bytes::from).map_err(|error| broken(&self.name, &error.to_string()))
    }
}

type Patched = Result<Vec<u8>, prost::DecodeError>;

/// Replaces the message at the end of `path` by what `edit` makes of it, and the messages around it accordingly.
fn patch(message: &[u8], path: &[u32], edit: &dyn Fn(&[u8]) -> Patched) -> Patched {
    let [number, rest @ ..] = path else {
        return edit(message);
    };
    let inner = wire::message_field(message, *number)?.unwrap_or_default();
    wire::replace(message, *number, Some(&patch(&inner, rest, edit)?))
}

/// `VmConfig` with local code: field 3 code, field 7 environment_variables, for AOT also 2 runtime and 5 allow_precompiled.
fn patch_vm(vm: &[u8], local: &Local) -> Patched {
    let (mut source, mut code) = (Vec::new(), Vec::new());
    wire::put(&mut source, 1, local.path.as_bytes());
    wire::put(&mut code, 1, &source);
    let mut vm = wire::replace(vm, 3, Some(&code))?;
    if let Some(environment) = wire::message_field(&vm, 7)? {
        let left = wire::retain(&environment, 2, |entry| !is_for_agent(entry))?;
        vm = wire::replace(&vm, 7, (!left.is_empty()).then_some(&left))?;
    }
    if local.aot {
        vm = wire::set_true(&wire::replace(&vm, 2, Some(AOT_RUNTIME.as_bytes()))?, 5)?;
    }
    Ok(vm)
}

/// Whether an entry of `key_values` has a key of the agent's.
fn is_for_agent(entry: &[u8]) -> bool {
    matches!(wire::message_field(entry, 1), Ok(Some(key)) if key.starts_with(AGENT_PREFIX.as_bytes()))
}

#[cfg(test)]
mod tests;
