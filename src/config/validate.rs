//! Istio's rules for a ProxyConfig (pkg/config/validation/agent); every violation is gathered.

use std::net::IpAddr;

use serde_json::Value as Json;

use super::{ConfigError, Errors, TlsMode, duration, layers::Layers};

/// Checks the effective ProxyConfig.
pub(super) fn validate(layers: &Layers, errors: &mut Errors) {
    let mut check = Check { layers, errors };
    check.required();
    check.durations();
    check.addresses();
    check.tracing();
    check.key_provider();
    check.connection_settings();
    for service in ["envoyMetricsService", "envoyAccessLogService"] {
        if let Some(value) = layers.get(service) {
            check.optional_address(service, &format!("{service}.address"), value.get("address"));
        }
    }
}

/// `host:port` with a port and a host as Istio accepts them.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn address(text: &str) -> Result<(), String> {
    let (host, port) = split_host_port(text)?;
    if !port.parse::<u32>().is_ok_and(|port| (1..=65535).contains(&port)) {
        return Err(format!("{text:?}: the port has to be a number from 1 to 65535"));
    }
    if host.parse::<IpAddr>().is_ok() || is_fqdn(host) {
        return Ok(());
    }
    Err(format!("{text:?}: {host:?} is neither an IP address nor a DNS name"))
}

/// Splits `host:port` and `[v6]:port` as Go's `net.SplitHostPort` does.
///
/// # Errors
/// What is wrong with it.
pub fn split_host_port(text: &str) -> Result<(&str, &str), String> {
    let wrong = |why: &str| format!("{text:?} is not host:port ({why})");
    let Some((host, port)) = text.rsplit_once(':') else { return Err(wrong("the port is missing")) };
    if let Some(inner) = host.strip_prefix('[') {
        let inner = inner.strip_suffix(']').ok_or_else(|| wrong("a closing bracket is missing"))?;
        return if inner.contains(['[', ']']) { Err(wrong("too many brackets")) } else { Ok((inner, port)) };
    }
    if host.contains(':') {
        return Err(wrong("put an IPv6 address in brackets"));
    }
    if host.contains(['[', ']']) || port.contains(['[', ']']) {
        return Err(wrong("a bracket in the wrong place"));
    }
    Ok((host, port))
}

/// At most 255 letters, labels of letters, digits and hyphens (RFC 1123), the last one not a number; a final dot is fine.
fn is_fqdn(host: &str) -> bool {
    let name = host.strip_suffix('.').unwrap_or(host);
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    host.len() <= 255
        && name.split('.').all(is_label)
        && !name.rsplit('.').next().is_some_and(|last| last.bytes().all(|byte| byte.is_ascii_digit()))
}

struct Check<'a> {
    layers: &'a Layers,
    errors: &'a mut Errors,
}

impl Check<'_> {
    /// Adds a violation; `field` is the top-level field whose origin is told.
    fn wrong(&mut self, field: &str, path: &str, message: impl Into<String>) {
        let origin = self.layers.origin(field);
        self.errors.0.push(ConfigError { source: format!("{origin}: {path}"), message: message.into() });
    }

    fn text(&self, name: &str) -> &str {
        self.layers.get(name).and_then(Json::as_str).unwrap_or_default()
    }

    fn required(&mut self) {
        for name in ["configPath", "binaryPath"] {
            if self.text(name).is_empty() {
                self.wrong(name, name, "must not be empty");
            }
        }
        if self.layers.get("serviceCluster").and_then(Json::as_str) == Some("") {
            self.wrong("serviceCluster", "serviceCluster", "must not be empty");
        }
        for name in ["proxyAdminPort", "statusPort"] {
            let port = self.layers.get(name).and_then(Json::as_i64).unwrap_or_default();
            if !(1..=65535).contains(&port) {
                self.wrong(name, name, format!("{port} is not a port (1 to 65535)"));
            }
        }
        match self.layers.get("controlPlaneAuthPolicy") {
            None => {}
            Some(Json::String(name)) if name == "NONE" || name == "MUTUAL_TLS" => {}
            Some(other) => {
                let message = format!("{other} is not NONE or MUTUAL_TLS");
                self.wrong("controlPlaneAuthPolicy", "controlPlaneAuthPolicy", message);
            }
        }
    }

    fn durations(&mut self) {
        let text = self.text("drainDuration").to_owned();
        let nanos = duration::go_nanos(&text).unwrap_or_default();
        if nanos < 1_000_000 {
            self.wrong("drainDuration", "drainDuration", format!("{text} is too short: at least 1s is needed"));
        } else if nanos % 1_000_000_000 != 0 {
            self.wrong("drainDuration", "drainDuration", format!("{text} is not a whole number of seconds"));
        }
    }

    fn addresses(&mut self) {
        if let Err(message) = address(self.text("discoveryAddress")) {
            self.wrong("discoveryAddress", "discoveryAddress", message);
        }
        // Its name is looked up later, and what cannot be found turns it off; a port that cannot be is found out here.
        let statsd = self.text("statsdUdpAddress").to_owned();
        if split_host_port(&statsd).is_ok_and(|(_, port)| port.parse() == Ok(0)) {
            self.wrong("statsdUdpAddress", "statsdUdpAddress", format!("{statsd:?}: 0 is not a port (1 to 65535)"));
        }
        let name = "envoyMetricsServiceAddress";
        self.optional_address(name, name, self.layers.get(name));
    }

    fn optional_address(&mut self, field: &str, path: &str, value: Option<&Json>) {
        let text = value.and_then(Json::as_str).unwrap_or_default();
        if !text.is_empty()
            && let Err(message) = address(text)
        {
            self.wrong(field, path, message);
        }
    }

    fn tracing(&mut self) {
        let Some(tracing) = self.layers.get("tracing") else { return };
        for tracer in ["zipkin", "datadog", "lightstep"] {
            let Some(settings) = tracing.get(tracer) else { continue };
            let text = settings.get("address").and_then(Json::as_str).unwrap_or_default();
            // The placeholder is filled in later; lightstep has none.
            let filled =
                if tracer == "lightstep" { text.to_owned() } else { text.replacen("$(HOST_IP)", "127.0.0.1", 1) };
            if let Err(message) = address(&filled) {
                self.wrong("tracing", &format!("tracing.{tracer}.address"), message);
            }
            if tracer == "lightstep" && settings.get("accessToken").is_none() {
                self.wrong("tracing", "tracing.lightstep.accessToken", "must not be empty");
            }
        }
        self.tracing_tls(tracing.get("tlsSettings"));
    }

    /// Rules of the modes with files; those of the services' TLS are not looked at, as in Istio.
    fn tracing_tls(&mut self, settings: Option<&Json>) {
        let Some(settings) = settings else { return };
        let tls = super::read::client_tls(settings);
        let is_mutual = tls.mode == TlsMode::Mutual;
        if !is_mutual && tls.mode != TlsMode::Simple {
            return;
        }
        let by_name = !tls.credential_name.is_empty();
        let is_set = |name: &str| settings.get(name).is_some();
        let mut wrong = |name: &str, message: &str| {
            self.wrong("tracing", &format!("tracing.tlsSettings.{name}"), message);
        };
        if tls.insecure_skip_verify {
            for name in ["caCertificates", "subjectAltNames", "credentialName"] {
                // A secret may bring the client's certificate only.
                if is_set(name) && !(is_mutual && name == "credentialName") {
                    wrong(name, "makes no sense with insecureSkipVerify");
                }
            }
        }
        for name in ["clientCertificate", "privateKey", "caCertificates", "caCrl"] {
            if by_name && is_set(name) {
                wrong(name, "must be empty when credentialName is set");
            }
        }
        for name in ["clientCertificate", "privateKey"] {
            if is_mutual && !by_name && !is_set(name) {
                wrong(name, "is needed with mode MUTUAL");
            }
        }
    }

    fn key_provider(&mut self) {
        let Some(value) = self.layers.get("privateKeyProvider") else { return };
        let field = "privateKeyProvider";
        let Some(provider) = ["cryptomb", "qat"].into_iter().find(|provider| value.get(provider).is_some()) else {
            return self.wrong(field, field, "has to have cryptomb or qat");
        };
        let delay = value[provider].get("pollDelay").and_then(Json::as_str).and_then(duration::go_nanos);
        if delay.unwrap_or_default() == 0 {
            self.wrong(field, &format!("{field}.{provider}.pollDelay"), "has to be set, and more than 0s");
        }
    }

    fn connection_settings(&mut self) {
        let Some(Json::Object(settings)) = self.layers.get("connectionSettings") else { return };
        for (name, value) in settings {
            let min = match name.as_str() {
                "listenerPerConnectionBufferLimitBytes" | "clusterPerConnectionBufferLimitBytes" => 0,
                "httpMaxConcurrentStreams" | "listenerConnectionLimit" | "globalDownstreamConnectionLimit" => 1,
                "http2InitialStreamWindowSize" | "http2InitialConnectionWindowSize" => 65_535,
                _ => i64::MIN,
            };
            let path = format!("connectionSettings.{name}");
            if value.as_i64().is_some_and(|value| value < min) {
                self.wrong("connectionSettings", &path, format!("{value} is too small: at least {min}"));
            }
            if value.as_str().and_then(duration::go_nanos).is_some_and(|nanos| nanos < 0) {
                self.wrong("connectionSettings", &path, format!("{value} is negative"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        for good in
            ["istiod:15012", "istiod.istio-system.svc:15012", "a.b.:1", "10.0.0.1:65535", "[fd00::1]:80", "a1:1"]
        {
            assert_eq!(address(good), Ok(()), "{good}");
        }
        let long = format!("{}:1", "a.".repeat(140));
        for bad in [
            "",
            "istiod",
            "istiod:",
            "istiod:0",
            "istiod:65536",
            "istiod:http",
            "fd00::1:80",
            "[fd00::1]",
            ":80",
            "a_b:1",
            "-a:1",
            "a-:1",
            "a..b:1",
            "1.2.3:4",
            "[fd00::1:80",
            "$(HOST_IP):1",
            long.as_str(),
        ] {
            assert!(address(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn host_and_port() {
        assert_eq!(split_host_port("[::1]:8"), Ok(("::1", "8")));
        assert_eq!(split_host_port("a:"), Ok(("a", "")));
        for bad in ["a", "::1:8", "[a:8", "a]:8", "[a]b:8", "[[a]]:8"] {
            assert!(split_host_port(bad).is_err(), "{bad}");
        }
    }
}
