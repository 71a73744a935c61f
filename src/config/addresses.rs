//! The addresses by which the node is known: INSTANCE_IP first, then those of the interfaces in their order.

use std::{net::IpAddr, time::Duration};

use nix::{ifaddrs::getifaddrs, net::if_::InterfaceFlags};

/// How often interfaces are looked at while one of them has no address yet, and how long at most (Istio's figures).
const RETRY: Duration = Duration::from_millis(100);
const PATIENCE: Duration = Duration::from_secs(120);

/// An interface that is up and not loopback, with its addresses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Interface {
    /// `eth0`.
    pub name: String,
    /// Every address, IPv4 in IPv6 unwrapped.
    pub addresses: Vec<IpAddr>,
}

/// The interfaces of this machine; waits while an address is still unspecified, as at the start of a network.
pub(super) async fn interfaces() -> Vec<Interface> {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        let interfaces = current();
        let ready = interfaces.iter().flat_map(|interface| &interface.addresses).all(|ip| !ip.is_unspecified());
        if ready || tokio::time::Instant::now() >= deadline {
            return interfaces;
        }
        tokio::time::sleep(RETRY).await;
    }
}

fn current() -> Vec<Interface> {
    let mut found: Vec<Interface> = Vec::new();
    for entry in getifaddrs().into_iter().flatten() {
        if !entry.flags.contains(InterfaceFlags::IFF_UP) || entry.flags.contains(InterfaceFlags::IFF_LOOPBACK) {
            continue;
        }
        let Some(address) = entry.address else { continue };
        let v4 = address.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
        let v6 = address.as_sockaddr_in6().map(|address| IpAddr::V6(address.ip()).to_canonical());
        let Some(ip) = v4.or(v6) else { continue };
        match found.iter_mut().find(|interface| interface.name == entry.interface_name) {
            Some(interface) => interface.addresses.push(ip),
            None => found.push(Interface { name: entry.interface_name, addresses: vec![ip] }),
        }
    }
    found
}

/// The node's addresses by Istio's rules.
///
/// `excluded` is the annotation `traffic.sidecar.istio.io/excludeInterfaces`: names that do not exist go to `warnings`.
pub(super) fn of_node(
    instance_ip: Option<IpAddr>,
    interfaces: &[Interface],
    excluded: Option<&str>,
    warnings: &mut Vec<String>,
) -> Vec<IpAddr> {
    let usable = |ip: &&IpAddr| !ip.is_loopback() && !ip.is_unspecified() && !is_link_local(**ip);
    let mut rest: Vec<IpAddr> = interfaces.iter().flat_map(|i| &i.addresses).filter(usable).copied().collect();
    // Also beside INSTANCE_IP, as in Istio: the list is then one of both families.
    if rest.is_empty() {
        rest = vec![IpAddr::from([127, 0, 0, 1]), "::1".parse().unwrap_or(IpAddr::from([127, 0, 0, 1]))];
    }
    for name in excluded.into_iter().filter(|names| !names.is_empty()).flat_map(|names| names.split(',')) {
        match interfaces.iter().find(|interface| interface.name == name) {
            Some(interface) => rest.retain(|ip| !interface.addresses.contains(ip)),
            None => warnings.push(format!("annotation {}: no interface {name:?}", super::EXCLUDE_INTERFACES)),
        }
    }
    rest.retain(|ip| Some(*ip) != instance_ip);
    instance_ip.into_iter().chain(rest).collect()
}

/// Link-local addresses, unicast and multicast: never an address of the node.
pub fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local() || ip.octets()[..3] == [224, 0, 0],
        IpAddr::V6(ip) => ip.is_unicast_link_local() || ip.segments()[0] & 0xff0f == 0xff02,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(instance_ip: &str, interfaces: &[(&str, &[&str])], excluded: &str) -> (String, Vec<String>) {
        let interfaces: Vec<Interface> = interfaces
            .iter()
            .map(|(name, ips)| Interface {
                name: (*name).to_owned(),
                addresses: ips.iter().map(|ip| ip.parse().unwrap()).collect(),
            })
            .collect();
        let mut warnings = Vec::new();
        let ips = of_node(instance_ip.parse().ok(), &interfaces, Some(excluded), &mut warnings);
        (ips.iter().map(ToString::to_string).collect::<Vec<_>>().join(","), warnings)
    }

    #[test]
    fn instance_ip_comes_first_and_once() {
        let eth: (&str, &[&str]) = ("eth0", &["10.0.0.1", "169.254.3.3", "10.0.0.2", "fe80::1", "ff02::1", "0.0.0.0"]);
        let net: (&str, &[&str]) = ("net1", &["192.168.3.3"]);
        assert_eq!(node("10.0.0.2", &[eth, net], "").0, "10.0.0.2,10.0.0.1,192.168.3.3");
        assert_eq!(node("", &[eth, net], "").0, "10.0.0.1,10.0.0.2,192.168.3.3");
        let (ips, warnings) = node("10.0.0.2", &[eth, net], "eth0,nosuch, net1");
        assert_eq!(ips, "10.0.0.2,192.168.3.3");
        assert_eq!(warnings.len(), 2);
    }

    #[test]
    fn nothing_usable_gives_both_loopbacks() {
        assert_eq!(node("", &[("eth0", &["fe80::1"])], "").0, "127.0.0.1,::1");
        assert_eq!(node("10.0.0.1", &[], "").0, "10.0.0.1,127.0.0.1,::1");
        assert_eq!(node("127.0.0.1", &[], "").0, "127.0.0.1,::1");
    }
}
