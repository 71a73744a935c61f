//! `request <method> <path> [<body>]`: one HTTP request to a port of this pod's proxy. `istioctl` and preStop hooks run it and read
//! its standard output, where nothing but the body is printed.

use std::time::Duration;

use tokio::time::Instant;

use super::{
    Failure,
    args::Typed,
    commands::DEBUG_PORT,
    fetch::{Answer, fetch},
};
use crate::net::http1::Url;

/// The ports that may be asked: Envoy's admin, debug, status and readiness. Others are none of this command's business.
const ALLOWED: [i64; 4] = [15000, 15004, 15020, 15021];
/// For the whole request, as Istio.
const TIMEOUT: Duration = Duration::from_secs(60);
/// The largest body that is printed; a config_dump of a large gateway has some hundred MB.
const MAX_BODY: usize = 1 << 30;

/// Runs it; the text for standard output.
///
/// # Errors
/// A port that is not allowed, no answer, or an answer with a status over 399 other than 404.
pub async fn run(typed: &Typed) -> Result<Vec<u8>, Failure> {
    let port = typed.int(&DEBUG_PORT);
    if !ALLOWED.contains(&port) {
        return Err(Failure::usage(format!("debug port {port} is not in allowed list [15000 15004 15020 15021]")));
    }
    let [method, path, rest @ ..] = typed.positionals.as_slice() else {
        return Err(Failure::usage("request needs a method and a path"));
    };
    if method.is_empty() || !method.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte)) {
        return Err(Failure::usage(format!("{method:?} is no HTTP method")));
    }
    let path = path.strip_prefix('/').unwrap_or(path);
    let url = Url::parse(&format!("http://localhost:{port}/{path}")).map_err(Failure::usage)?;
    let body = rest.first().map_or("", String::as_str);
    let answer = fetch(method, &url, body, Instant::now() + TIMEOUT, MAX_BODY).await;
    let Answer { status, mut body } = answer.map_err(|error| Failure::failed(format!("{method} /{path}: {error}")))?;
    if status > 399 && status != 404 {
        let body = String::from_utf8_lossy(&body);
        return Err(Failure::failed(format!("received unsuccessful status code {status}: {body}")));
    }
    body.push(b'\n');
    Ok(body)
}
