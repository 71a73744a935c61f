//! How a stream ended, what that counts as, and what Envoy is told. Pure.

use crate::grpc::{Code, Status};

/// Why a stream ended.
#[derive(Debug, Clone)]
pub enum End {
    /// Envoy ended it (`Ok`), or its side broke.
    Envoy(Result<(), Status>),
    /// istiod ended it, or its side broke.
    Istiod(Result<(), Status>),
    /// There was no way to istiod.
    Unreachable(Status),
    /// Envoy has opened another one in its place.
    Superseded,
    /// The agent ends.
    Shutdown,
}

/// What an end counts as (Istio `istiograpc.GRPCErrorType`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// A peer that ended the stream in good order.
    Graceful,
    /// A routine interruption: no reason to warn.
    Expected,
    /// Everything else.
    Unexpected,
}

/// What a stream's end counts as.
pub fn classify(end: &Result<(), Status>) -> Class {
    let Err(status) = end else { return Class::Graceful };
    let says = |text: &str| status.message.contains(text);
    let routine = match status.code {
        Code::Cancelled | Code::DeadlineExceeded => true,
        Code::Unavailable => {
            says("client disconnected") || says("error reading from server: EOF") || says("transport is closing")
        }
        _ => false,
    };
    if routine
        || says("stream terminated by RST_STREAM with error code: NO_ERROR")
        || says("received prior goaway: code: NO_ERROR")
    {
        Class::Expected
    } else {
        Class::Unexpected
    }
}

/// What a stream's end at Envoy's side counts as: however Envoy goes, by a reset of any kind or with bytes unread, it has left.
pub fn classify_envoy(end: &Result<(), Status>) -> Class {
    match end {
        Err(status) if status.is_transport() || status.message.contains("RST_STREAM") => Class::Expected,
        end => classify(end),
    }
}

impl End {
    /// What Envoy's stream ends with.
    pub fn status(&self) -> Status {
        match self {
            End::Envoy(Ok(())) | End::Istiod(Ok(())) | End::Superseded => Status::ok(),
            End::Envoy(Err(status)) | End::Istiod(Err(status)) | End::Unreachable(status) => status.clone(),
            End::Shutdown => Status::new(Code::Unavailable, "the agent is shutting down"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_envoy_that_resets_has_left() {
        let reset = Status::new(Code::Internal, "stream terminated by RST_STREAM with error code: INTERNAL_ERROR");
        let too_large = Status::new(Code::ResourceExhausted, "grpc: received message larger than max (2 vs. 1)");
        for (end, at_envoy, at_istiod) in [
            (Ok(()), Class::Graceful, Class::Graceful),
            (Err(reset), Class::Expected, Class::Unexpected),
            (Err(too_large), Class::Unexpected, Class::Unexpected),
        ] {
            assert_eq!((classify_envoy(&end), classify(&end)), (at_envoy, at_istiod), "{end:?}");
        }
    }

    #[test]
    fn classes() {
        let failed = |code, message: &str| classify(&Err(Status::new(code, message)));
        assert_eq!(classify(&Ok(())), Class::Graceful);
        for (code, message, class) in [
            (Code::Cancelled, "", Class::Expected),
            (Code::DeadlineExceeded, "", Class::Expected),
            (Code::Unavailable, "error reading from server: EOF", Class::Expected),
            (Code::Unavailable, "error reading from server: connection reset by peer", Class::Unexpected),
            (Code::Unavailable, "server is not ready", Class::Unexpected),
            (Code::Internal, "stream terminated by RST_STREAM with error code: NO_ERROR", Class::Expected),
            (Code::Internal, "stream terminated by RST_STREAM with error code: INTERNAL_ERROR", Class::Unexpected),
            (Code::Unavailable, "closing transport, received prior goaway: code: NO_ERROR", Class::Expected),
            (Code::PermissionDenied, "authorization failed", Class::Unexpected),
        ] {
            assert_eq!(failed(code, message), class, "{code:?} {message}");
        }
    }

    #[test]
    fn envoy_is_told_what_istiod_said() {
        let denied = Status::new(Code::PermissionDenied, "no");
        assert_eq!(End::Istiod(Err(denied.clone())).status(), denied);
        assert_eq!(End::Superseded.status().code, Code::Ok);
        assert_eq!(End::Shutdown.status().code, Code::Unavailable);
    }
}
