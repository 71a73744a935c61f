//! TCP connections to a host by name or address: every address is tried, IPv6 and IPv4 in turn, with a head start for each
//! (happy eyeballs, RFC 8305). Called by everything that connects out. Never does TLS.

use std::{
    collections::VecDeque,
    io::{self, ErrorKind},
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use tokio::{
    net::TcpStream,
    time::{Instant, sleep, timeout_at},
};

use super::resolve::Resolver;
use crate::base::{BoxFuture, first};

/// Head start of each attempt over the next (RFC 8305 §5: Connection Attempt Delay).
const HEAD_START: Duration = Duration::from_millis(250);

/// Connects to `host` (a name, or an address, IPv6 with or without brackets) before `deadline`; Nagle's algorithm is off.
///
/// # Errors
/// What the resolver says, `TimedOut`, or the addresses' errors, of the last one's kind; the text names host, port and address.
pub async fn tcp(host: &str, port: u16, deadline: Instant) -> io::Result<TcpStream> {
    choosing(host, port, deadline, &|_| Ok(())).await
}

/// As [`tcp`], but only to addresses that `allowed` does not refuse, with the reason, after the name was resolved.
///
/// # Errors
/// As [`tcp`]; `PermissionDenied` with the reason when no address is left.
pub async fn tcp_to_allowed(
    host: &str,
    port: u16,
    deadline: Instant,
    allowed: &(dyn Fn(IpAddr) -> Result<(), String> + Sync),
) -> io::Result<TcpStream> {
    let choose = |addresses: &mut Vec<IpAddr>| {
        let mut refused = None;
        addresses.retain(|ip| allowed(*ip).map_err(|reason| refused = Some(reason)).is_ok());
        match refused {
            Some(reason) if addresses.is_empty() => Err(io::Error::new(ErrorKind::PermissionDenied, reason)),
            _ => Ok(()),
        }
    };
    choosing(host, port, deadline, &choose).await
}

/// As [`tcp`], but an address that has just turned us away comes last.
///
/// # Errors
/// As [`tcp`].
pub async fn tcp_avoiding(avoided: Option<IpAddr>, host: &str, port: u16, deadline: Instant) -> io::Result<TcpStream> {
    let choose = |addresses: &mut Vec<IpAddr>| {
        addresses.sort_by_key(|address| Some(*address) == avoided);
        Ok(())
    };
    choosing(host, port, deadline, &choose).await
}

async fn choosing(
    host: &str,
    port: u16,
    deadline: Instant,
    choose: &(dyn Fn(&mut Vec<IpAddr>) -> io::Result<()> + Sync),
) -> io::Result<TcpStream> {
    let named = |error: io::Error| io::Error::new(error.kind(), named(host, port, &error.to_string()));
    let connect = async {
        let mut addresses = Resolver::from_system().lookup_until(host, deadline).await?;
        choose(&mut addresses)?;
        let addresses: VecDeque<_> = interleave(&addresses).map(|ip| SocketAddr::new(ip, port)).collect();
        let late = addresses.front().map(|address| format!("{address}: no connection in time"));
        match timeout_at(deadline, any(addresses)).await {
            Ok(connected) => connected,
            Err(_) => Err(io::Error::new(ErrorKind::TimedOut, late.unwrap_or_default())),
        }
    };
    connect.await.map_err(named)
}

/// The failure with host, port and address, each of them once: a literal address is its own host, and the resolver names the host.
fn named(host: &str, port: u16, failure: &str) -> String {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let peer = if bare.contains(':') { format!("[{bare}]:{port}") } else { format!("{bare}:{port}") };
    let rest = [&peer, host].into_iter().find_map(|said| failure.strip_prefix(said)?.strip_prefix(": "));
    format!("{peer}: {}", rest.unwrap_or(failure))
}

/// The first of the addresses that connects.
async fn any(mut addresses: VecDeque<SocketAddr>) -> io::Result<TcpStream> {
    let (mut kind, mut failures) = (ErrorKind::NotFound, String::new());
    let mut running: Vec<BoxFuture<'_, (SocketAddr, io::Result<TcpStream>)>> = Vec::new();
    while let Some(address) = addresses.pop_front() {
        running.push(Box::pin(async move { (address, TcpStream::connect(address).await) }));
        loop {
            let last = addresses.is_empty();
            tokio::select! {
                (address, result) = first(&mut running) => match result {
                    Ok(stream) => {
                        stream.set_nodelay(true)?;
                        return Ok(stream);
                    }
                    Err(error) => {
                        kind = error.kind();
                        let error = error.to_string();
                        // Each once: where nothing listens, every address of a host says the same.
                        if !failures.contains(&error) {
                            let comma = if failures.is_empty() { "" } else { ", " };
                            failures = format!("{failures}{comma}{address}: {error}");
                        }
                        if !last || running.is_empty() {
                            break;
                        }
                    }
                },
                () = sleep(HEAD_START), if !last => break,
            }
        }
    }
    Err(io::Error::new(kind, failures))
}

/// Families in turn, beginning with that of the first address; order within a family is kept.
fn interleave(addresses: &[IpAddr]) -> impl Iterator<Item = IpAddr> {
    let lead = addresses.first().is_some_and(IpAddr::is_ipv6);
    let (first, second): (Vec<IpAddr>, Vec<IpAddr>) = addresses.iter().partition(|ip| ip.is_ipv6() == lead);
    let longest = first.len().max(second.len());
    (0..longest).flat_map(move |index| [first.get(index).copied(), second.get(index).copied()]).flatten()
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    async fn listener() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        (listener, address)
    }

    /// An address where nothing listens.
    async fn closed() -> SocketAddr {
        listener().await.1
    }

    #[test]
    fn families_alternate() {
        let ips: Vec<IpAddr> = ["::1", "::2", "10.0.0.1", "::3"].map(|ip| ip.parse().unwrap()).into();
        let order: Vec<String> = interleave(&ips).map(|ip| ip.to_string()).collect();
        assert_eq!(order, ["::1", "10.0.0.1", "::2", "::3"]);
    }

    #[tokio::test]
    async fn next_address_after_a_refusal() {
        let (_listener, open) = listener().await;
        let stream = any([closed().await, open].into()).await.unwrap();
        assert_eq!(stream.peer_addr().unwrap(), open);
    }

    #[tokio::test]
    async fn error_names_host_port_and_address() {
        let port = closed().await.port();
        let error = tcp("127.0.0.1", port, Instant::now() + Duration::from_secs(5)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        assert!(error.to_string().starts_with(&format!("127.0.0.1:{port}: Connection refused")), "{error}");
    }

    #[tokio::test]
    async fn errors_of_all_addresses_are_told_once() {
        let (first, second) = (closed().await, closed().await);
        let failed = async |other| any([first, other, second].into()).await.unwrap_err().to_string();
        let text = failed(second).await;
        assert!(text.starts_with(&format!("{first}: Connection refused")) && text.matches(':').count() == 2, "{text}");
        // Broadcast is no peer.
        let text = failed("255.255.255.255:9".parse().unwrap()).await;
        assert!(text.contains(", 255.255.255.255:9: ") && text.matches("refused").count() == 1, "{text}");
    }

    #[test]
    fn failures_name_each_thing_once() {
        for (host, failure, text) in [
            ("10.0.0.1", "10.0.0.1:80: refused", "10.0.0.1:80: refused"),
            ("::1", "[::1]:80: refused", "[::1]:80: refused"),
            ("[::1]", "[::1]:80: refused", "[::1]:80: refused"),
            ("app", "10.0.0.1:80: refused", "app:80: 10.0.0.1:80: refused"),
            ("app", "app: no such host", "app:80: no such host"),
            ("app", "app: no answer from 10.0.0.1:53", "app:80: no answer from 10.0.0.1:53"),
            ("::1", "[::1]:80: no connection in time", "[::1]:80: no connection in time"),
        ] {
            assert_eq!(named(host, 80, failure), text, "{host}");
        }
    }

    #[tokio::test]
    async fn refused_addresses_are_not_dialled() {
        let (_listener, open) = listener().await;
        let deadline = Instant::now() + Duration::from_secs(5);
        let only_v6 = |ip: IpAddr| if ip.is_ipv6() { Ok(()) } else { Err(format!("no {ip}")) };
        let error = tcp_to_allowed("127.0.0.1", open.port(), deadline, &only_v6).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied);
        assert!(error.to_string().ends_with("no 127.0.0.1"), "{error}");
        let only_v4 = |ip: IpAddr| if ip.is_ipv4() { Ok(()) } else { Err(format!("no {ip}")) };
        let stream = tcp_to_allowed("localhost", open.port(), deadline, &only_v4).await.unwrap();
        assert_eq!(stream.peer_addr().unwrap(), open);
    }

    #[tokio::test]
    async fn localhost_is_tried_in_both_families() {
        let (_listener, open) = listener().await;
        let stream = tcp("localhost", open.port(), Instant::now() + Duration::from_secs(5)).await.unwrap();
        assert_eq!(stream.peer_addr().unwrap(), open);
    }

    #[tokio::test(start_paused = true)]
    async fn slow_address_gives_way_to_the_next() {
        // 192.0.2.0/24 is for documentation (RFC 5737): a connection attempt there hangs or fails, but never succeeds.
        let (_listener, open) = listener().await;
        let stream = any(["192.0.2.1:9".parse().unwrap(), open].into()).await.unwrap();
        assert_eq!(stream.peer_addr().unwrap(), open);
    }
}
