//! The check itself, with the texts that istiod shows.

use std::time::Duration;

use tokio::time::Instant;

use crate::{
    base::later,
    config::HealthCheck,
    grpc::Code,
    net::http1::{Headers, Url},
    probe::{self, GrpcError, Http, Source, Tls},
};

/// Who asks, when the configuration does not say.
const USER_AGENT: &str = "istio-probe/1.0";

/// What is asked, ready to run.
#[derive(Debug, Clone)]
pub struct Check {
    kind: Kind,
    timeout: Duration,
}

#[derive(Debug, Clone)]
enum Kind {
    Http {
        url: String,
        headers: Headers,
        tls: Tls,
    },
    Tcp {
        host: String,
        port: u16,
    },
    Exec(Vec<String>),
    Grpc {
        host: String,
        port: u16,
        service: String,
    },
    /// What cannot be checked, and why.
    Impossible(&'static str),
}

impl Check {
    /// `host` is where the application is when the configuration does not say.
    pub fn new(check: Option<&HealthCheck>, host: &str, timeout: Duration) -> Check {
        let or_default = |configured: &str| if configured.is_empty() { host } else { configured }.to_owned();
        let kind = match check {
            None => Kind::Impossible("readinessProbe: none of httpGet, tcpSocket, exec and grpc is given"),
            Some(HealthCheck::Exec(command)) if command.is_empty() => {
                Kind::Impossible("readinessProbe.exec.command is empty")
            }
            Some(HealthCheck::Exec(command)) => Kind::Exec(command.clone()),
            Some(HealthCheck::Tcp { host, port }) => Kind::Tcp { host: or_default(host), port: *port },
            Some(HealthCheck::Grpc { port, service }) => {
                Kind::Grpc { host: or_default(""), port: *port, service: service.clone() }
            }
            Some(HealthCheck::Http { path, port, host, scheme, headers }) => {
                let is_tls = scheme.eq_ignore_ascii_case("https");
                Kind::Http {
                    url: url(is_tls, &or_default(host), *port, path),
                    headers: request_headers(headers),
                    tls: Tls::new(true),
                }
            }
        };
        Check { kind, timeout }
    }

    /// Runs once.
    ///
    /// # Errors
    /// Why the application is not healthy.
    pub async fn run(&self) -> Result<(), String> {
        match &self.kind {
            Kind::Http { url, headers, tls } => self.http(url, headers, tls).await,
            Kind::Tcp { host, port } => {
                let connected = tokio::time::timeout(self.timeout, probe::tcp(host, *port, Source::Any)).await;
                let connected = connected.map_err(|_| format!("dial tcp {host}:{port}: i/o timeout"))?;
                connected.map(drop).map_err(|error| format!("dial tcp {error}"))
            }
            Kind::Exec(command) => probe::exec(command, self.timeout).await.map_err(|error| error.to_string()),
            Kind::Grpc { host, port, service } => {
                let checked = probe::grpc((host, *port), service, Source::Any, Some(USER_AGENT), self.timeout).await;
                checked.map_err(|error| self.grpc_text(&error, *port))
            }
            Kind::Impossible(reason) => Err((*reason).to_owned()),
        }
    }

    async fn http(&self, url: &str, headers: &Headers, tls: &Tls) -> Result<(), String> {
        let http = Http {
            url: Url::parse(url).map_err(|error| error.to_string())?,
            headers: headers.clone(),
            source: Source::Passthrough,
            body: 0,
            tls,
            idle: None,
            deadline: Some(later(Instant::now(), self.timeout)),
        };
        match http.get().await {
            Err(error) => Err(format!("Get {url:?}: {error}")),
            Ok(answer) if (300..400).contains(&answer.status) => {
                log::debug!(target: "healthcheck", "{url} redirects to another host, which is not asked: healthy");
                Ok(())
            }
            Ok(answer) if (200..300).contains(&answer.status) => Ok(()),
            Ok(answer) => Err(format!("status code was not from [200,400), bad code {}", answer.status)),
        }
    }

    /// Istio's words.
    fn grpc_text(&self, error: &GrpcError, port: u16) -> String {
        match error {
            GrpcError::Connect(_) => {
                format!("failed to connect health check grpc service on port {port}: context deadline exceeded")
            }
            GrpcError::NotServing(status) => {
                format!("health rpc probe failed: the service is {}", status.as_str_name())
            }
            GrpcError::Call(status) => match status.code {
                Code::Unimplemented => format!(
                    "service on port {port} doesn't implement the grpc health protocol grpc.health.v1.Health: {status}"
                ),
                Code::DeadlineExceeded => format!("health rpc probe timed out after {:?}: {status}", self.timeout),
                code => format!("health rpc probe failed with status {}: {status}", code.name()),
            },
        }
    }
}

/// The path may be any text: what no request line can hold is escaped.
fn url(tls: bool, host: &str, port: u16, path: &str) -> String {
    let mut url = if tls { "https://" } else { "http://" }.to_owned();
    let bracketed = host.contains(':') && !host.starts_with('[');
    url.push_str(&if bracketed { format!("[{host}]:{port}") } else { format!("{host}:{port}") });
    if !path.starts_with('/') {
        url.push('/');
    }
    for c in path.chars() {
        match c {
            '\0'..=' ' | '\x7f' => url.push_str(&format!("%{:02X}", u32::from(c))),
            _ => url.push(c),
        }
    }
    url
}

fn request_headers(configured: &[(String, String)]) -> Headers {
    let mut headers = Headers::default();
    for (name, value) in configured {
        headers.add(name, value.clone());
    }
    if !headers.has("user-agent") {
        headers.add("User-Agent", USER_AGENT);
    }
    headers
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;

    #[test]
    fn any_path_makes_a_url() {
        for (path, wanted) in [("", "/"), ("ready", "/ready"), ("/a?b=c d", "/a?b=c%20d"), ("/\n", "/%0A")] {
            assert_eq!(url(false, "10.0.0.5", 80, path), format!("http://10.0.0.5:80{wanted}"));
        }
        assert_eq!(url(true, "::1", 443, "/"), "https://[::1]:443/");
    }

    #[tokio::test]
    async fn probes_that_cannot_work_name_their_field() {
        let run = |check: Option<HealthCheck>| async move {
            Check::new(check.as_ref(), "localhost", Duration::from_secs(1)).run().await.unwrap_err()
        };
        assert!(run(None).await.contains("httpGet, tcpSocket, exec and grpc"));
        assert!(run(Some(HealthCheck::Exec(Vec::new()))).await.contains("exec.command"));
    }

    #[tokio::test]
    async fn a_redirect_to_another_host_is_healthy_and_not_followed() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let check = HealthCheck::Http {
            path: "/".to_owned(),
            port: listener.local_addr().unwrap().port(),
            host: String::new(),
            scheme: String::new(),
            headers: Vec::new(),
        };
        let check = Check::new(Some(&check), "127.0.0.1", Duration::from_secs(10));
        let application = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let _ = stream.read(&mut [0; 1024]).await.unwrap();
            let answer = "HTTP/1.1 302 Found\r\nLocation: http://outside.invalid/\r\nContent-Length: 0\r\n\r\n";
            stream.write_all(answer.as_bytes()).await.unwrap();
        };
        assert_eq!(tokio::join!(check.run(), application).0, Ok(()));
    }

    #[test]
    fn grpc_failures_in_istios_words() {
        use crate::{grpc::Status, proto::grpc::health::v1::health_check_response::ServingStatus};
        let check = Check::new(None, "localhost", Duration::from_secs(1));
        let call = |code, message: &str| GrpcError::Call(Status::new(code, message));
        for (error, text) in [
            (
                GrpcError::Connect(std::io::ErrorKind::ConnectionRefused.into()),
                "failed to connect health check grpc service on port 7: context deadline exceeded",
            ),
            (
                call(Code::NotFound, "unknown service"),
                "health rpc probe failed with status NotFound: rpc error: code = NotFound desc = unknown service",
            ),
            (
                call(Code::DeadlineExceeded, "x"),
                "health rpc probe timed out after 1s: rpc error: code = DeadlineExceeded desc = x",
            ),
            (
                call(Code::Unimplemented, "x"),
                "service on port 7 doesn't implement the grpc health protocol grpc.health.v1.Health: \
                 rpc error: code = Unimplemented desc = x",
            ),
            (GrpcError::NotServing(ServingStatus::NotServing), "health rpc probe failed: the service is NOT_SERVING"),
        ] {
            assert_eq!(check.grpc_text(&error, 7), text);
        }
    }
}
