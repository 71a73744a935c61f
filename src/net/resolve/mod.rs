//! Names to addresses without getaddrinfo and without a thread: /etc/hosts, then the servers of /etc/resolv.conf.
//!
//! Called by `net::dial` for everything that the agent itself connects to; `dns` uses the parts ([`frame`], [`exchange`], [`Conf`])
//! to forward its clients' queries. Files are read anew for each lookup, so that a change counts at once. Never caches.

mod conf;
pub mod exchange;
pub mod frame;
mod hosts;
#[cfg(test)]
mod tests;

use std::{
    fs,
    io::{self, ErrorKind},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use simple_dns::{CLASS, Name, Packet, PacketFlag, Question, RCODE, TYPE, rdata::RData};
use tokio::time::{Instant, sleep, timeout, timeout_at};

pub use conf::{Conf, Options};

/// How long to wait for one server when resolv.conf sets no timeout (resolv.conf(5): RES_TIMEOUT).
const TIMEOUT: Duration = Duration::from_secs(5);
/// How often to ask when resolv.conf does not say (RES_DFLRETRY).
const ATTEMPTS: u32 = 2;
/// How long the addresses of one family wait for those of the other (RFC 8305 §3 calls it Resolution Delay).
const RESOLUTION_DELAY: Duration = Duration::from_millis(50);
/// Enough addresses for any service; more are not worth dialling.
const MAX_ADDRESSES: usize = 64;

/// The machine's way from names to addresses.
#[derive(Debug, Clone)]
pub struct Resolver {
    hosts: PathBuf,
    conf: PathBuf,
    port: u16,
}

/// What the servers say of one name.
enum Verdict {
    /// It has these addresses.
    Found(Vec<IpAddr>),
    /// It does not exist, or has no address.
    Absent,
}

impl Resolver {
    /// By /etc/hosts and /etc/resolv.conf.
    pub fn from_system() -> Resolver {
        Resolver { hosts: "/etc/hosts".into(), conf: "/etc/resolv.conf".into(), port: 53 }
    }

    /// The addresses of a host: never empty. A literal address is its own answer, IPv6 also in brackets.
    ///
    /// # Errors
    /// `NotFound` when the name does not exist, `TimedOut` when no server answers, `InvalidInput` for what is no name.
    pub async fn lookup(&self, host: &str) -> io::Result<Vec<IpAddr>> {
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        if let Ok(ip) = bare.parse() {
            return Ok(vec![ip]);
        }
        if is_localhost(host) {
            // RFC 6761 §6.3; both families, whatever a hosts file says: the peer may listen on either.
            return Ok(vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]);
        }
        let hosts = fs::read(&self.hosts).unwrap_or_default();
        let listed = hosts::lookup(&String::from_utf8_lossy(&hosts), host);
        if !listed.is_empty() {
            return Ok(listed);
        }
        let conf = self.conf()?;
        let mut failure = None;
        for name in candidates(host, &conf) {
            match ask_both_families(&conf, &name).await {
                Ok(Verdict::Found(addresses)) => return Ok(addresses),
                Ok(Verdict::Absent) => {}
                // The servers are there, but cannot tell of this name; of the next they perhaps can.
                Err(error) if error.kind() == ErrorKind::InvalidData => failure = failure.or(Some(error)),
                Err(error) => return Err(error),
            }
        }
        Err(failure.unwrap_or_else(|| io::Error::new(ErrorKind::NotFound, format!("{host}: no such host"))))
    }

    /// As [`lookup`](Self::lookup), but not after `deadline`.
    ///
    /// # Errors
    /// As `lookup`; `TimedOut` with the servers that were asked.
    pub async fn lookup_until(&self, host: &str, deadline: Instant) -> io::Result<Vec<IpAddr>> {
        timeout_at(deadline, self.lookup(host)).await.unwrap_or_else(|_| {
            let servers = self.conf()?.servers.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(", ");
            Err(io::Error::new(ErrorKind::TimedOut, format!("{host}: no answer from nameserver {servers}")))
        })
    }

    fn conf(&self) -> io::Result<Conf> {
        let mut conf = match Conf::load(&self.conf) {
            Ok(conf) => conf,
            Err(error) if error.kind() == ErrorKind::NotFound => Conf::default(),
            Err(error) => return Err(io::Error::new(error.kind(), format!("{}: {error}", self.conf.display()))),
        };
        if conf.servers.is_empty() {
            conf.servers.push((Ipv4Addr::LOCALHOST, 53).into());
        }
        conf.servers.iter_mut().for_each(|server| server.set_port(self.port));
        Ok(conf)
    }
}

fn is_localhost(host: &str) -> bool {
    let host = host.strip_suffix('.').unwrap_or(host).as_bytes();
    let (rest, end) = host.split_at(host.len().saturating_sub("localhost".len()));
    end.eq_ignore_ascii_case(b"localhost") && rest.last().is_none_or(|byte| *byte == b'.')
}

/// The absolute names that `host` may mean, in the order in which they are tried (resolv.conf(5): ndots, search).
fn candidates(host: &str, conf: &Conf) -> Vec<String> {
    if let Some(absolute) = host.strip_suffix('.') {
        return vec![absolute.to_owned()];
    }
    let dots = host.bytes().filter(|byte| *byte == b'.').count();
    let mut names: Vec<String> = conf.search.iter().map(|domain| format!("{host}.{domain}")).collect();
    let first = dots >= usize::from(conf.options.ndots.unwrap_or(1));
    names.insert(if first { 0 } else { names.len() }, host.to_owned());
    names
}

/// A and AAAA at the same time; addresses of one family wait a moment for those of the other, never longer.
async fn ask_both_families(conf: &Conf, name: &str) -> io::Result<Verdict> {
    let (v4, v6) = (ask(conf, name, TYPE::A), ask(conf, name, TYPE::AAAA));
    tokio::pin!(v4, v6);
    let (first, second) = tokio::select! {
        first = &mut v6 => match first {
            Ok(Verdict::Found(_)) => (first, timeout(RESOLUTION_DELAY, v4).await.unwrap_or(Ok(Verdict::Absent))),
            _ => (first, v4.await),
        },
        first = &mut v4 => match first {
            Ok(Verdict::Found(_)) => (first, timeout(RESOLUTION_DELAY, v6).await.unwrap_or(Ok(Verdict::Absent))),
            _ => (first, v6.await),
        },
    };
    match (first, second) {
        (Ok(Verdict::Found(mut addresses)), Ok(Verdict::Found(others))) => {
            addresses.extend(others);
            Ok(Verdict::Found(addresses))
        }
        (Ok(Verdict::Found(addresses)), _) | (_, Ok(Verdict::Found(addresses))) => Ok(Verdict::Found(addresses)),
        // "No" of one family and silence of the other is no "no".
        (Err(error), _) | (_, Err(error)) => Err(error),
        (Ok(Verdict::Absent), Ok(Verdict::Absent)) => Ok(Verdict::Absent),
    }
}

/// One name and type: each server in turn, as often as resolv.conf says.
async fn ask(conf: &Conf, name: &str, rtype: TYPE) -> io::Result<Verdict> {
    let query = question(name, rtype)?;
    let patience = conf.options.timeout.unwrap_or(TIMEOUT);
    let mut failure = io::Error::new(ErrorKind::NotFound, "no nameserver");
    for attempt in 0..conf.options.attempts.unwrap_or(ATTEMPTS) {
        for server in &conf.servers {
            match ask_server(*server, &query, patience, conf.options.tcp).await {
                Ok(verdict) => return Ok(verdict),
                Err(error) => failure = io::Error::new(error.kind(), format!("{name}: nameserver {error}")),
            }
        }
        if failure.kind() != ErrorKind::TimedOut && attempt == 0 {
            // Refused at once: a server that restarts is back in a moment.
            sleep(RESOLUTION_DELAY).await;
        }
    }
    Err(failure)
}

async fn ask_server(server: SocketAddr, query: &[u8], patience: Duration, tcp: bool) -> io::Result<Verdict> {
    let mut reply = Vec::new();
    if !tcp {
        reply = exchange::udp(server, query, 1, patience).await?;
    }
    if tcp || reply.get(2).is_some_and(|byte| byte & frame::TC != 0) {
        reply = exchange::tcp(server, query, patience).await?;
    }
    verdict(&reply).ok_or_else(|| {
        io::Error::new(ErrorKind::InvalidData, format!("{server}: response code {}", frame::rcode_of(&reply)))
    })?
}

fn question(name: &str, rtype: TYPE) -> io::Result<Vec<u8>> {
    let invalid = || io::Error::new(ErrorKind::InvalidInput, format!("{name:?}: not a host name"));
    if name.is_empty() || name.split('.').any(|label| label.is_empty() || label.contains('\\')) {
        return Err(invalid());
    }
    let mut packet = Packet::new_query(0);
    packet.set_flags(PacketFlag::RECURSION_DESIRED);
    let name = Name::new(name).map_err(|_| invalid())?;
    packet.questions.push(Question::new(name, rtype.into(), CLASS::IN.into(), false));
    packet.build_bytes_vec().map_err(|_| invalid())
}

/// What a reply says; `None` for a failure of the server, which another one may not have.
fn verdict(reply: &[u8]) -> Option<io::Result<Verdict>> {
    if ![frame::rcode::NOERROR, frame::rcode::NXDOMAIN].contains(&frame::rcode_of(reply)) {
        return None;
    }
    // simple-dns makes room for as many records as the header promises, so they are counted first.
    let Some(packet) = frame::is_whole(reply).then(|| Packet::parse(reply).ok()).flatten() else {
        return Some(Err(io::Error::new(ErrorKind::InvalidData, "unreadable answer")));
    };
    match packet.rcode() {
        RCODE::NoError => {}
        RCODE::NameError => return Some(Ok(Verdict::Absent)),
        _ => return None,
    }
    let addresses: Vec<IpAddr> = packet
        .answers
        .iter()
        .filter_map(|record| match &record.rdata {
            RData::A(a) => Some(Ipv4Addr::from(a.address).into()),
            RData::AAAA(aaaa) => Some(Ipv6Addr::from(aaaa.address).into()),
            _ => None,
        })
        .take(MAX_ADDRESSES)
        .collect();
    Some(Ok(if addresses.is_empty() { Verdict::Absent } else { Verdict::Found(addresses) }))
}
