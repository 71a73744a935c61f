//! Heads of messages (RFC 9112 §2–§6): pure, over httparse.
//!
//! Requests are read strictly: whatever two parsers could read differently (folded lines, two lengths, a length beside a transfer
//! coding) is refused, because that is how requests are smuggled. A bare LF ends a line all the same (RFC 9112 §2.2): that is what
//! `nc` and `printf` send, and no proxy in front of us lets one pass. Responses are read as leniently as Go's client reads them,
//! because probes and scrapes must not fail where they did not fail before.

use bytes::Bytes;
use httparse::{EMPTY_HEADER, ParserConfig};

use super::{Error, Headers, body::Framing};

/// Largest head of a message, bytes. Envoy allows 60 KiB; what passes through Envoy must pass here.
pub(super) const MAX_HEAD: usize = 64 * 1024;
/// What is wrong with a transfer coding that is not known (RFC 9112 §6.1 has servers say 501).
pub(super) const OTHER_CODING: &str = "Transfer-Encoding other than chunked";
/// Most fields in a head; Envoy's default is 100.
const MAX_FIELDS: usize = 128;

/// A request line with its fields.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RequestHead {
    pub method: String,
    pub target: String,
    /// 0 for HTTP/1.0, 1 for HTTP/1.1.
    pub minor: u8,
    pub headers: Headers,
}

/// A status line with its fields.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ResponseHead {
    pub status: u16,
    pub minor: u8,
    pub headers: Headers,
}

/// Length of the head at the beginning of `bytes`, its empty line included; `None` while it is incomplete. `scanned` bytes are
/// known to hold no end: a peer that sends byte by byte costs no more than one that does not.
pub(super) fn head_length(bytes: &[u8], scanned: usize) -> Option<usize> {
    let start = scanned.saturating_sub(2);
    memchr::memchr_iter(b'\n', &bytes[start..]).map(|at| start + at + 1).find(|end| {
        let line = &bytes[..*end - 1];
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        line.ends_with(b"\n")
    })
}

/// How many bytes of empty lines precede a request (RFC 9112 §2.2 has servers skip them).
pub(super) fn blank_lines(bytes: &[u8]) -> usize {
    bytes.chunks_exact(2).take_while(|pair| *pair == b"\r\n").count() * 2
}

/// Whether a first line is a request's: what is none is refused at once, not when its head ends.
pub(super) fn is_request_line(line: &[u8]) -> bool {
    memchr::memmem::find(line, b" HTTP/").is_some()
}

/// Reads a complete request head.
pub(super) fn request(head: &[u8]) -> Result<RequestHead, Error> {
    let mut fields = [EMPTY_HEADER; MAX_FIELDS];
    let mut parsed = httparse::Request::new(&mut fields);
    parsed.parse(head).map_err(describe)?;
    let target = parsed.path.ok_or(Error::Malformed("request line"))?.to_owned();
    let method = parsed.method.ok_or(Error::Malformed("request line"))?.to_owned();
    let minor = parsed.version.ok_or(Error::Malformed("version"))?;
    let headers = collect(parsed.headers);
    let hosts = headers.all("host").count();
    if hosts > 1 || (hosts == 0 && minor == 1) {
        return Err(Error::Malformed("needs one Host"));
    }
    let in_host = |byte: &u8| byte.is_ascii_alphanumeric() || b"!$%&'()*+,-.:;=[]_~".contains(byte);
    if !headers.all("host").flatten().all(in_host) {
        return Err(Error::Malformed("Host"));
    }
    Ok(RequestHead { method, target, minor, headers })
}

/// Reads a complete response head.
pub(super) fn response(head: &[u8]) -> Result<ResponseHead, Error> {
    let mut fields = [EMPTY_HEADER; MAX_FIELDS];
    let mut parsed = httparse::Response::new(&mut fields);
    let mut lenient = ParserConfig::default();
    lenient
        .allow_obsolete_multiline_headers_in_responses(true)
        .allow_spaces_after_header_name_in_responses(true)
        .allow_multiple_spaces_in_response_status_delimiters(true);
    lenient.parse_response(&mut parsed, head).map_err(describe)?;
    let status = parsed.code.filter(|code| *code >= 100).ok_or(Error::Malformed("status line"))?;
    let minor = parsed.version.ok_or(Error::Malformed("version"))?;
    Ok(ResponseHead { status, minor, headers: collect(parsed.headers) })
}

/// How the body of a request is delimited (RFC 9112 §6).
pub(super) fn request_framing(head: &RequestHead) -> Result<Framing, Error> {
    let length = content_length(&head.headers, 1)?;
    if !head.headers.has("transfer-encoding") {
        return Ok(Framing::Length(length.unwrap_or(0)));
    }
    if length.is_some() {
        return Err(Error::Malformed("Content-Length beside Transfer-Encoding"));
    }
    if head.minor == 0 {
        return Err(Error::Malformed("Transfer-Encoding in HTTP/1.0"));
    }
    if !is_chunked(&head.headers) {
        return Err(Error::Malformed(OTHER_CODING));
    }
    Ok(Framing::chunked())
}

/// How the body of a response to `method` is delimited (RFC 9112 §6.3).
pub(super) fn response_framing(head: &ResponseHead, method: &str) -> Result<Framing, Error> {
    // What follows a successful CONNECT is the tunnel (RFC 9112 §6.3).
    let tunnel = method == "CONNECT" && matches!(head.status, 200..=299);
    if tunnel || method == "HEAD" || matches!(head.status, 100..=199 | 204 | 304) {
        return Ok(Framing::Length(0));
    }
    if head.headers.has("transfer-encoding") {
        return match is_chunked(&head.headers) {
            true => Ok(Framing::chunked()),
            false => Err(Error::Malformed(OTHER_CODING)),
        };
    }
    Ok(content_length(&head.headers, usize::MAX)?.map_or(Framing::UntilClose, Framing::Length))
}

/// The one length that all `Content-Length` fields name; more than `most` fields are refused.
fn content_length(headers: &Headers, most: usize) -> Result<Option<u64>, Error> {
    let mut length = None;
    for (index, value) in headers.all("content-length").enumerate() {
        let digits = std::str::from_utf8(value).ok().map(str::trim);
        // `parse` alone would take "+5".
        let digits = digits.filter(|text| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()));
        let value: u64 = digits.and_then(|text| text.parse().ok()).ok_or(Error::Malformed("Content-Length"))?;
        if index >= most || length.is_some_and(|other| other != value) {
            return Err(Error::Malformed("more than one Content-Length"));
        }
        length = Some(value);
    }
    Ok(length)
}

fn is_chunked(headers: &Headers) -> bool {
    let mut codings = headers.all("transfer-encoding");
    codings.next().is_some_and(|value| value.trim_ascii().eq_ignore_ascii_case(b"chunked")) && codings.next().is_none()
}

fn collect(fields: &[httparse::Header<'_>]) -> Headers {
    let mut headers = Headers::default();
    for field in fields {
        headers.add(field.name, Bytes::copy_from_slice(field.value));
    }
    headers
}

fn describe(error: httparse::Error) -> Error {
    match error {
        httparse::Error::TooManyHeaders => Error::TooLarge("number of header fields", MAX_FIELDS as u64),
        httparse::Error::HeaderName => Error::Malformed("header name"),
        httparse::Error::HeaderValue => Error::Malformed("header value"),
        httparse::Error::Version => Error::Malformed("version"),
        httparse::Error::Status => Error::Malformed("status line"),
        httparse::Error::Token => Error::Malformed("request line"),
        httparse::Error::NewLine => Error::Malformed("line end"),
    }
}

#[cfg(test)]
mod tests;
