//! What configures the DNS proxy: Istio's variables, and footman's own that begin with `FOOTMAN_DNS_`.

use std::{
    fs,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use nix::unistd::geteuid;

use super::{cache, forward, view::View};
use crate::config::{Errors, Role, Vars, parse_bool};

/// Where queries arrive by default (Istio: constants.DNSListenerPort).
const DEFAULT_ADDRESS: &str = "localhost:15053";
/// The resolver file of a machine whose own one points to us.
const SAVED_RESOLV_CONF: &str = "/var/lib/istio/resolv.conf";
/// Life of local answers (Istio: defaultTTLInSeconds).
const TTL: u32 = 30;
/// Go's DNS library takes this for a timeout of zero.
const ZERO_TIMEOUT: Duration = Duration::from_secs(2);
/// Answers kept by default when the cache is on.
const CACHE_BYTES: u64 = 1 << 20;

/// The DNS proxy's configuration; there is none when it is off.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Where to listen, UDP and TCP each.
    pub listen: Vec<Listen>,
    /// resolv.conf.
    pub resolv_conf: PathBuf,
    /// Servers to forward to instead of those of resolv.conf; empty for those.
    pub upstreams: Vec<SocketAddr>,
    /// Port of the servers of resolv.conf.
    pub upstream_port: u16,
    /// Forward instead of failing before the first table.
    pub forward_before_table: bool,
    /// How this proxy sees the names of the mesh.
    pub view: View,
    /// How servers are asked.
    pub forward: forward::Policy,
    /// Whether and how answers are kept.
    pub cache: Option<cache::Policy>,
    /// Life of local answers, in seconds.
    pub ttl: u32,
    /// Answer PTR queries for addresses of the table.
    pub pointers: bool,
    /// This machine's addresses.
    pub addresses: Vec<IpAddr>,
}

/// One address to listen on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listen {
    /// A name or an address; empty for all interfaces.
    pub host: String,
    /// The port, 0 for any free one.
    pub port: u16,
}

impl Config {
    /// What the environment says; `None` when the proxy is off.
    ///
    /// # Errors
    /// Addresses that are none.
    pub fn from_vars(vars: &Vars) -> Result<Option<Config>, Errors> {
        // Where it is no boolean the node's metadata, which it is as well, refuses it.
        let capture = parse_bool(&vars.text_or("ISTIO_META_DNS_CAPTURE", "false")) == Some(true);
        let enabled = vars.bool("ISTIO_META_ENABLE_DNS_SERVER", false);
        if !(enabled || capture && vars.role() == Role::Sidecar) {
            return Ok(None);
        }
        let mut errors = Errors::default();
        let (listen, root_mode) = listen(vars, geteuid().is_root(), &mut errors);
        let saved = PathBuf::from(SAVED_RESOLV_CONF);
        let config = Config {
            listen,
            resolv_conf: if root_mode && fs::exists(&saved).unwrap_or(false) {
                saved
            } else {
                "/etc/resolv.conf".into()
            },
            upstreams: upstreams(&vars.text_or("FOOTMAN_DNS_UPSTREAMS", ""), &mut errors),
            upstream_port: 53,
            forward_before_table: vars.bool("FOOTMAN_DNS_FORWARD_BEFORE_TABLE", root_mode),
            view: View::new(&vars.text_or("POD_NAMESPACE", ""), &vars.domain()),
            forward: forwarding(vars),
            cache: cache(vars),
            ttl: u32::try_from(vars.count("FOOTMAN_DNS_TTL", TTL.into())).unwrap_or(TTL),
            pointers: vars.bool("FOOTMAN_DNS_PTR", false),
            addresses: vars.ip_addresses().to_vec(),
        };
        errors.into_result(Some(config))
    }
}

/// The addresses, and whether one of them is the machine's own resolver port.
fn listen(vars: &Vars, is_root: bool, errors: &mut Errors) -> (Vec<Listen>, bool) {
    const NAME: &str = "DNS_PROXY_ADDR";
    let text = vars.text_or(NAME, DEFAULT_ADDRESS);
    let mut root_mode = false;
    let mut listen: Vec<Listen> = Vec::new();
    for address in text.split(',').map(str::trim) {
        let mut address = if address.is_empty() { DEFAULT_ADDRESS } else { address };
        if address.ends_with(":53") {
            if is_root {
                root_mode = true;
            } else {
                vars.warn(format!("{NAME}: only root may listen on {address}; listening on {DEFAULT_ADDRESS}"));
                address = DEFAULT_ADDRESS;
            }
        }
        match split_host_port(address) {
            Some(address) if listen.contains(&address) => {}
            Some(address) => listen.push(address),
            None => errors.add(
                NAME,
                format!("dns address must be a valid host:port: {address:?} is not (such as {DEFAULT_ADDRESS} or [::1]:15053)"),
            ),
        }
    }
    (listen, root_mode)
}

/// `host:port` as Go's net.SplitHostPort reads it.
fn split_host_port(text: &str) -> Option<Listen> {
    let (host, port) = text.rsplit_once(':')?;
    let host = match host.strip_prefix('[') {
        Some(host) => host.strip_suffix(']')?,
        None if host.contains(':') => return None,
        None => host,
    };
    Some(Listen { host: host.to_owned(), port: port.parse().ok()? })
}

fn upstreams(text: &str, errors: &mut Errors) -> Vec<SocketAddr> {
    let mut upstreams = Vec::new();
    for word in text.split(',').map(str::trim).filter(|word| !word.is_empty()) {
        match word.parse::<SocketAddr>().or_else(|_| word.parse::<IpAddr>().map(|ip| SocketAddr::new(ip, 53))) {
            Ok(upstream) => upstreams.push(upstream),
            Err(_) => errors
                .add("FOOTMAN_DNS_UPSTREAMS", format!("{word:?} is no address (such as 10.0.0.10 or 10.0.0.10:5353)")),
        }
    }
    upstreams
}

fn forwarding(vars: &Vars) -> forward::Policy {
    let hedge = vars.duration("FOOTMAN_DNS_HEDGE", Duration::ZERO);
    let parallel = vars.bool("DNS_FORWARD_PARALLEL", false);
    let default = Duration::from_secs(5);
    let timeout = match vars.duration("DNS_FORWARD_TIMEOUT", default) {
        Duration::ZERO => Some(ZERO_TIMEOUT),
        timeout => (timeout != default || vars.text("DNS_FORWARD_TIMEOUT").is_some()).then_some(timeout),
    };
    let positive = |name| u32::try_from(vars.count(name, 0)).ok().filter(|number| *number > 0);
    forward::Policy {
        stagger: if parallel { Some(Duration::ZERO) } else { Some(hedge).filter(|hedge| !hedge.is_zero()) },
        timeout,
        attempts: positive("FOOTMAN_DNS_ATTEMPTS"),
        retries: positive("FOOTMAN_DNS_RETRIES").unwrap_or(0),
    }
}

fn cache(vars: &Vars) -> Option<cache::Policy> {
    let policy = cache::Policy {
        size: usize::try_from(vars.count("FOOTMAN_DNS_CACHE_BYTES", CACHE_BYTES)).unwrap_or(usize::MAX),
        stale: vars.duration("FOOTMAN_DNS_SERVE_STALE", Duration::ZERO),
    };
    vars.bool("FOOTMAN_DNS_CACHE", false).then_some(policy)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(pairs: &[(&str, &str)]) -> Result<Option<Config>, Errors> {
        let mut all = vec![("ISTIO_META_DNS_CAPTURE", "true")];
        all.extend_from_slice(pairs);
        Config::from_vars(&Vars::from_pairs(all))
    }

    fn on(pairs: &[(&str, &str)]) -> Config {
        config(pairs).unwrap().unwrap()
    }

    fn address(host: &str, port: u16) -> Listen {
        Listen { host: host.into(), port }
    }

    #[test]
    fn off_unless_asked_for() {
        assert_eq!(Config::from_vars(&Vars::from_pairs([("DNS_PROXY_ADDR", "127.0.0.1:5")])).unwrap(), None);
        assert!(config(&[]).unwrap().is_some());
        let vars = Vars::from_pairs([("ISTIO_META_DNS_CAPTURE", "maybe")]);
        assert_eq!((Config::from_vars(&vars), vars.warnings().len()), (Ok(None), 0));
    }

    #[test]
    fn defaults_are_istios() {
        let config = on(&[]);
        assert_eq!(config.listen, [address("localhost", 15053)]);
        let policy = forward::Policy { stagger: None, timeout: None, attempts: None, retries: 0 };
        assert_eq!((config.ttl, config.forward, config.cache, config.pointers), (30, policy, None, false));
        assert!(!config.forward_before_table);
        assert_eq!(config.resolv_conf, PathBuf::from("/etc/resolv.conf"));
    }

    #[test]
    fn addresses() {
        assert_eq!(on(&[("DNS_PROXY_ADDR", "")]).listen, [address("localhost", 15053)]);
        assert_eq!(
            on(&[("DNS_PROXY_ADDR", "127.0.0.1:5, [::1]:5,127.0.0.1:5,:7")]).listen,
            [address("127.0.0.1", 5), address("::1", 5), address("", 7)]
        );
        for bad in ["foo", "127.0.0.1:notaport", "::1:15053", "[::1:5", "127.0.0.1:99999"] {
            let errors = config(&[("DNS_PROXY_ADDR", bad)]).unwrap_err().to_string();
            assert!(
                errors.starts_with("DNS_PROXY_ADDR: dns address must be a valid host:port") && errors.contains(bad),
                "{errors}"
            );
        }
    }

    #[test]
    fn port_53_is_for_root() {
        for (is_root, port) in [(true, 53), (false, 15053)] {
            let (vars, mut errors) = (Vars::from_pairs([("DNS_PROXY_ADDR", "localhost:53")]), Errors::default());
            assert_eq!(listen(&vars, is_root, &mut errors), (vec![address("localhost", port)], is_root));
            assert_eq!(vars.warnings().iter().any(|line| line.starts_with("DNS_PROXY_ADDR: only root")), !is_root);
        }
    }

    #[test]
    fn forwarding_options() {
        let timeout = |text| on(&[("DNS_FORWARD_TIMEOUT", text)]).forward.timeout;
        assert_eq!(timeout("300ms"), Some(Duration::from_millis(300)));
        assert_eq!(timeout("5s"), Some(Duration::from_secs(5)));
        assert_eq!(timeout("0"), Some(Duration::from_secs(2)));
        assert_eq!(timeout("abc"), Some(Duration::from_secs(5)));
        assert_eq!(
            on(&[("DNS_FORWARD_PARALLEL", "true"), ("FOOTMAN_DNS_HEDGE", "1s")]).forward.stagger,
            Some(Duration::ZERO)
        );
        assert_eq!(on(&[("FOOTMAN_DNS_HEDGE", "50ms")]).forward.stagger, Some(Duration::from_millis(50)));
        let config = on(&[("FOOTMAN_DNS_UPSTREAMS", "10.0.0.1, [::1]:5353")]);
        assert_eq!(config.upstreams, ["10.0.0.1:53".parse().unwrap(), "[::1]:5353".parse().unwrap()]);
        assert!(
            super::Config::from_vars(&Vars::from_pairs([
                ("ISTIO_META_DNS_CAPTURE", "1"),
                ("FOOTMAN_DNS_UPSTREAMS", "x")
            ]))
            .is_err()
        );
    }

    #[test]
    fn cache_is_opt_in() {
        let config = on(&[("FOOTMAN_DNS_CACHE", "true"), ("FOOTMAN_DNS_SERVE_STALE", "1h")]);
        assert_eq!(config.cache, Some(cache::Policy { size: 1 << 20, stale: Duration::from_secs(3600) }));
    }
}
