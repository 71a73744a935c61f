//! TCP connections to applications, from the address that traffic redirection lets pass.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use tokio::net::{TcpSocket, TcpStream};

use crate::net::resolve::Resolver;

/// Where a connection to an application comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// 127.0.0.6 or `::6`: the address from which Envoy's inbound passthrough cluster speaks. Istio's redirection rules let it reach
    /// the application directly, without mTLS.
    Passthrough,
    /// Any.
    Any,
}

/// Connects to an application; `host` is an address, a name (`localhost` means both families), or empty for this machine.
///
/// SO_LINGER, which Istio sets on these sockets, is left alone: closing one could hold up the agent's only thread.
///
/// # Errors
/// When nothing accepts, the source address does not exist, or `host` cannot be resolved.
pub async fn tcp(host: &str, port: u16, source: Source) -> io::Result<TcpStream> {
    let addresses = match host {
        "" | "localhost" => vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()],
        _ if host.starts_with('[') => {
            let text = format!("{host:?}: an address has no brackets");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        _ => Resolver::from_system().lookup(host).await?,
    };
    let mut first_error = None;
    for ip in addresses {
        match connect(SocketAddr::new(ip, port), source).await {
            Ok(stream) => return Ok(stream),
            Err(error) => {
                let named = io::Error::new(error.kind(), format!("{}: {error}", SocketAddr::new(ip, port)));
                first_error.get_or_insert(named);
            }
        }
    }
    Err(first_error.unwrap_or_else(|| io::ErrorKind::NotFound.into()))
}

async fn connect(address: SocketAddr, source: Source) -> io::Result<TcpStream> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    if source == Source::Passthrough {
        let from: IpAddr = match address {
            SocketAddr::V4(_) => Ipv4Addr::new(127, 0, 0, 6).into(),
            SocketAddr::V6(_) => Ipv6Addr::new(0, 0, 0, 0, 0, 0, 0, 6).into(),
        };
        socket.bind(SocketAddr::new(from, 0))?;
    }
    let stream = socket.connect(address).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn comes_from_the_passthrough_address() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        for (host, source, from) in [
            ("127.0.0.1", Source::Passthrough, "127.0.0.6"),
            ("localhost", Source::Passthrough, "127.0.0.6"),
            ("", Source::Any, "127.0.0.1"),
        ] {
            let (_stream, accepted) = tokio::join!(tcp(host, port, source), listener.accept());
            assert_eq!(accepted.unwrap().1.ip().to_string(), from, "{host}");
        }
        drop(listener);
        assert_eq!(tcp("127.0.0.1", port, Source::Any).await.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    }

    #[tokio::test]
    async fn brackets_are_no_address() {
        assert_eq!(tcp("[::1]", 80, Source::Any).await.unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
