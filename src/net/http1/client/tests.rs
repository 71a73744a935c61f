//! The client against a scripted peer on an in-memory pipe.

use tokio::io::{AsyncReadExt, duplex};

use super::*;

/// Sends `request` to a peer that answers `answer`; returns what the peer saw and the response.
async fn exchange(request: Request, answer: &'static [u8]) -> (String, Result<Response, Error>) {
    let (client, mut server) = duplex(1 << 16);
    let peer = async move {
        let mut seen = vec![0; 4096];
        let length = server.read(&mut seen).await.unwrap();
        seen.truncate(length);
        server.write_all(answer).await.unwrap();
        String::from_utf8(seen).unwrap()
    };
    tokio::join!(peer, request.send_on(Box::new(client)))
}

#[tokio::test]
async fn sends_what_a_server_needs() {
    let request = Request::post("http://a:81/x?y", "body").unwrap().header("X", "1");
    let (seen, response) = exchange(request, b"HTTP/1.1 204 No Content\r\n\r\n").await;
    assert_eq!(seen, "POST /x?y HTTP/1.1\r\nHost: a:81\r\nContent-Length: 4\r\nConnection: close\r\nX: 1\r\n\r\nbody");
    let mut response = response.unwrap();
    assert_eq!(response.status, 204);
    assert!(response.body.chunk().await.unwrap().is_none());
}

#[tokio::test]
async fn passes_over_interim_answers_and_decodes_chunks() {
    let answer = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n";
    let (_, response) = exchange(Request::get("http://a/").unwrap(), answer).await;
    assert_eq!(response.unwrap().body.collect(5).await.unwrap(), b"abcde");
}

#[tokio::test]
async fn body_ends_with_an_old_servers_connection() {
    let (_, response) = exchange(Request::get("http://a/").unwrap(), b"HTTP/1.0 200 OK\n\nall of it").await;
    let mut response = response.unwrap();
    assert!(response.body.remaining().is_none());
    assert_eq!(response.body.collect(100).await.unwrap(), b"all of it");
}

#[tokio::test]
async fn connection_is_reused_only_when_both_keep_it() {
    for (keep_alive, answer, reused) in [
        (true, &b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na"[..], true),
        (false, b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na", false),
        (true, b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nConnection: Close\r\n\r\na", false),
        (true, b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\na", false),
        (true, b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\nConnection: keep-alive\r\n\r\na", true),
        (true, b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nab", false),
    ] {
        let request = Request { keep_alive, ..Request::get("http://a/").unwrap() };
        let mut response = exchange(request, answer).await.1.unwrap();
        assert_eq!(response.body.collect(1).await.unwrap(), b"a");
        assert_eq!(response.into_connection().is_some(), reused, "{:?}", std::str::from_utf8(answer));
    }
}

#[tokio::test]
async fn broken_answers_are_errors() {
    for answer in [&b""[..], b"HTTP/1.1 200 OK\r\n", b"SSH-2.0\r\n\r\n"] {
        assert!(exchange(Request::get("http://a/").unwrap(), answer).await.1.is_err());
    }
    let (_, response) =
        exchange(Request::get("http://a/").unwrap(), b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort").await;
    assert!(matches!(response.unwrap().body.collect(100).await, Err(Error::Closed)));
    let (_, response) = exchange(Request::get("http://a/").unwrap(), b"HTTP/1.1 200 OK\r\n\r\ntoo long").await;
    assert!(matches!(response.unwrap().body.collect(5).await, Err(Error::TooLarge("body", 5))));
}

#[tokio::test(start_paused = true)]
async fn deadline_covers_head_and_body() {
    let request = || Request::get("http://a/").unwrap().timeout(Duration::from_secs(1));
    let (client, _silent) = duplex(1 << 16);
    assert!(matches!(request().send_on(Box::new(client)).await, Err(Error::Timeout)));
    let (client, mut server) = duplex(1 << 16);
    server.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort").await.unwrap();
    let mut response = request().send_on(Box::new(client)).await.unwrap();
    assert!(matches!(response.body.collect(100).await, Err(Error::Timeout)));
}

#[tokio::test]
async fn endless_head_is_refused() {
    let (client, mut server) = duplex(1 << 20);
    server
        .write_all(
            &b"HTTP/1.1 200 OK\r\n".iter().copied().chain(std::iter::repeat_n(b'a', 200_000)).collect::<Vec<_>>(),
        )
        .await
        .unwrap();
    let sent = Request::get("http://a/").unwrap().send_on(Box::new(client)).await;
    assert!(matches!(sent, Err(Error::TooLarge("response head", _))));
}
