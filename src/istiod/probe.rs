//! Reaching istiod one step at a time, for a person: `footman check` prints what each step found and what to do when it failed.
//! Opens no stream and sends no request.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde_json::Value as Json;
use tokio::{
    net::TcpStream,
    time::{Instant, timeout_at},
};

use super::{Config, Endpoint, Proxy, Tls, Token, material::Material};
use crate::{
    grpc::{Client, Settings},
    net::{BoxIo, dial, resolve::Resolver, tls},
};

/// How long each step may take.
const STEP: Duration = Duration::from_secs(5);

/// What one step found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// `name`, `connection` (or `proxy` for both), `TLS`, `HTTP/2` or `token`.
    pub name: &'static str,
    /// What was found, or what went wrong.
    pub result: Result<String, String>,
    /// What to look at when it failed.
    pub advice: &'static str,
}

/// Every step up to the first that fails, and the token in any case.
pub async fn probe(config: &Config) -> Vec<Step> {
    let mut steps = Vec::new();
    way(&config.endpoint, &mut steps).await;
    // Plaintext asks for none, and a client certificate stands in for one.
    let optional = config.endpoint.tls.as_ref().is_none_or(|tls| tls.pair.is_some());
    let found = token(&config.token).await;
    steps.push(Step {
        name: "token",
        result: if optional { found.or_else(|why| Ok(format!("none is needed here ({why})"))) } else { found },
        advice: "mount a projected service account token with istiod's audience (istio-ca) there",
    });
    steps
}

/// Adds a step's result; its value when it succeeded.
fn took<T>(
    steps: &mut Vec<Step>,
    name: &'static str,
    advice: &'static str,
    result: Result<(T, String), String>,
) -> Option<T> {
    let (value, result) = match result {
        Ok((value, found)) => (Some(value), Ok(found)),
        Err(why) => (None, Err(why)),
    };
    steps.push(Step { name, result, advice });
    value
}

async fn way(endpoint: &Endpoint, steps: &mut Vec<Step>) -> Option<()> {
    let tcp = if let Some(proxy) = &endpoint.proxy {
        let advice = "is HTTPS_PROXY right, and may it reach istiod? NO_PROXY excepts hosts";
        took(steps, "proxy", advice, tunnel(proxy, endpoint).await)?
    } else {
        let advice = "is the name right (discoveryAddress, CA_ADDR), and does DNS answer (/etc/resolv.conf)?";
        took(steps, "name", advice, resolve(endpoint).await)?;
        let advice = "does istiod run, and does no NetworkPolicy or firewall stand between?";
        took(steps, "connection", advice, connect(endpoint).await)?
    };
    let mut io: BoxIo = Box::new(tcp);
    if let Some(tls) = &endpoint.tls {
        let advice = "the roots have to be those of istiod's CA (XDS_ROOT_CA, CA_ROOT_CA), the name one of its certificate's \
                      (ISTIOD_SAN)";
        io = took(steps, "TLS", advice, handshake(io, tls).await)?;
    }
    let advice = "does something else than istiod listen at this port? 15012 takes TLS, 15010 plaintext";
    took(steps, "HTTP/2", advice, greet(io).await)
}

async fn resolve(endpoint: &Endpoint) -> Result<((), String), String> {
    let lookup = timeout_at(Instant::now() + STEP, Resolver::from_system().lookup(&endpoint.host)).await;
    let found = lookup.map_err(|_| format!("{}: no answer in time", endpoint.host))?;
    let addresses = found.map_err(|error| error.to_string())?;
    let list: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    Ok(((), format!("{} is {}", endpoint.host, list.join(", "))))
}

/// The proxy resolves the name and connects.
async fn tunnel(proxy: &Proxy, endpoint: &Endpoint) -> Result<(TcpStream, String), String> {
    let deadline = Instant::now() + STEP;
    let tunnel = timeout_at(deadline, proxy.connect(&endpoint.host, endpoint.port, deadline)).await;
    let stream = tunnel.map_err(|_| format!("proxy {proxy:?}: no answer in time"))?;
    Ok((stream.map_err(|error| error.to_string())?, format!("connected through {proxy:?}")))
}

async fn connect(endpoint: &Endpoint) -> Result<(TcpStream, String), String> {
    let stream = dial::tcp(&endpoint.host, endpoint.port, Instant::now() + STEP).await;
    let stream = stream.map_err(|error| error.to_string())?;
    let peer = stream.peer_addr().map_err(|error| error.to_string())?;
    Ok((stream, format!("connected to {peer}")))
}

async fn handshake(io: BoxIo, settings: &Tls) -> Result<(BoxIo, String), String> {
    let material = Material::read(settings);
    let config = material.config(settings).map_err(|error| format!("{error} ({})", settings.roots))?;
    let name = &settings.server_name;
    let connected = timeout_at(Instant::now() + STEP, tls::connect(io, config, name)).await;
    let io = connected
        .map_err(|_| "no answer in time".to_owned())?
        .map_err(|error| format!("{error} (name {name:?}, {})", settings.roots))?;
    let with = match (&settings.pair, material.warning) {
        (_, Some(warning)) => format!("; {warning}"),
        (Some(pair), None) => format!("; client certificate {}", pair.chain.display()),
        (None, None) => String::new(),
    };
    Ok((io, format!("istiod is {name:?} by {}{with}", settings.roots)))
}

async fn greet(io: BoxIo) -> Result<((), String), String> {
    let asked = async {
        let (client, drive) = Client::handshake(io, Settings::default()).await?;
        tokio::select! {
            biased;
            greeted = client.greeted() => greeted,
            ended = drive => ended,
        }
    };
    let answered = timeout_at(Instant::now() + STEP, asked).await.map_err(|_| "no answer in time".to_owned())?;
    answered.map_err(|status| status.message)?;
    Ok(((), "istiod speaks HTTP/2".to_owned()))
}

async fn token(token: &Token) -> Result<String, String> {
    match token.get().await? {
        None => Ok("none is configured: a client certificate has to do".to_owned()),
        Some(text) => describe(&text, SystemTime::now()),
    }
}

/// What a JWT says of itself; never the token.
fn describe(token: &str, now: SystemTime) -> Result<String, String> {
    let Some(claims) = claims(token) else { return Ok("present; not a JWT, istiod has to judge".to_owned()) };
    let subject = claims["sub"].as_str().unwrap_or("nobody");
    let audience = match &claims["aud"] {
        Json::Array(list) => list.iter().filter_map(Json::as_str).collect::<Vec<_>>().join(", "),
        other => other.as_str().unwrap_or("nobody").to_owned(),
    };
    let said = format!("of {subject} for {audience}");
    let Some(ends) = claims["exp"].as_u64() else { return Ok(said) };
    let ends = UNIX_EPOCH.checked_add(Duration::from_secs(ends)).unwrap_or(now);
    match ends.duration_since(now) {
        Ok(left) => Ok(format!("{said}, {} minutes left", left.as_secs() / 60)),
        Err(past) => Err(format!("expired {} minutes ago ({said})", past.duration().as_secs() / 60)),
    }
}

fn claims(token: &str) -> Option<Json> {
    let mut parts = token.split('.');
    let (_, claims, _) = (parts.next()?, parts.next()?, parts.next()?);
    let claims: Json = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims.trim_end_matches('=')).ok()?).ok()?;
    claims.is_object().then_some(claims)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn jwt(claims: &Json) -> String {
        format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(claims.to_string()))
    }

    #[test]
    fn tokens_speak_for_themselves_but_are_not_shown() {
        let now = UNIX_EPOCH + Duration::from_secs(10_000);
        let of = |claims: Json| describe(&jwt(&claims), now);
        let claims = serde_json::json!({"sub": "system:serviceaccount:a:b", "aud": ["istio-ca"], "exp": 13_600});
        assert_eq!(of(claims), Ok("of system:serviceaccount:a:b for istio-ca, 60 minutes left".to_owned()));
        let claims = serde_json::json!({"sub": "s", "aud": "x", "exp": 9_400});
        assert_eq!(of(claims), Err("expired 10 minutes ago (of s for x)".to_owned()));
        assert_eq!(of(serde_json::json!({})), Ok("of nobody for nobody".to_owned()));
        for token in ["opaque", "a.b", "a.!.c", "a.e30x.c", ""] {
            let text = describe(token, now).unwrap();
            assert!(text.starts_with("present"), "{token}: {text}");
        }
    }
}
