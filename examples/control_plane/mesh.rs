//! The mesh file: which services there are, and what each workload's Envoy listens on and routes to.
//!
//! ```json
//! {
//!   "services": {
//!     "app.demo.svc.cluster.local": {"account": "spiffe://cluster.local/ns/demo/sa/app", "endpoints": ["127.0.0.1:15006"]}
//!   },
//!   "workloads": {
//!     "app.demo": {"inbound": [{"listen": "127.0.0.1:15006", "app": "127.0.0.1:8080"}]},
//!     "client.demo": {"outbound": [{"listen": "127.0.0.1:15001", "routes": [
//!       {"prefix": "/hello", "answer": "hello\n"},
//!       {"prefix": "/", "service": "app.demo.svc.cluster.local", "rewrite": "/"}
//!     ]}]}
//!   }
//! }
//! ```
//! A workload's name is its pod's name, a dot and its namespace, as its Envoy's node id has it.

use std::{collections::BTreeMap, net::SocketAddr};

use serde_json::{Map, Value};

/// The whole mesh.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Mesh {
    /// By host name.
    pub services: BTreeMap<String, Service>,
    /// By `POD.NAMESPACE`.
    pub workloads: BTreeMap<String, Workload>,
}

/// Something that can be called.
#[derive(Debug, Clone, PartialEq)]
pub struct Service {
    /// The SPIFFE ID that its workloads must show.
    pub account: String,
    pub endpoints: Vec<SocketAddr>,
}

/// One Envoy.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Workload {
    pub inbound: Vec<Inbound>,
    pub outbound: Vec<Outbound>,
}

/// A port that takes mutual TLS and hands requests to the application.
#[derive(Debug, Clone, PartialEq)]
pub struct Inbound {
    pub listen: SocketAddr,
    pub app: SocketAddr,
}

/// A port that takes plain HTTP from the application and routes it.
#[derive(Debug, Clone, PartialEq)]
pub struct Outbound {
    pub listen: SocketAddr,
    pub routes: Vec<Route>,
}

/// Where requests below a prefix go.
#[derive(Debug, Clone, PartialEq)]
pub struct Route {
    pub prefix: String,
    pub action: Action,
}

/// What becomes of a request.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// It goes to a service, its prefix replaced if so told.
    Service { host: String, rewrite: String },
    /// Envoy answers it with 200 and this body.
    Answer(String),
}

impl Mesh {
    /// Reads the file's text; an error names the field.
    pub fn parse(text: &str) -> Result<Mesh, String> {
        let root: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let root = object(&root, "the file")?;
        let mesh = Mesh { services: named(root, "services", service)?, workloads: named(root, "workloads", workload)? };
        for (name, workload) in &mesh.workloads {
            for route in workload.outbound.iter().flat_map(|outbound| &outbound.routes) {
                match &route.action {
                    Action::Service { host, .. } if !mesh.services.contains_key(host) => {
                        return Err(format!("workloads.{name}: route {}: no service {host}", route.prefix));
                    }
                    _ => {}
                }
            }
        }
        Ok(mesh)
    }
}

fn service(value: &Value, at: &str) -> Result<Service, String> {
    let fields = object(value, at)?;
    Ok(Service {
        account: text(fields, "account", at)?,
        endpoints: list(fields, "endpoints", at, |value, at| address(value.as_str(), at))?,
    })
}

fn workload(value: &Value, at: &str) -> Result<Workload, String> {
    let fields = object(value, at)?;
    Ok(Workload { inbound: list(fields, "inbound", at, inbound)?, outbound: list(fields, "outbound", at, outbound)? })
}

fn inbound(value: &Value, at: &str) -> Result<Inbound, String> {
    let fields = object(value, at)?;
    Ok(Inbound { listen: address_field(fields, "listen", at)?, app: address_field(fields, "app", at)? })
}

fn outbound(value: &Value, at: &str) -> Result<Outbound, String> {
    let fields = object(value, at)?;
    Ok(Outbound { listen: address_field(fields, "listen", at)?, routes: list(fields, "routes", at, route)? })
}

fn route(value: &Value, at: &str) -> Result<Route, String> {
    let fields = object(value, at)?;
    let action = match fields.get("answer") {
        Some(answer) => Action::Answer(answer.as_str().ok_or(format!("{at}.answer: not a text"))?.to_owned()),
        None => Action::Service {
            host: text(fields, "service", at)?,
            rewrite: fields.get("rewrite").and_then(Value::as_str).unwrap_or_default().to_owned(),
        },
    };
    Ok(Route { prefix: text(fields, "prefix", at)?, action })
}

type Read<T> = fn(&Value, &str) -> Result<T, String>;

fn named<T>(fields: &Map<String, Value>, name: &str, read: Read<T>) -> Result<BTreeMap<String, T>, String> {
    let Some(value) = fields.get(name) else { return Ok(BTreeMap::new()) };
    let entries = object(value, name)?.iter();
    entries.map(|(key, value)| Ok((key.clone(), read(value, &format!("{name}.{key}"))?))).collect()
}

fn list<T>(fields: &Map<String, Value>, name: &str, at: &str, read: Read<T>) -> Result<Vec<T>, String> {
    let Some(value) = fields.get(name) else { return Ok(Vec::new()) };
    let values = value.as_array().ok_or(format!("{at}.{name}: not a list"))?.iter().enumerate();
    values.map(|(index, value)| read(value, &format!("{at}.{name}[{index}]"))).collect()
}

fn object<'a>(value: &'a Value, at: &str) -> Result<&'a Map<String, Value>, String> {
    value.as_object().ok_or(format!("{at}: not an object"))
}

fn text(fields: &Map<String, Value>, name: &str, at: &str) -> Result<String, String> {
    fields.get(name).and_then(Value::as_str).map(str::to_owned).ok_or(format!("{at}.{name}: a text is needed"))
}

fn address_field(fields: &Map<String, Value>, name: &str, at: &str) -> Result<SocketAddr, String> {
    address(fields.get(name).and_then(Value::as_str), &format!("{at}.{name}"))
}

fn address(text: Option<&str>, at: &str) -> Result<SocketAddr, String> {
    text.and_then(|text| text.parse().ok()).ok_or(format!("{at}: an address such as 127.0.0.1:8080 is needed"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_field() {
        for (text, error) in [
            ("[]", "the file: not an object"),
            (r#"{"services": {"a": {"endpoints": []}}}"#, "services.a.account: a text is needed"),
            (
                r#"{"services": {"a": {"account": "x", "endpoints": ["y"]}}}"#,
                "services.a.endpoints[0]: an address such as 127.0.0.1:8080 is needed",
            ),
            (
                r#"{"workloads": {"w.n": {"outbound": [{"listen": "127.0.0.1:1", "routes": [{"prefix": "/", "service": "a"}]}]}}}"#,
                "workloads.w.n: route /: no service a",
            ),
        ] {
            assert_eq!(Mesh::parse(text).unwrap_err(), error);
        }
    }
}
