//! `http://` and `https://` URLs (RFC 3986), as far as a client needs them: where to dial and what to ask for.

use std::fmt;

use base64::{Engine, engine::general_purpose::STANDARD};

use super::Error;

/// Where a request goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Url {
    /// Whether TLS is used (`https`).
    pub tls: bool,
    /// Name or address; IPv6 without brackets.
    pub host: String,
    /// The port, the scheme's own when the URL names none.
    pub port: u16,
    /// Path and query as they stand in the request line; begins with `/`.
    pub target: String,
}

impl Url {
    /// Reads an absolute URL. User information is refused, a fragment dropped, an empty path becomes `/`. What a path may not hold
    /// is escaped, as Go's client does.
    ///
    /// # Errors
    /// [`Error::Url`] that quotes the text and says what is wrong.
    pub fn parse(text: &str) -> Result<Url, Error> {
        let wrong = |why: &str| Error::Url(format!("URL {text:?}: {why}"));
        let (scheme, rest) = text.split_once("://").ok_or_else(|| wrong("needs http:// or https://"))?;
        let tls = match scheme.to_ascii_lowercase().as_str() {
            "http" => false,
            "https" => true,
            _ => return Err(wrong("needs http:// or https://")),
        };
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, target) = rest.split_at(end);
        if authority.contains('@') {
            return Err(wrong("user information is not supported"));
        }
        let (host, port) = split_authority(authority).ok_or_else(|| wrong("bad host or port"))?;
        let port = port.unwrap_or(if tls { 443 } else { 80 });
        let target = clean_target(target).ok_or_else(|| wrong("control character in the path"))?;
        Ok(Url { tls, host: host.to_owned(), port, target })
    }

    /// Where a `Location` leads from here: absolute, `//host/path`, `/path`, `?query` or relative (RFC 3986 §5).
    ///
    /// # Errors
    /// As [`Url::parse`].
    pub fn join(&self, location: &str) -> Result<Url, Error> {
        let scheme = if self.tls { "https" } else { "http" };
        let first = location.find([':', '/', '?', '#']);
        if first.is_some_and(|at| location[at..].starts_with(':')) {
            return Url::parse(location);
        }
        if location.starts_with("//") {
            return Url::parse(&format!("{scheme}:{location}"));
        }
        let (path, query) = self.target.split_once('?').map_or((&*self.target, ""), |(path, query)| (path, query));
        let target = match location.as_bytes().first() {
            Some(b'/') => location.to_owned(),
            Some(b'?') => format!("{path}{location}"),
            None | Some(b'#') if query.is_empty() => path.to_owned(),
            None | Some(b'#') => format!("{path}?{query}"),
            Some(_) => format!("{}/{location}", path.rsplit_once('/').map_or("", |(folder, _)| folder)),
        };
        let target = clean_target(&target).ok_or_else(|| Error::Url(format!("location {location:?}: bad path")))?;
        Ok(Url { target: remove_dots(&target), ..self.clone() })
    }

    /// `host` or `host:port`, brackets around IPv6, without the scheme's own port: what `Host` says.
    pub fn authority(&self) -> String {
        if self.port == if self.tls { 443 } else { 80 } { self.bracketed() } else { self.peer() }
    }

    /// `host:port`, brackets around IPv6.
    pub fn peer(&self) -> String {
        format!("{}:{}", self.bracketed(), self.port)
    }

    fn bracketed(&self) -> String {
        if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() }
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}{}", if self.tls { "https" } else { "http" }, self.authority(), self.target)
    }
}

/// Host and port of an authority; IPv6 must have brackets, which are taken off.
fn split_authority(authority: &str) -> Option<(&str, Option<u16>)> {
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (host, tail) = rest.split_once(']')?;
            host.parse::<std::net::Ipv6Addr>().ok()?;
            (host, if tail.is_empty() { None } else { Some(tail.strip_prefix(':')?) })
        }
        None => match authority.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        },
    };
    let known = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~:%".contains(&byte);
    if host.is_empty() || !host.bytes().all(known) {
        return None;
    }
    match port {
        None | Some("") => Some((host, None)),
        Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => Some((host, Some(digits.parse().ok()?))),
        Some(_) => None,
    }
}

/// The target without fragment, beginning with `/`; `None` when it would break the request line.
pub(super) fn clean_target(target: &str) -> Option<String> {
    let target = target.split('#').next().unwrap_or_default();
    let mut clean = if target.starts_with('/') { String::new() } else { "/".to_owned() };
    let mut in_path = true;
    for c in target.chars() {
        in_path &= c != '?';
        match c {
            '\0'..='\x1f' | '\x7f' => return None,
            ' ' => clean.push_str("%20"),
            _ if in_path && (!c.is_ascii() || "\"<>\\^`{|}".contains(c)) => {
                c.encode_utf8(&mut [0; 4]).bytes().for_each(|byte| clean.push_str(&format!("%{byte:02X}")));
            }
            _ => clean.push(c),
        }
    }
    Some(clean)
}

/// Removes `.` and `..` segments from the path of a target.
fn remove_dots(target: &str) -> String {
    let (path, query) = target.find('?').map_or((target, ""), |at| target.split_at(at));
    let mut kept: Vec<&str> = Vec::new();
    let mut segments = path.split('/').skip(1).peekable();
    while let Some(segment) = segments.next() {
        match segment {
            "." | ".." => {
                if segment == ".." {
                    kept.pop();
                }
                if segments.peek().is_none() {
                    kept.push("");
                }
            }
            _ => kept.push(segment),
        }
    }
    format!("/{}{query}", kept.join("/"))
}

/// Decodes `%xx`; `None` for a broken escape. Bytes that are no UTF-8 are replaced.
pub(super) fn percent_decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        let mut digit = || (rest.next()? as char).to_digit(16);
        bytes.push(if byte == b'%' { u8::try_from(digit()? * 16 + digit()?).ok()? } else { byte });
    }
    Some(String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
}

/// The header's value for the `user:password` of a URL, both percent-encoded there; `None` for a broken escape.
pub fn basic(login: &str) -> Option<String> {
    let (user, password) = login.split_once(':').unwrap_or((login, ""));
    Some(format!("Basic {}", STANDARD.encode(format!("{}:{}", percent_decode(user)?, percent_decode(password)?))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_urls() {
        for (text, shown) in [
            ("http://a", "http://a/"),
            ("HTTPS://a:443/x?y#z", "https://a/x?y"),
            ("http://a:8080?q", "http://a:8080/?q"),
            ("http://[::1]:15000/stats?usedonly&filter=^(a|b)$", "http://[::1]:15000/stats?usedonly&filter=^(a|b)$"),
            ("http://[::1]", "http://[::1]/"),
            ("http://a:/p", "http://a/p"),
            ("http://a/ b|é%7C?c d|é", "http://a/%20b%7C%C3%A9%7C?c%20d|é"),
        ] {
            assert_eq!(Url::parse(text).unwrap().to_string(), shown, "{text}");
        }
        assert_eq!(Url::parse("http://[::1]:80/").unwrap().host, "::1");
    }

    #[test]
    fn refuses_what_it_cannot_ask_for() {
        for text in [
            "",
            "a/b",
            "ftp://a/",
            "http://",
            "http:///x",
            "http://a:b/",
            "http://a:70000/",
            "http://u@a/",
            "http://a/\tb",
        ] {
            assert!(matches!(Url::parse(text), Err(Error::Url(_))), "{text}");
        }
        for text in
            ["http://::1/", "http://[[::1]]:80/", "http://[a]/", "http://a b/", "http://[::1]x/", "http://a:+80/"]
        {
            assert!(matches!(Url::parse(text), Err(Error::Url(_))), "{text}");
        }
    }

    #[test]
    fn joins_locations() {
        let base = Url::parse("http://a:81/b/c/d?q").unwrap();
        for (location, shown) in [
            ("https://x/y", "https://x/y"),
            ("//x/y", "http://x/y"),
            ("/y", "http://a:81/y"),
            ("y", "http://a:81/b/c/y"),
            ("../y?z", "http://a:81/b/y?z"),
            ("./", "http://a:81/b/c/"),
            ("../../../../y", "http://a:81/y"),
            ("?z", "http://a:81/b/c/d?z"),
            ("", "http://a:81/b/c/d?q"),
            ("y?u=http://z", "http://a:81/b/c/y?u=http://z"),
        ] {
            assert_eq!(base.join(location).unwrap().to_string(), shown, "{location}");
        }
        assert!(base.join("ftp:x").is_err());
    }
}
