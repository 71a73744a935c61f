//! Extension configuration on its way through the Wasm rewrite: from xds to wasm and back.

use bytes::Bytes;

use crate::base::BoxFuture;

/// The resources of one ECDS response.
#[derive(Debug, Clone)]
pub struct Update {
    /// Encoded `google.protobuf.Any`s, in order.
    pub resources: Vec<Bytes>,
    /// What only a delta response has; `None` in SotW, where the resources are all there are.
    pub delta: Option<Delta>,
}

/// What a delta response says beside its resources.
#[derive(Debug, Clone, Default)]
pub struct Delta {
    /// The resources' names, in order.
    pub names: Vec<String>,
    /// Names that are gone.
    pub removed: Vec<String>,
}

/// Called when Envoy has accepted something; dropped when it refused it or never got it.
pub type Accepted = Box<dyn FnOnce() + Send>;

/// What Envoy is to get.
pub struct Rewritten {
    /// One for each of the update, in order.
    pub resources: Vec<Resource>,
    /// Called when Envoy has accepted them.
    pub accepted: Accepted,
}

/// One rewritten resource.
pub struct Resource {
    /// The encoded `google.protobuf.Any`; the given one when nothing changed.
    pub bytes: Bytes,
    /// There when a stand-in was put in the plugin's place: ends with the real thing. Dropping it ends the attempts.
    pub repair: Option<BoxFuture<'static, Mended>>,
}

/// The real thing in the place of a stand-in.
pub struct Mended {
    /// The encoded `google.protobuf.Any`.
    pub bytes: Bytes,
    /// Called when Envoy has accepted it.
    pub accepted: Accepted,
}
