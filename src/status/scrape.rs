//! `/stats/prometheus` and `/metrics`: the agent's own metrics, then Envoy's, then the application's, joined while they pass.
//!
//! All sources are asked at once; each is bounded in time, and what fails costs only its own part. Memory does not grow with the
//! pages: what has not been passed on waits in the kernel.

use std::io;

use tokio::time::Instant;

use super::{
    body::Pieces,
    deadlines::Deadlines,
    merge::{Rules, Source},
    negotiate::{self, Format},
    targets::Target,
};
use crate::{
    base::{BoxFuture, first},
    net::http1::{
        Error, Headers, Url,
        client::{MAX_REQUESTS, Request, Response},
        server,
    },
    telemetry::metrics::{Counter, Registry},
};

/// Largest page of one of several targets; Istio's limit.
const MAX_TARGET: u64 = 10 * 1024 * 1024;

/// A page up to so many bytes passes whole or, when its source breaks off, not at all. A larger one ends with its last whole line.
const START: usize = 32 * 1024;

/// What is scraped.
#[derive(Debug, Clone, Default)]
pub struct Config {
    /// Envoy's metrics port; `None` leaves Envoy out.
    pub envoy: Option<u16>,
    /// The application's pages.
    pub targets: Vec<Target>,
    /// Where an application is that does not listen on loopback; empty for nowhere.
    pub instance_ip: String,
}

/// Serves the merged page.
pub struct Scraper {
    config: Config,
    registry: Registry,
    scrapes: Counter,
    envoy_failures: Counter,
    application_failures: Counter,
}

/// Why a source gave no page.
enum Failure {
    Request(Error),
    Status(u16),
    TooLarge(u64),
}

/// Why a page did not pass whole.
enum Broken {
    /// The source's fault.
    Source(String),
    /// The scraper is gone.
    Client(io::Error),
}

/// A source that answered, with what it is called in the log.
struct Answered<'a> {
    name: String,
    response: Response,
    failures: &'a Counter,
    limit: Option<u64>,
    convert: bool,
}

impl Scraper {
    /// Counts into `registry`, which is also the first part of the page.
    pub fn new(config: Config, registry: Registry) -> Scraper {
        let failures = |kind| {
            registry.counter("scrape_failures_total", "Sources of the merged metrics that failed.", &[("type", kind)])
        };
        let scrapes = registry.counter("scrapes_total", "Scrapes of the merged metrics.", &[]);
        // There is no way for it to fail, but dashboards ask for it.
        failures("agent");
        let (envoy_failures, application_failures) = (failures("envoy"), failures("application"));
        Scraper { config, registry, scrapes, envoy_failures, application_failures }
    }

    /// Answers one scrape.
    ///
    /// # Errors
    /// When the scraper is gone.
    pub async fn answer(&self, request: &server::Request, reply: server::Reply<'_>) -> io::Result<()> {
        self.scrapes.inc();
        let timeout = request.headers.get("x-prometheus-scrape-timeout-seconds");
        let deadlines = Deadlines::new(timeout, Instant::now());
        let (envoy, applications) =
            tokio::join!(self.ask_envoy(request, &deadlines), self.ask_applications(request, &deadlines));
        let answered = applications.iter().flatten().map(|answered| &answered.response.headers);
        let format = Format::join(answered.map(|headers| Format::of(headers.get("content-type").unwrap_or_default())));
        let mut page = reply.stream(200, format.content_type());
        if request.method == "HEAD" {
            return page.finish().await;
        }
        let own = self.own(format);
        page.write(&own).await?;
        let sources: Vec<Answered<'_>> = envoy.into_iter().chain(applications.into_iter().flatten()).collect();
        let count = sources.len();
        for (index, source) in sources.into_iter().enumerate() {
            // The last part of a page with a single application stays as it is, without an end of its last line.
            let guard = index + 1 < count || self.config.targets.len() != 1 || format != Format::Text;
            self.pass(source, format, guard, deadlines.body(index, count), &mut page).await?;
        }
        if format != Format::Text {
            page.write(b"# EOF\n").await?;
        }
        page.finish().await
    }

    /// The agent's own families.
    fn own(&self, format: Format) -> Vec<u8> {
        let text = self.registry.text().into_bytes();
        if format == Format::Text {
            return text;
        }
        let rules = Rules { is_own: &|_| false, limit: None, openmetrics: true, convert: true };
        let mut source = Source::new(rules);
        let mut out = source.feed(&text).map(|parts| parts.concat()).unwrap_or_default();
        out.extend_from_slice(source.finish(true).unwrap_or_default());
        out
    }

    async fn ask_envoy(&self, request: &server::Request, deadlines: &Deadlines) -> Option<Answered<'_>> {
        let port = self.config.envoy?;
        let query = request.query.as_ref().map(|query| format!("?{query}")).unwrap_or_default();
        let name = "Envoy's metrics".to_owned();
        let url = format!("http://localhost:{port}/stats/prometheus{query}");
        let headers = forwarded(request, negotiate::ENVOY);
        let asked = fetch(&url, headers, None, None, deadlines).await;
        self.answered(name, asked, &self.envoy_failures, None, true)
    }

    /// The applications' answers in the order of the targets, whoever answers first.
    async fn ask_applications(&self, request: &server::Request, deadlines: &Deadlines) -> Vec<Option<Answered<'_>>> {
        let mut asked: Vec<BoxFuture<'_, (usize, Option<Answered<'_>>)>> = Vec::new();
        for (index, target) in self.config.targets.iter().enumerate() {
            asked.push(Box::pin(async move { (index, self.ask(target, request, deadlines).await) }));
        }
        let mut answers: Vec<Option<Answered<'_>>> = self.config.targets.iter().map(|_| None).collect();
        while !asked.is_empty() {
            let (index, answer) = first(&mut asked).await;
            answers[index] = answer;
        }
        answers
    }

    async fn ask(&self, target: &Target, request: &server::Request, deadlines: &Deadlines) -> Option<Answered<'_>> {
        let slash = if target.path.starts_with('/') { "" } else { "/" };
        let url = format!("http://localhost:{}{slash}{}", target.port, target.path);
        let name = format!("the application's metrics on port {} {:?}", target.port, target.path);
        let limit = (self.config.targets.len() > 1).then_some(MAX_TARGET);
        let headers = forwarded(request, negotiate::APPLICATION);
        let elsewhere = Some(&*self.config.instance_ip).filter(|ip| !ip.is_empty());
        let asked = fetch(&url, headers, elsewhere, limit, deadlines).await;
        self.answered(name, asked, &self.application_failures, limit, false)
    }

    fn answered<'a>(
        &self,
        name: String,
        asked: Result<Response, Failure>,
        failures: &'a Counter,
        limit: Option<u64>,
        convert: bool,
    ) -> Option<Answered<'a>> {
        match asked {
            Ok(response) => Some(Answered { name, response, failures, limit, convert }),
            Err(failure) => {
                failures.inc();
                match failure {
                    Failure::Request(error) => log::warn!("scraping {name}: {error}"),
                    Failure::Status(status) => log::warn!("scraping {name}: status {status}"),
                    Failure::TooLarge(size) => log::warn!("scraping {name}: {size} bytes, more than {MAX_TARGET}"),
                }
                None
            }
        }
    }

    /// Passes a source's page on.
    async fn pass(
        &self,
        source: Answered<'_>,
        format: Format,
        guard: bool,
        deadline: Instant,
        page: &mut server::Stream<'_>,
    ) -> io::Result<()> {
        let openmetrics = format != Format::Text;
        let is_own = |name: &str| self.registry.has(name);
        let rules = Rules { is_own: &is_own, limit: source.limit, openmetrics, convert: openmetrics && source.convert };
        let passing = pass_pieces(source.response, Source::new(rules), guard, page);
        let passed = tokio::time::timeout_at(deadline, passing);
        match passed.await.unwrap_or_else(|_| Err(Broken::Source("timed out".to_owned()))) {
            Ok(()) => Ok(()),
            Err(Broken::Source(error)) => {
                source.failures.inc();
                log::warn!("scraping {}: {error}", source.name);
                Ok(())
            }
            Err(Broken::Client(error)) => {
                source.failures.inc();
                log::debug!("scraping {}: the scraper is gone: {error}", source.name);
                Err(error)
            }
        }
    }
}

async fn pass_pieces(
    response: Response,
    mut source: Source<'_>,
    guard: bool,
    page: &mut server::Stream<'_>,
) -> Result<(), Broken> {
    let mut pieces = Pieces::new(response);
    let mut start = Some(Vec::new());
    while let Some(piece) = pieces.next().await.map_err(|error| Broken::Source(error.to_string()))? {
        match source.feed(&piece) {
            Ok(parts) => {
                for part in parts {
                    pass_part(part, &mut start, page).await?;
                }
            }
            Err(cut) => {
                pass_part(source.before_cut(), &mut start, page).await?;
                return Err(Broken::Source(cut.to_string()));
            }
        }
    }
    let rest = source.finish(guard).map_err(|cut| Broken::Source(cut.to_string()))?;
    for part in [start.unwrap_or_default().as_slice(), rest] {
        page.write(part).await.map_err(Broken::Client)?;
    }
    Ok(())
}

/// Passes a part on; the start of the page is gathered until it is [`START`] bytes long.
async fn pass_part(part: &[u8], start: &mut Option<Vec<u8>>, page: &mut server::Stream<'_>) -> Result<(), Broken> {
    if let Some(gathered) = start {
        gathered.extend_from_slice(part);
        if gathered.len() < START {
            return Ok(());
        }
        page.write(gathered).await.map_err(Broken::Client)?;
        *start = None;
        return Ok(());
    }
    page.write(part).await.map_err(Broken::Client)
}

/// What a source is told of the scraper: who it is, how long it waits, what it reads.
fn forwarded(request: &server::Request, allowed: &[&str]) -> Headers {
    let mut headers = Headers::default();
    for name in ["User-Agent", "X-Prometheus-Scrape-Timeout-Seconds"] {
        if let Some(value) = request.headers.all(name).next() {
            headers.add(name, value.clone());
        }
    }
    headers.add("Accept", negotiate::accept(request.headers.get("accept").unwrap_or_default(), allowed));
    // On loopback, compression only costs.
    headers.add("Accept-Encoding", "identity");
    headers
}

/// Asks for a page, through redirects; `elsewhere` is tried where nothing listens on loopback.
async fn fetch(
    url: &str,
    headers: Headers,
    elsewhere: Option<&str>,
    limit: Option<u64>,
    deadlines: &Deadlines,
) -> Result<Response, Failure> {
    let mut request = Request::new("GET", Url::parse(url).map_err(Failure::Request)?);
    request.headers = headers;
    for hop in 0..MAX_REQUESTS {
        let mut sent = send(&request, deadlines).await;
        if let (0, Err(Error::Connect(..)), Some(ip)) = (hop, &sent, elsewhere) {
            let mut there = request.clone();
            there.url.host = ip.to_owned();
            if let Ok(response) = send(&there, deadlines).await {
                (request, sent) = (there, Ok(response));
            }
        }
        let response = sent.map_err(Failure::Request)?;
        match (response.status, response.headers.get("location")) {
            (200, _) => {
                let size = response.body.remaining();
                return match size.filter(|size| limit.is_some_and(|limit| *size > limit)) {
                    Some(size) => Err(Failure::TooLarge(size)),
                    None => Ok(response),
                };
            }
            (301 | 302 | 303 | 307 | 308, Some(location)) => {
                request.url = request.url.join(location).map_err(Failure::Request)?;
            }
            (status, _) => return Err(Failure::Status(status)),
        }
    }
    Err(Failure::Request(Error::Malformed("stopped after 10 redirects")))
}

async fn send(request: &Request, deadlines: &Deadlines) -> Result<Response, Error> {
    // The timer has a grain of a millisecond, in which loopback can answer.
    if Instant::now() >= deadlines.heads() {
        return Err(Error::Timeout);
    }
    tokio::time::timeout_at(deadlines.heads(), request.send(None)).await.unwrap_or(Err(Error::Timeout))
}
