//! `HTTP_PROXY`, `HTTPS_PROXY` and `NO_PROXY`, as Go's HTTP client reads them.

use std::net::IpAddr;

use crate::net::http1::{Url, basic};

use super::guard::Block;

/// Which proxy a request goes through.
#[derive(Debug, Clone, Default)]
pub(in crate::wasm) struct Proxies {
    http: Option<Proxy>,
    https: Option<Proxy>,
    exempt: Vec<Exempt>,
}

/// A proxy.
#[derive(Clone, PartialEq, Eq)]
pub(in crate::wasm) struct Proxy {
    pub(in crate::wasm) url: Url,
    /// The value of `Proxy-Authorization`.
    pub(in crate::wasm) authorization: Option<String>,
}

/// One entry of `NO_PROXY`.
#[derive(Debug, Clone)]
enum Exempt {
    All,
    Range(Block),
    Address(IpAddr),
    /// A domain with everything below it, or only below it, and the port if one is given.
    Domain {
        suffix: String,
        itself: bool,
        port: Option<u16>,
    },
}

impl Proxies {
    /// Reads the variables; an error names the one that is wrong and does not quote it, since it may hold a password.
    pub(in crate::wasm) fn new(http: &str, https: &str, no_proxy: &str) -> Result<Proxies, String> {
        let http = proxy("HTTP_PROXY", http)?;
        Ok(Proxies {
            http,
            https: proxy("HTTPS_PROXY", https)?,
            exempt: no_proxy.split(',').filter_map(exempt).collect(),
        })
    }

    /// The proxy for `url`; this machine is never asked through one.
    pub(in crate::wasm) fn for_url(&self, url: &Url) -> Option<&Proxy> {
        let proxy = if url.tls { &self.https } else { &self.http }.as_ref()?;
        let host = url.host.trim_end_matches('.').to_ascii_lowercase();
        let ip = host.parse::<IpAddr>().ok();
        let local = host == "localhost" || ip.is_some_and(|ip| ip.is_loopback());
        let direct = local || self.exempt.iter().any(|exempt| exempt.covers(&host, ip, url.port));
        (!direct).then_some(proxy)
    }
}

fn proxy(name: &str, text: &str) -> Result<Option<Proxy>, String> {
    if text.is_empty() {
        return Ok(None);
    }
    let (scheme, rest) = text.split_once("://").unwrap_or(("http", text));
    let (user, rest) = rest.rsplit_once('@').map_or((None, rest), |(user, rest)| (Some(user), rest));
    let wrong = || format!("{name}: not the URL of an HTTP proxy (http://host:port)");
    let url = Url::parse(&format!("{scheme}://{rest}")).map_err(|_| wrong())?;
    let authorization = user.map(|user| basic(user).ok_or_else(wrong)).transpose()?;
    Ok(Some(Proxy { url, authorization }))
}

fn exempt(text: &str) -> Option<Exempt> {
    let text = text.trim().to_ascii_lowercase();
    if text.is_empty() {
        return None;
    }
    if text == "*" {
        return Some(Exempt::All);
    }
    if let Some(block) = Block::parse(&text) {
        return Some(Exempt::Range(block));
    }
    if let Ok(ip) = text.trim_matches(['[', ']']).parse() {
        return Some(Exempt::Address(ip));
    }
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) => (host, port.parse().ok()),
        None => (text.as_str(), None),
    };
    let below = host.strip_prefix("*.").or_else(|| host.strip_prefix('.'));
    Some(Exempt::Domain { suffix: below.unwrap_or(host).to_owned(), itself: below.is_none(), port })
}

impl Exempt {
    fn covers(&self, host: &str, ip: Option<IpAddr>, to: u16) -> bool {
        match self {
            Exempt::All => true,
            Exempt::Range(block) => ip.is_some_and(|ip| block.contains(ip)),
            Exempt::Address(address) => ip == Some(*address),
            Exempt::Domain { suffix, itself, port } => {
                let below = host.strip_suffix(suffix.as_str()).is_some_and(|rest| rest.ends_with('.'));
                port.is_none_or(|port| port == to) && (below || (*itself && host == suffix))
            }
        }
    }
}

impl std::fmt::Debug for Proxy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.url.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exemptions() {
        let proxies = Proxies::new(
            "proxy:3128",
            "http://u:p@proxy:3128",
            "a.test, .b.test,*.c.test,10.0.0.0/8,192.0.2.1,d.test:81,fd00::1",
        )
        .unwrap();
        for (url, direct) in [
            ("http://a.test/", true),
            ("http://x.a.test/", true),
            ("http://xa.test/", false),
            ("http://b.test/", false),
            ("https://x.b.test/", true),
            ("https://x.c.test/", true),
            ("http://10.1.2.3/", true),
            ("http://192.0.2.1/", true),
            ("http://192.0.2.2/", false),
            ("http://d.test:81/", true),
            ("http://d.test/", false),
            ("http://[fd00::1]/", true),
            ("http://LOCALHOST:1/", true),
            ("http://127.0.0.9/", true),
            ("http://[::1]/", true),
        ] {
            assert_eq!(proxies.for_url(&Url::parse(url).unwrap()).is_none(), direct, "{url}");
        }
        let all = Proxies::new("proxy:3128", "", "*").unwrap();
        assert!(all.for_url(&Url::parse("http://x/").unwrap()).is_none());
    }

    #[test]
    fn login_travels_apart_and_is_never_shown() {
        let proxies = Proxies::new("", "http://user:hunter2@proxy:3128", "").unwrap();
        let proxy = proxies.for_url(&Url::parse("https://x/").unwrap()).unwrap();
        assert_eq!(
            (proxy.url.peer().as_str(), proxy.authorization.as_deref()),
            ("proxy:3128", Some("Basic dXNlcjpodW50ZXIy"))
        );
        assert!(!format!("{proxies:?}").contains("hunter2"));
        // An escape stands for what it means, as in Go.
        let proxies = Proxies::new("http://a%40b@proxy", "", "").unwrap();
        let proxy = proxies.for_url(&Url::parse("http://x/").unwrap()).unwrap();
        assert_eq!(proxy.authorization.as_deref(), Some("Basic YUBiOg=="));
        let error = Proxies::new("socks5://user:hunter2@proxy", "", "").unwrap_err();
        assert!(error.starts_with("HTTP_PROXY: ") && !error.contains("hunter2"), "{error}");
    }
}
