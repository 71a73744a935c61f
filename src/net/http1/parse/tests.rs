//! Heads that are read, and heads that are refused.

use super::*;

fn framing(head: &str) -> Result<Framing, Error> {
    request_framing(&request(head.as_bytes())?)
}

#[test]
fn finds_the_end_of_a_head() {
    let head = b"GET / HTTP/1.1\r\nHost: a\r\n\r\nGET";
    let end = head.len() - 3;
    assert_eq!(head_length(head, 0), Some(end));
    for cut in 0..end {
        assert_eq!(head_length(&head[..cut], 0), None, "{cut}");
        assert_eq!(head_length(head, cut), Some(end), "{cut}");
    }
    assert_eq!(head_length(b"HTTP/1.0 200 OK\nA: b\n\nbody", 0), Some(22));
}

#[test]
fn reads_a_request() {
    let head = request(b"PATCH /a?b HTTP/1.0\r\nX: 1\r\nx:2 \r\n\r\n").unwrap();
    assert_eq!((&*head.method, &*head.target, head.minor), ("PATCH", "/a?b", 0));
    assert_eq!(head.headers.all("x").collect::<Vec<_>>(), ["1", "2"]);
}

#[test]
fn refuses_what_could_be_smuggled() {
    for head in [
        "GET / HTTP/1.1\r\nHost: a b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a/b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nX: a\r\n b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost : a\r\n\r\n",
        "GET / HTTP/1.1\r\n Host: a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n",
        "GET / HTTP/1.1\r\n\r\n",
        "GET / HTTP/9.9\r\nHost: a\r\n\r\n",
        "GET / HTTP/2.0\r\nHost: a\r\n\r\n",
        "GET /\r\nHost: a\r\n\r\n",
        "GET / a HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nX: \0\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nX: a\rb\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nno colon\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1, 1\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +1\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0x1\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length:\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n",
        "POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
    ] {
        assert!(framing(head).is_err(), "{head:?}");
    }
}

#[test]
fn frames_request_bodies() {
    for (fields, framing_) in [
        ("", Framing::Length(0)),
        ("Content-Length: 7\r\n", Framing::Length(7)),
        ("Transfer-Encoding: Chunked\r\n", Framing::chunked()),
    ] {
        assert_eq!(framing(&format!("POST / HTTP/1.1\r\nHost: a\r\n{fields}\r\n")).unwrap(), framing_, "{fields}");
    }
}

#[test]
fn too_many_fields_are_refused() {
    let head = format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "A: b\r\n".repeat(MAX_FIELDS));
    assert!(matches!(request(head.as_bytes()), Err(Error::TooLarge(..))));
}

#[test]
fn reads_responses_as_leniently_as_go() {
    for (head, status, method, framing) in [
        ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\n", 200, "GET", Framing::Length(2)),
        ("HTTP/1.0 503\r\n\r\n", 503, "GET", Framing::UntilClose),
        ("HTTP/1.1 599 \r\nX : a\r\n\r\n", 599, "GET", Framing::UntilClose),
        ("HTTP/1.1 200 OK\nA: b\n c\nContent-Length: 5\n\n", 200, "GET", Framing::Length(5)),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n", 200, "GET", Framing::chunked()),
        ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", 200, "HEAD", Framing::Length(0)),
        ("HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", 304, "GET", Framing::Length(0)),
        ("HTTP/1.1 204 No Content\r\n\r\n", 204, "GET", Framing::Length(0)),
    ] {
        let head = response(head.as_bytes()).unwrap();
        assert_eq!((head.status, response_framing(&head, method).unwrap()), (status, framing));
    }
    for head in ["HTTP/1.1 099 X\r\n\r\n", "HTTP/2 200 OK\r\n\r\n", "SSH-2.0-OpenSSH\r\n\r\n", "HTTP/1.1 abc\r\n\r\n"] {
        assert!(response(head.as_bytes()).is_err(), "{head}");
    }
    let two = response(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n").unwrap();
    assert!(response_framing(&two, "GET").is_err());
}
