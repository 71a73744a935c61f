//! Merged scrapes: a large Envoy exposition, and a large one of the application.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use footman::{
    base::Trigger,
    net::http1::{
        client,
        server::{Answer, Reply, Request, Server, Service},
    },
};

use crate::{
    Bench, Figure, median, milliseconds, process,
    support::{
        agent::{Agent, Options},
        free_port,
        istiod::Istiod,
        within,
    },
};

pub const METHOD: &str = "/stats/prometheus, uncompressed, 10 scrapes after a first one, medians: Envoy with 97,000 lines (5.6 MB), then an application with 20 MB beside it";

/// An exposition that is always the same.
struct Exposition(Bytes);

impl Service for Exposition {
    fn call<'a>(&'a self, _: &'a Request, reply: Reply<'a>) -> Answer<'a> {
        Box::pin(async move { reply.send(200, "text/plain; version=0.0.4", &self.0).await })
    }
}

pub async fn run(bench: &Bench) -> Vec<Figure> {
    let istiod = Istiod::start().await;
    let app_port = free_port();
    let scrape = format!("{{\"scrape\":\"true\",\"path\":\"/metrics\",\"port\":\"{app_port}\"}}");
    let env = [("ISTIO_PROMETHEUS_ANNOTATIONS", scrape.as_str())];
    let agent = Agent::start(&istiod, Options { binary: &bench.binary, envoy: Some(&bench.envoy), env: &env });
    let _envoy = expose(agent.envoy_metrics_port, exposition("envoy", 5_600_000)).await;
    let small = expose(app_port, exposition("app", 1_000)).await;
    let mut figures = scrapes(&agent, "Envoy, 5.6 MB").await;
    drop(small);
    let _large = expose(app_port, exposition("app", 20_000_000)).await;
    figures.extend(scrapes(&agent, "and the application, 20 MB").await);
    figures
}

async fn scrapes(agent: &Agent, what: &str) -> Vec<Figure> {
    let pid = agent.pid();
    // The first one makes the connections and the buffers.
    let idle = process::rss(pid);
    scrape(agent).await;
    let (mut wall, mut cpu) = (Vec::new(), Vec::new());
    for _ in 0..10 {
        let (before, began) = (process::cpu(pid), Instant::now());
        scrape(agent).await;
        wall.push(milliseconds(began.elapsed()));
        cpu.push((process::cpu(pid) - before) * 1e3);
    }
    vec![
        Figure::new(format!("{what}: CPU per scrape"), median(cpu), "ms"),
        Figure::new(format!("{what}: time per scrape"), median(wall), "ms"),
        Figure::new(format!("{what}: peak above idle"), (process::peak(pid) - idle) * 1e3, "KB").at_most(256.0),
    ]
}

/// Scrapes the agent, reading in small pieces as a scraper would.
async fn scrape(agent: &Agent) -> usize {
    let (status, length) = get(agent, "/stats/prometheus").await;
    assert_eq!(status, 200);
    length
}

/// Asks the status port, when it is bound: the answer's status and the length of its body.
pub async fn get(agent: &Agent, path: &str) -> (u16, usize) {
    let url = format!("http://127.0.0.1:{}{path}", agent.status_port);
    let request = client::Request::get(&url).unwrap().timeout(Duration::from_secs(30));
    let mut response = loop {
        match request.send(None).await {
            Ok(response) => break response,
            // The status port is not bound yet.
            Err(_) => tokio::task::yield_now().await,
        }
    };
    let mut length = 0;
    while let Some(chunk) = within("a piece of the answer", response.body.chunk()).await.unwrap() {
        length += chunk.len();
    }
    (response.status, length)
}

async fn expose(port: u16, body: Bytes) -> Trigger {
    let (trigger, drain) = Trigger::new();
    let bound = async {
        loop {
            match Server::bind_address(SocketAddr::from(([127, 0, 0, 1], port))) {
                Ok(server) => break server,
                // The one before goes when its task runs next.
                Err(_) => tokio::task::yield_now().await,
            }
        }
    };
    let server = within("the port", bound).await;
    tokio::spawn(server.run(Arc::new(Exposition(body)), drain));
    trigger
}

/// Counters of `bytes` in all, two lines each.
fn exposition(prefix: &str, bytes: usize) -> Bytes {
    let mut text = String::with_capacity(bytes + 256);
    for index in 0.. {
        if text.len() >= bytes {
            break;
        }
        text.push_str(&format!(
            "# TYPE {prefix}_{index} counter\n{prefix}_{index}{{reporter=\"source\",workload=\"w\",destination=\"dddddddddddddddd\"}} {index}\n"
        ));
    }
    text.into()
}
