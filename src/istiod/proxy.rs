//! The HTTP proxy on the way to istiod (`HTTPS_PROXY`, `NO_PROXY`), as grpc-go honours them: a tunnel by CONNECT.

use std::{io, net::IpAddr};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::Instant,
};

use crate::{
    config::Vars,
    net::{dial, http1::basic},
};

/// A proxy's answer is longer only when it is none.
const MAX_ANSWER: usize = 16 * 1024;

/// The proxy to go through.
#[derive(Clone, PartialEq, Eq)]
pub struct Proxy {
    host: String,
    port: u16,
    /// `Proxy-Authorization`, when the URL has a user.
    authorization: Option<String>,
}

/// The proxy for a host; `None`: none is set, or the host is excepted. Names of this machine never go through one.
///
/// # Errors
/// When the variable is no URL of an HTTP proxy.
pub(super) fn for_host(vars: &Vars, host: &str, port: u16) -> Result<Option<Proxy>, String> {
    let set = |names: [&str; 2]| {
        names
            .into_iter()
            .find_map(|name| vars.text(name).filter(|value| !value.is_empty()))
            .unwrap_or_default()
            .to_owned()
    };
    let url = set(["HTTPS_PROXY", "https_proxy"]);
    if url.is_empty() || is_excepted(&set(["NO_PROXY", "no_proxy"]), host, port) {
        return Ok(None);
    }
    // The value may hold a password: it is not repeated. In the words that `wasm` has for it, so that it is said once.
    parse(&url).map(Some).ok_or_else(|| "not the URL of an HTTP proxy (http://host:port)".to_owned())
}

fn parse(url: &str) -> Option<Proxy> {
    let (scheme, rest) = url.split_once("://").unwrap_or(("http", url));
    let usual = match scheme.to_ascii_lowercase().as_str() {
        "http" => 80,
        // As grpc-go, which speaks to it without TLS all the same: the tunnel carries its own.
        "https" => 443,
        _ => return None,
    };
    let authority = rest.split('/').next()?;
    let (user, address) = authority.rsplit_once('@').map_or((None, authority), |(user, address)| (Some(user), address));
    let (host, port) = match address.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, port.parse().ok()?),
        _ => (address, usual),
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let authorization = match user {
        Some(user) => Some(basic(user)?),
        None => None,
    };
    (!host.is_empty()).then(|| Proxy { host: host.to_owned(), port, authorization })
}

/// By Go's rules for `NO_PROXY`: `*`, addresses, CIDR blocks, names with all below them, `.names` below them only; each perhaps with
/// a port.
fn is_excepted(list: &str, host: &str, port: u16) -> bool {
    let host = host.trim_end_matches('.').to_ascii_lowercase();
    let address: Option<IpAddr> = host.parse().ok();
    if host == "localhost" || address.is_some_and(|address| address.is_loopback()) {
        return true;
    }
    list.split(',').map(str::trim).filter(|entry| !entry.is_empty()).any(|entry| {
        let entry = entry.to_ascii_lowercase();
        if entry == "*" {
            return true;
        }
        if let (Some((network, bits)), Some(address)) = (entry.split_once('/'), address) {
            return contains(network, bits, address);
        }
        let (name, wanted) = match entry.rsplit_once(':') {
            Some((name, port)) if !name.contains(':') => (name, port.parse::<u16>().ok()),
            _ => (entry.as_str(), None),
        };
        if wanted.is_some_and(|wanted| wanted != port) {
            return false;
        }
        match name.strip_prefix("*.").or_else(|| name.strip_prefix('.')) {
            Some(suffix) => host.strip_suffix(suffix).is_some_and(|below| below.ends_with('.')),
            None => host == name || host.strip_suffix(name).is_some_and(|below| below.ends_with('.')),
        }
    })
}

fn contains(network: &str, bits: &str, address: IpAddr) -> bool {
    let Ok(bits) = bits.parse::<u32>() else { return false };
    match (network.parse(), address) {
        (Ok(IpAddr::V4(network)), IpAddr::V4(address)) if bits <= 32 => {
            let mask = u32::MAX.checked_shl(32 - bits).unwrap_or(0);
            u32::from(network) & mask == u32::from(address) & mask
        }
        (Ok(IpAddr::V6(network)), IpAddr::V6(address)) if bits <= 128 => {
            let mask = u128::MAX.checked_shl(128 - bits).unwrap_or(0);
            u128::from(network) & mask == u128::from(address) & mask
        }
        _ => false,
    }
}

impl Proxy {
    /// A tunnel to `host`, whose name the proxy resolves.
    pub(super) async fn connect(&self, host: &str, port: u16, deadline: Instant) -> io::Result<TcpStream> {
        let proxied = |error: io::Error| io::Error::new(error.kind(), format!("proxy {error}"));
        let mut stream = dial::tcp(&self.host, self.port, deadline).await.map_err(proxied)?;
        let target = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        let authorization =
            self.authorization.as_ref().map(|value| format!("Proxy-Authorization: {value}\r\n")).unwrap_or_default();
        let request = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{authorization}\r\n");
        let broken = |error: io::Error| io::Error::new(error.kind(), format!("proxy {self:?}: {error}"));
        stream.write_all(request.as_bytes()).await.map_err(broken)?;
        let refused = |what: &str| io::Error::other(format!("proxy {}:{}: {what}", self.host, self.port));
        let mut answer = Vec::new();
        // By single bytes: what follows the answer is istiod's.
        while !answer.ends_with(b"\r\n\r\n") {
            if answer.len() > MAX_ANSWER {
                return Err(refused("its answer to CONNECT is too long"));
            }
            answer.push(stream.read_u8().await.map_err(broken)?);
        }
        let status =
            String::from_utf8_lossy(answer.split(|byte| *byte == b'\r').next().unwrap_or_default()).into_owned();
        match status.split(' ').nth(1) {
            Some("200") => Ok(stream),
            _ => Err(refused(&format!("CONNECT {target}: {status}"))),
        }
    }
}

impl std::fmt::Debug for Proxy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn exceptions_follow_go() {
        for (list, host, excepted) in [
            ("", "istiod.istio-system.svc", false),
            ("", "localhost", true),
            ("", "127.0.0.1", true),
            ("*", "istiod", true),
            (".svc,.cluster.local", "istiod.istio-system.svc", true),
            ("svc", "istiod.istio-system.svc", true),
            (".svc", "svc", false),
            ("vc", "istiod.svc", false),
            ("istiod.svc:15012", "istiod.svc", true),
            ("istiod.svc:15010", "istiod.svc", false),
            ("10.0.0.0/8", "10.9.8.7", true),
            ("10.0.0.0/8", "11.9.8.7", false),
            ("fd00::/8", "fd00::1", true),
        ] {
            assert_eq!(is_excepted(list, host, 15012), excepted, "{list:?} {host}");
        }
    }

    #[test]
    fn urls() {
        let vars = |url: &str| Vars::from_pairs([("HTTPS_PROXY", url)]);
        let proxy = for_host(&vars("http://u:p@proxy:3128/"), "istiod", 15012).unwrap().unwrap();
        assert_eq!((format!("{proxy:?}"), proxy.authorization.as_deref()), ("proxy:3128".into(), Some("Basic dTpw")));
        assert_eq!(format!("{:?}", for_host(&vars("proxy"), "istiod", 1).unwrap().unwrap()), "proxy:80");
        // As grpc-go: escapes stand for what they mean, a user without a password has an empty one, https is the same.
        let login = |url: &str| for_host(&vars(url), "istiod", 15012).unwrap().unwrap().authorization;
        assert_eq!(login("https://u%40x:p%3aq@proxy:3128").as_deref(), Some("Basic dUB4OnA6cQ=="));
        assert_eq!(format!("{:?}", for_host(&vars("https://proxy"), "istiod", 1).unwrap().unwrap()), "proxy:443");
        assert_eq!(login("HTTP://u@proxy").as_deref(), Some("Basic dTo="));
        for wrong in ["socks5://proxy", "http://u%4@proxy"] {
            assert!(for_host(&vars(wrong), "istiod", 1).is_err(), "{wrong}");
        }
        assert_eq!(for_host(&Vars::from_pairs([("A", "b")]), "istiod", 1), Ok(None));
    }

    #[tokio::test]
    async fn tunnel_opens_or_says_why_not() {
        for (answer, opens) in
            [("HTTP/1.1 200 Connection established\r\n\r\nhello", true), ("HTTP/1.1 403 Forbidden\r\n\r\n", false)]
        {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let proxy = parse(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
            let playing = async {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = [0; 64];
                let read = stream.read(&mut request).await.unwrap();
                assert!(request[..read].starts_with(b"CONNECT istiod:15012 HTTP/1.1\r\n"));
                stream.write_all(answer.as_bytes()).await.unwrap();
            };
            let deadline = Instant::now() + Duration::from_secs(5);
            let (tunnel, ()) = tokio::join!(proxy.connect("istiod", 15012, deadline), playing);
            match tunnel {
                Ok(mut tunnel) => {
                    let mut rest = String::new();
                    tunnel.read_to_string(&mut rest).await.unwrap();
                    assert!(opens && rest == "hello");
                }
                Err(error) => assert!(!opens && error.to_string().contains("403 Forbidden"), "{error}"),
            }
        }
    }
}
