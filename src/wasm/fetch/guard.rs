//! Which addresses are never dialled for a plugin, whatever name, redirect or registry leads there (Istio 1.32).
//!
//! Checked after each name resolution, so that a name cannot hide an address. Private and loopback addresses stay allowed: registries
//! run in clusters.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Alibaba Cloud's metadata server.
const ALIBABA_METADATA: Ipv4Addr = Ipv4Addr::new(100, 100, 100, 200);
/// EC2's services over IPv6: fd00:ec2::/32.
const EC2: Block = Block { address: IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0)), bits: 32 };

/// A range of addresses in CIDR notation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::wasm) struct Block {
    address: IpAddr,
    bits: u32,
}

/// The addresses that are refused.
#[derive(Debug, Clone, Default)]
pub(in crate::wasm) struct Guard {
    /// `BLOCKED_CIDRS_IN_WASM_FETCH`.
    pub(in crate::wasm) blocks: Vec<Block>,
}

impl Block {
    /// Reads `10.0.0.0/8`.
    pub(in crate::wasm) fn parse(text: &str) -> Option<Block> {
        let (address, bits) = text.split_once('/')?;
        let block = Block { address: address.parse().ok()?, bits: bits.parse().ok()? };
        let most = if block.address.is_ipv4() { 32 } else { 128 };
        (block.bits <= most && !bits.starts_with('+')).then_some(block)
    }

    pub(super) fn contains(&self, ip: IpAddr) -> bool {
        match (self.address, ip) {
            (IpAddr::V4(net), IpAddr::V4(ip)) => {
                (net.to_bits() ^ ip.to_bits()).checked_shr(32 - self.bits).is_none_or(|differs| differs == 0)
            }
            (IpAddr::V6(net), IpAddr::V6(ip)) => {
                (net.to_bits() ^ ip.to_bits()).checked_shr(128 - self.bits).is_none_or(|differs| differs == 0)
            }
            _ => false,
        }
    }
}

impl Guard {
    /// Whether `ip`, to which a name has been resolved, may be dialled; the error says why not.
    pub(in crate::wasm) fn check(&self, ip: IpAddr) -> Result<(), String> {
        let bare = ip.to_canonical();
        let link_local = match bare {
            IpAddr::V4(ip) => {
                ip.is_link_local() || (ip.octets()[0] == 224 && ip.octets()[1] == 0 && ip.octets()[2] == 0)
            }
            IpAddr::V6(ip) => ip.is_unicast_link_local() || ip.segments()[0] & 0xff0f == 0xff02,
        };
        let why = if link_local {
            "is a link-local address"
        } else if bare == IpAddr::V4(ALIBABA_METADATA) || EC2.contains(bare) {
            "is a cloud metadata address"
        } else if self.blocks.iter().any(|block| block.contains(bare)) {
            "is in a range of BLOCKED_CIDRS_IN_WASM_FETCH"
        } else {
            return Ok(());
        };
        Err(format!("connection blocked: resolved IP {ip} {why}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_and_link_local_are_refused_private_is_not() {
        let guard = Guard::default();
        for (ip, allowed) in [
            ("169.254.169.254", false),
            ("169.254.0.1", false),
            ("224.0.0.251", false),
            ("100.100.100.200", false),
            ("fe80::1", false),
            ("ff02::1", false),
            ("fd00:ec2::254", false),
            ("::ffff:169.254.169.254", false),
            ("127.0.0.1", true),
            ("10.0.0.1", true),
            ("::1", true),
            ("fd00:ec3::1", true),
            ("100.100.100.201", true),
            ("8.8.8.8", true),
        ] {
            assert_eq!(guard.check(ip.parse().unwrap()).is_ok(), allowed, "{ip}");
        }
    }

    #[test]
    fn configured_ranges() {
        let guard = Guard {
            blocks: ["10.0.0.0/8", "::1/128", "192.168.1.1/32"].map(|text| Block::parse(text).unwrap()).into(),
        };
        for (ip, allowed) in [
            ("10.255.0.1", false),
            ("11.0.0.1", true),
            ("::1", false),
            ("::2", true),
            ("192.168.1.1", false),
            ("192.168.1.2", true),
        ] {
            assert_eq!(guard.check(ip.parse().unwrap()).is_ok(), allowed, "{ip}");
        }
        let all = Guard { blocks: vec![Block::parse("0.0.0.0/0").unwrap()] };
        assert!(all.check("8.8.8.8".parse().unwrap()).is_err() && all.check("::2".parse().unwrap()).is_ok());
        for text in ["", "10.0.0.0", "10.0.0.0/33", "::/129", "10.0.0/8", "x/8", "10.0.0.0/-1", "10.0.0.0/+8"] {
            assert_eq!(Block::parse(text), None, "{text}");
        }
    }
}
