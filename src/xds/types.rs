//! Type URLs, and what the agent does with responses of each. Pure.

/// Names for the local DNS server.
pub const NDS: &str = "type.googleapis.com/istio.networking.nds.v1.NameTable";
/// Trust anchors of the mesh.
pub const PCDS: &str = "type.googleapis.com/istio.mesh.v1alpha1.ProxyConfig";
/// Extension configurations, Wasm plugins among them.
pub const ECDS: &str = "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig";
/// Listeners: Envoy's first request for them is followed by the agent's own requests.
pub const LDS: &str = "type.googleapis.com/envoy.config.listener.v3.Listener";
/// The health of the application, towards istiod only.
pub const HEALTH: &str = "type.googleapis.com/istio.v1.HealthInformation";
const WORKLOAD: &str = "type.googleapis.com/istio.workload.Workload";

/// Which of the two protocols a stream speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// State of the world.
    Sotw,
    /// Incremental.
    Delta,
}

impl Kind {
    /// The protocol of a method; `None` for any other method.
    pub fn of_method(path: &str) -> Option<Kind> {
        [Kind::Sotw, Kind::Delta].into_iter().find(|kind| kind.method() == path)
    }

    /// The gRPC path.
    pub fn method(self) -> &'static str {
        match self {
            Kind::Sotw => "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources",
            Kind::Delta => "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources",
        }
    }

    /// As it is shown to people.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Sotw => "sotw",
            Kind::Delta => "delta",
        }
    }
}

/// What happens to a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// Goes on to Envoy as it is.
    Forward,
    /// The agent's own, never Envoy's.
    Names,
    /// The agent's own, never Envoy's.
    Anchors,
    /// Rewritten, then to Envoy.
    Extensions,
    /// Not for Envoy, and nobody here asked for it.
    Drop,
}

/// Which types the agent takes for itself.
#[derive(Debug, Clone, Copy, Default)]
pub struct Taken {
    /// A DNS server wants the name table.
    pub names: bool,
    /// The secrets want the trust anchors.
    pub anchors: bool,
    /// Wasm modules are fetched by the agent.
    pub extensions: bool,
}

impl Taken {
    /// What happens to a response of that type (spec: Istio `xdsproxy.forwardToEnvoy`).
    pub fn route(self, type_url: &str) -> Route {
        match type_url {
            NDS if self.names => Route::Names,
            PCDS if self.anchors => Route::Anchors,
            ECDS if self.extensions => Route::Extensions,
            WORKLOAD => Route::Forward,
            other if other.starts_with("type.googleapis.com/envoy.") => Route::Forward,
            _ => Route::Drop,
        }
    }
}

/// The last part of a type URL: `Cluster`.
pub fn short(type_url: &str) -> &str {
    type_url.rsplit(['.', '/']).next().unwrap_or(type_url)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes() {
        let all = Taken { names: true, anchors: true, extensions: true };
        let none = Taken::default();
        for (type_url, with, without) in [
            (NDS, Route::Names, Route::Drop),
            (PCDS, Route::Anchors, Route::Drop),
            (ECDS, Route::Extensions, Route::Forward),
            (LDS, Route::Forward, Route::Forward),
            (WORKLOAD, Route::Forward, Route::Forward),
            ("type.googleapis.com/envoy.from.the.Future", Route::Forward, Route::Forward),
            ("type.googleapis.com/istio.workload.Address", Route::Drop, Route::Drop),
            ("istio.io/debug/syncz", Route::Drop, Route::Drop),
            ("", Route::Drop, Route::Drop),
        ] {
            assert_eq!((all.route(type_url), none.route(type_url)), (with, without), "{type_url}");
        }
        assert_eq!(short(NDS), "NameTable");
    }

    #[test]
    fn methods() {
        assert_eq!(Kind::of_method(Kind::Delta.method()), Some(Kind::Delta));
        assert_eq!(Kind::of_method("/envoy.service.discovery.v3.ClusterDiscoveryService/StreamClusters"), None);
    }
}
