//! `/app-health/…` and `/app-lifecycle/…`: the kubelet's rewritten probes and hooks, carried out on its behalf.
//!
//! The answer is the application's: its status, the beginning of its body, none of its headers. The reason of a failure is logged in
//! scope `probes` and not shown to the caller.

use std::{collections::BTreeMap, fmt::Display, future::Future, io, time::Duration};

use tokio::time::Instant;

use super::probers::{Check, Probers};
use crate::{
    base::later,
    net::http1::{Error, Headers, Url, server::Request},
    probe::{self, Http, Idle, Source, Tls},
};

/// How much of an application's body is passed on: what fits into a pod's events; Istio's and the kubelet's limit.
const MAX_BODY: usize = 10 * 1024;

/// Fields that belong to the connection between kubelet and agent, not to the application.
const NOT_FORWARDED: [&str; 8] =
    ["connection", "content-length", "expect", "keep-alive", "proxy-connection", "te", "transfer-encoding", "upgrade"];

/// How probes are carried out.
#[derive(Debug, Clone, Default)]
pub struct Config {
    /// What can be asked for.
    pub probers: Probers,
    /// Where the applications are: an address, or empty or `localhost` for this machine.
    pub host: String,
    /// Whether HTTPS probes offer HTTP/2.
    pub http2: bool,
    /// Whether connections are kept for the next probe.
    pub keep_alive: bool,
    /// The status port, which a probe's `Host` must not show to the application.
    pub status_port: u16,
}

/// Carries out probes.
pub struct Applications {
    config: Config,
    tls: Tls,
    /// Kept connections by prober, where they are kept.
    idle: BTreeMap<String, Idle>,
}

/// Outcomes of a probe.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nobody configured it.
    Unknown,
    /// What the application said.
    Answered(u16, Vec<u8>),
    /// It is well.
    Passed,
    /// It is not, or does not answer.
    Failed,
}

impl Applications {
    /// Ready for probes.
    pub fn new(config: Config) -> Applications {
        let paths = config.probers.keys().filter(|_| config.keep_alive);
        let idle = paths.map(|path| (path.clone(), Idle::default())).collect();
        Applications { tls: Tls::new(config.http2), config, idle }
    }

    /// Carries out the probe of that name, which is a path.
    pub async fn probe(&self, name: &str, request: &Request) -> Outcome {
        let Some(prober) = self.config.probers.get(name) else { return Outcome::Unknown };
        let failed = |reason: &dyn Display| {
            log::warn!(target: "probes", "probe {name}: {reason}");
            Outcome::Failed
        };
        let (Check::Http { port, .. } | Check::Tcp { port } | Check::Grpc { port, .. }) = prober.check;
        let Some(port) = u16::try_from(port).ok().filter(|port| *port > 0) else {
            return failed(&format!("port {port} is impossible"));
        };
        match &prober.check {
            Check::Http { path, tls, .. } => {
                let http = self.url(*tls, port, path).map(|url| Http {
                    url,
                    headers: self.headers(&request.headers, port),
                    source: Source::Passthrough,
                    body: MAX_BODY,
                    tls: &self.tls,
                    idle: self.idle.get(name),
                    deadline: (!prober.timeout.is_zero()).then(|| later(Instant::now(), prober.timeout)),
                });
                let answered = async { http?.get().await };
                match answered.await {
                    Ok(answer) if (300..400).contains(&answer.status) => Outcome::Passed,
                    Ok(answer) => Outcome::Answered(answer.status, answer.body),
                    Err(error) => failed(&error),
                }
            }
            Check::Tcp { .. } => {
                let connecting = probe::tcp(&self.config.host, port, Source::Passthrough);
                match within(prober.timeout, connecting).await {
                    Ok(_) => Outcome::Passed,
                    Err(error) => failed(&error),
                }
            }
            Check::Grpc { service, .. } => {
                let target = (&*self.config.host, port);
                let agent = request.headers.get("user-agent");
                match probe::grpc(target, service, Source::Passthrough, agent, prober.timeout).await {
                    Ok(()) => Outcome::Passed,
                    Err(error) => failed(&error),
                }
            }
        }
    }

    fn url(&self, tls: bool, port: u16, path: &str) -> Result<Url, Error> {
        let host = if self.config.host.is_empty() { "localhost" } else { &self.config.host };
        let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        let (scheme, slash) = (if tls { "https" } else { "http" }, if path.starts_with('/') { "" } else { "/" });
        Url::parse(&format!("{scheme}://{host}:{port}{slash}{path}"))
    }

    /// The kubelet's fields; in `Host` the status port becomes the application's.
    fn headers(&self, asked: &Headers, port: u16) -> Headers {
        let mut headers = Headers::default();
        let is_forwarded = |name: &str| !NOT_FORWARDED.iter().any(|other| other.eq_ignore_ascii_case(name));
        for (name, value) in asked.iter().filter(|(name, _)| is_forwarded(name)) {
            let host = std::str::from_utf8(value).ok().filter(|_| name.eq_ignore_ascii_case("host"));
            match host.and_then(|host| host.strip_suffix(&format!(":{}", self.config.status_port))) {
                Some(host) => headers.add(name, format!("{host}:{port}")),
                None => headers.add(name, value.clone()),
            }
        }
        headers
    }
}

/// What `connecting` gives, in time; no limit where `timeout` is zero.
async fn within<T>(timeout: Duration, connecting: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    if timeout.is_zero() {
        return connecting.await;
    }
    tokio::time::timeout(timeout, connecting).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };
    use tokio_rustls::TlsAcceptor;

    use super::*;
    use crate::{net::tls::testing, status::probers};

    #[tokio::test]
    async fn follows_from_http_to_https_of_the_same_host() {
        let plain = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let secure = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = |listener: &TcpListener| listener.local_addr().unwrap().port();
        let probers = format!(r#"{{"/app-health/a/livez":{{"httpGet":{{"port":{}}}}}}}"#, port(&plain));
        let probers = probers::parse(&probers).unwrap();
        let applications = Applications::new(Config { probers, host: "127.0.0.1".to_owned(), ..Config::default() });
        let application = async {
            let mut head = [0; 1024];
            let (mut stream, _) = plain.accept().await.unwrap();
            let _ = stream.read(&mut head).await.unwrap();
            let location = format!("Location: https://127.0.0.1:{}/", port(&secure));
            let answer = format!("HTTP/1.1 302 Found\r\n{location}\r\nContent-Length: 0\r\n\r\n");
            stream.write_all(answer.as_bytes()).await.unwrap();
            let (stream, _) = secure.accept().await.unwrap();
            let mut stream = TlsAcceptor::from(testing::server(|_| {}).1).accept(stream).await.unwrap();
            let _ = stream.read(&mut head).await.unwrap();
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await.unwrap();
            std::future::pending().await
        };
        let request = Request {
            method: "GET".to_owned(),
            path: "/app-health/a/livez".to_owned(),
            query: None,
            headers: Headers::default(),
            peer: None,
        };
        let outcome = tokio::select! {
            outcome = applications.probe("/app-health/a/livez", &request) => outcome,
            () = application => unreachable!("it serves on"),
        };
        assert_eq!(outcome, Outcome::Answered(200, b"ok".to_vec()));
    }

    #[test]
    fn host_shows_the_applications_port() {
        let applications = Applications::new(Config { status_port: 15020, ..Config::default() });
        for (sent, seen) in [
            ("10.1.2.3:15020", "10.1.2.3:8080"),
            ("[fd00::5]:15020", "[fd00::5]:8080"),
            ("shop", "shop"),
            ("shop:9999", "shop:9999"),
            ("shop:115020", "shop:115020"),
        ] {
            let mut asked = Headers::default();
            asked.add("HOST", sent);
            asked.add("X-One", "a");
            asked.add("Content-Length", "3");
            asked.add("x-one", "b:15020");
            let headers = applications.headers(&asked, 8080);
            assert_eq!(headers.get("host"), Some(seen));
            assert_eq!(headers.all("X-One").collect::<Vec<_>>(), ["a", "b:15020"]);
            assert!(!headers.has("content-length"));
        }
    }
}
