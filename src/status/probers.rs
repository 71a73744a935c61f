//! `ISTIO_KUBE_APP_PROBERS`: the applications' probes as the injector rewrote them. Pure.
//!
//! Read as Go's JSON decoder reads it: member names without case, unknown ones ignored. Every wrong entry is reported.

use std::{collections::BTreeMap, time::Duration};

use serde_json::{Map, Value};

use super::json;
use crate::config::Errors;

/// The variable.
pub const VARIABLE: &str = "ISTIO_KUBE_APP_PROBERS";

/// One probe of an application.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prober {
    /// What is asked.
    pub check: Check,
    /// `timeoutSeconds`; zero is no limit for HTTP and TCP, and fails at once for gRPC, as with Istio's agent.
    pub timeout: Duration,
}

/// Kinds of probes. Ports are as configured: 0 or an impossible one makes the probe fail, not the start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Check {
    /// `httpGet`. Its host and headers are not read: the kubelet sends the headers itself.
    Http {
        /// Path with query; may be empty or lack the first slash.
        path: String,
        /// The port.
        port: i32,
        /// Whether `scheme` is `HTTPS`.
        tls: bool,
    },
    /// `tcpSocket`.
    Tcp {
        /// The port.
        port: i32,
    },
    /// `grpc`.
    Grpc {
        /// The port.
        port: i32,
        /// Asked-for service; empty for the server as a whole.
        service: String,
    },
}

/// All probers by the path under which the kubelet asks for them.
pub type Probers = BTreeMap<String, Prober>;

/// Reads the variable's text; empty text is no probers.
///
/// # Errors
/// Every entry that cannot be used.
pub fn parse(text: &str) -> Result<Probers, Errors> {
    let (mut errors, mut probers) = (Errors::default(), Probers::new());
    if text.is_empty() {
        return Ok(probers);
    }
    let entries = match serde_json::from_str(text) {
        Ok(Value::Object(entries)) => entries,
        Ok(Value::Null) => Map::new(),
        Ok(_) => {
            errors.add(VARIABLE, "failed to decode app prober: it is not a JSON object");
            return Err(errors);
        }
        Err(error) => {
            errors.add(VARIABLE, format!("failed to decode app prober: {error}"));
            return Err(errors);
        }
    };
    for (path, entry) in &entries {
        let source = || format!("{VARIABLE}: {path}");
        if !is_prober_path(path) {
            let form = "/app-health/<container>/livez (or readyz, startupz) or /app-lifecycle/<container>/prestopz";
            errors.add(source(), format!("invalid path: must be like {form}"));
        }
        match prober(entry) {
            Ok(prober) => drop(probers.insert(path.clone(), prober)),
            Err(message) => errors.add(source(), message),
        }
    }
    errors.into_result(probers)
}

fn is_prober_path(path: &str) -> bool {
    let mut parts = path.split('/');
    let known = matches!(
        (parts.next(), parts.next(), parts.next(), parts.next()),
        (
            Some(""),
            Some("app-health" | "app-lifecycle"),
            Some(container),
            Some("livez" | "readyz" | "startupz" | "prestopz" | "poststartz"),
        ) if !container.is_empty()
    );
    known && parts.next().is_none()
}

fn prober(entry: &Value) -> Result<Prober, String> {
    let Value::Object(entry) = entry else { return Err("failed to decode app prober: it is not an object".to_owned()) };
    let handlers = ["httpGet", "tcpSocket", "grpc"].map(|name| json::member(entry, name));
    let check = match handlers {
        [Some(http), None, None] => http_check(object(http, "httpGet")?)?,
        [None, Some(tcp), None] => Check::Tcp { port: port(object(tcp, "tcpSocket")?, "tcpSocket", true)? },
        [None, None, Some(grpc)] => {
            let grpc = object(grpc, "grpc")?;
            Check::Grpc { port: port(grpc, "grpc", false)?, service: text(grpc, "service")? }
        }
        _ => return Err("invalid prober type, must be one of type httpGet, tcpSocket or gRPC".to_owned()),
    };
    let seconds = int(entry, "timeoutSeconds")?.unwrap_or(0);
    Ok(Prober { check, timeout: Duration::from_secs(u64::try_from(seconds).unwrap_or(0)) })
}

fn http_check(http: &Map<String, Value>) -> Result<Check, String> {
    text(http, "host")?;
    match json::member(http, "httpHeaders") {
        None => {}
        Some(Value::Array(headers)) if headers.iter().all(Value::is_object) => {}
        Some(_) => return Err(undecodable("httpHeaders", "a list of objects")),
    }
    Ok(Check::Http {
        path: text(http, "path")?,
        port: port(http, "httpGet", true)?,
        tls: text(http, "scheme")? == "HTTPS",
    })
}

fn object<'a>(value: &'a Value, name: &str) -> Result<&'a Map<String, Value>, String> {
    value.as_object().ok_or_else(|| undecodable(name, "an object"))
}

fn text(object: &Map<String, Value>, name: &str) -> Result<String, String> {
    json::text(object, name).map_err(|message| format!("failed to decode app prober: {message}"))
}

fn int(object: &Map<String, Value>, name: &str) -> Result<Option<i32>, String> {
    let whole = |value: &Value| value.as_i64().and_then(|number| i32::try_from(number).ok());
    let value = json::member(object, name);
    value.map(|value| whole(value).ok_or_else(|| undecodable(name, "a whole number"))).transpose()
}

/// `named` where Kubernetes allows a port's name, which the injector should have resolved.
fn port(object: &Map<String, Value>, handler: &str, named: bool) -> Result<i32, String> {
    match json::member(object, "port") {
        Some(Value::String(name)) if named => {
            Err(format!("invalid prober config for {handler}: the port must be int type, {name:?} is not"))
        }
        _ => int(object, "port").map(Option::unwrap_or_default),
    }
}

fn undecodable(name: &str, wanted: &str) -> String {
    format!("failed to decode app prober: {name} must be {wanted}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: &str = "/app-health/a/livez";

    fn one(entry: &str) -> Result<Prober, String> {
        let probers = parse(&format!("{{{PATH:?}:{entry}}}")).map_err(|errors| errors.to_string())?;
        Ok(probers.into_values().next().unwrap())
    }

    #[test]
    fn reads_every_kind() {
        let http = |path: &str, port, tls| Check::Http { path: path.to_owned(), port, tls };
        let grpc = |port, service: &str| Check::Grpc { port, service: service.to_owned() };
        for (entry, check, seconds) in [
            (r#"{"httpGet":{"port":80}}"#, http("", 80, false), 0),
            (
                r#"{"httpGet":{"path":"x?y","port":8443,"scheme":"HTTPS","host":"h","httpHeaders":[{"name":"A","value":"b"}]},
                "timeoutSeconds":3,"periodSeconds":5,"initialDelaySeconds":1}"#,
                http("x?y", 8443, true),
                3,
            ),
            (r#"{"httpGet":{"scheme":"https"}}"#, http("", 0, false), 0),
            (r#"{"tcpSocket":{"port":90000},"timeoutSeconds":-1}"#, Check::Tcp { port: 90000 }, 0),
            (r#"{"gRPC":{"port":8080}}"#, grpc(8080, ""), 0),
            (r#"{"grpc":{"port":8080,"service":null},"httpGet":null}"#, grpc(8080, ""), 0),
            (r#"{"GRPC":{"Port":8080,"service":"foo"}}"#, grpc(8080, "foo"), 0),
        ] {
            assert_eq!(one(entry), Ok(Prober { check, timeout: Duration::from_secs(seconds) }), "{entry}");
        }
    }

    #[test]
    fn refuses_what_cannot_be_probed() {
        for (entry, text) in [
            ("null", "failed to decode"),
            ("{}", "invalid prober type"),
            (r#"{"exec":{"command":["x"]}}"#, "invalid prober type"),
            (r#"{"httpGet":{"port":80},"tcpSocket":{"port":80}}"#, "must be one of type httpGet, tcpSocket or gRPC"),
            (r#"{"httpGet":{"port":80},"grpc":{"port":80}}"#, "must be one of type httpGet, tcpSocket or gRPC"),
            (r#"{"httpGet":{"port":"web"}}"#, "must be int type"),
            (r#"{"tcpSocket":{"port":"web"}}"#, "must be int type"),
            (r#"{"grpc":{"port":"8080"}}"#, "failed to decode"),
            (r#"{"httpGet":{"port":80.5}}"#, "failed to decode"),
            (r#"{"httpGet":{"port":4294967296}}"#, "failed to decode"),
            (r#"{"httpGet":[]}"#, "failed to decode"),
            (r#"{"httpGet":{"port":80,"path":7}}"#, "failed to decode"),
            (r#"{"httpGet":{"port":80,"httpHeaders":{}}}"#, "failed to decode"),
            (r#"{"tcpSocket":{"port":80},"timeoutSeconds":"1"}"#, "failed to decode"),
        ] {
            let error = one(entry).expect_err(entry);
            assert!(error.contains(text) && error.contains(VARIABLE) && error.contains(PATH), "{entry}: {error}");
        }
    }

    #[test]
    fn paths_are_the_injectors() {
        for (path, known) in [
            ("/app-health/hello-world/readyz", true),
            ("/app-health/x/prestopz", true),
            ("/app-lifecycle/x/livez", true),
            ("abc", false),
            ("/app-health//livez", false),
            ("/app-health/a/b/livez", false),
            ("/app-health/a/livez/", false),
            ("/app-health/a/healthz", false),
            ("/app-health/a", false),
            ("app-health/a/livez", false),
        ] {
            let parsed = parse(&format!(r#"{{{path:?}:{{"tcpSocket":{{"port":1}}}}}}"#));
            assert_eq!(parsed.is_ok(), known, "{path}");
            if let Err(errors) = parsed {
                assert!(errors.to_string().contains("invalid path"), "{errors}");
            }
        }
    }

    #[test]
    fn nothing_is_no_probers_and_garbage_is_refused() {
        for text in ["", "{}", "null"] {
            assert_eq!(parse(text), Ok(Probers::new()), "{text}");
        }
        for text in ["{not json", "[]", "7", "\"x\""] {
            assert!(parse(text).unwrap_err().to_string().contains("failed to decode"), "{text}");
        }
        let errors = parse(r#"{"abc":{},"/app-health/a/livez":{"exec":{}}}"#).unwrap_err();
        assert_eq!(errors.0.len(), 3, "every error at once: {errors}");
    }
}
