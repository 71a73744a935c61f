//! Names of addresses: `4.3.2.1.in-addr.arpa` and `….ip6.arpa` (RFC 1035 §3.5, RFC 3596 §2.5). Pure.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The address that a lower-case name stands for.
pub fn address(name: &[u8]) -> Option<IpAddr> {
    let name = std::str::from_utf8(name).ok()?;
    if let Some(reversed) = name.strip_suffix(".in-addr.arpa") {
        let mut octets = [0; 4];
        let mut labels = reversed.split('.');
        for octet in octets.iter_mut().rev() {
            let label = labels.next()?;
            *octet = label.parse().ok().filter(|octet: &u8| octet.to_string() == label)?;
        }
        return labels.next().is_none().then(|| Ipv4Addr::from(octets).into());
    }
    let mut nibbles = name.strip_suffix(".ip6.arpa")?.split('.');
    let mut address = 0u128;
    for shift in (0..128).step_by(4) {
        let nibble = nibbles.next().filter(|label| label.len() == 1)?;
        address |= u128::from(u8::from_str_radix(nibble, 16).ok()?) << shift;
    }
    nibbles.next().is_none().then(|| Ipv6Addr::from(address).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_both_families() {
        assert_eq!(address(b"4.3.2.1.in-addr.arpa"), Some("1.2.3.4".parse().unwrap()));
        let v6 = b"b.a.9.8.7.6.5.0.4.0.0.0.3.0.0.0.2.0.0.0.1.0.0.0.0.0.0.0.1.2.3.4.ip6.arpa";
        assert_eq!(address(v6), Some("4321:0:1:2:3:4:567:89ab".parse().unwrap()));
    }

    #[test]
    fn refuses_anything_else() {
        for name in [
            "3.2.1.in-addr.arpa",
            "5.4.3.2.1.in-addr.arpa",
            "256.3.2.1.in-addr.arpa",
            "04.3.2.1.in-addr.arpa",
            "+4.3.2.1.in-addr.arpa",
            "4.3.2.1.in-addr.arpa.example",
            "a.b.ip6.arpa",
            "www.example",
        ] {
            assert_eq!(address(name.as_bytes()), None, "{name}");
        }
        assert_eq!(address(format!("{}ip6.arpa", "a.".repeat(33)).as_bytes()), None);
        assert_eq!(address(format!("{}ip6.arpa", "g.".repeat(32)).as_bytes()), None);
    }
}
