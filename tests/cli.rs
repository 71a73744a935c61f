//! The sub-commands that ask over HTTP, run as people and hooks run them, against a scripted server.

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpListener},
    process::{Command, Output},
    sync::Arc,
    thread::{self, JoinHandle},
};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::TlsAcceptor;

use crate::support::{TempDir, ca::Ca};

/// Answers one connection after the other with these texts; the requests' first lines.
fn server(port: u16, answers: Vec<String>) -> (u16, JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let serve = move || {
        let mut requests = Vec::new();
        for answer in answers {
            let (mut connection, _) = listener.accept().unwrap();
            let mut request = [0; 1024];
            let length = connection.read(&mut request).unwrap();
            let text = String::from_utf8_lossy(&request[..length]);
            requests.push(text.lines().next().unwrap_or_default().to_owned());
            connection.write_all(answer.as_bytes()).unwrap();
            connection.shutdown(Shutdown::Write).unwrap();
        }
        requests
    };
    (port, thread::spawn(serve))
}

fn answer(status: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

fn footman(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_footman")).args(args).env_clear().output().unwrap()
}

#[test]
fn wait_asks_until_200() {
    let answers = vec![
        answer("503 Service Unavailable", "not yet"),
        answer("204 No Content", ""),
        "nonsense".to_owned(),
        "HTTP/1.1 302 Found\r\nLocation: /there\r\nContent-Length: 0\r\n\r\n".to_owned(),
        answer("200 OK", &"ready".repeat(1 << 19)),
    ];
    let (port, requests) = server(0, answers);
    let url = format!("--url=http://127.0.0.1:{port}/healthz/ready");
    let output = footman(&["wait", &url, "--periodMillis=1", "--timeoutSeconds=20"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let requests = requests.join().unwrap();
    assert_eq!(requests[3..], ["GET /healthz/ready HTTP/1.1", "GET /there HTTP/1.1"]);
}

#[test]
fn redirects_end_at_the_tenth_request() {
    let answers = (0..10).map(|n| format!("HTTP/1.1 302 X\r\nLocation: /{n}\r\nContent-Length: 0\r\n\r\n"));
    let (port, requests) = server(0, answers.collect());
    let output =
        footman(&["wait", &format!("--url=http://127.0.0.1:{port}/"), "--timeoutSeconds=3", "--periodMillis=60000"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("stopped after 10 redirects"), "{output:?}");
    assert_eq!(requests.join().unwrap().len(), 10);
}

#[tokio::test]
async fn wait_asks_over_tls_whom_the_system_trusts() {
    let ca = Ca::new("test root").unwrap();
    let folder = TempDir::new();
    let roots = folder.write("roots.pem", ca.root_pem());
    let stranger = folder.write("stranger.pem", Ca::new("another root").unwrap().root_pem());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("--url=https://localhost:{}/", listener.local_addr().unwrap().port());
    let mut config = Arc::unwrap_or_clone(ca.server_config(&["localhost"]).unwrap());
    config.alpn_protocols.clear();
    let tls = TlsAcceptor::from(Arc::new(config));
    tokio::spawn(async move {
        loop {
            let stream = listener.accept().await.unwrap().0;
            let Ok(mut stream) = tls.accept(stream).await else { continue };
            let mut request = [0; 1024];
            let _ = stream.read(&mut request).await.unwrap();
            stream.write_all(answer("200 OK", "ready").as_bytes()).await.unwrap();
            stream.shutdown().await.unwrap();
        }
    });
    for (roots, code, said) in [(roots, 0, ""), (stranger, 1, "UnknownIssuer"), ("none".into(), 1, "SSL_CERT_FILE")] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_footman"));
        command.args(["wait", &url, "--periodMillis=300", "--timeoutSeconds=1"]).env_clear();
        command.env("SSL_CERT_FILE", &roots).env("SSL_CERT_DIR", "none");
        let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{stderr}");
        assert!(stderr.contains(said), "{stderr}");
    }
}

#[test]
fn wait_that_gives_up_says_why() {
    let (port, _requests) = server(0, vec![answer("503 Service Unavailable", "no workers"); 1]);
    let url = format!("--url=http://127.0.0.1:{port}/");
    let args = ["wait", &url, "--periodMillis=600", "--timeoutSeconds=1", "--requestTimeoutMillis=300"];
    let flags = ["--log_as_json", "--log_output_level=error"];
    let output = footman(&[&args[..], &flags].concat());
    let log = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{log}");
    let text = "timeout waiting for Envoy proxy to become ready. Last error: HTTP status code 503, body: no workers";
    let line: serde_json::Value = serde_json::from_str(&log).unwrap();
    assert_eq!((&line["msg"], output.stderr.as_slice()), (&text.into(), &b""[..]));
}

#[test]
fn request_prints_the_body_and_nothing_else() {
    // One of the few ports that may be asked; where it is taken, another test machine's Envoy runs.
    let answers = vec![answer("200 OK", "{}\n"), answer("404 Not Found", "no"), answer("503 Oh", "why")];
    let (_, requests) = server(15004, answers);
    let run = |path| footman(&["request", "--debug-port=15004", "GET", path]);
    let [ok, missing, failed] = [run("/a?b=c"), run("d"), run("e")];
    assert_eq!((ok.status.code(), ok.stdout.as_slice()), (Some(0), &b"{}\n\n"[..]));
    assert_eq!((missing.status.code(), missing.stdout.as_slice()), (Some(0), &b"no\n"[..]));
    assert_eq!(failed.status.code(), Some(1));
    let said = String::from_utf8(failed.stderr).unwrap();
    assert_eq!(said, "Error: received unsuccessful status code 503: why\n");
    let paths = ["/a?b=c", "/d", "/e"].map(|path| format!("GET {path} HTTP/1.1"));
    assert_eq!(requests.join().unwrap(), paths);
}
