//! resolv.conf(5): which servers, which search list, which options. Pure but for [`Conf::load`].

use std::{
    fs, io,
    net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6},
    path::Path,
    time::Duration,
};

use nix::net::if_::if_nametoindex;

/// What resolv.conf says.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Conf {
    /// Servers in the order of the file, port 53; what is no address is left out.
    pub servers: Vec<SocketAddr>,
    /// Search list without final dots; the last `search` or `domain` line wins.
    pub search: Vec<String>,
    /// `options`.
    pub options: Options,
}

/// The options that are honoured; each `None` or `false` when the file does not set it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Options {
    /// Names with fewer dots are tried with the search list first; 1 unless set.
    pub ndots: Option<u8>,
    /// How long to wait for one server.
    pub timeout: Option<Duration>,
    /// How often to ask.
    pub attempts: Option<u32>,
    /// Spread queries over the servers.
    pub rotate: bool,
    /// Use TCP always.
    pub tcp: bool,
}

impl Conf {
    /// Reads a file.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn load(path: &Path) -> io::Result<Conf> {
        fs::read(path).map(|text| Conf::parse(&String::from_utf8_lossy(&text)))
    }

    /// Reads the text of a file; lines that mean nothing are passed over, as every resolver does.
    pub fn parse(text: &str) -> Conf {
        let mut conf = Conf::default();
        for line in text.lines() {
            let line = line.split(['#', ';']).next().unwrap_or_default();
            let mut words = line.split_ascii_whitespace();
            match words.next() {
                Some("nameserver") => conf.servers.extend(words.next().and_then(server)),
                Some("search") => conf.search = words.filter_map(domain).collect(),
                Some("domain") => conf.search = words.take(1).filter_map(domain).collect(),
                Some("options") => words.for_each(|word| conf.options.set(word)),
                _ => {}
            }
        }
        conf
    }
}

impl Options {
    // The bounds are those of glibc's resolv.h.
    fn set(&mut self, word: &str) {
        let (name, value) = word.split_once(':').unwrap_or((word, ""));
        let number = value.parse::<u32>().ok();
        match (name, number) {
            ("ndots", Some(number)) => self.ndots = Some(number.min(15) as u8),
            ("timeout", Some(number)) => self.timeout = Some(Duration::from_secs(u64::from(number.clamp(1, 30)))),
            ("attempts", Some(number)) => self.attempts = Some(number.clamp(1, 5)),
            ("rotate", _) => self.rotate = true,
            ("use-vc", _) => self.tcp = true,
            _ => {}
        }
    }
}

fn domain(word: &str) -> Option<String> {
    let name = word.trim_end_matches('.');
    (!name.is_empty()).then(|| name.to_owned())
}

/// An address, IPv6 with an optional zone (`fe80::1%eth0`).
fn server(word: &str) -> Option<SocketAddr> {
    if let Ok(ip) = word.parse::<IpAddr>() {
        return Some(SocketAddr::new(ip, 53));
    }
    let (ip, zone) = word.split_once('%')?;
    let ip: Ipv6Addr = ip.parse().ok()?;
    let scope = zone.parse().ok().or_else(|| if_nametoindex(zone).ok())?;
    Some(SocketAddrV6::new(ip, 53, 0, scope).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_usual_file() {
        let conf = Conf::parse(
            "# made by kubelet\nnameserver 10.96.0.10\nnameserver\t2001:db8::1 ; second\nnameserver nonsense\n\
             domain gone.example\nsearch ns1.svc.cluster.local. svc.cluster.local\noptions ndots:5 timeout:2 attempts:9 rotate edns0\n",
        );
        assert_eq!(conf.servers, ["10.96.0.10:53".parse().unwrap(), "[2001:db8::1]:53".parse().unwrap()]);
        assert_eq!(conf.search, ["ns1.svc.cluster.local", "svc.cluster.local"]);
        let wanted = Options {
            ndots: Some(5),
            timeout: Some(Duration::from_secs(2)),
            attempts: Some(5),
            rotate: true,
            tcp: false,
        };
        assert_eq!(conf.options, wanted);
    }

    #[test]
    fn last_of_search_and_domain_wins() {
        for (text, search) in [
            ("search a b\ndomain c d\n", vec!["c"]),
            ("domain c\nsearch a b\n", vec!["a", "b"]),
            ("search a\nsearch\n", vec![]),
            ("search a\ndomain\n", vec![]),
            ("search .\n", vec![]),
        ] {
            assert_eq!(Conf::parse(text).search, search, "{text:?}");
        }
    }

    #[test]
    fn a_zone_is_kept() {
        let conf = Conf::parse("nameserver fe80::1%lo\nnameserver fe80::1%7\nnameserver fe80::1%no-such-link\n");
        assert_eq!(conf.servers, ["[fe80::1%1]:53".parse().unwrap(), "[fe80::1%7]:53".parse().unwrap()]);
    }
}
