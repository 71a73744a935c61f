//! Against rustls' own server side, over a pipe that takes little at a time.

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

use super::*;
use crate::net::{
    http1::client::Request,
    tls::{Policy, Protocol, Roots, client_config, name, testing},
};

/// A client and its server, with `pipe` bytes on the way at most.
async fn connected(policy: Policy, pipe: usize) -> (Stream, TlsStream<DuplexStream>) {
    let (certificate, server) = testing::server(|_| {});
    let (stream, accepted) = between(&Roots::Pem(certificate.into_bytes()), server, policy, pipe).await;
    (stream.unwrap(), accepted.unwrap())
}

async fn between(
    roots: &Roots,
    server: Arc<rustls::ServerConfig>,
    policy: Policy,
    pipe: usize,
) -> (io::Result<Stream>, io::Result<TlsStream<DuplexStream>>) {
    let client = client_config(roots, None, policy, Protocol::Unsaid).unwrap();
    let (near, far) = tokio::io::duplex(pipe);
    tokio::join!(
        Stream::connect(Box::new(near), client, name("istiod").unwrap()),
        TlsAcceptor::from(server).accept(far)
    )
}

/// What is sent each way, more than every buffer on it holds.
fn much(first: u8) -> Vec<u8> {
    (0..300_000u32).map(|index| (index % 251) as u8 ^ first).collect()
}

#[tokio::test]
async fn carries_both_ways_and_says_goodbye() {
    for policy in [Policy::Default, Policy::Fips140_2] {
        let (client, server) = connected(policy, 1000).await;
        let (mut from_server, mut to_server) = tokio::io::split(client);
        let (mut from_client, mut to_client) = tokio::io::split(server);
        let (up, down) = (much(1), much(2));
        let send = async {
            to_server.write_all(&up).await.unwrap();
            to_server.shutdown().await.unwrap();
        };
        let answer = async {
            to_client.write_all(&down).await.unwrap();
            to_client.shutdown().await.unwrap();
        };
        let (mut at_server, mut at_client) = (Vec::new(), Vec::new());
        let receive =
            async { tokio::join!(from_client.read_to_end(&mut at_server), from_server.read_to_end(&mut at_client)) };
        let ((), (), (got_up, got_down)) = tokio::join!(send, answer, receive);
        assert_eq!((got_up.unwrap(), got_down.unwrap()), (up.len(), down.len()), "{policy:?}");
        assert!(at_server == up && at_client == down);
    }
}

#[tokio::test]
async fn unverified_means_any_certificate() {
    // Its version is 1, which webpki does not read; what signs it does not fit any more either.
    let version_1 = |certificate: &mut Vec<u8>| {
        let version = certificate.windows(5).position(|bytes| bytes == [0xa0, 3, 2, 1, 2]).unwrap() + 4;
        certificate[version] = 0;
    };
    for policy in [Policy::Default, Policy::Fips140_2] {
        let (stream, _) = between(&Roots::Unverified, testing::server(version_1).1, policy, 4000).await;
        assert!(stream.is_ok(), "{policy:?}: {:?}", stream.err());
        // Its key is of a kind that could not be verified.
        let (stream, _) = between(&Roots::Unverified, testing::server_with_p521(), policy, 4000).await;
        assert!(stream.is_ok(), "{policy:?}: {:?}", stream.err());
    }
}

#[tokio::test]
async fn keys_may_change() {
    let (mut client, mut server) = connected(Policy::Default, 4000).await;
    for round in 0..3 {
        server.get_mut().1.refresh_traffic_keys().unwrap();
        server.write_all(&[round]).await.unwrap();
        server.flush().await.unwrap();
        assert_eq!(client.read_u8().await.unwrap(), round);
        client.write_all(&[round]).await.unwrap();
        client.flush().await.unwrap();
        assert_eq!(server.read_u8().await.unwrap(), round);
    }
}

#[tokio::test]
async fn an_end_without_goodbye_is_an_error() {
    let (mut client, mut server) = connected(Policy::Default, 4000).await;
    server.write_all(b"x").await.unwrap();
    server.flush().await.unwrap();
    drop(server);
    assert_eq!(client.read_u8().await.unwrap(), b'x');
    let mut rest = [0; 1];
    assert_eq!(client.read(&mut rest).await.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
}

#[tokio::test]
async fn an_end_without_goodbye_ends_a_body_that_has_no_length() {
    let ends = |fields: &'static str, more: &'static [u8]| async move {
        let (client, mut server) = connected(Policy::Default, 4000).await;
        server.write_all(format!("HTTP/1.1 200 OK\r\n{fields}\r\nabc").as_bytes()).await.unwrap();
        server.flush().await.unwrap();
        server.get_mut().0.write_all(more).await.unwrap();
        let request = Request::get("https://istiod/").unwrap();
        let (response, _) = tokio::join!(request.send_on(Box::new(client)), async {
            server.read_u8().await.unwrap();
            drop(server);
        });
        response.unwrap().body.collect(100).await.ok()
    };
    assert_eq!(ends("", b"").await.as_deref(), Some(&b"abc"[..]));
    assert_eq!(ends("Content-Length: 4\r\n", b"").await, None);
    assert_eq!(ends("", &[23, 3, 3, 0, 32]).await, None, "in the midst of a record");
}

#[tokio::test]
async fn damage_is_noticed_and_told_to_the_server() {
    let (mut client, server) = connected(Policy::Default, 4000).await;
    let (mut raw, mut session) = server.into_inner();
    raw.write_all(&[&[23, 3, 3, 0, 32][..], &[0; 32]].concat()).await.unwrap();
    let mut rest = [0; 1];
    let error = client.read(&mut rest).await.unwrap_err();
    assert!(matches!(error.get_ref().unwrap().downcast_ref(), Some(rustls::Error::DecryptError)), "{error}");
    assert!(client.read(&mut rest).await.is_err() && client.write(b"x").await.is_err());
    drop(client);
    let mut alert = Vec::new();
    raw.read_to_end(&mut alert).await.unwrap();
    session.read_tls(&mut &alert[..]).unwrap();
    let told = session.process_new_packets().unwrap_err();
    assert_eq!(told, rustls::Error::AlertReceived(rustls::AlertDescription::BadRecordMac));
}

#[tokio::test(start_paused = true)]
async fn buffer_grows_for_a_burst_and_shrinks_after_it() {
    let (mut client, mut server) = connected(Policy::Default, LARGE * 2).await;
    let mut burst = vec![0; LARGE];
    server.write_all(&burst).await.unwrap();
    client.read_exact(&mut burst).await.unwrap();
    assert_eq!(client.input.len(), LARGE);
    for expected in [LARGE, SMALL] {
        for _ in 0..2 {
            server.write_all(b"x").await.unwrap();
            server.flush().await.unwrap();
            client.read_u8().await.unwrap();
        }
        assert_eq!(client.input.len(), expected);
        tokio::time::advance(LINGER * 2).await;
    }
}
