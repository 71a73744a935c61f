//! ADS between Envoy and istiod: every stream of Envoy's gets one of its own to istiod, over one shared connection.
//!
//! What Envoy and istiod say to each other passes byte for byte, as it comes, with HTTP/2 flow control as the only buffer. The agent
//! takes the name table, the trust anchors and Wasm plugins out of it, and adds its own subscriptions and the application's health.

mod ecds;
mod ends;
mod intercept;
mod lastgood;
mod message;
mod metrics;
mod outbox;
pub mod peek;
mod refusal;
mod replay;
mod requests;
mod responses;
mod session;
mod streams;
mod types;

pub use ecds::Rewrite;
pub use lastgood::Store;
pub use types::Kind;

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use serde_json::{Value, json};
use tokio::{sync::watch, time::Instant};

use crate::{
    base::{Drain, Gate},
    config::{Errors, Vars},
    grpc::{self, Keepalive, Receiver, Request, Sender, Service, Settings, Status},
    istiod::Istiod,
    net::uds,
    telemetry::metrics::Registry,
    wires::{AppHealth, TrustBundle, names::NamesPublisher},
};
use metrics::Metrics;
use refusal::Refusals;
use streams::Streams;
use types::Taken;

/// Permission bits of the socket: Envoy may run as any user.
const SOCKET_MODE: u32 = 0o666;

/// How the relay is set up.
#[derive(Debug, Clone)]
pub struct Config {
    /// The socket that Envoy connects to.
    pub socket: PathBuf,
    /// Limits of Envoy's connections.
    pub settings: Settings,
    /// The largest request that is taken; `None` for any.
    pub max_request: Option<usize>,
    /// Where accepted configuration is kept; `None`: it is not.
    pub last_good: Option<Store>,
}

/// The other ends of what the relay is connected to.
pub struct Links {
    /// The way to istiod.
    pub istiod: Istiod,
    /// The local DNS server, when there is one.
    pub names: Option<NamesPublisher>,
    /// The trust anchors, when the agent asks for them.
    pub anchors: Option<watch::Sender<Option<Arc<TrustBundle>>>>,
    /// What makes Wasm plugins local, when that is on.
    pub rewrite: Option<Arc<dyn Rewrite>>,
    /// The application's health, `None` until the first decision.
    pub health: watch::Receiver<Option<AppHealth>>,
    /// Shut while istiod permanently refuses this proxy.
    pub gate: Gate,
    /// Where to count.
    pub registry: Registry,
}

/// The relay, bound to its socket.
pub struct Xds {
    listener: uds::Listener,
    settings: Settings,
    proxy: Arc<Proxy>,
}

/// What all streams share.
struct Proxy {
    links: Links,
    taken: Taken,
    max_request: Option<usize>,
    last_good: Option<Store>,
    metrics: Metrics,
    streams: Arc<Streams>,
    refusals: Mutex<Refusals>,
    /// istiod has sent configuration since the agent started.
    configured: AtomicBool,
    /// The last unexpected end that was logged.
    said: Mutex<Option<String>>,
}

/// Why the relay cannot start.
#[derive(Debug)]
pub enum Error {
    /// The socket cannot be served.
    Socket(uds::Error),
}

impl Config {
    /// From `configPath`, `ISTIO_GPRC_MAXSTREAMS`, `ISTIO_GPRC_MAXRECVMSGSIZE`, `GRPC_KEEPALIVE_*`.
    ///
    /// # Errors
    /// Every setting that cannot work.
    pub fn from_vars(vars: &Vars) -> Result<Config, Errors> {
        let mut errors = Errors::default();
        let streams = vars.int("ISTIO_GPRC_MAXSTREAMS", 100_000);
        let max_streams = u32::try_from(streams).unwrap_or_else(|_| {
            errors.add("ISTIO_GPRC_MAXSTREAMS", format!("{streams} is not a number of streams"));
            0
        });
        // Negative, also where it cannot be read: no limit.
        let max_request = usize::try_from(vars.int("ISTIO_GPRC_MAXRECVMSGSIZE", -1)).ok();
        let keepalive = Keepalive {
            interval: vars.duration("GRPC_KEEPALIVE_INTERVAL", Duration::from_secs(30)),
            timeout: vars.duration("GRPC_KEEPALIVE_TIMEOUT", Duration::from_secs(10)),
        };
        let settings = Settings { max_streams, keepalive: Some(keepalive), ..Settings::default() };
        let socket = vars.path(&vars.proxy().config_path).join("XDS");
        errors.into_result(Config { socket, settings, max_request, last_good: last_good(vars) })
    }
}

/// `FOOTMAN_LAST_GOOD` (a folder; unset: off), `FOOTMAN_LAST_GOOD_MAX_AGE`, `FOOTMAN_LAST_GOOD_MAX_BYTES` (for each type).
fn last_good(vars: &Vars) -> Option<Store> {
    let folder = vars.text("FOOTMAN_LAST_GOOD").filter(|folder| !folder.is_empty())?;
    Some(Store {
        folder: vars.path(folder),
        max_age: vars.duration("FOOTMAN_LAST_GOOD_MAX_AGE", Duration::from_secs(24 * 3600)),
        max_bytes: vars.count("FOOTMAN_LAST_GOOD_MAX_BYTES", 256 << 20),
    })
}

impl Xds {
    /// Binds the socket; istiod is not called before Envoy is there.
    ///
    /// # Errors
    /// When the socket cannot be served.
    pub fn bind(config: &Config, links: Links) -> Result<Xds, Error> {
        let listener = uds::bind(&config.socket, SOCKET_MODE).map_err(Error::Socket)?;
        links.gate.open();
        let proxy = Proxy {
            taken: Taken {
                names: links.names.is_some(),
                anchors: links.anchors.is_some(),
                extensions: links.rewrite.is_some(),
            },
            max_request: config.max_request,
            last_good: config.last_good.clone(),
            metrics: Metrics::new(&links.registry, links.gate.clone()),
            streams: Arc::default(),
            refusals: Mutex::default(),
            configured: AtomicBool::new(false),
            said: Mutex::default(),
            links,
        };
        Ok(Xds { listener, settings: config.settings, proxy: Arc::new(proxy) })
    }

    /// Where Envoy connects.
    pub fn address(&self) -> &Path {
        self.listener.path()
    }

    /// What `/debug/xds` shows: the way to istiod, its refusals, and every stream with its types.
    pub fn debug(&self) -> impl Fn() -> Value + Send + Sync + 'static {
        let proxy = Arc::clone(&self.proxy);
        move || proxy.json()
    }

    /// Serves Envoy until the drain; then its streams end.
    ///
    /// # Errors
    /// None once it is bound; the type is that of every room.
    pub async fn run(self, drain: Drain) -> Result<(), Error> {
        let service = Arc::new(Ads { proxy: self.proxy, drain: drain.clone() });
        grpc::listen(self.listener, service, self.settings, drain).await;
        Ok(())
    }
}

struct Ads {
    proxy: Arc<Proxy>,
    drain: Drain,
}

impl Service for Ads {
    fn call(&self, request: Request, receiver: Receiver, mut sender: Sender) -> grpc::BoxFuture {
        let Some(kind) = Kind::of_method(&request.path) else {
            return Box::pin(async move { sender.close(&request.unimplemented()) });
        };
        let (proxy, drain) = (Arc::clone(&self.proxy), self.drain.clone());
        Box::pin(async move {
            session::run(&proxy, (kind, request.connection), (receiver, sender), drain).await;
        })
    }
}

impl Proxy {
    fn refusals(&self) -> MutexGuard<'_, Refusals> {
        self.refusals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// istiod has turned a stream away before it sent anything, or soon after.
    fn refused(&self, status: &Status) {
        self.refusals().refused(status, Instant::now());
        if status.code == grpc::Code::ResourceExhausted {
            // Another replica may have room.
            self.links.istiod.avoid();
        }
        self.show_refusal();
    }

    /// istiod has sent something on a stream.
    fn served(&self) {
        self.configured.store(true, Ordering::Relaxed);
        self.links.gate.clear_note();
        self.refusals().served();
        self.show_refusal();
    }

    /// Brings gate and gauge in line with what is known of refusals. A proxy that has its configuration stays ready.
    fn show_refusal(&self) {
        let permanent = self.refusals().permanent().cloned();
        self.metrics.refused.set(if permanent.is_some() { 1.0 } else { 0.0 });
        match permanent.filter(|_| !self.configured.load(Ordering::Relaxed)) {
            Some(status) => {
                self.links.gate.shut(&format!("istiod {} refuses this proxy: {status}", self.links.istiod.address()))
            }
            None => self.links.gate.open(),
        }
    }

    /// Whether an unexpected end is another one than the last.
    fn is_news(&self, status: &Status) -> bool {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        let text = status.to_string();
        let news = said.as_ref() != Some(&text);
        *said = Some(text);
        news
    }

    fn json(&self) -> Value {
        let refusals = self.refusals();
        let (count, last) = refusals.series();
        json!({
            "istiod": self.links.istiod.address(),
            "refusals": { "inARow": count, "last": last.map(Status::to_string), "permanent": refusals.permanent().is_some() },
            "lastGood": self.last_good.as_ref().map(|store| {
                let age = |kind| store.age(kind).map(|age| age.as_secs());
                json!({ "sotwAgeSeconds": age(Kind::Sotw), "deltaAgeSeconds": age(Kind::Delta) })
            }),
            "streams": self.streams.json(),
        })
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Socket(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Socket(error) => Some(error),
        }
    }
}
