//! The server over an in-memory pipe, and its listener on a free port.

use std::io::Read;

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

use super::*;
use crate::base::Trigger;

/// Answers by path: `/echo` what it was asked, `/stream` five pieces, `/large` a compressible page, `/hang` never, `/none` nothing,
/// `/cut` half a stream.
struct Paths;

impl Service for Paths {
    fn call<'a>(&'a self, request: &'a Request, reply: Reply<'a>) -> Answer<'a> {
        Box::pin(async move {
            match &*request.path {
                "/stream" | "/cut" => {
                    let mut stream = reply.stream(200, "text/plain");
                    for piece in ["a", "b", &"c".repeat(2000), "", "d"] {
                        stream.write(piece.as_bytes()).await?;
                    }
                    if request.path == "/cut" { Err(io::ErrorKind::BrokenPipe.into()) } else { stream.finish().await }
                }
                "/large" => reply.send(200, "text/plain", "large ".repeat(1000).as_bytes()).await,
                "/hang" => std::future::pending().await,
                "/none" => Ok(()),
                "/204" => reply.send(204, "", b"").await,
                _ => {
                    let body = format!("{} {} {:?}", request.method, request.path, request.query);
                    reply.header("X-Path", request.path.clone()).send(200, "text/plain", body.as_bytes()).await
                }
            }
        })
    }
}

/// A client's end of a connection that is being served.
fn connect(limits: Limits) -> (DuplexStream, Trigger, tokio::task::JoinHandle<()>) {
    let (client, server) = duplex(1 << 20);
    let (trigger, drain) = Trigger::new();
    let served = tokio::spawn(async move {
        let slot = Slots::new(1).enter().unwrap();
        serve(Box::new(server), None, &Paths, &limits, slot, drain).await;
    });
    (client, trigger, served)
}

/// Everything that the server sends in reply to `input`, until it closes.
async fn talk(input: &[u8]) -> Vec<u8> {
    let (mut client, _trigger, _served) = connect(Limits::default());
    client.write_all(input).await.unwrap();
    let mut output = Vec::new();
    client.read_to_end(&mut output).await.unwrap();
    output
}

async fn text(input: &str) -> String {
    String::from_utf8(talk(input.as_bytes()).await).unwrap()
}

/// Status codes of all answers in `output`.
fn codes(output: &str) -> Vec<&str> {
    output.split("HTTP/1.").skip(1).map(|rest| &rest[2..5]).collect()
}

const CLOSE: &str = "GET /last HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";

#[tokio::test]
async fn answers_pipelined_requests_in_order() {
    let output = text(&format!(
        "\r\nPOST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 18\r\n\r\nGET / HTTP/1.1\r\n\r\n\
         POST /b%20c?d=%20 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n\
         GET http://x/abs HTTP/1.1\r\nHost: a\r\n\r\n{CLOSE}"
    ))
    .await;
    assert_eq!(codes(&output), ["200"; 4]);
    let place = |text: &str| output.find(text).unwrap_or_else(|| panic!("{text} in {output}"));
    let order =
        [place("POST /a None"), place("POST /b c Some(\"d=%20\")"), place("GET /abs None"), place("GET /last None")];
    assert!(order.is_sorted());
    assert_eq!(output.matches("Connection: close").count(), 1);
    assert_eq!(output.matches("Vary: Accept-Encoding").count(), 4);
}

#[tokio::test]
async fn head_has_no_body_and_no_compression() {
    let output = text("HEAD /large HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\nConnection: close\r\n\r\n").await;
    assert!(output.contains("Content-Length: 6000\r\n") && output.ends_with("\r\n\r\n"), "{output}");
    let output = text("HEAD /stream HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await;
    assert!(output.contains("Content-Type: text/plain") && output.ends_with("\r\n\r\n"), "{output}");
    assert_eq!(output.matches("\r\n\r\n").count(), 1);
}

#[tokio::test]
async fn streams_in_chunks_or_until_close() {
    let body = format!("ab{}d", "c".repeat(2000));
    let output = text(&format!("GET /stream HTTP/1.1\r\nHost: a\r\n\r\n{CLOSE}")).await;
    assert!(
        output.contains(&format!("\r\n\r\n7d2\r\n{}\r\n1\r\nd\r\n0\r\n\r\nHTTP/1.1 200", &body[..2002])),
        "{output}"
    );
    let output = text("GET /stream HTTP/1.0\r\n\r\n").await;
    assert!(output.ends_with(&format!("\r\n\r\n{body}")) && !output.contains("chunked"), "{output}");
}

#[tokio::test]
async fn broken_stream_does_not_look_complete() {
    let output = text("GET /cut HTTP/1.1\r\nHost: a\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
    assert_eq!(codes(&output), ["200"]);
    assert!(!output.ends_with("0\r\n\r\n"));
}

#[tokio::test]
async fn compresses_when_asked() {
    for path in ["/large", "/stream"] {
        let head = format!("GET {path} HTTP/1.0\r\nAccept-Encoding: gzip\r\n\r\n");
        let output = talk(head.as_bytes()).await;
        let at = output.windows(4).position(|window| window == b"\r\n\r\n").unwrap();
        let (head, body) = (String::from_utf8_lossy(&output[..at]), &output[at + 4..]);
        assert!(head.contains("Content-Encoding: gzip") && !head.contains("Content-Length"), "{head}");
        let mut plain = String::new();
        flate2::read::GzDecoder::new(body).read_to_string(&mut plain).unwrap();
        assert_eq!(plain.len(), if path == "/large" { 6000 } else { 2003 });
    }
    let small = text("GET /small HTTP/1.0\r\nAccept-Encoding: gzip\r\n\r\n").await;
    assert!(!small.contains("Content-Encoding"));
}

#[tokio::test]
async fn old_clients_keep_the_connection_only_when_they_ask() {
    let output =
        text("GET /a HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\nGET /b HTTP/1.0\r\n\r\nGET /c HTTP/1.0\r\n\r\n").await;
    assert_eq!(codes(&output), ["200", "200"]);
    assert_eq!(output.matches("HTTP/1.0 200 OK\r\n").count(), 2);
    assert!(output.contains("Connection: keep-alive"));
}

#[tokio::test]
async fn unclean_paths_are_redirected_and_never_served() {
    for (target, location) in [
        ("//debug//x", "/debug/x"),
        ("/healthz/ready/../../drain", "/drain"),
        ("http://x/./a/../b/?q=/../", "/b/?q=/../"),
        ("/a%2Fb/..?", "/?"),
        ("/../..", "/"),
        ("/.//\\outside", "/%5Coutside"),
    ] {
        let output = text(&format!("POST {target} HTTP/1.1\r\nHost: a\r\n\r\n{CLOSE}")).await;
        assert_eq!(codes(&output), ["307", "200"], "{target}");
        assert!(output.contains(&format!("\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n")), "{output}");
    }
    // A dot that is written otherwise is a name, as for the proxy in front.
    for (target, path) in [("/a/%2e%2e/b", "/a/../b"), ("/a%2F..%2Fb", "/a/../b"), ("/a/...", "/a/..."), ("/a/", "/a/")]
    {
        let output = text(&format!("GET {target} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")).await;
        assert!(output.contains(&format!("\r\nX-Path: {path}\r\n")), "{output}");
    }
}

#[tokio::test]
async fn requests_typed_by_hand_are_answered() {
    assert_eq!(codes(&text("GET / HTTP/1.1\nHost: a\n\nPOST /b HTTP/1.0\nX: y\n\n").await), ["200", "200"]);
    // What cannot become a request is refused before it is complete.
    for input in ["GET /healthz/ready\r\n", "\x16\x03\x01\x02", "\r\nhello\n"] {
        let (mut client, _trigger, _served) = connect(Limits::default());
        client.write_all(input.as_bytes()).await.unwrap();
        let mut start = [0; 12];
        client.read_exact(&mut start).await.unwrap();
        assert_eq!(&start, b"HTTP/1.1 400", "{input:?}");
    }
}

#[tokio::test]
async fn refuses_what_it_does_not_understand() {
    for (input, status) in [
        ("GARBAGE\r\n\r\n", "400"),
        ("GET / HTTP/1.1\r\n\r\n", "400"),
        ("GET / HTTP/9.9\r\nHost: a\r\n\r\n", "505"),
        ("GET a HTTP/1.1\r\nHost: a\r\n\r\n", "400"),
        ("GET /%zz HTTP/1.1\r\nHost: a\r\n\r\n", "400"),
        ("GET / HTTP/1.1\r\nHost: a\r\nExpect: 200-ok\r\n\r\n", "417"),
        ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "400"),
        ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2000000\r\n\r\n", "413"),
        ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "400"),
        ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n", "501"),
        ("GET /none HTTP/1.1\r\nHost: a\r\n\r\n", "500"),
    ] {
        let output = text(&format!("{input}GET /next HTTP/1.1\r\nHost: a\r\n\r\n")).await;
        assert_eq!(codes(&output), [status], "{input:?}: {output}");
        assert!(output.contains("Connection: close"), "{output}");
    }
    let giant = format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "x".repeat(100_000));
    assert_eq!(codes(&text(&giant).await), ["431"]);
    let many = format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "A: b\r\n".repeat(200));
    assert_eq!(codes(&text(&many).await), ["431"]);
    let chunks = format!(
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{}",
        "8\r\n12345678\r\n".repeat(140_000)
    );
    assert_eq!(codes(&text(&chunks).await), ["413"]);
}

#[tokio::test]
async fn continues_when_the_client_waits_for_it() {
    let (mut client, _trigger, _served) = connect(Limits::default());
    let head = b"POST /x HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 3\r\nConnection: close\r\n\r\n";
    client.write_all(head).await.unwrap();
    let mut interim = [0; 25];
    client.read_exact(&mut interim).await.unwrap();
    assert_eq!(&interim, b"HTTP/1.1 100 Continue\r\n\r\n");
    client.write_all(b"abc").await.unwrap();
    let mut rest = String::new();
    client.read_to_string(&mut rest).await.unwrap();
    assert_eq!(codes(&rest), ["200"]);
}

#[tokio::test(start_paused = true)]
async fn slow_clients_are_cut_off() {
    let limits = Limits::default();
    for (input, status, after) in [
        (&b"GET / HTTP/1.1\r\nHo"[..], Some("408"), limits.head),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nabc", Some("408"), limits.body_time),
        (b"", None, limits.idle),
    ] {
        let (mut client, _trigger, _served) = connect(limits);
        client.write_all(input).await.unwrap();
        let start = tokio::time::Instant::now();
        let mut output = String::new();
        client.read_to_string(&mut output).await.unwrap();
        assert_eq!(codes(&output).first().copied(), status);
        assert_eq!(start.elapsed().as_secs(), after.as_secs());
    }
}

#[tokio::test(start_paused = true)]
async fn dripping_client_has_no_longer_than_a_silent_one() {
    let (client, _trigger, served) = connect(Limits::default());
    let (mut reader, mut writer) = tokio::io::split(client);
    let drip = async {
        for _ in 0..1000 {
            tokio::time::sleep(Duration::from_secs(1)).await;
            if writer.write_all(b"G").await.is_err() {
                return;
            }
        }
    };
    let start = tokio::time::Instant::now();
    let mut output = String::new();
    tokio::select! { _ = reader.read_to_string(&mut output) => {}, () = drip => {} }
    assert_eq!(codes(&output), ["408"]);
    assert!(start.elapsed() < Duration::from_secs(13));
    drop((reader, writer));
    served.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn client_that_leaves_ends_its_answer() {
    let (mut client, _trigger, served) = connect(Limits::default());
    client.write_all(b"GET /hang HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    drop(client);
    served.await.unwrap();
}

#[tokio::test]
async fn half_closed_client_gets_its_answer() {
    let (mut client, _trigger, _served) = connect(Limits::default());
    client.write_all(b"GET /half HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    client.shutdown().await.unwrap();
    let mut output = String::new();
    client.read_to_string(&mut output).await.unwrap();
    assert_eq!(codes(&output), ["200"]);
}

#[tokio::test(start_paused = true)]
async fn client_that_does_not_read_is_dropped() {
    let (mut client, server) = duplex(64);
    let (_trigger, drain) = Trigger::new();
    client.write_all(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    let limits = Limits::default();
    let start = tokio::time::Instant::now();
    serve(Box::new(server), None, &Paths, &limits, Slots::new(1).enter().unwrap(), drain).await;
    assert!(start.elapsed() >= limits.stall && start.elapsed() <= limits.stall * 2 + limits.half_closed);
}

#[tokio::test]
async fn drain_ends_idle_connections_and_finishes_answers() {
    let (mut client, trigger, served) = connect(Limits::default());
    client.write_all(b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    let mut first = [0; 12];
    client.read_exact(&mut first).await.unwrap();
    trigger.start();
    served.await.unwrap();
    let mut rest = String::new();
    client.read_to_string(&mut rest).await.unwrap();
    assert!(rest.ends_with("GET /a None"));
}

#[tokio::test]
async fn listens_on_both_families_and_names_a_taken_port() {
    let server = Server::bind(0).unwrap();
    let port = server.address().unwrap().port();
    let error = Server::bind(port).unwrap_err();
    assert!(error.kind() == io::ErrorKind::AddrInUse && error.to_string().contains(&port.to_string()));
    let (trigger, drain) = Trigger::new();
    let run =
        tokio::spawn(server.with_limits(Limits { connections: 2, ..Limits::default() }).run(Arc::new(Paths), drain));
    // More idle connections than there are places: a request is answered all the same.
    let mut idle = Vec::new();
    for host in ["127.0.0.1", "127.0.0.1", "127.0.0.1", "::1"] {
        let connected = tokio::net::TcpStream::connect((host, port)).await;
        if host == "::1" && connected.is_err() {
            continue; // No IPv6 on this machine.
        }
        let mut client = connected.unwrap();
        client.write_all(CLOSE.as_bytes()).await.unwrap();
        let mut output = String::new();
        client.read_to_string(&mut output).await.unwrap();
        assert_eq!(codes(&output), ["200"]);
        idle.push(tokio::net::TcpStream::connect((host, port)).await.unwrap());
    }
    trigger.start();
    run.await.unwrap();
}
