//! Requests over HTTP/2 (RFC 9113), over h2: for applications that offer nothing else behind TLS. Called by probes.
//!
//! One request at a time; the body of its answer is kept up to a limit and not read beyond it.

use bytes::Bytes;
use h2::client::SendRequest;
use http::{HeaderName, HeaderValue, Method, Uri, header};
use tokio::time::timeout_at;

use super::{
    BoxIo,
    http1::{Error, Headers, client::Request},
};

/// The answer to a request.
#[derive(Debug, Default)]
pub struct Answer {
    /// Its status.
    pub status: u16,
    /// Its fields.
    pub headers: Headers,
    /// The first bytes of its body.
    pub body: Vec<u8>,
}

/// Fields that HTTP/2 does not carry (RFC 9113 §8.2.2), and `Host`, which is the authority.
const NOT_CARRIED: [&str; 7] =
    ["connection", "host", "keep-alive", "proxy-connection", "te", "transfer-encoding", "upgrade"];

/// A connection. Between requests nobody drives it: what the peer says meanwhile is heard at the next one.
pub struct Connection {
    requests: SendRequest<Bytes>,
    driver: h2::client::Connection<BoxIo>,
}

impl Connection {
    /// Begins to speak HTTP/2 over `io`.
    ///
    /// # Errors
    /// When the connection breaks.
    pub async fn open(io: BoxIo) -> Result<Connection, Error> {
        let (requests, driver) = h2::client::handshake(io).await.map_err(broken)?;
        Ok(Connection { requests, driver })
    }

    /// Sends `request`, which has no body, and reads at most `limit` bytes of the answer's body, until its deadline. Gives the
    /// connection back when it can carry another one.
    ///
    /// # Errors
    /// When the peer does not speak HTTP/2 or the connection breaks before the head of the answer is there.
    pub async fn exchange(mut self, request: &Request, limit: usize) -> Result<(Answer, Option<Connection>), Error> {
        let mut answer = Answer::default();
        let exchanged = async {
            let exchange = answer.read(self.requests.clone(), request, limit);
            tokio::pin!(exchange);
            tokio::select! {
                done = &mut exchange => return done.map(|()| true),
                _ = &mut self.driver => {}
            }
            exchange.await.map(|()| false)
        };
        let exchanged = match request.deadline {
            None => exchanged.await,
            Some(deadline) => timeout_at(deadline, exchanged).await.unwrap_or(Err(Error::Timeout)),
        };
        match exchanged {
            Ok(lives) => Ok((answer, lives.then_some(self))),
            Err(error) if answer.status == 0 => Err(error),
            // What has come of a body that breaks off counts, as it does for HTTP/1.
            Err(_) => Ok((answer, None)),
        }
    }
}

impl Answer {
    async fn read(&mut self, requests: SendRequest<Bytes>, request: &Request, limit: usize) -> Result<(), Error> {
        let mut requests = requests.ready().await.map_err(broken)?;
        let (response, _) = requests.send_request(head(request)?, true).map_err(broken)?;
        let response = response.await.map_err(broken)?;
        for (name, value) in response.headers() {
            self.headers.add(name.as_str(), Bytes::copy_from_slice(value.as_bytes()));
        }
        self.status = response.status().as_u16();
        let mut stream = response.into_body();
        while self.body.len() < limit {
            let Some(data) = stream.data().await else { break };
            let data = data.map_err(broken)?;
            let _ = stream.flow_control().release_capacity(data.len());
            self.body.extend_from_slice(&data[..data.len().min(limit - self.body.len())]);
        }
        Ok(())
    }
}

fn head(request: &Request) -> Result<http::Request<()>, Error> {
    let url = &request.url;
    let authority = request.headers.get("host").map_or_else(|| url.authority(), str::to_owned);
    let uri = Uri::builder()
        .scheme(if url.tls { "https" } else { "http" })
        .authority(authority)
        .path_and_query(&*url.target)
        .build()
        .map_err(|error| Error::Url(format!("{url}: {error}")))?;
    let mut head = http::Request::new(());
    *head.method_mut() = Method::from_bytes(request.method.as_bytes()).map_err(|_| Error::Malformed("method"))?;
    *head.uri_mut() = uri;
    for (name, value) in request.headers.iter().filter(|(name, _)| !is_not_carried(name)) {
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| Error::Malformed("header name"))?;
        let value = HeaderValue::from_maybe_shared(value.clone()).map_err(|_| Error::Malformed("header value"))?;
        head.headers_mut().append(name, value);
    }
    head.headers_mut().remove(header::CONTENT_LENGTH);
    Ok(head)
}

fn is_not_carried(name: &str) -> bool {
    NOT_CARRIED.iter().any(|other| other.eq_ignore_ascii_case(name))
}

fn broken(error: h2::Error) -> Error {
    Error::Io(error.into_io().unwrap_or_else(|| std::io::Error::other("HTTP/2 failed")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers one request by 503 and a body of 10 bytes; gives back what it was asked.
    async fn server(io: tokio::io::DuplexStream) -> http::Request<h2::RecvStream> {
        let mut connection = h2::server::handshake(io).await.unwrap();
        let (request, mut respond) = connection.accept().await.unwrap().unwrap();
        let answer = http::Response::builder().status(503).header("location", "/x").body(()).unwrap();
        respond.send_response(answer, false).unwrap().send_data("0123456789".into(), true).unwrap();
        connection.graceful_shutdown();
        while let Some(Ok(_)) = connection.accept().await {}
        request
    }

    #[tokio::test]
    async fn asks_and_reads_up_to_the_limit() {
        let (client, peer) = tokio::io::duplex(1 << 16);
        let request = Request::get("https://10.0.0.1:8443/a?b").unwrap();
        let request = request.header("Host", "shop").header("X-One", "1").header("Connection", "close");
        let asked = async { Connection::open(Box::new(client)).await?.exchange(&request, 4).await };
        let (seen, answer) = tokio::join!(server(peer), asked);
        let (answer, _) = answer.unwrap();
        assert_eq!((answer.status, &*answer.body), (503, &b"0123"[..]));
        assert_eq!(answer.headers.get("Location"), Some("/x"));
        assert_eq!(seen.uri(), "https://shop/a?b");
        assert_eq!(seen.headers()["x-one"], "1");
        assert!(!seen.headers().contains_key("connection"));
    }

    #[tokio::test]
    async fn one_connection_carries_one_request_after_the_other() {
        let (client, peer) = tokio::io::duplex(1 << 16);
        let serve = async {
            let mut connection = h2::server::handshake(peer).await.unwrap();
            let mut served = 0;
            while let Some(Ok((_, mut respond))) = connection.accept().await {
                let answer = http::Response::builder().status(200 + served).body(()).unwrap();
                // More than is wanted: the rest must not stand in the way of the next answer.
                respond.send_response(answer, false).unwrap().send_data("0123456789".into(), true).unwrap();
                served += 1;
            }
            served
        };
        let ask = async {
            let request = Request::get("https://a/").unwrap();
            let mut connection = Connection::open(Box::new(client)).await.unwrap();
            for status in 200..203 {
                let (answer, kept) = connection.exchange(&request, 4).await.unwrap();
                assert_eq!((answer.status, &*answer.body), (status, &b"0123"[..]));
                connection = kept.unwrap();
            }
        };
        let (served, ()) = tokio::join!(serve, ask);
        assert_eq!(served, 3);
    }

    #[tokio::test]
    async fn peer_without_http2_is_an_error() {
        let (client, peer) = tokio::io::duplex(1 << 16);
        drop(peer);
        let asked = async {
            let connection = Connection::open(Box::new(client)).await?;
            connection.exchange(&Request::get("https://a/").unwrap(), 1).await
        };
        assert!(asked.await.is_err());
    }
}
