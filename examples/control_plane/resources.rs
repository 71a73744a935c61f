//! A workload's part of the mesh as Envoy resources: clusters, endpoints, listeners and routes, named as istiod names them.

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash, Hasher},
    net::SocketAddr,
};

use bytes::Bytes;
use footman::proto::google::protobuf::{Any, Duration};
use prost::Message;

use crate::{
    envoy::*,
    mesh::{Action, Inbound, Mesh, Outbound, Service},
};

pub const CDS: &str = "type.googleapis.com/envoy.config.cluster.v3.Cluster";
pub const EDS: &str = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment";
pub const LDS: &str = "type.googleapis.com/envoy.config.listener.v3.Listener";
pub const RDS: &str = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration";

/// The order in which a change is sent: what is referred to comes first.
pub const TYPES: [&str; 4] = [CDS, EDS, LDS, RDS];

const TLS: &str = "envoy.transport_sockets.tls";
const UPSTREAM_TLS: &str = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext";
const DOWNSTREAM_TLS: &str = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext";
const HTTP: &str =
    "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";
const ROUTER: &str = "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router";

const STATIC: i32 = 0;
const EDS_DISCOVERY: i32 = 3;
const API_V3: i32 = 2;
const API_GRPC: i32 = 2;
const SAN_URI: i32 = 3;
const SANITIZE_SET: i32 = 3;

/// One resource and the version that its content gives it.
#[derive(Debug, Clone, PartialEq)]
pub struct Resource {
    pub version: String,
    pub any: Any,
}

/// All resources of a type that the workload is to have, by name.
pub fn resources(mesh: &Mesh, workload: &str, type_url: &str) -> BTreeMap<String, Resource> {
    let Some(workload) = mesh.workloads.get(workload) else { return BTreeMap::new() };
    let called =
        || mesh.services.iter().filter(|(host, _)| workload.outbound.iter().any(|outbound| calls(outbound, host)));
    let all: Vec<(String, Any)> = match type_url {
        CDS => {
            let inbound = workload.inbound.iter().map(inbound_cluster);
            let outbound = called().map(|(host, service)| outbound_cluster(host, service));
            inbound.chain(outbound).map(|cluster| (cluster.name.clone(), any(CDS, &cluster))).collect()
        }
        EDS => called()
            .map(|(host, service)| assignment(&outbound_name(host), &service.endpoints))
            .map(|assignment| (assignment.cluster_name.clone(), any(EDS, &assignment)))
            .collect(),
        LDS => {
            let inbound = workload.inbound.iter().map(inbound_listener);
            let outbound = workload.outbound.iter().map(outbound_listener);
            inbound.chain(outbound).map(|listener| (listener.name.clone(), any(LDS, &listener))).collect()
        }
        RDS => workload
            .outbound
            .iter()
            .map(outbound_routes)
            .map(|routes| (routes.name.clone(), any(RDS, &routes)))
            .collect(),
        _ => Vec::new(),
    };
    all.into_iter().map(|(name, any)| (name, Resource { version: version(&any), any })).collect()
}

fn calls(outbound: &Outbound, service: &str) -> bool {
    outbound.routes.iter().any(|route| matches!(&route.action, Action::Service { host, .. } if host == service))
}

fn outbound_name(host: &str) -> String {
    format!("outbound|80||{host}")
}

fn inbound_name(inbound: &Inbound) -> String {
    format!("inbound|{}||", inbound.app.port())
}

fn outbound_cluster(host: &str, service: &Service) -> Cluster {
    let san =
        SubjectAltNameMatcher { san_type: SAN_URI, matcher: Some(StringMatcher { exact: service.account.clone() }) };
    let tls = UpstreamTlsContext { common_tls_context: Some(mutual_tls(vec![san])), sni: host.to_owned() };
    Cluster {
        name: outbound_name(host),
        discovery_type: EDS_DISCOVERY,
        eds_cluster_config: Some(EdsClusterConfig { eds_config: Some(ads()), service_name: outbound_name(host) }),
        connect_timeout: Some(Duration { seconds: 5, nanos: 0 }),
        // New connections again and again, so that a renewed certificate is seen to be used.
        max_requests_per_connection: Some(10),
        transport_socket: Some(TransportSocket { name: TLS.to_owned(), typed_config: Some(any(UPSTREAM_TLS, &tls)) }),
        load_assignment: None,
    }
}

fn inbound_cluster(inbound: &Inbound) -> Cluster {
    let name = inbound_name(inbound);
    Cluster {
        load_assignment: Some(assignment(&name, &[inbound.app])),
        name,
        discovery_type: STATIC,
        connect_timeout: Some(Duration { seconds: 5, nanos: 0 }),
        ..Cluster::default()
    }
}

fn assignment(cluster: &str, endpoints: &[SocketAddr]) -> ClusterLoadAssignment {
    let endpoint = |at: &SocketAddr| LbEndpoint { endpoint: Some(Endpoint { address: Some(address(*at)) }) };
    ClusterLoadAssignment {
        cluster_name: cluster.to_owned(),
        endpoints: vec![LocalityLbEndpoints { lb_endpoints: endpoints.iter().map(endpoint).collect() }],
    }
}

fn inbound_listener(inbound: &Inbound) -> Listener {
    let tls = DownstreamTlsContext {
        common_tls_context: Some(mutual_tls(Vec::new())),
        require_client_certificate: Some(true),
    };
    let route = Route {
        r#match: Some(RouteMatch { prefix: "/".to_owned() }),
        route: Some(RouteAction { cluster: inbound_name(inbound), prefix_rewrite: String::new() }),
        direct_response: None,
    };
    let http = HttpConnectionManager {
        route_config: Some(routes(&inbound_name(inbound), vec![route])),
        forward_client_cert_details: SANITIZE_SET,
        set_current_client_cert_details: Some(SetCurrentClientCertDetails { uri: true }),
        ..http(&inbound_name(inbound))
    };
    let socket = TransportSocket { name: TLS.to_owned(), typed_config: Some(any(DOWNSTREAM_TLS, &tls)) };
    listener(inbound.listen, http, Some(socket))
}

fn outbound_listener(outbound: &Outbound) -> Listener {
    let name = outbound.listen.port().to_string();
    let rds = Rds { config_source: Some(ads()), route_config_name: name.clone() };
    listener(outbound.listen, HttpConnectionManager { rds: Some(rds), ..http(&name) }, None)
}

fn outbound_routes(outbound: &Outbound) -> RouteConfiguration {
    let route = |route: &crate::mesh::Route| {
        let mut made = Route { r#match: Some(RouteMatch { prefix: route.prefix.clone() }), ..Route::default() };
        match &route.action {
            Action::Service { host, rewrite } => {
                made.route = Some(RouteAction { cluster: outbound_name(host), prefix_rewrite: rewrite.clone() });
            }
            Action::Answer(body) => {
                let body = Some(InlineString { inline_string: body.clone() });
                made.direct_response = Some(DirectResponse { status: 200, body });
            }
        }
        made
    };
    routes(&outbound.listen.port().to_string(), outbound.routes.iter().map(route).collect())
}

fn routes(name: &str, routes: Vec<Route>) -> RouteConfiguration {
    let host = VirtualHost { name: name.to_owned(), domains: vec!["*".to_owned()], routes };
    RouteConfiguration { name: name.to_owned(), virtual_hosts: vec![host] }
}

fn http(stat_prefix: &str) -> HttpConnectionManager {
    let router = Any { type_url: ROUTER.to_owned(), value: Bytes::new() };
    HttpConnectionManager {
        stat_prefix: stat_prefix.to_owned(),
        http_filters: vec![Filter { name: "envoy.filters.http.router".to_owned(), typed_config: Some(router) }],
        ..HttpConnectionManager::default()
    }
}

fn listener(at: SocketAddr, http: HttpConnectionManager, socket: Option<TransportSocket>) -> Listener {
    let filter = Filter {
        name: "envoy.filters.network.http_connection_manager".to_owned(),
        typed_config: Some(any(HTTP, &http)),
    };
    Listener {
        name: format!("{}_{}", at.ip(), at.port()),
        address: Some(address(at)),
        filter_chains: vec![FilterChain { filters: vec![filter], transport_socket: socket }],
    }
}

/// Our certificate and the mesh's roots, both from the agent over SDS; the peer must have one of `names`, if any are given.
fn mutual_tls(names: Vec<SubjectAltNameMatcher>) -> CommonTlsContext {
    CommonTlsContext {
        tls_certificate_sds_secret_configs: vec![secret("default")],
        combined_validation_context: Some(CombinedValidationContext {
            default_validation_context: Some(CertificateValidationContext { match_typed_subject_alt_names: names }),
            validation_context_sds_secret_config: Some(secret("ROOTCA")),
        }),
    }
}

/// A secret of the agent's SDS, whose cluster is in every Istio bootstrap.
fn secret(name: &str) -> SdsSecretConfig {
    let service = GrpcService { envoy_grpc: Some(EnvoyGrpc { cluster_name: "sds-grpc".to_owned() }) };
    let source = ConfigSource {
        api_config_source: Some(ApiConfigSource {
            api_type: API_GRPC,
            grpc_services: vec![service],
            set_node_on_first_message_only: true,
            transport_api_version: API_V3,
        }),
        // Without a limit: a listener waits for its certificate instead of starting without.
        initial_fetch_timeout: Some(Duration::default()),
        resource_api_version: API_V3,
        ads: None,
    };
    SdsSecretConfig { name: name.to_owned(), sds_config: Some(source) }
}

fn ads() -> ConfigSource {
    ConfigSource { ads: Some(()), resource_api_version: API_V3, ..ConfigSource::default() }
}

fn address(at: SocketAddr) -> Address {
    Address { socket_address: Some(SocketAddress { address: at.ip().to_string(), port_value: at.port().into() }) }
}

fn any(type_url: &str, message: &impl Message) -> Any {
    Any { type_url: type_url.to_owned(), value: message.encode_to_vec().into() }
}

/// The same content has the same version, in another process too.
fn version(any: &Any) -> String {
    let mut hasher = DefaultHasher::new();
    any.value.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}
