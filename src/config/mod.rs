//! What the agent was told: environment, flags, mesh file, PROXY_CONFIG, annotations, joined into one [`Vars`].
//!
//! Every value is asked for by its public name and remembers where it came from, so that `footman check` can print it.
//! Rooms of rank 3 and more make their own `Config` from it; nothing else of the agent reads the environment or these files.

mod addresses;
mod decode;
mod duration;
mod env;
mod errors;
mod flags;
mod layers;
mod origin;
mod pod;
mod proxy_config;
mod read;
mod scalar;
mod schema;
mod validate;
mod vars;
mod version;
pub mod yaml;

pub use addresses::{Interface, is_link_local};
pub use duration::parse_go_duration;
pub(crate) use duration::proto_text;
pub use errors::{ConfigError, Errors};
pub use flags::{Flag, FlagError, FlagKind, Flags, GLOBAL_FLAGS, PROXY_FLAGS};
pub(crate) use flags::{parse_bool, parse_int};
pub use origin::{Origin, Setting};
pub use pod::{Pairs, parse as parse_downward_api};
pub(crate) use proxy_config::clean;
pub use proxy_config::{
    AuthPolicy, ClientTls, ClusterName, HealthCheck, PrivateKeyProvider, ProxyConfig, ReadinessProbe, RemoteService,
    StatsMatcher, TlsMode, Tracer, Tracing,
};
pub use validate::split_host_port;
pub use vars::{ROLES, Record, Role, Sources, Vars};
pub use version::{BUILD_REVISION, ISTIO_VERSION};

/// The annotation that puts another address in place of `discoveryAddress`.
pub const DISCOVERY_ANNOTATION: &str = "sidecar.istio.io/discoveryAddress";

/// The annotation with names of interfaces whose addresses are not the node's.
const EXCLUDE_INTERFACES: &str = "traffic.sidecar.istio.io/excludeInterfaces";
