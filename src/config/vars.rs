//! Everything the agent was told, joined: flags, environment, mesh file, PROXY_CONFIG, annotations, labels, addresses.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    fmt,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

use serde_json::{Map, Value as Json};

use super::{
    DISCOVERY_ANNOTATION, Errors, Flags, Origin, ProxyConfig, Setting,
    addresses::{self, Interface},
    decode::Decoder,
    env,
    layers::Layers,
    pod::{self, Pairs},
    schema::PROXY_CONFIG,
    validate,
    yaml::Node,
};
use crate::net::resolve::Resolver;

const LABELS: &str = "./etc/istio/pod/labels";
const ANNOTATIONS: &str = "./etc/istio/pod/annotations";
const CONFIG_ANNOTATION: &str = "proxy.istio.io/config";
/// How long the lookup of the statsd address may hold up the start (Istio's figure).
const STATSD_PATIENCE: Duration = Duration::from_secs(15);
const STATUS_PORT_ANNOTATION: &str = "status.sidecar.istio.io/port";

/// What the proxy is to the mesh: the first part of its node id.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Role {
    /// Beside an application.
    #[default]
    Sidecar,
    /// A gateway.
    Router,
    /// An ambient waypoint.
    Waypoint,
    /// An ambient node proxy.
    Ztunnel,
    /// An agentgateway.
    Agentgateway,
}

/// The names of all, for people.
pub const ROLES: &str = "sidecar, router, waypoint, ztunnel or agentgateway";

/// Which variables are remembered of all that are asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Record {
    /// All, for whoever shows them.
    #[default]
    All,
    /// Those that are set, or to be warned of: the others would be a third of what starting needs.
    Set,
}

/// Where configuration is read from.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    /// The command line.
    pub flags: Flags,
    /// The environment.
    pub env: BTreeMap<String, String>,
    /// The interfaces that are up.
    pub interfaces: Vec<Interface>,
    /// Folder that relative paths start at; empty for the working directory.
    pub root: PathBuf,
    /// Processors of the machine.
    pub processors: usize,
    /// What is remembered.
    pub record: Record,
}

/// The agent's whole input, with a record of every variable that was asked for.
#[derive(Debug)]
pub struct Vars {
    pub(super) env: BTreeMap<String, String>,
    pub(super) asked: RefCell<BTreeMap<String, Setting>>,
    pub(super) record: Record,
    root: PathBuf,
    flags: Flags,
    role: Role,
    addresses: Vec<IpAddr>,
    labels: Option<Pairs>,
    annotations: Option<Pairs>,
    layers: Layers,
    proxy: ProxyConfig,
    noticed: RefCell<Vec<String>>,
}

impl Vars {
    /// Everything this process was told; waits for the network's addresses and for the statsd address's lookup.
    ///
    /// The errors are all that is wrong with it.
    pub async fn of_process(flags: Flags, record: Record) -> (Vars, Errors) {
        let sources = Sources {
            flags,
            env: env::of_process(),
            interfaces: addresses::interfaces().await,
            root: PathBuf::new(),
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            record,
        };
        let (mut vars, errors) = Vars::load(sources);
        if let Some(host) = vars.statsd_host() {
            let found = tokio::time::timeout(STATSD_PATIENCE, Resolver::from_system().lookup(&host)).await;
            let found = found.map_err(|_| "no answer in time".to_owned());
            vars.set_statsd(&found.and_then(|found| found.map_err(|error| error.to_string())));
        }
        (vars, errors)
    }

    /// The same without the addresses of the network, and without waiting: for a command that asks a running agent.
    pub fn at_hand(flags: Flags) -> (Vars, Errors) {
        Vars::load(Sources { flags, env: env::of_process(), ..Sources::default() })
    }

    /// Reads everything from `sources`. The errors are all that is wrong with it, each with the name of its source; what can be
    /// used is there all the same, so that the rooms can add theirs.
    pub fn load(sources: Sources) -> (Vars, Errors) {
        let mut errors = Errors::default();
        let mut vars = Vars::bare(sources.env);
        vars.root = sources.root;
        vars.flags = sources.flags;
        vars.record = sources.record;
        vars.role = match vars.flags.role_text().map(str::parse) {
            None => Role::Sidecar,
            Some(Ok(role)) => role,
            Some(Err(message)) => {
                errors.add("role", message);
                Role::Sidecar
            }
        };
        vars.annotations = vars.pod_file(ANNOTATIONS);
        vars.labels = vars.pod_file(LABELS);
        vars.addresses = vars.node_addresses(&sources.interfaces);
        vars.lay_documents(&mut errors);
        vars.adjust(sources.processors);
        validate::validate(&vars.layers, &mut errors);
        vars.lay_annotations(&mut errors);
        vars.check_compliance(&mut errors);
        vars.proxy = vars.layers.read();
        if !vars.proxy.statsd_udp_address.is_empty() && vars.statsd_host().is_none() {
            let text = &vars.proxy.statsd_udp_address;
            let literal = validate::split_host_port(text).map(|(host, _)| host.parse().into_iter().collect());
            vars.set_statsd(&literal);
        }
        (vars, errors)
    }

    /// The host of `statsdUdpAddress` while it is still a name.
    pub fn statsd_host(&self) -> Option<String> {
        let (host, _) = validate::split_host_port(&self.proxy.statsd_udp_address).ok()?;
        host.parse::<IpAddr>().is_err().then(|| host.to_owned())
    }

    /// Puts the looked-up address in place of the name: the first IPv4 address, else the last one; without any the sink is off.
    pub fn set_statsd(&mut self, found: &Result<Vec<IpAddr>, String>) {
        let text = self.proxy.statsd_udp_address.clone();
        let port = text.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
        let ip = found.as_ref().ok().and_then(|ips| ips.iter().find(|ip| ip.is_ipv4()).or(ips.last()));
        let address = ip.zip(port).map(|(ip, port)| SocketAddr::new(*ip, port).to_string());
        if address.is_none() {
            let why = found.as_ref().err().map_or("the port is not a number", String::as_str);
            let origin = self.layers.origin("statsdUdpAddress");
            self.warn(format!("{origin}: statsdUdpAddress: {text:?}: {why}; no statistics go there"));
        }
        let origin = self.layers.origin("statsdUdpAddress");
        self.layers.set("statsdUdpAddress", address.unwrap_or_default().into(), origin);
        self.proxy = self.layers.read();
    }

    /// An environment made of pairs and nothing else, for tests.
    pub fn from_pairs<N: Into<String>, V: Into<String>>(pairs: impl IntoIterator<Item = (N, V)>) -> Vars {
        Vars::bare(pairs.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }

    /// The same with relative paths below another folder.
    #[cfg(test)]
    pub(crate) fn with_root(mut self, root: PathBuf) -> Vars {
        self.root = root;
        self
    }

    /// The same with labels and annotations of a pod.
    #[cfg(test)]
    pub(crate) fn with_pod(mut self, labels: &[(&str, &str)], annotations: &[(&str, &str)]) -> Vars {
        let pairs = |list: &[(&str, &str)]| list.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        self.labels = Some(pairs(labels));
        self.annotations = Some(pairs(annotations));
        self
    }

    fn bare(env: BTreeMap<String, String>) -> Vars {
        let layers = Layers::new();
        Vars {
            env,
            asked: RefCell::default(),
            record: Record::All,
            root: PathBuf::new(),
            flags: Flags::default(),
            role: Role::Sidecar,
            addresses: vec![IpAddr::from([127, 0, 0, 1])],
            labels: None,
            annotations: None,
            proxy: layers.read(),
            layers,
            noticed: RefCell::default(),
        }
    }

    /// The flags as typed.
    pub fn flags(&self) -> &Flags {
        &self.flags
    }

    /// The role.
    pub fn role(&self) -> Role {
        self.role
    }

    /// The node's addresses, INSTANCE_IP first; empty only when annotations exclude every interface.
    pub fn ip_addresses(&self) -> &[IpAddr] {
        &self.addresses
    }

    /// The pod's labels; `None` without a readable labels file.
    pub fn labels(&self) -> Option<&Pairs> {
        self.labels.as_ref()
    }

    /// The pod's annotations; `None` without a readable annotations file.
    pub fn annotations(&self) -> Option<&Pairs> {
        self.annotations.as_ref()
    }

    /// One annotation.
    pub fn annotation(&self, name: &str) -> Option<&str> {
        self.annotations.as_ref()?.get(name).map(String::as_str)
    }

    /// The effective ProxyConfig.
    pub fn proxy(&self) -> &ProxyConfig {
        &self.proxy
    }

    /// The effective ProxyConfig as proto-JSON, all fields of it.
    pub fn proxy_document(&self) -> Map<String, Json> {
        self.layers.document()
    }

    /// Who set a field of ProxyConfig; its name in lowerCamelCase.
    pub fn proxy_origin(&self, field: &str) -> Origin {
        self.layers.origin(field)
    }

    /// Every field of the effective ProxyConfig that is set: name, value, origin.
    pub fn proxy_settings(&self) -> Vec<(String, String, Origin)> {
        self.layers.settings()
    }

    /// DNS domain of the node: `--domain`, or `<POD_NAMESPACE>.svc.cluster.local`.
    pub fn domain(&self) -> String {
        match self.flags.text("domain") {
            "" => format!("{}.svc.cluster.local", self.text_or("POD_NAMESPACE", "")),
            domain => domain.to_owned(),
        }
    }

    /// `<role>~<first address>~<pod>.<namespace>~<domain>`.
    pub fn node_id(&self) -> String {
        let address = self.addresses.first().map(ToString::to_string).unwrap_or_default();
        let (pod, namespace) = (self.text_or("POD_NAME", ""), self.text_or("POD_NAMESPACE", ""));
        format!("{}~{address}~{pod}.{namespace}~{}", self.role, self.domain())
    }

    /// A path as the agent uses it: relative ones start at the root folder.
    pub fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        if self.root.as_os_str().is_empty() { path.as_ref().to_owned() } else { self.root.join(path) }
    }

    /// A file in the folder `configPath`, its path cleaned of `.`, `..` and doubled slashes as Go's `filepath.Join` does.
    pub fn config_file(&self, name: &str) -> PathBuf {
        self.path(self.proxy.config_file(name))
    }

    /// Notes something that is not fatal; `text` begins with the name of its source.
    pub fn warn(&self, text: impl Into<String>) {
        let (text, mut noticed) = (text.into(), self.noticed.borrow_mut());
        if !noticed.contains(&text) {
            noticed.push(text);
        }
    }

    /// Everything that was noticed and is not fatal, each line with the name of its source.
    pub fn warnings(&self) -> Vec<String> {
        let asked = self.asked.borrow();
        let of_variables = asked
            .iter()
            .filter_map(|(name, setting)| setting.warning.as_ref().map(|warning| format!("{name}: {warning}")));
        self.noticed.borrow().iter().cloned().chain(of_variables).collect()
    }

    /// What `COMPLIANCE_POLICY` asks for and this build's cryptography (ring) cannot give.
    fn check_compliance(&self, errors: &mut Errors) {
        const NAME: &str = "COMPLIANCE_POLICY";
        match self.text_or(NAME, "").as_str() {
            "" => {}
            policy @ ("fips-140-2" | "fips-140-3") => self.warn(format!(
                "{NAME}: {policy} limits TLS versions and ciphers; the cryptographic module itself is not certified"
            )),
            "pqc" => errors.add(NAME, "pqc needs the key exchange X25519MLKEM768, which this build does not have"),
            other => self.warn(format!("{NAME}: {other:?} is not fips-140-2, fips-140-3 or pqc; ignored")),
        }
    }

    fn pod_file(&mut self, path: &str) -> Option<Pairs> {
        pod::read(&self.path(path)).unwrap_or_else(|message| {
            self.warn(format!("{path}: {message}; the file is ignored"));
            None
        })
    }

    fn node_addresses(&mut self, interfaces: &[Interface]) -> Vec<IpAddr> {
        let text = self.text_or("INSTANCE_IP", "");
        let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(&text);
        let instance_ip: Option<IpAddr> = bare.parse().ok();
        if instance_ip.is_none() && !text.is_empty() {
            self.warn(format!("INSTANCE_IP: {text:?} is not an IP address; ignored"));
        }
        let excluded = self.annotation(super::EXCLUDE_INTERFACES).map(str::to_owned);
        let instance_ip = instance_ip.map(|ip| ip.to_canonical());
        addresses::of_node(instance_ip, interfaces, excluded.as_deref(), self.noticed.get_mut())
    }

    /// Mesh file, PROXY_CONFIG and annotation, in this order of precedence.
    fn lay_documents(&mut self, errors: &mut Errors) {
        let path = self.flags.text("meshConfig").to_owned();
        match std::fs::read(self.path(&path)) {
            Ok(bytes) => {
                let text = String::from_utf8_lossy(&bytes).into_owned();
                self.lay(&text, "defaultConfig", &|line| Origin::File(path.clone(), line), errors);
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => errors.add(&path, format!("cannot read the mesh configuration: {error}")),
        }
        let text = self.text_or("PROXY_CONFIG", "");
        self.lay(&text, "", &Origin::ProxyConfigEnv, errors);
        let text = self.annotation(CONFIG_ANNOTATION).unwrap_or_default().to_owned();
        self.lay(&text, "", &|_| Origin::Annotation(CONFIG_ANNOTATION), errors);
    }

    /// One document; `member` names the member of it that holds the ProxyConfig, or is empty.
    fn lay(&mut self, text: &str, member: &str, origin: &dyn Fn(usize) -> Origin, errors: &mut Errors) {
        let node = match Node::parse(text) {
            Ok(node) => node,
            Err(error) => {
                let message = format!("not valid YAML: column {}: {}", error.column, error.message);
                return errors.add(origin(error.line).to_string(), message);
            }
        };
        let prefix = if member.is_empty() { String::new() } else { format!("{member}.") };
        let null = Node { line: 1, value: super::yaml::Value::Null };
        let node = match (member, &node.value) {
            ("", _) => &node,
            (_, super::yaml::Value::Map(_)) => {
                // Istio takes this one out of the document by its name as it stands.
                if let Some(other) = node.get("default_config") {
                    self.warn(format!("{}: default_config: ignored, since only {member} counts", origin(other.line)));
                }
                node.get(member).unwrap_or(&null)
            }
            (_, super::yaml::Value::Null) => &null,
            _ => {
                let message = format!("a mapping of settings is wanted, not {}", node.kind());
                return errors.add(origin(node.line).to_string(), message);
            }
        };
        let mut decoder = Decoder { origin, prefix: &prefix, errors, warnings: self.noticed.get_mut() };
        let document = decoder.document(node, PROXY_CONFIG);
        self.layers.lay(document);
    }

    /// Concurrency and the service cluster, as Istio fills them in before it validates.
    fn adjust(&mut self, processors: usize) {
        let limit = self.int("ISTIO_CPU_LIMIT", 0);
        if self.layers.get("concurrency").is_none() && limit != 0 {
            self.layers.set("concurrency", limit.into(), Origin::Env);
        }
        let typed = self.flags.int("concurrency");
        if typed != 0 {
            self.warn("--concurrency: a legacy flag; set concurrency in the proxy configuration".to_owned());
            self.layers.set("concurrency", typed.into(), Origin::Flag);
        }
        let threads = self.layers.get("concurrency").and_then(Json::as_i64).unwrap_or(0);
        if threads == 0 && limit < i64::try_from(processors).unwrap_or(i64::MAX) {
            let message = format!("concurrency: Envoy will run a worker thread for each of {processors} processors");
            self.warn(message);
        }
        let overlaid =
            matches!(self.layers.origin("serviceCluster"), Origin::ProxyConfigEnv(_) | Origin::Annotation(_));
        if overlaid && self.layers.get("serviceCluster").and_then(Json::as_str) == Some("") {
            let name = self.flags.text("serviceCluster").to_owned();
            let origin = self.flags.origin("serviceCluster");
            self.layers.set("serviceCluster", name.into(), origin);
        }
    }

    /// Annotations that override single fields, after validation as in Istio; `--templateFile` last.
    fn lay_annotations(&mut self, errors: &mut Errors) {
        if let Some(address) = self.annotation(DISCOVERY_ANNOTATION).map(str::to_owned) {
            if let Err(message) = validate::split_host_port(&address) {
                errors.add(Origin::Annotation(DISCOVERY_ANNOTATION).to_string(), message);
            }
            self.layers.set("discoveryAddress", address.into(), Origin::Annotation(DISCOVERY_ANNOTATION));
        }
        if let Some(text) = self.annotation(STATUS_PORT_ANNOTATION).map(str::to_owned) {
            let port = text.parse::<u16>().unwrap_or_else(|_| {
                let origin = Origin::Annotation(STATUS_PORT_ANNOTATION);
                self.warn(format!("{origin}: {text:?} is not a port; the status port stays closed"));
                0
            });
            self.layers.set("statusPort", port.into(), Origin::Annotation(STATUS_PORT_ANNOTATION));
        }
        let template = self.flags.text("templateFile").to_owned();
        let custom = self.layers.get("customConfigFile").and_then(Json::as_str).unwrap_or_default();
        if !template.is_empty() && custom.is_empty() {
            self.layers.set("proxyBootstrapTemplatePath", template.into(), Origin::Flag);
        }
    }
}

impl std::str::FromStr for Role {
    type Err = String;

    fn from_str(text: &str) -> Result<Role, String> {
        Ok(match text {
            "sidecar" => Role::Sidecar,
            "router" => Role::Router,
            "waypoint" => Role::Waypoint,
            "ztunnel" => Role::Ztunnel,
            "agentgateway" => Role::Agentgateway,
            _ => return Err(format!("invalid proxy Type: {text} (it has to be {ROLES})")),
        })
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Role::Sidecar => "sidecar",
            Role::Router => "router",
            Role::Waypoint => "waypoint",
            Role::Ztunnel => "ztunnel",
            Role::Agentgateway => "agentgateway",
        })
    }
}

#[cfg(test)]
#[path = "vars_tests.rs"]
mod tests;
