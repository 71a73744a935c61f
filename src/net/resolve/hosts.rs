//! hosts(5): names that need no server. Pure.

use std::net::IpAddr;

/// The addresses of `name` in the text of a hosts file, in its order; names are compared without case or final dot.
pub fn lookup(text: &str, name: &str) -> Vec<IpAddr> {
    let name = name.trim_end_matches('.');
    let mut found = Vec::new();
    for line in text.lines() {
        let line = line.split('#').next().unwrap_or_default();
        let mut words = line.split_ascii_whitespace();
        let Some(ip) = words.next().and_then(|word| word.parse::<IpAddr>().ok()) else { continue };
        if words.any(|word| word.trim_end_matches('.').eq_ignore_ascii_case(name)) && !found.contains(&ip) {
            found.push(ip);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_every_address_of_a_name() {
        let text = "127.0.0.1 localhost\n::1\tlocalhost ip6-localhost\n# 9.9.9.9 istiod\n10.0.0.1 Istiod.istio-system.svc istiod # main\n\
                    10.0.0.2 istiod\n10.0.0.1 istiod\nbroken istiod\n";
        let found = |name| lookup(text, name).iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(found("localhost"), ["127.0.0.1", "::1"]);
        assert_eq!(found("ISTIOD."), ["10.0.0.1", "10.0.0.2"]);
        assert_eq!(found("istiod.istio-system.svc"), ["10.0.0.1"]);
        assert!(found("main").is_empty());
    }
}
