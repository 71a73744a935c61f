//! The resolver against scripted servers on loopback.

use simple_dns::{ResourceRecord, rdata};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, UdpSocket},
};

use super::*;

/// A server on a free port whose UDP and TCP answers are made by `script(query, over TCP)`.
async fn server(script: impl Fn(&Packet<'_>, bool) -> Option<Vec<u8>> + Send + Clone + 'static) -> u16 {
    loop {
        let udp = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let port = udp.local_addr().unwrap().port();
        let Ok(tcp) = TcpListener::bind(("127.0.0.1", port)).await else { continue };
        let over_tcp = script.clone();
        tokio::spawn(async move {
            let mut buffer = [0; 1500];
            loop {
                let (length, peer) = udp.recv_from(&mut buffer).await.unwrap();
                if let Some(reply) = script(&Packet::parse(&buffer[..length]).unwrap(), false) {
                    udp.send_to(&reply, peer).await.unwrap();
                }
            }
        });
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = tcp.accept().await.unwrap();
                let length = stream.read_u16().await.unwrap();
                let mut query = vec![0; usize::from(length)];
                stream.read_exact(&mut query).await.unwrap();
                if let Some(reply) = over_tcp(&Packet::parse(&query).unwrap(), true) {
                    stream.write_all(&exchange::framed(&reply).unwrap()).await.unwrap();
                }
            }
        });
        return port;
    }
}

fn reply(query: &Packet<'_>, code: RCODE, addresses: &[&str]) -> Vec<u8> {
    let mut packet = Packet::new_reply(query.id());
    packet.questions = query.questions.clone();
    *packet.rcode_mut() = code;
    for address in addresses {
        let data = match address.parse::<IpAddr>().unwrap() {
            IpAddr::V4(ip) => RData::A(rdata::A { address: ip.into() }),
            IpAddr::V6(ip) => RData::AAAA(rdata::AAAA { address: ip.into() }),
        };
        packet.answers.push(ResourceRecord::new(query.questions[0].qname.clone(), CLASS::IN, 60, data));
    }
    packet.build_bytes_vec_compressed().unwrap()
}

fn asked(query: &Packet<'_>) -> (String, bool) {
    (query.questions[0].qname.to_string(), query.questions[0].qtype == TYPE::A.into())
}

/// A resolver whose files hold `conf` (without servers) and `hosts`, and whose only server listens at `port`.
fn resolver(conf: &str, hosts: &str, port: u16) -> (Resolver, tempdir::Dir) {
    let dir = tempdir::Dir::new();
    fs::write(dir.path().join("hosts"), hosts).unwrap();
    fs::write(dir.path().join("resolv.conf"), format!("nameserver 127.0.0.1\n{conf}\n")).unwrap();
    (Resolver { hosts: dir.path().join("hosts"), conf: dir.path().join("resolv.conf"), port }, dir)
}

/// A scratch directory that goes with its owner.
mod tempdir {
    use std::path::{Path, PathBuf};

    use crate::base::random_u64;

    pub struct Dir(PathBuf);

    impl Dir {
        pub fn new() -> Dir {
            let path = std::env::temp_dir().join(format!("footman-resolve-{:x}", random_u64()));
            std::fs::create_dir(&path).unwrap();
            Dir(path)
        }

        pub fn path(&self) -> &Path {
            &self.0
        }
    }

    impl Drop for Dir {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }
}

fn texts(addresses: &[IpAddr]) -> Vec<String> {
    addresses.iter().map(ToString::to_string).collect()
}

#[tokio::test]
async fn literals_localhost_and_hosts_need_no_server() {
    let (resolver, _dir) = resolver("", "10.1.2.3 istiod\n127.0.0.1 localhost\n", 1);
    for (host, wanted) in [
        ("192.0.2.7", vec!["192.0.2.7"]),
        ("::1", vec!["::1"]),
        ("[2001:db8::1]", vec!["2001:db8::1"]),
        ("localhost", vec!["127.0.0.1", "::1"]),
        ("app.LOCALHOST.", vec!["127.0.0.1", "::1"]),
        ("istiod", vec!["10.1.2.3"]),
    ] {
        assert_eq!(texts(&resolver.lookup(host).await.unwrap()), wanted, "{host}");
    }
}

#[tokio::test]
async fn both_families_are_joined() {
    let port = server(|query, _| {
        let (_, v4) = asked(query);
        Some(reply(query, RCODE::NoError, if v4 { &["10.0.0.1", "10.0.0.2"] } else { &["2001:db8::1"] }))
    })
    .await;
    let (resolver, _dir) = resolver("", "", port);
    let mut found = texts(&resolver.lookup("istiod.example").await.unwrap());
    found.sort();
    assert_eq!(found, ["10.0.0.1", "10.0.0.2", "2001:db8::1"]);
}

#[tokio::test]
async fn one_silent_family_does_not_hold_up_the_other() {
    let port = server(|query, _| asked(query).1.then(|| reply(query, RCODE::NoError, &["10.0.0.1"]))).await;
    let (resolver, _dir) = resolver("", "", port);
    assert_eq!(texts(&resolver.lookup("istiod.example").await.unwrap()), ["10.0.0.1"]);
}

#[tokio::test]
async fn search_list_is_tried_until_a_name_exists() {
    let port = server(|query, _| {
        let (name, v4) = asked(query);
        Some(match name == "istiod.istio-system.svc.cluster.local" {
            true => reply(query, RCODE::NoError, if v4 { &["10.0.0.1"] } else { &[] }),
            false => reply(query, RCODE::NameError, &[]),
        })
    })
    .await;
    let conf = "search ns1.svc.cluster.local svc.cluster.local cluster.local\noptions ndots:5";
    let (resolver, _dir) = resolver(conf, "", port);
    assert_eq!(texts(&resolver.lookup("istiod.istio-system.svc").await.unwrap()), ["10.0.0.1"]);
    let error = resolver.lookup("istiod.istio-system.svc.").await.unwrap_err();
    assert_eq!(
        (error.kind(), error.to_string()),
        (ErrorKind::NotFound, "istiod.istio-system.svc.: no such host".into())
    );
}

#[test]
fn order_of_names_follows_ndots() {
    let conf = |text: &str| Conf::parse(text);
    assert_eq!(candidates("a", &conf("search x y")), ["a.x", "a.y", "a"]);
    assert_eq!(candidates("a.b", &conf("search x y")), ["a.b", "a.b.x", "a.b.y"]);
    assert_eq!(candidates("a.b", &conf("search x\noptions ndots:2")), ["a.b.x", "a.b"]);
    assert_eq!(candidates("a.b.", &conf("search x\noptions ndots:2")), ["a.b"]);
}

#[tokio::test]
async fn truncated_answer_is_fetched_over_tcp() {
    let port = server(|query, tcp| {
        let mut bytes = reply(query, RCODE::NoError, if tcp && asked(query).1 { &["10.0.0.9"] } else { &[] });
        bytes[2] |= if tcp { 0 } else { frame::TC };
        Some(bytes)
    })
    .await;
    let (resolver, _dir) = resolver("", "", port);
    assert_eq!(texts(&resolver.lookup("big.example").await.unwrap()), ["10.0.0.9"]);
}

#[tokio::test]
async fn a_name_that_servers_cannot_tell_does_not_end_the_search() {
    let port = server(|query, _| {
        let (name, v4) = asked(query);
        Some(match name == "istiod.here.example" {
            true => reply(query, RCODE::NoError, if v4 { &["10.0.0.1"] } else { &[] }),
            false => reply(query, RCODE::ServerFailure, &[]),
        })
    })
    .await;
    let (resolver, _dir) = resolver("search broken.example here.example", "", port);
    assert_eq!(texts(&resolver.lookup("istiod").await.unwrap()), ["10.0.0.1"]);
}

#[tokio::test]
async fn failing_server_is_an_error_that_names_it() {
    let port = server(|query, _| Some(reply(query, RCODE::ServerFailure, &[]))).await;
    let (resolver, _dir) = resolver("search x", "", port);
    let error = resolver.lookup("a.example").await.unwrap_err();
    assert!(error.to_string().starts_with("a.example: nameserver 127.0.0.1:"), "{error}");
    assert!(error.to_string().ends_with("response code 2"), "{error}");
}

#[tokio::test]
async fn a_server_that_is_not_there_is_noticed_at_once() {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let gone = socket.local_addr().unwrap();
    drop(socket);
    let query = question("a.example", TYPE::A).unwrap();
    let error = exchange::udp(gone, &query, 1, Duration::from_secs(600)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    assert!(error.to_string().starts_with(&format!("{gone}: ")), "{error}");
}

#[tokio::test]
async fn forged_answers_are_passed_over() {
    let port = server(|query, _| {
        let mut wrong = reply(query, RCODE::NoError, &["6.6.6.6"]);
        wrong[0] ^= 0x55;
        Some(wrong)
    })
    .await;
    let (resolver, _dir) = resolver("options timeout:1 attempts:1", "", port);
    assert_eq!(resolver.lookup("a.example").await.unwrap_err().kind(), ErrorKind::TimedOut);
}

#[tokio::test]
async fn silence_ends_in_a_timeout_and_other_servers_are_asked() {
    tokio::time::pause();
    let silent = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let port = silent.local_addr().unwrap().port();
    let (resolver, _dir) = resolver("nameserver 127.0.0.1\noptions timeout:3 attempts:2", "", port);
    let start = tokio::time::Instant::now();
    assert_eq!(resolver.lookup("a.example").await.unwrap_err().kind(), ErrorKind::TimedOut);
    // Two servers, asked twice each.
    assert_eq!(start.elapsed().as_secs(), 12);
    let late = resolver.lookup_until("a.example", start + Duration::from_secs(20)).await.unwrap_err();
    assert_eq!(late.kind(), ErrorKind::TimedOut);
    let servers = format!("127.0.0.1:{port}, 127.0.0.1:{port}");
    assert_eq!(late.to_string(), format!("a.example: no answer from nameserver {servers}"));
}

#[tokio::test]
async fn what_is_no_name_is_refused() {
    let (resolver, _dir) = resolver("", "", 1);
    for host in ["", "a..b", ".", &"a".repeat(64), &format!("{}a", "a.".repeat(130))] {
        assert_eq!(resolver.lookup(host).await.unwrap_err().kind(), ErrorKind::InvalidInput, "{host:?}");
    }
}
