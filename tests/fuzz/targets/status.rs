//! What clients, applications, Envoy and the injector send to the status port and to the HTTP client.

use std::sync::LazyLock;

use footman::{
    base::Trigger,
    envoy::readiness,
    net::http1::{
        client,
        server::{Answer, Limits, Reply, Request, Service, serve_one},
    },
    status::{
        merge::{Rules, Source},
        negotiate::{self, Format},
        probers, targets,
    },
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Answers everything with the path that was asked for.
struct Echo;

impl Service for Echo {
    fn call<'a>(&'a self, request: &'a Request, reply: Reply<'a>) -> Answer<'a> {
        Box::pin(async move { reply.send(200, "text/plain", request.path.as_bytes()).await })
    }
}

static RUNTIME: LazyLock<tokio::runtime::Runtime> =
    LazyLock::new(|| tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap());

/// A client's bytes: every request is answered or refused, and nothing follows a refusal.
pub fn http1_request(data: &[u8]) {
    let output = RUNTIME.block_on(async {
        let (mut client, server) = tokio::io::duplex(1 << 20);
        let (_trigger, drain) = Trigger::new();
        client.write_all(data).await.unwrap();
        client.shutdown().await.unwrap();
        serve_one(Box::new(server), &Echo, &Limits::default(), drain).await;
        let mut output = Vec::new();
        client.read_to_end(&mut output).await.unwrap();
        output
    });
    let text = String::from_utf8_lossy(&output);
    let codes: Vec<&str> = text.split("HTTP/1.1 ").skip(1).filter_map(|answer| answer.get(..3)).collect();
    if let Some(refused) = codes.iter().position(|code| code.starts_with('4') || code.starts_with('5')) {
        assert_eq!(refused + 1, codes.len(), "{text}");
    }
}

/// A server's bytes.
pub fn http1_response(data: &[u8]) {
    RUNTIME.block_on(async {
        let (client, mut server) = tokio::io::duplex(1 << 20);
        server.write_all(data).await.unwrap();
        server.shutdown().await.unwrap();
        let request = client::Request::get("http://localhost/").unwrap();
        if let Ok(mut response) = request.send_on(Box::new(client)).await {
            let body = response.body.collect(1 << 20).await;
            assert!(body.map_or(0, |body| body.len()) <= data.len());
        }
    });
}

/// A page of metrics: it makes no difference in which pieces it comes, and what goes on can be joined.
pub fn exposition(data: &[u8]) {
    for (openmetrics, convert) in [(false, false), (true, false), (true, true)] {
        let pass = |size: usize| {
            let is_own = |name: &str| name == "scrapes_total";
            let mut source = Source::new(Rules { is_own: &is_own, limit: None, openmetrics, convert });
            let mut out = Vec::new();
            for piece in data.chunks(size) {
                out.extend(source.feed(piece).ok()?.concat());
            }
            out.extend_from_slice(source.finish(true).ok()?);
            Some(out)
        };
        let whole = pass(data.len().max(1));
        assert_eq!(whole, pass(3));
        let whole = whole.unwrap_or_default();
        assert!(whole.is_empty() || whole.ends_with(b"\n"));
        assert!(!whole.split(|byte| *byte == b'\n').any(|line| line == b"# EOF"));
    }
}

/// Envoy's `/stats`.
pub fn envoy_stats(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let _ = (readiness::has_configuration(&text), readiness::is_live(&text));
}

/// `ISTIO_KUBE_APP_PROBERS`: what is taken can be asked for.
pub fn app_probers(data: &[u8]) {
    if let Ok(probers) = probers::parse(&String::from_utf8_lossy(data)) {
        assert!(probers.keys().all(|path| path.starts_with("/app-")));
    }
}

/// `ISTIO_PROMETHEUS_ANNOTATIONS`: what is taken is no port of the mesh.
pub fn scrape_targets(data: &[u8]) {
    if let Ok(targets) = targets::parse(&String::from_utf8_lossy(data), 15020) {
        assert!(targets.iter().all(|target| target.port > 0 && targets::reserved(target.port).is_none()));
    }
}

/// `Accept` and `Content-Type`: what is asked for is well formed, so asking for it again changes no type.
pub fn negotiation(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let _ = Format::of(&text);
    let kinds = |accept: &str| accept.split(',').map(|part| part.split(';').next().unwrap().to_owned()).collect();
    let once = negotiate::accept(&text, negotiate::APPLICATION);
    // A comma in a quoted value ends a part, as with Istio's agent.
    if !once.contains('"') {
        let (first, again): (Vec<String>, Vec<String>) =
            (kinds(&once), kinds(&negotiate::accept(&once, negotiate::APPLICATION)));
        assert_eq!(first, again);
    }
}
