//! `ISTIO_PROMETHEUS_ANNOTATIONS`: where the application's metrics are. Pure.

use serde_json::{Map, Value};

use super::json;
use crate::config::Errors;

/// The variable.
pub const VARIABLE: &str = "ISTIO_PROMETHEUS_ANNOTATIONS";

/// One page of metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Its port.
    pub port: u16,
    /// Its path with query.
    pub path: String,
}

/// Ports of the mesh that are no application's; scraping them would loop or count twice.
const RESERVED: &[(u16, &str)] = &[
    (15000, "Envoy's admin port"),
    (15001, "Envoy's outbound capture"),
    (15004, "the debug port of the agent"),
    (15006, "Envoy's inbound capture"),
    (15008, "Envoy's HBONE tunnel"),
    (15020, "the agent's status port, which serves the merged metrics"),
    (15021, "Envoy's health port"),
    (15053, "the agent's DNS"),
    (15090, "Envoy's own metrics, which are merged anyway"),
];

/// Why a port is not an application's; `None` for others.
pub fn reserved(port: u16) -> Option<&'static str> {
    RESERVED.iter().find(|(reserved, _)| *reserved == port).map(|(_, reason)| *reason)
}

/// Reads the variable's text, which exists; no targets when scraping is switched off.
///
/// # Errors
/// Every target that cannot be scraped.
pub fn parse(text: &str, status_port: u16) -> Result<Vec<Target>, Errors> {
    let mut errors = Errors::default();
    let document = match serde_json::from_str(text) {
        Ok(Value::Object(document)) => document,
        Ok(Value::Null) => Map::new(),
        Ok(_) => {
            errors.add(VARIABLE, "it is not a JSON object");
            return Err(errors);
        }
        Err(error) => {
            errors.add(VARIABLE, format!("it is not JSON: {error}"));
            return Err(errors);
        }
    };
    let texts = ["scrape", "path", "port"].map(|name| json::text(&document, name));
    let listed = listed(&document);
    let ([Ok(scrape), Ok(path), Ok(port)], Ok(listed)) = (&texts, &listed) else {
        texts.iter().chain(&[listed.map(drop).map(|()| String::new())]).for_each(|text| {
            if let Err(message) = text {
                errors.add(VARIABLE, message);
            }
        });
        return Err(errors);
    };
    if scrape == "false" {
        return Ok(Vec::new());
    }
    let single = [(if port.is_empty() { "80" } else { port }.to_owned(), path.clone())];
    let wanted = if listed.is_empty() { &single[..] } else { listed };
    let mut targets = Vec::new();
    for (port, path) in wanted {
        match usable_port(port, status_port) {
            Ok(port) => {
                let path = if path.is_empty() { "/metrics" } else { path };
                targets.push(Target { port, path: path.to_owned() });
            }
            Err(message) => errors.add(VARIABLE, message),
        }
    }
    errors.into_result(targets)
}

/// Port and path of each element of `targets`.
fn listed(document: &Map<String, Value>) -> Result<Vec<(String, String)>, String> {
    match json::member(document, "targets") {
        None => Ok(Vec::new()),
        Some(Value::Array(targets)) => targets
            .iter()
            .map(|target| {
                let target = target.as_object().ok_or("targets must be a list of objects")?;
                Ok((json::text(target, "port")?, json::text(target, "path")?))
            })
            .collect(),
        Some(_) => Err("targets must be a list".to_owned()),
    }
}

fn usable_port(text: &str, status_port: u16) -> Result<u16, String> {
    let port = text.parse::<u16>().ok().filter(|port| *port > 0);
    let port = port.ok_or_else(|| format!("port {text:?} is not a number from 1 to 65535"))?;
    if port == status_port {
        return Err(format!("port {text} is the agent's own status port: scraping it would be a recursive loop"));
    }
    match reserved(port) {
        Some(reason) => Err(format!("port {text} is reserved: it is {reason}")),
        None => Ok(port),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn targets(text: &str) -> Vec<(u16, String)> {
        parse(text, 15020).expect(text).into_iter().map(|target| (target.port, target.path)).collect()
    }

    #[test]
    fn reads_single_and_listed_targets() {
        let target = |port, path: &str| (port, path.to_owned());
        for (text, wanted) in [
            (r#"{"scrape":"true","port":"8080","path":"/m"}"#, vec![target(8080, "/m")]),
            (r#"{"scrape":"true"}"#, vec![target(80, "/metrics")]),
            (r#"{"scrape":"False"}"#, vec![target(80, "/metrics")]),
            ("{}", vec![target(80, "/metrics")]),
            (r#"{"scrape":"false","port":"15020"}"#, vec![]),
            (
                r#"{"port":"8080","path":"/m","targets":[{"port":"8080","path":"/m"},{"port":"9100","path":""}]}"#,
                vec![target(8080, "/m"), target(9100, "/metrics")],
            ),
            (r#"{"port":"8080","targets":[{"port":"9100","path":"/c?x"}]}"#, vec![target(9100, "/c?x")]),
            (r#"{"port":"15020","targets":[{"port":"09100"}],"more":1}"#, vec![target(9100, "/metrics")]),
        ] {
            assert_eq!(targets(text), wanted, "{text}");
        }
    }

    #[test]
    fn refuses_what_would_loop_or_cannot_be() {
        for (text, what) in [
            ("", "not JSON"),
            ("{", "not JSON"),
            ("[]", "not a JSON object"),
            (r#"{"port":80}"#, "port must be a string"),
            (r#"{"targets":{}}"#, "targets must be a list"),
            (r#"{"targets":[{"port":9100}]}"#, "port must be a string"),
            (r#"{"port":"1234"}"#, "1234 is the agent's own status port: scraping it would be a recursive loop"),
            (r#"{"targets":[{"port":"015020"}]}"#, "015020 is reserved"),
            (r#"{"targets":[{"port":"9100"},{"port":"15090"}]}"#, "15090"),
            (r#"{"targets":[{"port":"web"}]}"#, "web"),
            (r#"{"targets":[{"port":"0"}]}"#, "\"0\""),
            (r#"{"port":"65536"}"#, "65536"),
            (r#"{"targets":[{"path":"/x"}]}"#, "\"\""),
        ] {
            let errors = parse(text, 1234).expect_err(text).to_string();
            assert!(errors.contains(what) && errors.contains(VARIABLE), "{text}: {errors}");
        }
        assert_eq!(parse(r#"{"targets":[{"port":"0"},{"port":"15000"}]}"#, 1).unwrap_err().0.len(), 2);
    }

    #[test]
    fn reserved_ports_have_reasons() {
        for port in [15000, 15001, 15004, 15006, 15008, 15020, 15021, 15053, 15090] {
            assert!(reserved(port).is_some_and(|reason| !reason.is_empty()), "{port}");
        }
        for port in [80, 8080, 9090, 15002, 15007, 15091, 15099] {
            assert_eq!(reserved(port), None, "{port}");
        }
    }
}
