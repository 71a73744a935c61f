//! The DNS proxy between clients and scripted servers that drop, delay, truncate, lie and hang up.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use footman::{
    base::{Gates, Trigger},
    config::Vars,
    dns::{Config, Dns, Names, message},
    net::resolve::{
        exchange::{self, framed},
        frame,
    },
    proto::istio::networking::nds::v1::{NameTable as Wire, name_table::NameInfo},
    telemetry::metrics::Registry,
    wires::{NameTable, NamesPublisher, names},
};
use prost::Message;
use simple_dns::{
    CLASS, Name, Packet, PacketFlag, Question, RCODE, ResourceRecord, TYPE,
    rdata::{self, RData},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, UdpSocket},
    sync::Notify,
    task::JoinHandle,
    time::Instant,
};

use crate::support::{
    TempDir,
    agent::{Agent, Options},
    envoy, free_port,
    istiod::Istiod,
    lines, within,
};

/// What a scripted server does with a query.
#[derive(Clone)]
enum Act {
    Answer(Vec<u8>),
    /// Nothing until the test says so.
    When(Arc<Notify>, Vec<u8>),
    /// A datagram from another socket of the same machine, then the true answer.
    FromElsewhere(Vec<u8>, Vec<u8>),
    /// Several datagrams.
    All(Vec<Vec<u8>>),
    Silence,
    /// Over TCP: the connection ends.
    HangUp,
}

type Script = Arc<dyn Fn(&[u8], usize) -> Act + Send + Sync>;

/// A server on a free port of loopback; `script` is given each query and how many came before.
struct Server {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Server {
    async fn start(script: impl Fn(&[u8], usize) -> Act + Send + Sync + 'static) -> Server {
        let script: Script = Arc::new(script);
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (udp, tcp) = loop {
            let udp = UdpSocket::bind("127.0.0.1:0").await.unwrap();
            if let Ok(tcp) = TcpListener::bind(udp.local_addr().unwrap()).await {
                break (Arc::new(udp), tcp);
            }
        };
        let address = udp.local_addr().unwrap();
        tokio::spawn(serve_udp(udp, script.clone(), seen.clone()));
        tokio::spawn(serve_tcp(tcp, script, seen.clone()));
        Server { address, seen }
    }

    fn seen(&self) -> Vec<Vec<u8>> {
        self.seen.lock().unwrap().clone()
    }
}

fn note(seen: &Mutex<Vec<Vec<u8>>>, query: &[u8]) -> usize {
    let mut seen = seen.lock().unwrap();
    seen.push(query.to_vec());
    seen.len() - 1
}

async fn serve_udp(socket: Arc<UdpSocket>, script: Script, seen: Arc<Mutex<Vec<Vec<u8>>>>) {
    let mut buffer = [0; 4096];
    loop {
        let (length, peer) = socket.recv_from(&mut buffer).await.unwrap();
        let act = script(&buffer[..length], note(&seen, &buffer[..length]));
        let socket = socket.clone();
        tokio::spawn(async move {
            let answers = match act {
                Act::Answer(answer) => vec![answer],
                Act::When(told, answer) => {
                    told.notified().await;
                    vec![answer]
                }
                Act::FromElsewhere(forged, answer) => {
                    let elsewhere = UdpSocket::bind("127.0.0.1:0").await.unwrap();
                    elsewhere.send_to(&forged, peer).await.unwrap();
                    vec![answer]
                }
                Act::All(answers) => answers,
                Act::Silence | Act::HangUp => vec![],
            };
            for answer in answers {
                socket.send_to(&answer, peer).await.unwrap();
            }
        });
    }
}

async fn serve_tcp(listener: TcpListener, script: Script, seen: Arc<Mutex<Vec<Vec<u8>>>>) {
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        let (script, seen) = (script.clone(), seen.clone());
        tokio::spawn(async move {
            while let Ok(query) = read_framed(&mut stream).await {
                match script(&query, note(&seen, &query)) {
                    Act::Answer(answer) => stream.write_all(&framed(&answer).unwrap()).await.unwrap(),
                    Act::When(told, answer) => {
                        told.notified().await;
                        stream.write_all(&framed(&answer).unwrap()).await.unwrap();
                    }
                    Act::HangUp => return,
                    _ => {}
                }
            }
        });
    }
}

async fn read_framed(stream: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let length = stream.read_u16().await?;
    let mut message = vec![0; usize::from(length)];
    stream.read_exact(&mut message).await?;
    Ok(message)
}

/// A running proxy.
struct Proxy {
    udp: SocketAddr,
    tcp: SocketAddr,
    publisher: NamesPublisher,
    registry: Registry,
    gates: Gates,
    names: Names,
    drain: Trigger,
    run: JoinHandle<()>,
    _dir: TempDir,
}

impl Proxy {
    /// A proxy with a table, in front of `servers`.
    async fn start(servers: &[&Server], env: &[(&str, &str)]) -> Proxy {
        let proxy = Proxy::without_table(servers, env).await;
        proxy.publisher.publish(Some(table(&[("local.example", &["1.2.3.4"])]))).await;
        proxy
    }

    async fn without_table(servers: &[&Server], env: &[(&str, &str)]) -> Proxy {
        let upstreams: Vec<String> = servers.iter().map(|server| server.address.to_string()).collect();
        let upstreams = upstreams.join(",");
        let mut pairs = vec![
            ("ISTIO_META_DNS_CAPTURE", "true"),
            ("DNS_PROXY_ADDR", "127.0.0.1:0"),
            ("POD_NAMESPACE", "ns1"),
            ("FOOTMAN_DNS_UPSTREAMS", &upstreams),
        ];
        pairs.extend_from_slice(env);
        let mut config = Config::from_vars(&Vars::from_pairs(pairs)).unwrap().unwrap();
        let dir = TempDir::new();
        config.resolv_conf = dir.write("resolv.conf", "search ns1.svc.cluster.local\n");
        let (publisher, receiver) = names::channel();
        let (registry, gates) = (Registry::default(), Gates::default());
        let dns = Dns::bind(config, receiver, &registry, gates.gate("dns", "no table yet")).await.unwrap();
        let (address, names) = (dns.addresses()[0], dns.names());
        let (trigger, drain) = Trigger::new();
        let run = tokio::spawn(async move { dns.run(drain).await.unwrap() });
        Proxy { udp: address.udp, tcp: address.tcp, publisher, registry, gates, names, drain: trigger, run, _dir: dir }
    }

    async fn ask(&self, query: &[u8]) -> Vec<u8> {
        let socket = client(self.udp).await;
        socket.send(query).await.unwrap();
        receive(&socket).await
    }

    async fn ask_over_tcp(&self, query: &[u8]) -> Vec<u8> {
        let mut stream = TcpStream::connect(self.tcp).await.unwrap();
        stream.write_all(&framed(query).unwrap()).await.unwrap();
        within("an answer over TCP", read_framed(&mut stream)).await.unwrap()
    }

    fn metric(&self, name: &str) -> f64 {
        let text = self.registry.text();
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("istio_agent_{name} ")));
        line.map_or(0.0, |value| value.parse().unwrap())
    }
}

/// A socket that takes answers of that address only.
async fn client(server: SocketAddr) -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    socket.connect(server).await.unwrap();
    socket
}

async fn receive(socket: &UdpSocket) -> Vec<u8> {
    let mut buffer = vec![0; 65_535];
    let length = within("an answer over UDP", socket.recv(&mut buffer)).await.unwrap();
    buffer.truncate(length);
    buffer
}

fn table(hosts: &[(&str, &[&str])]) -> NameTable {
    let entry = |(host, ips): &(&str, &[&str])| {
        let ips = ips.iter().map(ToString::to_string).collect();
        (host.to_string(), NameInfo { ips, registry: "External".into(), ..NameInfo::default() })
    };
    NameTable::decode(&Wire { table: hosts.iter().map(entry).collect() }.encode_to_vec()).unwrap()
}

fn query_of(id: u16, name: &str, qtype: TYPE) -> Vec<u8> {
    let mut packet = Packet::new_query(id);
    packet.set_flags(PacketFlag::RECURSION_DESIRED);
    packet.questions.push(Question::new(Name::new_unchecked(name), qtype.into(), CLASS::IN.into(), false));
    packet.build_bytes_vec().unwrap()
}

fn query(id: u16, name: &str) -> Vec<u8> {
    query_of(id, name, TYPE::A)
}

/// An answer to `query` of one address.
fn answer(query: &[u8], address: [u8; 4]) -> Vec<u8> {
    reply(query, RCODE::NoError, &[RData::A(rdata::A { address: u32::from_be_bytes(address) })])
}

fn reply(query: &[u8], code: RCODE, records: &[RData<'_>]) -> Vec<u8> {
    let asked = Packet::parse(query).unwrap();
    let mut packet = Packet::new_reply(asked.id());
    packet.set_flags(PacketFlag::RECURSION_DESIRED | PacketFlag::RECURSION_AVAILABLE);
    *packet.rcode_mut() = code;
    packet.questions = asked.questions.clone();
    for data in records {
        packet.answers.push(ResourceRecord::new(asked.questions[0].qname.clone(), CLASS::IN, 60, data.clone()));
    }
    packet.build_bytes_vec_compressed().unwrap()
}

/// The addresses in an answer, and its response code.
fn read(reply: &[u8]) -> (RCODE, Vec<[u8; 4]>) {
    let packet = Packet::parse(reply).unwrap();
    let address = |record: &ResourceRecord<'_>| match &record.rdata {
        RData::A(a) => Some(a.address.to_be_bytes()),
        _ => None,
    };
    (packet.rcode(), packet.answers.iter().filter_map(address).collect())
}

const GOOD: [u8; 4] = [192, 0, 2, 1];
const BAD: [u8; 4] = [6, 6, 6, 6];

async fn good() -> Server {
    Server::start(|query, _| Act::Answer(answer(query, GOOD))).await
}

#[tokio::test]
async fn forwarded_messages_are_the_same_to_the_byte_but_for_the_id() {
    // Types, classes and flags that no library knows; an answer with every header bit set.
    let server = Server::start(|query, _| {
        let mut answer = query.to_vec();
        (answer[2], answer[3]) = (answer[2] | 0x80, 0xf0);
        frame::set_count(&mut answer, frame::Section::Answer, 1);
        answer.splice(
            frame::question(query).unwrap().end..,
            *b"\xc0\x0c\xff\x78\xab\xcd\x00\x00\x00\x09\x00\x03\x01\x02\x03",
        );
        frame::set_count(&mut answer, frame::Section::Additional, 0);
        Act::Answer(answer)
    })
    .await;
    let proxy = Proxy::start(&[&server], &[]).await;
    let mut asked = query(0x4242, "OdD_label.ExAmple");
    let end = asked.len();
    asked[end - 4..].copy_from_slice(&[0xff, 0x78, 0xab, 0xcd]);
    asked[3] |= 0x50;
    frame::set_count(&mut asked, frame::Section::Additional, 1);
    asked.extend_from_slice(b"\x00\x00\x29\x10\x00\x00\x00\x80\x01\x00\x06\xfd\xe9\x00\x02hi");
    for got in [proxy.ask(&asked).await, proxy.ask_over_tcp(&asked).await] {
        assert_eq!(got[..2], asked[..2]);
        assert_eq!(got[2..4], [0x81, 0xf0]);
        assert_eq!(got[12..end], asked[12..end]);
        assert_eq!(got[end..], *b"\xc0\x0c\xff\x78\xab\xcd\x00\x00\x00\x09\x00\x03\x01\x02\x03");
    }
    let seen = server.seen();
    assert_eq!(seen.len(), 2);
    for seen in &seen {
        assert_eq!(seen[2..], asked[2..]);
    }
    assert!(seen.iter().any(|seen| seen[..2] != asked[..2]), "ids are our own");
}

#[tokio::test]
async fn a_lost_datagram_is_sent_again() {
    let server =
        Server::start(|query, before| if before == 0 { Act::Silence } else { Act::Answer(answer(query, GOOD)) }).await;
    let proxy = Proxy::start(&[&server], &[("DNS_FORWARD_TIMEOUT", "400ms")]).await;
    assert_eq!(read(&proxy.ask(&query(1, "a.example")).await), (RCODE::NoError, vec![GOOD]));
    let seen = server.seen();
    assert_eq!((seen.len(), seen[0].clone()), (2, seen[1].clone()), "the same query twice");
    assert_eq!(proxy.metric("dns_upstream_failures_total"), 0.0);
}

#[tokio::test]
async fn lies_are_passed_over_and_the_truth_is_taken() {
    let server = Server::start(|query, _| {
        let (true_answer, mut forged) = (answer(query, GOOD), answer(query, BAD));
        match Packet::parse(query).unwrap().questions[0].qname.to_string().as_str() {
            "id.example" => forged[1] ^= 1,
            "name.example" => forged[13] ^= 1,
            "type.example" => forged[frame::question(query).unwrap().end - 3] = 28,
            "query.example" => forged[2] &= 0x7f,
            "broken.example" => forged.truncate(10),
            "elsewhere.example" => return Act::FromElsewhere(forged, true_answer),
            _ => {}
        }
        Act::All(vec![forged, true_answer])
    })
    .await;
    let proxy = Proxy::start(&[&server], &[]).await;
    for name in ["id.example", "name.example", "type.example", "query.example", "broken.example", "elsewhere.example"] {
        assert_eq!(read(&proxy.ask(&query(7, name)).await), (RCODE::NoError, vec![GOOD]), "{name}");
    }
    // The seventh lie is none: the harness itself can be believed.
    assert_eq!(read(&proxy.ask(&query(7, "unforged.example")).await).1, [BAD]);
}

#[tokio::test]
async fn ids_and_ports_cannot_be_guessed() {
    let ports = Arc::new(Mutex::new(Vec::new()));
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let server = Server { address: socket.local_addr().unwrap(), seen: Arc::default() };
    let noted = ports.clone();
    tokio::spawn(async move {
        let mut buffer = [0; 512];
        loop {
            let (length, peer) = socket.recv_from(&mut buffer).await.unwrap();
            noted.lock().unwrap().push((u16::from_be_bytes([buffer[0], buffer[1]]), peer.port()));
            socket.send_to(&answer(&buffer[..length], GOOD), peer).await.unwrap();
        }
    });
    let proxy = Proxy::start(&[&server], &[]).await;
    for _ in 0..64 {
        proxy.ask(&query(5, "a.example")).await;
    }
    let seen = ports.lock().unwrap().clone();
    let distinct = |values: Vec<u16>| values.into_iter().collect::<std::collections::BTreeSet<_>>().len();
    assert!(distinct(seen.iter().map(|(id, _)| *id).collect()) > 60);
    assert!(distinct(seen.iter().map(|(_, port)| *port).collect()) > 32);
    let steps: Vec<i32> = seen.windows(2).map(|pair| i32::from(pair[1].1) - i32::from(pair[0].1)).collect();
    assert!(steps.iter().filter(|step| (1..=2).contains(*step)).count() < 16, "ports in a row: {steps:?}");
}

#[tokio::test]
async fn truncated_answers_are_passed_on_and_the_rest_comes_over_tcp() {
    let server = Server::start(|query, before| {
        let text = "x".repeat(200);
        let texts = vec![RData::TXT(rdata::TXT::new().with_string(&text).unwrap()); 15];
        let mut short = reply(query, RCODE::NoError, &[]);
        short[2] |= frame::TC;
        Act::Answer(if before == 0 { short } else { reply(query, RCODE::NoError, &texts) })
    })
    .await;
    let proxy = Proxy::start(&[&server], &[]).await;
    let asked = query_of(1, "big.example", TYPE::TXT);
    let over_udp = proxy.ask(&asked).await;
    assert!(over_udp[2] & frame::TC != 0 && over_udp.len() <= 512);
    let over_tcp = proxy.ask_over_tcp(&asked).await;
    assert_eq!((over_tcp[2] & frame::TC, Packet::parse(&over_tcp).unwrap().answers.len()), (0, 15));
    // A server that sends more than the client can take is cut to size.
    let cut = proxy.ask(&asked).await;
    assert!(cut.len() <= 512 && cut[2] & frame::TC != 0 && frame::is_whole(&cut));
    assert_eq!(Packet::parse(&cut).unwrap().answers.len(), 2);
}

#[tokio::test]
async fn servers_that_fail_give_way_to_the_next() {
    let refusing = Server::start(|query, _| Act::Answer(reply(query, RCODE::Refused, &[]))).await;
    let hanging_up = Server::start(|_, _| Act::HangUp).await;
    let good = good().await;
    let gone = Server { address: client(good.address).await.local_addr().unwrap(), seen: Arc::default() };
    let proxy = Proxy::start(&[&refusing, &hanging_up, &gone, &good], &[("DNS_FORWARD_TIMEOUT", "200ms")]).await;
    for id in 0..8 {
        assert_eq!(read(&proxy.ask(&query(id, "a.example")).await), (RCODE::NoError, vec![GOOD]));
        assert_eq!(read(&proxy.ask_over_tcp(&query(id, "a.example")).await), (RCODE::NoError, vec![GOOD]));
    }
    assert_eq!(proxy.metric("dns_upstream_failures_total"), 0.0);
}

#[tokio::test]
async fn a_failing_answer_is_passed_on_when_there_is_no_better_one() {
    let refusing = Server::start(|query, _| Act::Answer(reply(query, RCODE::Refused, &[]))).await;
    let silent = Server::start(|_, _| Act::Silence).await;
    let proxy = Proxy::start(&[&refusing, &silent], &[("DNS_FORWARD_TIMEOUT", "100ms")]).await;
    assert_eq!(read(&proxy.ask(&query(1, "a.example")).await), (RCODE::Refused, vec![]));
    assert_eq!(proxy.metric("dns_upstream_failures_total"), 0.0);
}

#[tokio::test]
async fn a_refusal_without_a_question_is_taken_and_gets_one() {
    let bare = Server::start(|query, _| Act::Answer([&query[..2], b"\x81\x85\0\x01\0\0\0\0\0\0"].concat())).await;
    let proxy = Proxy::start(&[&bare], &[]).await;
    let start = Instant::now();
    for name in ["a.example", "local.example"] {
        let asked = query_of(7, name, TYPE::TXT);
        for got in [proxy.ask(&asked).await, proxy.ask_over_tcp(&asked).await] {
            assert_eq!(read(&got), (RCODE::Refused, vec![]));
            assert_eq!(got[12..], asked[12..]);
        }
    }
    assert!(start.elapsed() < Duration::from_secs(4), "{:?}", start.elapsed());
    let good = good().await;
    let proxy = Proxy::start(&[&bare, &good], &[]).await;
    for id in 0..8 {
        assert_eq!(read(&proxy.ask(&query(id, "a.example")).await), (RCODE::NoError, vec![GOOD]));
    }
}

#[tokio::test]
async fn silence_of_all_is_servfail_in_time() {
    let silent = Server::start(|_, _| Act::Silence).await;
    let proxy = Proxy::start(&[&silent], &[("DNS_FORWARD_TIMEOUT", "150ms")]).await;
    let start = Instant::now();
    let got = proxy.ask(&query(0x77, "A.example")).await;
    assert!(start.elapsed() >= Duration::from_millis(145), "{:?}", start.elapsed());
    assert_eq!(read(&got), (RCODE::ServerFailure, vec![]));
    assert!(frame::answers(&query(0x77, "A.example"), &got));
    assert_eq!(proxy.metric("dns_upstream_failures_total"), 1.0);
}

#[tokio::test]
async fn the_log_says_where_names_are_served_and_which_server_fails_but_not_each_time() {
    let good = good().await;
    let gone = client(good.address).await.local_addr().unwrap().to_string();
    let env = [
        ("ISTIO_META_DNS_CAPTURE", "true"),
        ("FOOTMAN_DNS_UPSTREAMS", &*gone),
        ("FOOTMAN_DNS_FORWARD_BEFORE_TABLE", "true"),
    ];
    let folder = TempDir::new();
    let envoy = envoy::script(&folder, "echo start >> events\nexec sleep 1000\n");
    let options = Options { envoy: Some(&envoy), env: &env, ..Options::default() };
    let agent = Agent::start(&Istiod::start().await, options);
    lines(&agent.folder.join("events"), 1).await;
    let client = client(SocketAddr::from(([127, 0, 0, 1], agent.dns_port))).await;
    for id in 0..3 {
        client.send(&query(id, "a.example")).await.unwrap();
        assert_eq!(read(&receive(&client).await).0, RCODE::ServerFailure);
    }
    let log = agent.log();
    assert!(log.contains(&format!("local DNS server on 127.0.0.1:{}: servers [{gone}]", agent.dns_port)), "{log}");
    assert_eq!(log.matches(&format!("upstream failure: {gone}: Connection refused")).count(), 1, "{log}");
}

#[tokio::test]
async fn no_server_is_servfail_at_once_also_when_the_only_one_is_ourselves() {
    for parallel in ["false", "true"] {
        let proxy = Proxy::start(&[], &[("DNS_FORWARD_PARALLEL", parallel)]).await;
        assert_eq!(read(&proxy.ask(&query(1, "a.example")).await).0, RCODE::ServerFailure);
        let listen = format!("127.0.0.1:{}", free_port());
        let me = Server { address: listen.parse().unwrap(), seen: Arc::default() };
        let itself = Proxy::start(&[&me], &[("DNS_PROXY_ADDR", &listen), ("DNS_FORWARD_PARALLEL", parallel)]).await;
        assert_eq!(read(&itself.ask(&query(1, "a.example")).await).0, RCODE::ServerFailure);
        assert_eq!(itself.metric("dns_requests_total"), 1.0, "it asked itself");
    }
}

#[tokio::test]
async fn queries_that_are_redirected_back_go_round_once() {
    // A redirection of port 53 that does not exempt the agent brings our own datagram back to us, its source unchanged.
    let hop = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let server = Server { address: hop.local_addr().unwrap(), seen: Arc::default() };
    let proxy = Proxy::start(&[&server], &[("DNS_FORWARD_TIMEOUT", "300ms")]).await;
    let socket = client(proxy.udp).await;
    socket.send(&query(1, "a.example")).await.unwrap();
    let mut buffer = [0; 512];
    let (length, from) = within("the forwarded query", hop.recv_from(&mut buffer)).await.unwrap();
    assert!(exchange::is_ours(from, &buffer[..length]));
    buffer[1] ^= 1;
    assert!(!exchange::is_ours(from, &buffer[..length]), "another id is another query");
    assert_eq!(read(&receive(&socket).await).0, RCODE::ServerFailure);
    buffer[1] ^= 1;
    assert!(!exchange::is_ours(from, &buffer[..length]), "it is over");
}

#[tokio::test]
async fn parallel_servers_race_and_usable_answers_win() {
    let quick_and_broken = Server::start(|query, _| Act::Answer(reply(query, RCODE::ServerFailure, &[]))).await;
    let late = Server::start(|_, _| Act::Silence).await;
    let good = good().await;
    let proxy = Proxy::start(&[&late, &quick_and_broken, &good], &[("DNS_FORWARD_PARALLEL", "true")]).await;
    for id in 0..8 {
        assert_eq!(read(&proxy.ask(&query(id, "a.example")).await), (RCODE::NoError, vec![GOOD]));
    }
    assert_eq!(good.seen().len(), 8);
}

#[tokio::test]
async fn a_hedge_asks_the_second_server_when_the_first_is_slow() {
    let late = Server::start(|_, _| Act::Silence).await;
    let good = good().await;
    let proxy = Proxy::start(&[&late, &good], &[("FOOTMAN_DNS_HEDGE", "20ms"), ("DNS_FORWARD_TIMEOUT", "20s")]).await;
    for id in 0..8 {
        assert_eq!(read(&proxy.ask(&query(id, "a.example")).await), (RCODE::NoError, vec![GOOD]));
    }
}

#[tokio::test]
async fn known_names_never_become_unknown_by_another_type() {
    let server = Server::start(|query, _| {
        let mut answer = reply(query, RCODE::NameError, &[]);
        answer[3] |= frame::AD;
        Act::Answer(answer)
    })
    .await;
    let proxy = Proxy::start(&[&server], &[]).await;
    for (name, known) in
        [("local.example", true), ("local.example.ns1.svc.cluster.local", true), ("other.example", false)]
    {
        let got = proxy.ask(&query_of(1, name, TYPE::TXT)).await;
        let wanted = if known { RCODE::NoError } else { RCODE::NameError };
        assert_eq!((read(&got), got[3] & frame::AD == 0), ((wanted, vec![]), known), "{name}");
    }
}

#[tokio::test]
async fn before_the_first_table_names_fail_or_are_forwarded_as_asked() {
    let server = good().await;
    let proxy = Proxy::without_table(&[&server], &[]).await;
    assert_eq!(read(&proxy.ask(&query(1, "a.example")).await).0, RCODE::ServerFailure);
    assert_eq!((server.seen().len(), proxy.gates.shut().len(), proxy.names.ndsz()), (0, 1, None));
    proxy.publisher.publish(None).await;
    assert_eq!(read(&proxy.ask(&query(1, "a.example")).await).1, [GOOD]);
    assert_eq!((proxy.gates.shut(), proxy.names.ndsz().as_deref()), (vec![], Some("{}")));

    let open = Proxy::without_table(&[&server], &[("FOOTMAN_DNS_FORWARD_BEFORE_TABLE", "true")]).await;
    assert_eq!(read(&open.ask(&query(1, "local.example")).await).1, [GOOD]);
}

#[tokio::test]
async fn a_table_counts_from_its_publication_on() {
    let server = good().await;
    let proxy = Proxy::start(&[&server], &[]).await;
    for last in 1..50 {
        let (ip, host) = (format!("10.0.0.{last}"), format!("n{last}.example"));
        proxy.publisher.publish(Some(table(&[("a.example", &[&ip]), (&host, &["10.1.1.1"])]))).await;
        assert_eq!(read(&proxy.ask(&query(1, "a.example")).await).1, [[10, 0, 0, last]]);
        assert_eq!(read(&proxy.ask(&query(1, &host)).await).1, [[10, 1, 1, 1]]);
        assert_eq!(read(&proxy.ask(&query(1, &format!("n{}.example", last - 1))).await).1, [GOOD], "gone");
    }
    proxy.publisher.publish(None).await;
    assert_eq!(read(&proxy.ask(&query(1, "n49.example")).await).1, [[10, 1, 1, 1]], "no table leaves the old one");
    proxy.publisher.publish(Some(table(&[]))).await;
    assert_eq!(read(&proxy.ask(&query(1, "n49.example")).await).1, [GOOD], "an empty one clears it");
}

#[tokio::test]
async fn large_tables_are_swapped_without_a_pause() {
    let proxy = Proxy::start(&[], &[]).await;
    let hosts: Vec<String> = (0..20_000).map(|index| format!("host-{index}.example")).collect();
    let entries: Vec<(&str, &[&str])> = hosts.iter().map(|host| (host.as_str(), &["10.9.9.9"][..])).collect();
    let large = table(&[&entries[..], &[("local.example", &["1.2.3.4"])]].concat());
    let publisher = proxy.publisher.clone();
    let publish = tokio::spawn(async move { publisher.publish(Some(large)).await });
    let mut answered = 0;
    while !publish.is_finished() {
        assert_eq!(read(&proxy.ask(&query(1, "local.example")).await).1, [[1, 2, 3, 4]]);
        answered += 1;
    }
    assert!(answered > 3, "only {answered} queries were answered while the table was made");
    assert_eq!(read(&proxy.ask(&query(1, "host-19999.example")).await).1, [[10, 9, 9, 9]]);
}

#[tokio::test]
async fn answers_on_one_connection_come_when_they_are_there() {
    let told = Arc::new(Notify::new());
    let when = told.clone();
    let server = Server::start(move |query, _| Act::When(when.clone(), answer(query, GOOD))).await;
    let proxy = Proxy::start(&[&server], &[]).await;
    let mut stream = TcpStream::connect(proxy.tcp).await.unwrap();
    let mut bytes = framed(&query(1, "slow.example")).unwrap();
    (2..40).for_each(|id| bytes.extend(framed(&query(id, "local.example")).unwrap()));
    stream.write_all(&bytes).await.unwrap();
    // The client has said all that it wants to say; it is answered nevertheless.
    stream.shutdown().await.unwrap();
    let mut ids = Vec::new();
    while let Ok(answer) = within("answers", read_framed(&mut stream)).await {
        ids.push(frame::id(&answer).unwrap());
        if ids.len() == 38 {
            told.notify_one();
        }
    }
    assert_eq!(ids, (2..40).chain([1]).collect::<Vec<u16>>());
}

#[tokio::test]
async fn a_connection_is_read_no_further_than_its_queries_are_answered() {
    let server = good().await;
    let proxy = Proxy::start(&[&server], &[]).await;
    let mut stream = TcpStream::connect(proxy.tcp).await.unwrap();
    let bytes: Vec<u8> = (0..1000).flat_map(|id| framed(&query(id, "far.example")).unwrap()).collect();
    stream.write_all(&bytes).await.unwrap();
    let mut ids = std::collections::BTreeSet::new();
    for _ in 0..1000 {
        ids.insert(frame::id(&within("an answer", read_framed(&mut stream)).await.unwrap()).unwrap());
    }
    assert_eq!(ids.len(), 1000);
}

#[tokio::test]
async fn idle_connections_are_closed_and_half_messages_too() {
    let proxy = Proxy::start(&[], &[]).await;
    let mut idle = TcpStream::connect(proxy.tcp).await.unwrap();
    let mut half = TcpStream::connect(proxy.tcp).await.unwrap();
    half.write_all(&[0, 40, 1, 2, 3]).await.unwrap();
    let mut used = TcpStream::connect(proxy.tcp).await.unwrap();
    used.write_all(&framed(&query(1, "local.example")).unwrap()).await.unwrap();
    read_framed(&mut used).await.unwrap();
    // From here on only timers move.
    tokio::time::pause();
    let start = Instant::now();
    assert!(idle.read_u8().await.is_err() && half.read_u8().await.is_err());
    assert_eq!(start.elapsed().as_secs(), 5);
    assert!(used.read_u8().await.is_err());
    assert!((7..=9).contains(&start.elapsed().as_secs()), "{:?}", start.elapsed());
}

#[tokio::test]
async fn answers_leave_from_the_address_that_was_asked() {
    for listen in ["0.0.0.0:0", "[::]:0"] {
        let proxy = Proxy::start(&[], &[("DNS_PROXY_ADDR", listen)]).await;
        // A connected socket hears nobody else.
        let client = client(SocketAddr::from(([127, 0, 0, 77], proxy.udp.port()))).await;
        client.send(&query(1, "local.example")).await.unwrap();
        assert_eq!(read(&receive(&client).await).1, [[1, 2, 3, 4]], "{listen}");
        // Either means both families, where there are two.
        if let Ok(client) = UdpSocket::bind("[::1]:0").await {
            client.connect(("::1", proxy.udp.port())).await.unwrap();
            client.send(&query(1, "local.example")).await.unwrap();
            assert_eq!(read(&receive(&client).await).1, [[1, 2, 3, 4]], "{listen}");
        }
    }
}

#[tokio::test]
async fn kept_answers_are_served_and_stale_ones_when_no_server_answers() {
    let server = Server::start(|query, before| match before {
        0 => {
            let mut answer = answer(query, GOOD);
            let ttl = answer.len() - 10;
            answer[ttl..ttl + 4].copy_from_slice(&1u32.to_be_bytes());
            Act::Answer(answer)
        }
        _ => Act::Answer(reply(query, RCODE::ServerFailure, &[])),
    })
    .await;
    let proxy = Proxy::start(&[&server], &[("FOOTMAN_DNS_CACHE", "true"), ("FOOTMAN_DNS_SERVE_STALE", "1h")]).await;
    assert_eq!(read(&proxy.ask(&query(1, "a.example")).await).1, [GOOD]);
    let kept = proxy.ask(&query(2, "A.example")).await;
    assert!(frame::answers(&query(2, "A.example"), &kept) && kept[13] == b'A');
    assert_eq!((server.seen().len(), proxy.metric("dns_cache_hits_total")), (1, 1.0));
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(2)).await;
    tokio::time::resume();
    assert_eq!(read(&proxy.ask(&query(3, "a.example")).await).1, [GOOD]);
    assert_eq!((server.seen().len(), proxy.metric("dns_stale_answers_total")), (2, 1.0));
}

#[tokio::test]
async fn stale_answers_do_not_wait_until_their_clients_have_given_up() {
    let server =
        Server::start(|query, before| if before == 0 { Act::Answer(answer(query, GOOD)) } else { Act::Silence }).await;
    let proxy = Proxy::start(&[&server], &[("FOOTMAN_DNS_CACHE", "true"), ("FOOTMAN_DNS_SERVE_STALE", "1h")]).await;
    assert_eq!(read(&proxy.ask(&query(1, "a.example")).await).1, [GOOD]);
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(61)).await;
    let start = Instant::now();
    assert_eq!(read(&proxy.ask(&query(2, "a.example")).await).1, [GOOD]);
    assert!((1..=2).contains(&start.elapsed().as_secs()), "{:?}", start.elapsed());
}

#[tokio::test]
async fn opt_in_lives_and_names_of_addresses() {
    let proxy = Proxy::start(&[], &[("FOOTMAN_DNS_TTL", "7"), ("FOOTMAN_DNS_PTR", "true")]).await;
    let got = proxy.ask(&query(1, "local.example")).await;
    assert_eq!(Packet::parse(&got).unwrap().answers[0].ttl, 7);
    let got = proxy.ask(&query_of(1, "4.3.2.1.in-addr.arpa", TYPE::PTR)).await;
    let packet = Packet::parse(&got).unwrap();
    assert!(matches!(&packet.answers[0].rdata, RData::PTR(name) if name.0.to_string() == "local.example"));
}

#[tokio::test]
async fn five_thousand_clients() {
    const CLIENTS: u16 = 5_000;
    // So many at once: a socket each is within what any machine lets a test open, and their queries within a socket buffer.
    const WAVE: u16 = 250;
    let server = Server::start(|query, _| Act::Answer(answer(query, [10, 0, query[13], query[14]]))).await;
    let proxy = Proxy::start(&[&server], &[]).await;
    let mut answered = 0;
    for wave in 0..CLIENTS / WAVE {
        let mut clients = Vec::new();
        for id in wave * WAVE..(wave + 1) * WAVE {
            let socket = client(proxy.udp).await;
            let name = if id % 2 == 0 { "local.example".to_owned() } else { format!("{:02x}x{id}.example", id % 97) };
            socket.send(&query(id, &name)).await.unwrap();
            clients.push(socket);
        }
        for socket in &clients {
            let got = receive(socket).await;
            let wanted = if got[1] % 2 == 0 { [1, 2, 3, 4] } else { [10, 0, got[13], got[14]] };
            assert_eq!(read(&got), (RCODE::NoError, vec![wanted]));
            answered += 1;
        }
    }
    assert_eq!(answered, CLIENTS);
    assert_eq!(proxy.metric("dns_upstream_requests_total"), f64::from(CLIENTS / 2));
}

#[tokio::test]
async fn a_taken_address_and_a_missing_resolver_file_are_named() {
    let taken = UdpSocket::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let holder = UdpSocket::bind(taken).await.unwrap();
    let vars = Vars::from_pairs([("ISTIO_META_DNS_CAPTURE", "true"), ("DNS_PROXY_ADDR", &taken.to_string())]);
    let config = Config::from_vars(&vars).unwrap().unwrap();
    let bind = async |config: Config| {
        let gate = Gates::default().gate("dns", "");
        let bound = Dns::bind(config, names::channel().1, &Registry::default(), gate).await;
        bound.err().unwrap().to_string()
    };
    let error = bind(config.clone()).await;
    assert!(error.starts_with(&format!("failed to start local DNS server: {taken}: ")), "{error}");
    drop(holder);
    let error = bind(Config { resolv_conf: "/nonexistent/resolv.conf".into(), ..config }).await;
    assert!(error.starts_with("failed to start local DNS server: /nonexistent/resolv.conf: "), "{error}");
}

#[tokio::test]
async fn the_drain_ends_it() {
    let proxy = Proxy::start(&[], &[]).await;
    proxy.drain.start();
    within("the end of the proxy", proxy.run).await.unwrap();
    assert!(UdpSocket::bind(proxy.udp).await.is_ok(), "the port is free again");
}

#[tokio::test]
async fn answers_are_never_larger_than_the_client_can_take() {
    let many: Vec<String> = (0..200).map(|index| format!("10.0.0.{index}")).collect();
    let ips: Vec<&str> = many.iter().map(String::as_str).collect();
    let server = Server::start(|query, _| {
        Act::Answer(reply(query, RCODE::NoError, &vec![RData::A(rdata::A { address: 7 }); 200]))
    })
    .await;
    let proxy = Proxy::start(&[&server], &[]).await;
    proxy.publisher.publish(Some(table(&[("many.example", &ips)]))).await;
    for name in ["many.example", "many.example.ns1.svc.cluster.local", "far.example"] {
        let asked = query(1, name);
        let got = proxy.ask(&asked).await;
        assert!(got.len() <= message::PLAIN_LIMIT && got[2] & frame::TC != 0 && frame::is_whole(&got), "{name}");
    }
}
