//! The few Envoy messages that the control plane makes, trimmed to the fields it sets (field numbers: envoyproxy/envoy
//! `api/envoy` at v1.40). Enumerations are numbers; a oneof is a set of optional fields of which one is set.

use footman::proto::google::protobuf::{Any, Duration};
use prost::Message;

/// `envoy.config.cluster.v3.Cluster`
#[derive(Clone, PartialEq, Message)]
pub struct Cluster {
    #[prost(string, tag = "1")]
    pub name: String,
    /// STATIC (0) or EDS (3).
    #[prost(int32, tag = "2")]
    pub discovery_type: i32,
    #[prost(message, optional, tag = "3")]
    pub eds_cluster_config: Option<EdsClusterConfig>,
    #[prost(message, optional, tag = "4")]
    pub connect_timeout: Option<Duration>,
    #[prost(message, optional, tag = "9")]
    pub max_requests_per_connection: Option<u32>,
    #[prost(message, optional, tag = "24")]
    pub transport_socket: Option<TransportSocket>,
    #[prost(message, optional, tag = "33")]
    pub load_assignment: Option<ClusterLoadAssignment>,
}

/// `Cluster.EdsClusterConfig`
#[derive(Clone, PartialEq, Message)]
pub struct EdsClusterConfig {
    #[prost(message, optional, tag = "1")]
    pub eds_config: Option<ConfigSource>,
    #[prost(string, tag = "2")]
    pub service_name: String,
}

/// `envoy.config.core.v3.ConfigSource`
#[derive(Clone, PartialEq, Message)]
pub struct ConfigSource {
    #[prost(message, optional, tag = "2")]
    pub api_config_source: Option<ApiConfigSource>,
    /// `AggregatedConfigSource`, which is empty.
    #[prost(message, optional, tag = "3")]
    pub ads: Option<()>,
    #[prost(message, optional, tag = "4")]
    pub initial_fetch_timeout: Option<Duration>,
    /// V3 (2).
    #[prost(int32, tag = "6")]
    pub resource_api_version: i32,
}

/// `envoy.config.core.v3.ApiConfigSource`
#[derive(Clone, PartialEq, Message)]
pub struct ApiConfigSource {
    /// GRPC (2).
    #[prost(int32, tag = "1")]
    pub api_type: i32,
    #[prost(message, repeated, tag = "4")]
    pub grpc_services: Vec<GrpcService>,
    #[prost(bool, tag = "7")]
    pub set_node_on_first_message_only: bool,
    /// V3 (2).
    #[prost(int32, tag = "8")]
    pub transport_api_version: i32,
}

/// `envoy.config.core.v3.GrpcService`
#[derive(Clone, PartialEq, Message)]
pub struct GrpcService {
    #[prost(message, optional, tag = "1")]
    pub envoy_grpc: Option<EnvoyGrpc>,
}

/// `GrpcService.EnvoyGrpc`
#[derive(Clone, PartialEq, Message)]
pub struct EnvoyGrpc {
    #[prost(string, tag = "1")]
    pub cluster_name: String,
}

/// `envoy.config.core.v3.TransportSocket`
#[derive(Clone, PartialEq, Message)]
pub struct TransportSocket {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(message, optional, tag = "3")]
    pub typed_config: Option<Any>,
}

/// `envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext`
#[derive(Clone, PartialEq, Message)]
pub struct UpstreamTlsContext {
    #[prost(message, optional, tag = "1")]
    pub common_tls_context: Option<CommonTlsContext>,
    #[prost(string, tag = "2")]
    pub sni: String,
}

/// `envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext`
#[derive(Clone, PartialEq, Message)]
pub struct DownstreamTlsContext {
    #[prost(message, optional, tag = "1")]
    pub common_tls_context: Option<CommonTlsContext>,
    #[prost(message, optional, tag = "2")]
    pub require_client_certificate: Option<bool>,
}

/// `envoy.extensions.transport_sockets.tls.v3.CommonTlsContext`
#[derive(Clone, PartialEq, Message)]
pub struct CommonTlsContext {
    #[prost(message, repeated, tag = "6")]
    pub tls_certificate_sds_secret_configs: Vec<SdsSecretConfig>,
    #[prost(message, optional, tag = "8")]
    pub combined_validation_context: Option<CombinedValidationContext>,
}

/// `CommonTlsContext.CombinedCertificateValidationContext`
#[derive(Clone, PartialEq, Message)]
pub struct CombinedValidationContext {
    #[prost(message, optional, tag = "1")]
    pub default_validation_context: Option<CertificateValidationContext>,
    #[prost(message, optional, tag = "2")]
    pub validation_context_sds_secret_config: Option<SdsSecretConfig>,
}

/// `envoy.extensions.transport_sockets.tls.v3.CertificateValidationContext`
#[derive(Clone, PartialEq, Message)]
pub struct CertificateValidationContext {
    #[prost(message, repeated, tag = "15")]
    pub match_typed_subject_alt_names: Vec<SubjectAltNameMatcher>,
}

/// `envoy.extensions.transport_sockets.tls.v3.SubjectAltNameMatcher`
#[derive(Clone, PartialEq, Message)]
pub struct SubjectAltNameMatcher {
    /// URI (3).
    #[prost(int32, tag = "1")]
    pub san_type: i32,
    #[prost(message, optional, tag = "2")]
    pub matcher: Option<StringMatcher>,
}

/// `envoy.type.matcher.v3.StringMatcher`
#[derive(Clone, PartialEq, Message)]
pub struct StringMatcher {
    #[prost(string, tag = "1")]
    pub exact: String,
}

/// `envoy.extensions.transport_sockets.tls.v3.SdsSecretConfig`
#[derive(Clone, PartialEq, Message)]
pub struct SdsSecretConfig {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(message, optional, tag = "2")]
    pub sds_config: Option<ConfigSource>,
}

/// `envoy.config.endpoint.v3.ClusterLoadAssignment`
#[derive(Clone, PartialEq, Message)]
pub struct ClusterLoadAssignment {
    #[prost(string, tag = "1")]
    pub cluster_name: String,
    #[prost(message, repeated, tag = "2")]
    pub endpoints: Vec<LocalityLbEndpoints>,
}

/// `envoy.config.endpoint.v3.LocalityLbEndpoints`
#[derive(Clone, PartialEq, Message)]
pub struct LocalityLbEndpoints {
    #[prost(message, repeated, tag = "2")]
    pub lb_endpoints: Vec<LbEndpoint>,
}

/// `envoy.config.endpoint.v3.LbEndpoint`
#[derive(Clone, PartialEq, Message)]
pub struct LbEndpoint {
    #[prost(message, optional, tag = "1")]
    pub endpoint: Option<Endpoint>,
}

/// `envoy.config.endpoint.v3.Endpoint`
#[derive(Clone, PartialEq, Message)]
pub struct Endpoint {
    #[prost(message, optional, tag = "1")]
    pub address: Option<Address>,
}

/// `envoy.config.core.v3.Address`
#[derive(Clone, PartialEq, Message)]
pub struct Address {
    #[prost(message, optional, tag = "1")]
    pub socket_address: Option<SocketAddress>,
}

/// `envoy.config.core.v3.SocketAddress`
#[derive(Clone, PartialEq, Message)]
pub struct SocketAddress {
    #[prost(string, tag = "2")]
    pub address: String,
    #[prost(uint32, tag = "3")]
    pub port_value: u32,
}

/// `envoy.config.listener.v3.Listener`
#[derive(Clone, PartialEq, Message)]
pub struct Listener {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(message, optional, tag = "2")]
    pub address: Option<Address>,
    #[prost(message, repeated, tag = "3")]
    pub filter_chains: Vec<FilterChain>,
}

/// `envoy.config.listener.v3.FilterChain`
#[derive(Clone, PartialEq, Message)]
pub struct FilterChain {
    #[prost(message, repeated, tag = "3")]
    pub filters: Vec<Filter>,
    #[prost(message, optional, tag = "6")]
    pub transport_socket: Option<TransportSocket>,
}

/// `envoy.config.listener.v3.Filter` and `HttpConnectionManager.HttpFilter`, which have the same fields.
#[derive(Clone, PartialEq, Message)]
pub struct Filter {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(message, optional, tag = "4")]
    pub typed_config: Option<Any>,
}

/// `envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager`
#[derive(Clone, PartialEq, Message)]
pub struct HttpConnectionManager {
    #[prost(string, tag = "2")]
    pub stat_prefix: String,
    #[prost(message, optional, tag = "3")]
    pub rds: Option<Rds>,
    #[prost(message, optional, tag = "4")]
    pub route_config: Option<RouteConfiguration>,
    #[prost(message, repeated, tag = "5")]
    pub http_filters: Vec<Filter>,
    /// SANITIZE_SET (3).
    #[prost(int32, tag = "16")]
    pub forward_client_cert_details: i32,
    #[prost(message, optional, tag = "17")]
    pub set_current_client_cert_details: Option<SetCurrentClientCertDetails>,
}

/// `HttpConnectionManager.SetCurrentClientCertDetails`
#[derive(Clone, PartialEq, Message)]
pub struct SetCurrentClientCertDetails {
    #[prost(bool, tag = "5")]
    pub uri: bool,
}

/// `envoy.extensions.filters.network.http_connection_manager.v3.Rds`
#[derive(Clone, PartialEq, Message)]
pub struct Rds {
    #[prost(message, optional, tag = "1")]
    pub config_source: Option<ConfigSource>,
    #[prost(string, tag = "2")]
    pub route_config_name: String,
}

/// `envoy.config.route.v3.RouteConfiguration`
#[derive(Clone, PartialEq, Message)]
pub struct RouteConfiguration {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(message, repeated, tag = "2")]
    pub virtual_hosts: Vec<VirtualHost>,
}

/// `envoy.config.route.v3.VirtualHost`
#[derive(Clone, PartialEq, Message)]
pub struct VirtualHost {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, repeated, tag = "2")]
    pub domains: Vec<String>,
    #[prost(message, repeated, tag = "3")]
    pub routes: Vec<Route>,
}

/// `envoy.config.route.v3.Route`
#[derive(Clone, PartialEq, Message)]
pub struct Route {
    #[prost(message, optional, tag = "1")]
    pub r#match: Option<RouteMatch>,
    #[prost(message, optional, tag = "2")]
    pub route: Option<RouteAction>,
    #[prost(message, optional, tag = "7")]
    pub direct_response: Option<DirectResponse>,
}

/// `envoy.config.route.v3.RouteMatch`
#[derive(Clone, PartialEq, Message)]
pub struct RouteMatch {
    #[prost(string, tag = "1")]
    pub prefix: String,
}

/// `envoy.config.route.v3.RouteAction`
#[derive(Clone, PartialEq, Message)]
pub struct RouteAction {
    #[prost(string, tag = "1")]
    pub cluster: String,
    #[prost(string, tag = "5")]
    pub prefix_rewrite: String,
}

/// `envoy.config.route.v3.DirectResponseAction`
#[derive(Clone, PartialEq, Message)]
pub struct DirectResponse {
    #[prost(uint32, tag = "1")]
    pub status: u32,
    #[prost(message, optional, tag = "2")]
    pub body: Option<InlineString>,
}

/// `envoy.config.core.v3.DataSource` with a text in it.
#[derive(Clone, PartialEq, Message)]
pub struct InlineString {
    #[prost(string, tag = "3")]
    pub inline_string: String,
}
