//! Status of a call: codes, the `grpc-message` coding, and what HTTP/2 and HTTP failures mean in gRPC, as grpc-go maps them.

use std::{fmt, fmt::Write as _, io, time::Duration};

use http::HeaderMap;

/// gRPC status codes (<https://github.com/grpc/grpc/blob/master/doc/statuscodes.md>).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the documentation")]
pub enum Code {
    Ok = 0,
    Cancelled = 1,
    Unknown = 2,
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    NotFound = 5,
    AlreadyExists = 6,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    FailedPrecondition = 9,
    Aborted = 10,
    OutOfRange = 11,
    Unimplemented = 12,
    Internal = 13,
    Unavailable = 14,
    DataLoss = 15,
    Unauthenticated = 16,
}

/// By number, with the names that grpc-go prints.
const CODES: [(Code, &str); 17] = [
    (Code::Ok, "OK"),
    (Code::Cancelled, "Canceled"),
    (Code::Unknown, "Unknown"),
    (Code::InvalidArgument, "InvalidArgument"),
    (Code::DeadlineExceeded, "DeadlineExceeded"),
    (Code::NotFound, "NotFound"),
    (Code::AlreadyExists, "AlreadyExists"),
    (Code::PermissionDenied, "PermissionDenied"),
    (Code::ResourceExhausted, "ResourceExhausted"),
    (Code::FailedPrecondition, "FailedPrecondition"),
    (Code::Aborted, "Aborted"),
    (Code::OutOfRange, "OutOfRange"),
    (Code::Unimplemented, "Unimplemented"),
    (Code::Internal, "Internal"),
    (Code::Unavailable, "Unavailable"),
    (Code::DataLoss, "DataLoss"),
    (Code::Unauthenticated, "Unauthenticated"),
];

impl Code {
    /// The code of that number; unknown numbers are `Unknown`.
    pub fn from_number(number: u32) -> Code {
        usize::try_from(number).ok().and_then(|index| CODES.get(index)).map_or(Code::Unknown, |(code, _)| *code)
    }

    /// The number on the wire.
    pub fn number(self) -> i32 {
        self as i32
    }

    /// The name that grpc-go prints: `PermissionDenied`.
    pub fn name(self) -> &'static str {
        CODES[self as usize].1
    }
}

/// Who made a [`Status`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// The peer's application, or ours.
    Application,
    /// The connection or the stream broke.
    Transport,
    /// The peer says that it has not looked at the call: it may be sent again on another connection.
    Unprocessed,
}

/// How a call ended. As an error it is anything but `Ok`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// What kind of end.
    pub code: Code,
    /// A text for people.
    pub message: String,
    /// How long the server asks to wait before another attempt (`grpc-retry-pushback-ms`).
    pub pushback: Option<Duration>,
    origin: Origin,
}

impl Status {
    /// A status of the application.
    pub fn new(code: Code, message: impl Into<String>) -> Status {
        Status { code, message: message.into(), pushback: None, origin: Origin::Application }
    }

    /// Success.
    pub fn ok() -> Status {
        Status::new(Code::Ok, "")
    }

    /// The connection, or the way to it, failed.
    pub fn transport(message: impl Into<String>) -> Status {
        Status { origin: Origin::Transport, ..Status::new(Code::Unavailable, message) }
    }

    /// The same, for a call that was never sent.
    pub(super) fn unprocessed(self) -> Status {
        Status { origin: Origin::Unprocessed, ..self }
    }

    /// Whether the connection or the stream broke, rather than the peer's application answering.
    pub fn is_transport(&self) -> bool {
        self.origin != Origin::Application
    }

    /// Whether the peer said that it has not begun the call, so that any call may be sent again.
    pub fn is_unprocessed(&self) -> bool {
        self.origin == Origin::Unprocessed
    }

    /// Whether another attempt of the same call may succeed: what Istio's retry middleware retries (spec 30 §5.7).
    pub fn is_retryable(&self) -> bool {
        matches!(self.code, Code::ResourceExhausted | Code::Aborted | Code::Internal | Code::Unavailable)
    }

    /// What an HTTP/2 failure means (grpc-go `http2ErrConvTab`).
    pub(super) fn from_h2(error: &h2::Error) -> Status {
        if let Some(io) = error.get_io() {
            return Status::from_io(io);
        }
        let Some(reason) = error.reason() else {
            return Status { origin: Origin::Transport, ..Status::new(Code::Internal, error.to_string()) };
        };
        if error.is_go_away() {
            let message = format!("closing transport, received prior goaway: code: {}", reason_name(reason));
            let origin = if error.is_remote() { Origin::Unprocessed } else { Origin::Transport };
            return Status { origin, ..Status::new(Code::Unavailable, message) };
        }
        Status::from_reset(reason)
    }

    /// What a reset of the stream means.
    pub(super) fn from_reset(reason: h2::Reason) -> Status {
        use h2::Reason as R;
        let code = match reason {
            R::REFUSED_STREAM => Code::Unavailable,
            R::CANCEL => Code::Cancelled,
            R::FLOW_CONTROL_ERROR | R::ENHANCE_YOUR_CALM => Code::ResourceExhausted,
            R::INADEQUATE_SECURITY => Code::PermissionDenied,
            _ => Code::Internal,
        };
        let origin = if reason == R::REFUSED_STREAM { Origin::Unprocessed } else { Origin::Transport };
        let message = format!("stream terminated by RST_STREAM with error code: {}", reason_name(reason));
        Status { origin, ..Status::new(code, message) }
    }

    fn from_io(error: &io::Error) -> Status {
        match error.kind() {
            // h2 reports the peer's orderly end of the connection like this, TLS the end of one that came within a record.
            io::ErrorKind::BrokenPipe | io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionAborted => {
                Status::transport("error reading from server: EOF")
            }
            _ => Status::transport(format!("error reading from server: {error}")),
        }
    }

    /// What an answer that is not 200 means (grpc-go `HTTPStatusConvTab`).
    pub(super) fn from_http(status: http::StatusCode) -> Status {
        let code = match status.as_u16() {
            400 => Code::Internal,
            401 => Code::Unauthenticated,
            403 => Code::PermissionDenied,
            404 => Code::Unimplemented,
            429 | 502 | 503 | 504 => Code::Unavailable,
            _ => Code::Unknown,
        };
        let reason = status.canonical_reason().unwrap_or("unknown");
        Status::new(code, format!("unexpected HTTP status code received from server: {} ({reason})", status.as_u16()))
    }

    /// The status in trailers, or in the headers of an answer without messages; `None` when there is none.
    pub(super) fn from_headers(headers: &HeaderMap) -> Option<Status> {
        let number = headers.get("grpc-status")?.to_str().ok().and_then(|text| text.parse().ok());
        let message = headers.get("grpc-message").map(|value| decode_message(value.as_bytes())).unwrap_or_default();
        let mut status = Status::new(number.map_or(Code::Unknown, Code::from_number), message);
        status.pushback = headers
            .get("grpc-retry-pushback-ms")
            .and_then(|value| value.to_str().ok()?.parse().ok())
            .map(Duration::from_millis);
        Some(status)
    }

    /// Adds the status to headers or trailers.
    pub(super) fn write_to(&self, headers: &mut HeaderMap) {
        headers.insert("grpc-status", http::HeaderValue::from(self.code.number()));
        if !self.message.is_empty()
            && let Ok(value) = encode_message(&self.message).try_into()
        {
            headers.insert("grpc-message", value);
        }
        if let Some(pushback) = self.pushback {
            let millis = u64::try_from(pushback.as_millis()).unwrap_or(u64::MAX);
            headers.insert("grpc-retry-pushback-ms", http::HeaderValue::from(millis));
        }
    }
}

/// The names of RFC 9113 §7, as grpc-go prints them.
fn reason_name(reason: h2::Reason) -> String {
    const NAMES: [&str; 14] = [
        "NO_ERROR",
        "PROTOCOL_ERROR",
        "INTERNAL_ERROR",
        "FLOW_CONTROL_ERROR",
        "SETTINGS_TIMEOUT",
        "STREAM_CLOSED",
        "FRAME_SIZE_ERROR",
        "REFUSED_STREAM",
        "CANCEL",
        "COMPRESSION_ERROR",
        "CONNECT_ERROR",
        "ENHANCE_YOUR_CALM",
        "INADEQUATE_SECURITY",
        "HTTP_1_1_REQUIRED",
    ];
    let number = u32::from(reason);
    match NAMES.get(number as usize) {
        Some(name) => (*name).to_owned(),
        None => format!("unknown error code 0x{number:x}"),
    }
}

/// Percent-codes what is not printable ASCII, and `%`.
fn encode_message(message: &str) -> String {
    let mut coded = String::with_capacity(message.len());
    for &byte in message.as_bytes() {
        if (b' '..=b'~').contains(&byte) && byte != b'%' {
            coded.push(char::from(byte));
        } else {
            let _ = write!(coded, "%{byte:02X}");
        }
    }
    coded
}

/// The reverse; what is no valid code stays as it is, invalid UTF-8 is replaced.
fn decode_message(coded: &[u8]) -> String {
    let hex = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let mut bytes = Vec::with_capacity(coded.len());
    let mut rest = coded;
    while let [first, tail @ ..] = rest {
        let decoded = match tail {
            [high, low, ..] if *first == b'%' => hex(*high).zip(hex(*low)),
            _ => None,
        };
        match decoded {
            Some((high, low)) => {
                bytes.push(high << 4 | low);
                rest = &tail[2..];
            }
            None => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rpc error: code = {} desc = {}", self.code.name(), self.message)
    }
}

impl std::error::Error for Status {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_survive_the_coding() {
        for text in ["", "plain", "100 %", "a\nb\u{7f}", "größe ✓"] {
            let coded = encode_message(text);
            assert!(coded.bytes().all(|byte| (b' '..=b'~').contains(&byte)));
            assert_eq!(decode_message(coded.as_bytes()), text);
        }
        assert_eq!(encode_message("50%\t"), "50%25%09");
        assert_eq!(decode_message(b"%zz %4 %"), "%zz %4 %");
        assert_eq!(decode_message(b"%ff"), "\u{fffd}");
    }

    #[test]
    fn codes_have_numbers_and_names() {
        for (number, (code, _)) in CODES.iter().enumerate() {
            assert_eq!(Code::from_number(u32::try_from(number).unwrap()), *code);
            assert_eq!(usize::try_from(code.number()).unwrap(), number);
        }
        assert_eq!(Code::from_number(17), Code::Unknown);
        let status = Status::new(Code::Cancelled, "gone");
        assert_eq!(status.to_string(), "rpc error: code = Canceled desc = gone");
    }

    #[test]
    fn resets_and_http_answers_map_as_in_grpc_go() {
        use h2::Reason;
        let cases = [
            (Reason::NO_ERROR, Code::Internal, "NO_ERROR"),
            (Reason::REFUSED_STREAM, Code::Unavailable, "REFUSED_STREAM"),
            (Reason::CANCEL, Code::Cancelled, "CANCEL"),
            (Reason::ENHANCE_YOUR_CALM, Code::ResourceExhausted, "ENHANCE_YOUR_CALM"),
            (Reason::INADEQUATE_SECURITY, Code::PermissionDenied, "INADEQUATE_SECURITY"),
            (Reason::from(99), Code::Internal, "unknown error code 0x63"),
        ];
        for (reason, code, name) in cases {
            let status = Status::from_reset(reason);
            assert_eq!(status.code, code);
            assert_eq!(status.message, format!("stream terminated by RST_STREAM with error code: {name}"));
        }
        let http = |number| Status::from_http(http::StatusCode::from_u16(number).unwrap()).code;
        let mapped = [400, 401, 403, 404, 429, 503, 302].map(http);
        use Code::*;
        assert_eq!(
            mapped,
            [Internal, Unauthenticated, PermissionDenied, Unimplemented, Unavailable, Unavailable, Unknown]
        );
    }

    #[test]
    fn trailers_carry_status_and_pushback() {
        let mut headers = HeaderMap::new();
        assert_eq!(Status::from_headers(&headers), None);
        let mut status = Status::new(Code::ResourceExhausted, "später");
        status.pushback = Some(Duration::from_millis(1500));
        status.write_to(&mut headers);
        assert_eq!(Status::from_headers(&headers), Some(status));
        headers.insert("grpc-status", http::HeaderValue::from_static("x"));
        assert_eq!(Status::from_headers(&headers).unwrap().code, Code::Unknown);
    }
}
