//! The local DNS proxy: names of the mesh are answered from istiod's table, everything else goes to the servers of resolv.conf.
//!
//! `agent` binds it first of all, hands it the wire on which `xds` sends name tables, and runs it to the very end: names must
//! resolve while Envoy drains. It never talks to istiod or Envoy itself.

pub mod answer;
mod bounds;
pub mod cache;
mod config;
pub mod debug;
pub mod fit;
mod forward;
pub mod message;
mod metrics;
mod pointer;
mod servers;
mod service;
pub mod table;
mod tcp;
#[cfg(test)]
mod tests;
mod udp;
pub mod view;

use std::{
    convert::Infallible,
    fmt, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::PathBuf,
    sync::Arc,
};

use nix::{
    errno::Errno,
    sys::resource::{Resource, getrlimit},
};
use tokio::{
    net::TcpListener,
    task::{JoinSet, yield_now},
    time::Instant,
};

pub use config::{Config, Listen};
pub use forward::Policy as ForwardPolicy;

use crate::{
    base::{Drain, Gate, apart},
    net::{listen, resolve::Resolver},
    telemetry::metrics::Registry,
    wires::{NameTable, NamesReceiver},
};
use forward::Forwarder;
use metrics::Metrics;
use servers::Servers;
use service::Service;
use table::{Builder, Index};
use view::View;

/// The host of DNS_PROXY_ADDR that means the loopback addresses of the families in use.
const LOCALHOST: &str = "localhost";
/// Entries indexed before other tasks have their turn: about 100 µs.
const SLICE: usize = 256;
/// Queries that may wait for servers at a time, and connections at a time of one listener.
const MAX_FORWARDS: usize = 4096;
const MAX_CONNECTIONS: usize = 1024;
/// What share of all descriptors they may take: a half, an eighth.
const FORWARDS_SHARE: u64 = 2;
const CONNECTIONS_SHARE: u64 = 8;

/// A DNS proxy whose sockets are bound.
pub struct Dns {
    service: Arc<Service>,
    view: View,
    pointers: bool,
    sockets: Vec<Sockets>,
    names: NamesReceiver,
    gate: Gate,
}

/// What the status server shows of names.
#[derive(Clone)]
pub struct Names(Arc<Service>);

/// Why there is no DNS proxy.
#[derive(Debug)]
pub enum Error {
    /// The resolver file cannot be read.
    ResolvConf(PathBuf, io::Error),
    /// An address cannot be listened on.
    Listen(String, io::Error),
}

/// Where one address is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address {
    /// UDP.
    pub udp: SocketAddr,
    /// TCP.
    pub tcp: SocketAddr,
}

struct Sockets {
    udp: udp::Socket,
    tcp: TcpListener,
    address: Address,
}

impl Dns {
    /// Binds every address. `gate` is opened by the first table, which comes over `names`.
    ///
    /// # Errors
    /// When resolv.conf cannot be read or an address is taken.
    pub async fn bind(config: Config, names: NamesReceiver, registry: &Registry, gate: Gate) -> Result<Dns, Error> {
        let mut servers = Servers::load(&config.resolv_conf, config.upstream_port)
            .map_err(|error| Error::ResolvConf(config.resolv_conf.clone(), error))?;
        servers.replace(&config.upstreams);
        let mut sockets = Vec::new();
        for listen in &config.listen {
            for address in resolve(listen, servers.families()).await? {
                match Sockets::bind(address).await {
                    Ok(bound) => sockets.push(bound),
                    // resolv.conf names a server of a family that this machine has not: nobody can ask us over it either.
                    Err(error) if is_missing(&error) && listen.host == LOCALHOST && address.is_ipv6() => {
                        log::warn!(target: "dns", "not listening on {address}: {error}");
                    }
                    Err(error) => return Err(Error::Listen(address.to_string(), error)),
                }
            }
        }
        let own: Vec<SocketAddr> =
            sockets.iter().flat_map(|sockets| [sockets.address.udp, sockets.address.tcp]).collect();
        servers.exclude(own, config.addresses.clone());
        let (asked, search) = (servers.order(Instant::now()), servers.search().unwrap_or_default());
        for Sockets { address, .. } in &sockets {
            log::info!(target: "dns", "local DNS server on {}: servers {asked:?}, search {search:?}", address.udp);
        }
        let forwarder = Forwarder::new(servers, config.forward);
        let service =
            Arc::new(Service::new(&config, forwarder, Metrics::new(registry), share(FORWARDS_SHARE, MAX_FORWARDS)));
        service.refresh();
        Ok(Dns { service, view: config.view, pointers: config.pointers, sockets, names, gate })
    }

    /// Where it serves.
    pub fn addresses(&self) -> Vec<Address> {
        self.sockets.iter().map(|sockets| sockets.address).collect()
    }

    /// The view on its table.
    pub fn names(&self) -> Names {
        Names(self.service.clone())
    }

    /// Serves until the drain.
    ///
    /// # Errors
    /// None: sockets that are bound stay so.
    pub async fn run(self, mut drain: Drain) -> Result<(), Infallible> {
        let Dns { service, view, pointers, sockets, mut names, gate } = self;
        let mut loops = JoinSet::new();
        let connections = share(CONNECTIONS_SHARE, MAX_CONNECTIONS);
        for Sockets { udp, tcp, .. } in sockets {
            let (for_tcp, end) = (service.clone(), drain.clone());
            loops.spawn(apart(|| udp.serve(service.clone(), drain.clone())));
            loops.spawn(apart(|| tcp::serve(tcp, connections, for_tcp, end)));
        }
        loop {
            tokio::select! {
                () = drain.started() => return Ok(()),
                Some(update) = names.next() => {
                    let table = match update.table {
                        Some(table) => Some(table),
                        None => service.index().is_none().then(Arc::<NameTable>::default),
                    };
                    if let Some(table) = table {
                        let hosts = table.len();
                        service.set_index(index(table, view.clone(), pointers).await);
                        gate.open();
                        log::debug!(target: "dns", "updated lookup table with {hosts} hosts");
                    }
                    // Nobody waits when xds has ended meanwhile.
                    let _ = update.applied.send(());
                }
            }
        }
    }
}

impl Names {
    /// The body of `/debug/ndsz`: JSON of the table; `None` before the first one.
    pub fn ndsz(&self) -> Option<String> {
        self.0.index().map(|index| debug::ndsz(&index))
    }

    /// The state of this room.
    pub fn summary(&self) -> serde_json::Value {
        self.0.debug()
    }
}

impl Sockets {
    async fn bind(address: SocketAddr) -> io::Result<Sockets> {
        let udp = udp::Socket::bind(address).await?;
        let tcp = listen(address)?;
        let address = Address { udp: udp.address()?, tcp: tcp.local_addr()? };
        Ok(Sockets { udp, tcp, address })
    }
}

/// The index over a table, made in slices with turns for other tasks in between.
async fn index(table: Arc<NameTable>, view: View, pointers: bool) -> Arc<Index> {
    let mut builder = Builder::new(table, view, pointers);
    while builder.step(SLICE) {
        yield_now().await;
    }
    Arc::new(builder.finish())
}

/// The addresses of one entry of DNS_PROXY_ADDR. Redirection keeps the address family of a query, so `localhost` means those
/// families that resolv.conf has servers of.
async fn resolve(listen: &Listen, families: (bool, bool)) -> Result<Vec<SocketAddr>, Error> {
    let at = |ip: IpAddr| SocketAddr::new(ip, listen.port);
    let (v4, v6): (IpAddr, IpAddr) = (Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into());
    match &*listen.host {
        // Go listens on both families for either, and so does every Istio agent.
        "" | "0.0.0.0" if ipv6_exists() => Ok(vec![at(Ipv6Addr::UNSPECIFIED.into())]),
        "" => Ok(vec![at(Ipv4Addr::UNSPECIFIED.into())]),
        LOCALHOST => Ok(match families {
            (true, true) => vec![at(v4), at(v6)],
            (false, true) => vec![at(v6)],
            _ => vec![at(v4)],
        }),
        host => {
            let named = |error| Error::Listen(format!("{host}:{}", listen.port), error);
            let found = Resolver::from_system().lookup(host).await.map_err(named)?;
            Ok(found.into_iter().take(1).map(at).collect())
        }
    }
}

/// Whether an address cannot be bound because this machine has none of its kind.
fn is_missing(error: &io::Error) -> bool {
    matches!(error.raw_os_error().map(Errno::from_raw), Some(Errno::EADDRNOTAVAIL | Errno::EAFNOSUPPORT))
}

fn ipv6_exists() -> bool {
    std::net::UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)).is_ok()
}

/// One part in `parts` of the descriptors that this process may have, at most `most`.
fn share(parts: u64, most: usize) -> usize {
    let (descriptors, _) = getrlimit(Resource::RLIMIT_NOFILE).unwrap_or((1024, 1024));
    usize::try_from(descriptors / parts).unwrap_or(most).min(most)
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::ResolvConf(path, error) => {
                write!(f, "failed to start local DNS server: {}: {error}", path.display())
            }
            Error::Listen(address, error) => write!(f, "failed to start local DNS server: {address}: {error}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::ResolvConf(_, error) | Error::Listen(_, error) => Some(error),
        }
    }
}
