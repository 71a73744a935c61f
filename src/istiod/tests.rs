//! The way to istiod against scripted servers on port 0.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{net::TcpListener, sync::Mutex};

use super::*;
use crate::{
    base::Trigger,
    config::Vars,
    grpc::{BoxFuture, Code, Keepalive, Receiver, Request, Sender, Service, Settings, Status, serve},
    net::{BoxIo, tls::Policy},
    proto::google::rpc::Status as Note,
};

/// Answers every unary call with the metadata that came with it, and leaves streams open.
struct Echo;

impl Service for Echo {
    fn call(&self, request: Request, mut receiver: Receiver, mut sender: Sender) -> BoxFuture {
        Box::pin(async move {
            let pairs: Vec<String> = request
                .metadata
                .iter()
                .filter(|(name, _)| !["te", "content-type", "user-agent", "grpc-timeout"].contains(name))
                .map(|(name, value)| format!("{name}={value}"))
                .collect();
            while let Ok(Some(_)) = receiver.message::<Note>(1000).await {
                if sender.send(&Note { message: pairs.join(" "), ..Note::default() }).await.is_err() {
                    return;
                }
            }
            sender.close(&Status::ok());
        })
    }
}

/// A server that counts its connections; each can be told to say goodbye.
struct Server {
    port: u16,
    accepted: Arc<AtomicUsize>,
    goodbyes: Arc<Mutex<Vec<Trigger>>>,
}

impl Server {
    async fn start(tls: Option<Arc<rustls::ServerConfig>>) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server =
            Server { port: listener.local_addr().unwrap().port(), accepted: Arc::default(), goodbyes: Arc::default() };
        let (accepted, goodbyes) = (Arc::clone(&server.accepted), Arc::clone(&server.goodbyes));
        tokio::spawn(async move {
            while let Ok((tcp, _)) = listener.accept().await {
                let io: BoxIo = match &tls {
                    None => Box::new(tcp),
                    Some(config) => match tokio_rustls::TlsAcceptor::from(Arc::clone(config)).accept(tcp).await {
                        Ok(stream) => Box::new(stream),
                        Err(_) => continue,
                    },
                };
                accepted.fetch_add(1, Ordering::Relaxed);
                let (trigger, drain) = Trigger::new();
                goodbyes.lock().await.push(trigger);
                tokio::spawn(serve(io, Arc::new(Echo), Settings::default(), drain));
            }
        });
        server
    }

    fn accepted(&self) -> usize {
        self.accepted.load(Ordering::Relaxed)
    }
}

fn config(port: u16, tls: Option<Tls>) -> Config {
    Config {
        endpoint: Endpoint {
            address: format!("127.0.0.1:{port}"),
            host: "127.0.0.1".to_owned(),
            port,
            proxy: None,
            authority: "istiod".to_owned(),
            tls,
            keepalive: Keepalive { interval: Duration::from_secs(30), timeout: Duration::from_secs(10) },
        },
        headers: vec![("clusterid".to_owned(), String::new())],
        token: Token::None,
        exchange: None,
    }
}

async fn ask(istiod: &Istiod) -> Result<String, Status> {
    let answer: Note = istiod.unary("/t/Ask", &Note::default(), Duration::from_secs(5)).await?;
    Ok(answer.message)
}

#[tokio::test]
async fn streams_and_purposes_share_one_connection() {
    let server = Server::start(None).await;
    let istiod = Istiod::new(config(server.port, None));
    let beside =
        istiod.beside(Config { headers: vec![("x".to_owned(), "ca".to_owned())], ..config(server.port, None) });
    let (mut one, mut answers) = istiod.stream("/t/Stream").await.unwrap();
    assert_eq!(ask(&istiod).await.unwrap(), "clusterid=");
    assert_eq!(ask(&beside).await.unwrap(), "x=ca");
    assert_eq!(server.accepted(), 1);

    // After a goodbye what is open goes on, what is new dials anew.
    server.goodbyes.lock().await[0].start();
    while server.accepted() < 2 {
        ask(&istiod).await.unwrap();
    }
    one.send(&Note::default()).await.unwrap();
    assert!(answers.message::<Note>(1000).await.unwrap().is_some());
    istiod.retire();
    ask(&beside).await.unwrap();
    assert_eq!(server.accepted(), 3);
}

#[tokio::test]
async fn a_call_that_is_refused_unseen_is_repeated_once() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let refused = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&refused);
    tokio::spawn(async move {
        let mut connection = h2::server::handshake(listener.accept().await.unwrap().0).await.unwrap();
        while let Some(Ok((_, mut respond))) = connection.accept().await {
            counter.fetch_add(1, Ordering::Relaxed);
            respond.send_reset(h2::Reason::REFUSED_STREAM);
        }
    });
    let status = ask(&Istiod::new(config(port, None))).await.unwrap_err();
    assert!(status.is_unprocessed() && status.code == Code::Unavailable, "{status}");
    assert_eq!(refused.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn token_is_read_for_every_call() {
    let server = Server::start(None).await;
    let file = std::env::temp_dir().join(format!("footman-token-{}", std::process::id()));
    let istiod = Istiod::new(Config { token: Token::File(file.clone()), ..config(server.port, None) });
    assert_eq!(ask(&istiod).await.unwrap(), "clusterid=");
    let without = istiod.credentials().await;
    for token in ["first", "second"] {
        std::fs::write(&file, format!("  {token}\n")).unwrap();
        assert_eq!(ask(&istiod).await.unwrap(), format!("clusterid= authorization=Bearer {token}"));
    }
    assert_ne!(istiod.credentials().await, without);
    std::fs::remove_file(&file).unwrap();
    let doubt = |code| istiod.token_doubt(&Status::new(code, "no"));
    assert_eq!(doubt(Code::Unauthenticated), format!(" (there is no token in {})", file.display()));
    assert_eq!(doubt(Code::PermissionDenied), "");
}

#[tokio::test]
async fn failure_names_the_address_and_is_shared_by_those_who_wait() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let istiod = Istiod::new(config(port, None));
    let (one, two) = tokio::join!(istiod.stream("/t/Stream"), istiod.stream("/t/Stream"));
    for status in [one.err().unwrap(), two.err().unwrap()] {
        assert_eq!(status.code, Code::Unavailable);
        assert!(status.message.contains(&format!("127.0.0.1:{port}")), "{status}");
    }
}

#[tokio::test(start_paused = true)]
async fn server_that_says_nothing_is_given_up() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let istiod = Istiod::new(config(listener.local_addr().unwrap().port(), None));
    let status = istiod.stream("/t/Stream").await.err().unwrap();
    assert!(status.message.ends_with("no answer within 8 s"), "{status}");
}

/// A certificate authority made for one test, its root on disk.
struct Authority {
    issuer: rcgen::CertifiedIssuer<'static, rcgen::KeyPair>,
    root: PathBuf,
}

impl Authority {
    fn new(name: &str) -> Authority {
        let mut params = rcgen::CertificateParams::default();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let issuer = rcgen::CertifiedIssuer::self_signed(params, rcgen::KeyPair::generate().unwrap()).unwrap();
        let root = std::env::temp_dir().join(format!("footman-root-{}-{name}.pem", std::process::id()));
        std::fs::write(&root, issuer.pem()).unwrap();
        Authority { issuer, root }
    }

    fn server(&self, name: &str) -> Arc<rustls::ServerConfig> {
        let key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new([name.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key.into())
            .unwrap();
        config.alpn_protocols = vec![b"h2".to_vec()];
        Arc::new(config)
    }

    fn tls(&self, server_name: &str) -> Tls {
        Tls {
            roots: RootSource::File(self.root.clone()),
            pair: None,
            server_name: server_name.to_owned(),
            policy: Policy::Default,
        }
    }
}

impl Drop for Authority {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.root);
    }
}

#[tokio::test]
async fn roots_are_read_at_every_dial() {
    let authority = Authority::new("reread");
    let server = Server::start(Some(authority.server("istiod.test"))).await;
    let istiod = Istiod::new(config(server.port, Some(authority.tls("istiod.test"))));
    ask(&istiod).await.unwrap();

    // Half a file keeps what was usable.
    std::fs::write(&authority.root, "-----BEGIN").unwrap();
    istiod.retire();
    ask(&istiod).await.unwrap();
    assert_eq!(server.accepted(), 2);

    // Other roots count for the next call, without being told, and the message says whose fault it is.
    std::fs::write(&authority.root, Authority::new("other").issuer.pem()).unwrap();
    let status = ask(&istiod).await.unwrap_err();
    assert!(status.message.contains("UnknownIssuer"), "{status}");
    assert!(status.message.contains("reread.pem"), "{status}");
    std::fs::write(&authority.root, authority.issuer.pem()).unwrap();
    ask(&istiod).await.unwrap();
}

#[tokio::test]
async fn roots_of_the_system_are_read_again_when_they_are_replaced() {
    let (old, new) = (Authority::new("system-old"), Authority::new("system-new"));
    let server = Server::start(Some(new.server("istiod.test"))).await;
    let file = Some(old.root.clone());
    let roots = RootSource::System(crate::net::tls::SystemStore { file, directories: Vec::new() });
    let istiod = Istiod::new(config(server.port, Some(Tls { roots, ..old.tls("istiod.test") })));
    let status = ask(&istiod).await.unwrap_err();
    assert!(status.message.contains("UnknownIssuer"), "{status}");
    std::fs::rename(&new.root, &old.root).unwrap();
    ask(&istiod).await.unwrap();
}

/// A stream over TLS to a server of `authority`, with a clock that stands still but for timers.
async fn stream_on_paused_time(authority: &Authority) -> (Server, Istiod, Sender, Receiver) {
    let server = Server::start(Some(authority.server("istiod.test"))).await;
    let mut config = config(server.port, Some(authority.tls("istiod.test")));
    // Pings would race with the clock.
    config.endpoint.keepalive.interval = Duration::from_secs(86_400);
    let istiod = Istiod::new(config);
    let (sender, receiver) = istiod.stream("/t/Stream").await.unwrap();
    tokio::time::pause();
    (server, istiod, sender, receiver)
}

#[tokio::test]
async fn connection_is_rolled_within_a_minute_when_its_server_no_longer_verifies() {
    let authority = Authority::new("rolled");
    let (server, istiod, _sender, mut answers) = stream_on_paused_time(&authority).await;
    let unchanged = tokio::time::timeout(Duration::from_secs(3600), answers.message::<Note>(1000));
    assert!(unchanged.await.is_err(), "ended without reason");

    std::fs::write(&authority.root, Authority::new("stranger").issuer.pem()).unwrap();
    let changed = tokio::time::Instant::now();
    let status = answers.message::<Note>(1000).await.unwrap_err();
    assert_eq!(status.code, Code::Unavailable, "{status}");
    assert!(changed.elapsed() <= Duration::from_secs(71), "{:?}", changed.elapsed());
    // The next dial uses the new roots.
    tokio::time::resume();
    assert!(ask(&istiod).await.unwrap_err().message.contains("UnknownIssuer"));
    assert_eq!(server.accepted(), 1);
}

#[tokio::test]
async fn connection_stays_while_its_server_verifies() {
    let authority = Authority::new("stays");
    let (server, istiod, mut sender, mut answers) = stream_on_paused_time(&authority).await;
    let both = Authority::new("another").issuer.pem() + &authority.issuer.pem();
    // More roots, half a file, and the old ones again.
    for text in [both.as_str(), "-----BEGIN", &authority.issuer.pem()] {
        std::fs::write(&authority.root, text).unwrap();
        let quiet = tokio::time::timeout(Duration::from_secs(3600), answers.message::<Note>(1000));
        assert!(quiet.await.is_err(), "ended with {text}");
    }
    // New calls dial with the new roots at once; the stream goes on beside them.
    std::fs::write(&authority.root, &both).unwrap();
    tokio::time::resume();
    ask(&istiod).await.unwrap();
    assert_eq!(server.accepted(), 2);
    sender.send(&Note::default()).await.unwrap();
    assert!(answers.message::<Note>(1000).await.unwrap().is_some());
}

#[tokio::test]
async fn connection_is_rolled_before_its_client_certificate_ends_once_a_newer_one_is_there() {
    let authority = Authority::new("ends");
    let server = Server::start(Some(authority.server("istiod.test"))).await;
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(["client".to_owned()]).unwrap();
    let now = std::time::SystemTime::now();
    params.not_after = (now + Duration::from_secs(3600)).into();
    let file = std::env::temp_dir().join(format!("footman-pair-{}.pem", std::process::id()));
    std::fs::write(&file, params.signed_by(&key, &authority.issuer).unwrap().pem() + &key.serialize_pem()).unwrap();
    let mut tls = authority.tls("istiod.test");
    tls.pair = Some(Pair { chain: file.clone(), key: file.clone() });
    for (ends, rolled) in [(60, true), (600, false), (7200, false)] {
        let tcp = tokio::net::TcpStream::connect(("127.0.0.1", server.port)).await.unwrap();
        let config = material::Material::read(&tls).config(&tls).unwrap();
        let (_io, peer) = crate::net::tls::connect_to_peer(Box::new(tcp), config, "istiod.test").await.unwrap();
        let ends = Some(now + Duration::from_secs(ends));
        let basis = roll::Basis { peer: peer.unwrap(), fingerprint: [0; 32], ends };
        let reason = basis.is_lost(&tls, Duration::from_secs(120));
        assert_eq!(reason.is_some(), rolled, "{ends:?}: {reason:?}");
    }
    std::fs::remove_file(file).unwrap();
}

#[tokio::test]
async fn name_in_the_certificate_counts() {
    let authority = Authority::new("name");
    let server = Server::start(Some(authority.server("other.test"))).await;
    let istiod = Istiod::new(config(server.port, Some(authority.tls("istiod.test"))));
    let status = ask(&istiod).await.unwrap_err();
    assert!(status.message.contains("istiod.test"), "{status}");
    let istiod = Istiod::new(config(server.port, Some(authority.tls("other.test"))));
    ask(&istiod).await.unwrap();
}

fn vars(pairs: &[(&str, &str)]) -> Vars {
    Vars::from_pairs(pairs.iter().copied())
}

#[tokio::test]
async fn roots_follow_the_tables() {
    let file = |purpose: fn(&Vars) -> Result<Config, crate::config::Errors>, pairs: &[(&str, &str)]| {
        purpose(&vars(pairs)).map(|config| config.endpoint.tls.map(|tls| tls.roots.to_string()))
    };
    let authority = Authority::new("tables");
    let this = authority.root.to_str().unwrap();
    let xds = |pairs: &[(&str, &str)]| file(Config::for_discovery, pairs);
    let ca = |pairs: &[(&str, &str)]| file(Config::for_ca, pairs);
    assert_eq!(xds(&[("XDS_ROOT_CA", "SYSTEM")]).unwrap().unwrap(), "roots of the system");
    assert_eq!(xds(&[("XDS_ROOT_CA", this)]).unwrap().unwrap(), format!("roots {this}"));
    assert_eq!(xds(&[("PROV_CERT", "/p")]).unwrap().unwrap(), "roots /p/root-cert.pem");
    assert_eq!(ca(&[("CA_ROOT_CA", this), ("CA_ADDR", "ca:1")]).unwrap().unwrap(), format!("roots {this}"));
    assert_eq!(ca(&[("CA_ADDR", "ca:15010")]).unwrap(), None);
    for (errors, text) in [
        (xds(&[("XDS_ROOT_CA", file!())]), "failed to create TLS dial option with root certificates"),
        (xds(&[("XDS_ROOT_CA", "/missing")]), "root CA file for XDS does not exist /missing"),
        (xds(&[]), "/root-cert.pem (working directory /"),
        (xds(&[]), "; mount the ConfigMap istio-ca-root-cert there, or set XDS_ROOT_CA"),
        (ca(&[]), "or set CA_ROOT_CA"),
        (xds(&[("PILOT_CERT_PROVIDER", "none")]), "configured provider as none"),
        (ca(&[("PILOT_CERT_PROVIDER", "none")]), "configured provider as none"),
        (
            xds(&[("XDS_ROOT_CA", "SYSTEM"), ("CREDENTIAL_FETCHER_TYPE", "Magic")]),
            "invalid credential fetcher type Magic",
        ),
        (ca(&[("CA_ROOT_CA", "SYSTEM"), ("CA_ADDR", "ca")]), "CA_ADDR: "),
    ] {
        let errors = errors.unwrap_err().to_string();
        assert!(errors.contains(text), "{errors}");
    }
}

#[tokio::test]
async fn names_and_headers() {
    let system = ("XDS_ROOT_CA", "SYSTEM");
    let plain = Config::for_discovery(&vars(&[system])).unwrap();
    assert_eq!(plain.endpoint.authority, "istiod.istio-system.svc");
    assert_eq!(plain.headers, [("clusterid".to_owned(), String::new())]);
    let named = Config::for_discovery(&vars(&[system, ("ISTIOD_SAN", "canary"), ("XDS_HEADER_FOO", "a=b")])).unwrap();
    assert_eq!(named.endpoint.tls.unwrap().server_name, "canary");
    assert_eq!(named.headers[1], ("foo".to_owned(), "a=b".to_owned()));
    let ca = [("CA_ROOT_CA", "SYSTEM"), ("ISTIOD_SAN", "canary"), ("CA_HEADER_BAZ", "=baz")];
    let same = Config::for_ca(&vars(&ca)).unwrap();
    assert_eq!(same.endpoint.authority, "canary");
    assert_eq!(same.headers[1], ("baz".to_owned(), "=baz".to_owned()));
    // As in grpc-go, gRPC's own cannot be set.
    let reserved = vars(&[system, ("XDS_HEADER_TE", "x"), ("XDS_HEADER_:path", "x"), ("XDS_HEADER_User-Agent", "x")]);
    assert_eq!(Config::for_discovery(&reserved).unwrap().headers, plain.headers);
    assert!(reserved.warnings().iter().any(|warning| warning.starts_with("XDS_HEADER_TE: ")));
    let own = Config::for_ca(&vars(&[ca[0], ca[1], ("CA_ADDR", "localhost:15012")])).unwrap();
    assert_eq!(own.endpoint.authority, "istiod.istio-system.svc");
}

#[tokio::test]
async fn kubernetes_roots_and_token_count_where_higress_asks_for_them() {
    let authority = Authority::new("kubernetes");
    let root = std::env::temp_dir().join(format!("footman-istiod-{}", std::process::id()));
    let mounts = root.join("var/run/secrets");
    for (file, text) in [
        ("istio/root-cert.pem", authority.issuer.pem()),
        ("kubernetes.io/serviceaccount/ca.crt", authority.issuer.pem()),
        ("kubernetes.io/serviceaccount/token", "own".to_owned()),
    ] {
        std::fs::create_dir_all(mounts.join(file).parent().unwrap()).unwrap();
        std::fs::write(mounts.join(file), text).unwrap();
    }
    let found = |pairs: &[(&str, &str)]| {
        let vars = vars(pairs).with_root(root.clone());
        [Config::for_discovery(&vars).unwrap(), Config::for_ca(&vars).unwrap()].map(|config| {
            let Token::File(token) = config.token else { panic!("no token file") };
            let roots = config.endpoint.tls.unwrap().roots.to_string();
            (roots.rsplit('/').next().unwrap().to_owned(), token.file_name().unwrap().to_str().unwrap().to_owned())
        })
    };
    let both = |roots: &str, token: &str| [(roots.to_owned(), token.to_owned()), (roots.to_owned(), token.to_owned())];
    assert_eq!(found(&[]), both("root-cert.pem", "istio-token"));
    let higress = [("PILOT_CERT_PROVIDER", "kubernetes"), ("JWT_POLICY", "first-party-jwt")];
    assert_eq!(found(&higress), both("ca.crt", "token"));
    // The projected token counts where there is one, as in Istio; so does the mesh's root where Kubernetes mounts none.
    std::fs::create_dir_all(mounts.join("tokens")).unwrap();
    std::fs::write(mounts.join("tokens/istio-token"), "projected").unwrap();
    std::fs::remove_file(mounts.join("kubernetes.io/serviceaccount/ca.crt")).unwrap();
    assert_eq!(found(&higress), both("root-cert.pem", "istio-token"));
    std::fs::remove_dir_all(root).unwrap();
}

#[tokio::test]
async fn a_machine_whose_token_cannot_be_fetched_asks_nobody() {
    let server = Server::start(None).await;
    let token = Token::Google(super::google::Google::new("127.0.0.1:1", "td", "/nonexistent/token".into()));
    let istiod = Istiod::new(Config { token, ..config(server.port, None) });
    let failure = ask(&istiod).await.unwrap_err();
    assert!(failure.message.starts_with("fetch platform credential: http://127.0.0.1:1/"), "{failure}");
}

#[test]
fn authorities_name_the_server_as_uris_do() {
    for (address, san, name, authority) in [
        ("[::1]:15012", "", "::1", "[::1]"),
        ("istiod.test:15012", "", "istiod.test", "istiod.test"),
        ("localhost:15012", "", "istiod.istio-system.svc", "istiod.istio-system.svc"),
        ("[fd00::1]:15012", "other.test", "other.test", "other.test"),
    ] {
        let proxy = format!("discoveryAddress: '{address}'");
        let (vars, _) = Vars::load(crate::config::Sources {
            env: [("PROXY_CONFIG", &*proxy), ("ISTIOD_SAN", san), ("CA_ROOT_CA", "SYSTEM")]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into(),
            ..Default::default()
        });
        let endpoint = Config::for_ca(&vars).unwrap().endpoint;
        assert_eq!((&*endpoint.tls.unwrap().server_name, &*endpoint.authority), (name, authority));
        assert!(endpoint.authority.parse::<http::uri::Authority>().is_ok(), "{authority}");
    }
}

#[test]
fn plaintext_to_the_ca_is_warned_of() {
    let vars = vars(&[("CA_ADDR", "ca.test:15010")]);
    assert!(Config::for_ca(&vars).unwrap().endpoint.tls.is_none());
    assert!(
        vars.warnings().iter().any(|warning| warning.contains("without TLS at ca.test:15010")),
        "{:?}",
        vars.warnings()
    );
}

#[test]
fn an_annotated_address_is_taken_as_it_stands() {
    let root = std::env::temp_dir().join(format!("footman-annotated-{}", std::process::id()));
    std::fs::create_dir_all(root.join("etc/istio/pod")).unwrap();
    for (address, host) in
        [("Odd_Host:99999", Some("Odd_Host")), ("istiod:", Some("istiod")), ("x", None), (":1x", None)]
    {
        let line = format!("{}=\"{address}\"", crate::config::DISCOVERY_ANNOTATION);
        std::fs::write(root.join("etc/istio/pod/annotations"), line).unwrap();
        let env = [("PROXY_CONFIG".to_owned(), "controlPlaneAuthPolicy: NONE".to_owned())].into();
        let (vars, mut errors) = Vars::load(crate::config::Sources { env, root: root.clone(), ..Default::default() });
        let config = errors.take(Config::for_discovery(&vars)).filter(|_| errors.0.is_empty());
        assert_eq!(config.map(|config| config.endpoint.host).as_deref(), host, "{address}");
        // Said once, whoever finds it.
        assert_eq!(errors.0.len(), usize::from(host.is_none()), "{errors}");
        let warnings = vars.warnings();
        let (plaintext, others): (Vec<_>, Vec<_>) =
            warnings.iter().partition(|line| line.starts_with("controlPlaneAuthPolicy: NONE"));
        assert!(plaintext.iter().any(|line| line.contains(address)), "{address}: {warnings:?}");
        assert_eq!(others.iter().any(|line| line.contains(address)), host.is_some(), "{address}: {warnings:?}");
    }
    std::fs::remove_dir_all(&root).unwrap();
}
