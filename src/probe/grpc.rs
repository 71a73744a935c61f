//! A check over the standard gRPC health protocol (`grpc.health.v1.Health/Check`), plaintext, on a connection of its own.

use std::{fmt, io, time::Duration};

use tokio::time::{Instant, timeout_at};

use super::dial::{self, Source};
use crate::{
    base::later,
    grpc::{Call, Client, Code, Metadata, Settings, Status, USER_AGENT},
    proto::grpc::health::v1::{HealthCheckRequest, HealthCheckResponse, health_check_response::ServingStatus},
};

/// Between two attempts to connect: an application that is just starting is found within its deadline.
const RETRY: Duration = Duration::from_millis(100);

/// Why the application does not serve.
#[derive(Debug)]
pub enum GrpcError {
    /// No connection before the deadline.
    Connect(io::Error),
    /// The call failed.
    Call(Status),
    /// It answered with another status than SERVING.
    NotServing(ServingStatus),
}

/// Succeeds when `service` is SERVING. `user_agent` is the caller's, before our own.
///
/// # Errors
/// When it is not, or does not say so within `timeout`.
pub async fn grpc(
    (host, port): (&str, u16),
    service: &str,
    source: Source,
    user_agent: Option<&str>,
    timeout: Duration,
) -> Result<(), GrpcError> {
    let deadline = later(Instant::now(), timeout);
    let io = connect(host, port, source, deadline).await.map_err(GrpcError::Connect)?;
    let (client, drive) = Client::handshake(Box::new(io), Settings::default()).await.map_err(GrpcError::Call)?;
    let mut metadata = Metadata::default();
    let agent = user_agent.map(|agent| format!("{agent} {USER_AGENT}"));
    // A user agent that is no printable text is not passed on.
    let _ = metadata.add("user-agent", agent.as_deref().unwrap_or(USER_AGENT));
    let authority = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
    let call = Call {
        path: "/grpc.health.v1.Health/Check",
        authority: &authority,
        metadata,
        deadline: Some(deadline - Instant::now()),
        max_message: 64 * 1024,
    };
    let request = HealthCheckRequest { service: service.to_owned() };
    let check = client.unary::<_, HealthCheckResponse>(&call, &request);
    tokio::pin!(check, drive);
    let answer = tokio::select! {
        answer = &mut check => answer,
        _ = &mut drive => check.await,
    };
    match answer.map_err(GrpcError::Call)?.status() {
        ServingStatus::Serving => Ok(()),
        other => Err(GrpcError::NotServing(other)),
    }
}

/// Connects; a refused connection is tried again until the deadline, as a gRPC channel does.
async fn connect(host: &str, port: u16, source: Source, deadline: Instant) -> io::Result<tokio::net::TcpStream> {
    let mut last = io::Error::from(io::ErrorKind::TimedOut);
    loop {
        match timeout_at(deadline, dial::tcp(host, port, source)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) if error.kind() == io::ErrorKind::InvalidInput => return Err(error),
            Ok(Err(error)) => last = error,
            Err(_) => return Err(last),
        }
        if timeout_at(deadline, tokio::time::sleep(RETRY)).await.is_err() {
            return Err(last);
        }
    }
}

impl GrpcError {
    /// The gRPC status of a call that failed.
    pub fn code(&self) -> Option<Code> {
        match self {
            GrpcError::Call(status) => Some(status.code),
            _ => None,
        }
    }
}

impl fmt::Display for GrpcError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GrpcError::Connect(error) => write!(f, "connect: {error}"),
            GrpcError::Call(status) => status.fmt(f),
            GrpcError::NotServing(status) => write!(f, "the service is {}", status.as_str_name()),
        }
    }
}

impl std::error::Error for GrpcError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            GrpcError::Connect(error) => Some(error),
            GrpcError::Call(status) => Some(status),
            GrpcError::NotServing(_) => None,
        }
    }
}
