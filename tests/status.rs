//! The status port as kubelet, Prometheus and operators use it, with scripted applications and a scripted Envoy.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use footman::{
    base::{Gate, Gates, Trigger},
    config::{Sources as Configuration, Vars},
    envoy,
    net::http1::{
        Error,
        client::{self, Response},
        server::{Answer, Limits, Reply, Request, Server, Service, serve_one},
    },
    status::{Bound, Config, Sources},
    telemetry::{metrics::Registry, pages::Pages},
    wires::Event,
};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpSocket, TcpStream, UnixStream},
    sync::{mpsc, watch},
};

use crate::support::{
    TempDir,
    agent::{Agent, Options},
    free_port,
    istiod::Istiod,
    within,
};

const TEXT: &str = "text/plain; version=0.0.4";
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// A server on loopback whose answer to everything can be changed; it keeps what it was asked.
#[derive(Clone)]
struct App {
    port: u16,
    answer: Arc<Mutex<(u16, &'static str, String)>>,
    seen: Arc<Mutex<Vec<String>>>,
    _running: Arc<Trigger>,
}

impl App {
    fn start(status: u16, content_type: &'static str, body: &str) -> App {
        let server = Server::bind_address(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
        let port = server.address().unwrap().port();
        let (trigger, drain) = Trigger::new();
        let answer = Arc::new(Mutex::new((status, content_type, body.to_owned())));
        let app = App { port, answer, seen: Arc::default(), _running: Arc::new(trigger) };
        tokio::spawn(server.run(Arc::new(app.clone()), drain));
        app
    }

    fn set(&self, status: u16, content_type: &'static str, body: &str) {
        *self.answer.lock().unwrap() = (status, content_type, body.to_owned());
    }
}

impl Service for App {
    fn call<'a>(&'a self, request: &'a Request, reply: Reply<'a>) -> Answer<'a> {
        let fields: Vec<String> =
            request.headers.iter().map(|(name, value)| format!("{name}: {}", String::from_utf8_lossy(value))).collect();
        let peer = request.peer.unwrap();
        let line =
            format!("{} {} {:?} from {peer}; {}", request.method, request.path, request.query, fields.join("; "));
        self.seen.lock().unwrap().push(line);
        let (status, content_type, body) = self.answer.lock().unwrap().clone();
        Box::pin(async move { reply.send(status, content_type, body.as_bytes()).await })
    }
}

/// A status port with everything around it.
struct Pod {
    port: u16,
    gates: Gates,
    server: Gate,
    pages: Pages,
    events: mpsc::Receiver<Event>,
    _running: Trigger,
}

fn pod(env: &[(&str, &str)], admin: u16) -> Pod {
    let port = free_port();
    let proxy = json!({"statusPort": port, "proxyAdminPort": admin}).to_string();
    let standard = [("PROXY_CONFIG", proxy.as_str()), ("INSTANCE_IP", "127.0.0.1"), ("GRPC_XDS_BOOTSTRAP", "")];
    let env = standard.iter().chain(env).map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let (vars, errors) = Vars::load(Configuration { env, ..Configuration::default() });
    assert!(errors.0.is_empty(), "{errors}");
    let config = Config::from_vars(&vars).unwrap().unwrap();
    let (gates, pages) = (Gates::default(), Pages::default());
    let server = gates.gate("server", "starting");
    server.open();
    let (sender, events) = mpsc::channel(4);
    let (_state, envoy) = watch::channel(envoy::State::default());
    let sources =
        Sources { gates: gates.clone(), registry: Registry::default(), pages: pages.clone(), envoy, events: sender };
    let bound = Bound::bind(config, sources).unwrap();
    let (trigger, drain) = Trigger::new();
    tokio::spawn(bound.run(drain));
    Pod { port, gates, server, pages, events, _running: trigger }
}

impl Pod {
    async fn ask(&self, method: &'static str, path: &str, headers: &[(&str, &str)]) -> (u16, String, String) {
        let url = format!("http://127.0.0.1:{}{path}", self.port);
        let mut request = client::Request::get(&url).unwrap();
        request.method = method.into();
        headers.iter().for_each(|(name, value)| request.headers.add(name, (*value).to_owned()));
        read(within(path, request.send(None)).await).await
    }

    async fn get(&self, path: &str) -> (u16, String) {
        let (status, _, body) = self.ask("GET", path, &[]).await;
        (status, body)
    }

    /// The answer to a caller at the address from which Envoy passes on what came from the network.
    async fn ask_from_outside(&self, method: &str, path: &str) -> String {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.6:0".parse().unwrap()).unwrap();
        let mut stream = socket.connect(SocketAddr::from(([127, 0, 0, 1], self.port))).await.unwrap();
        let request = format!("{method} {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        within(path, stream.read_to_string(&mut answer)).await.unwrap();
        answer
    }

    async fn counted(&self, kind: &str) -> u32 {
        let page = self.get("/metrics").await.1;
        let name = format!("istio_agent_scrape_failures_total{{type=\"{kind}\"}} ");
        page.lines().find_map(|line| line.strip_prefix(&name)).unwrap().parse().unwrap()
    }
}

async fn read(response: Result<Response, Error>) -> (u16, String, String) {
    let mut response = response.unwrap();
    let body = within("the body", response.body.collect(1 << 24)).await.unwrap();
    let content_type = response.headers.get("content-type").unwrap_or_default().to_owned();
    (response.status, content_type, String::from_utf8(body).unwrap())
}

const NO_ENVOY: (&str, &str) = ("DISABLE_ENVOY", "true");

fn probers(entries: Value) -> String {
    entries.to_string()
}

#[tokio::test]
async fn readiness_names_what_is_pending_and_is_latched() {
    let admin = App::start(200, "", "cluster_manager.cds.update_success: 1\n");
    let pod = pod(&[], admin.port);
    let (status, body) = pod.get("/healthz/ready").await;
    assert!(status == 503 && body.starts_with("not ready: envoy: config not fully received"), "{body}");
    admin.set(
        200,
        "",
        "cluster_manager.cds.update_success: 1\nlistener_manager.lds.update_success: 1\n\
         listener_manager.workers_started: 1\nserver.state: 0\n",
    );
    assert_eq!(pod.get("/healthz/ready").await, (200, String::new()));
    admin.set(500, "", "");
    assert_eq!(pod.ask("POST", "/healthz/ready?x", &[]).await.0, 200, "a sick admin port no longer matters");
    pod.server.shut("server is terminated: received signal");
    let (status, body) = pod.get("/healthz/ready").await;
    assert_eq!((status, &*body), (503, "not ready: server: server is terminated: received signal\n"));
}

#[tokio::test]
async fn readiness_tells_how_old_the_configuration_is() {
    let pod = pod(&[NO_ENVOY], 1);
    let xds = pod.gates.gate("xds", "no stream yet");
    xds.note("configuration accepted", std::time::SystemTime::now() - Duration::from_secs(3600));
    let (status, body) = pod.get("/healthz/ready").await;
    let told = |body: &str, state: &str| {
        body.starts_with(&format!("{state} (xds: configuration accepted 36")) && body.ends_with(" s ago)\n")
    };
    assert!(status == 503 && told(&body, "not ready: xds: no stream yet"), "{body}");
    xds.open();
    let (status, body) = pod.get("/healthz/ready").await;
    assert!(status == 200 && told(&body, "ready"), "{body}");
    let state: Value = serde_json::from_str(&pod.get("/debug/state").await.1).unwrap();
    assert!(state["ready"] == true && state["notes"]["xds"].as_str().unwrap().starts_with("configuration accepted 36"));
    xds.clear_note();
    assert_eq!(pod.get("/healthz/ready").await, (200, String::new()));
}

#[tokio::test]
async fn probes_are_passed_on_and_answers_come_back() {
    let app = App::start(200, "application/json", "fine");
    let entry = json!({"httpGet": {"port": app.port, "path": "live?deep=1#x"}, "timeoutSeconds": 5});
    let table = probers(
        json!({"/app-health/a/livez": entry, "/app-health/a/readyz": {"tcpSocket": {"port": app.port}},
        "/app-health/a/startupz": {"grpc": {"port": app.port}}, "/app-lifecycle/a/prestopz": {"httpGet": {"port": 0}}}),
    );
    let pod = pod(&[NO_ENVOY, ("ISTIO_KUBE_APP_PROBERS", &table)], 1);
    let host = format!("shop:{}", pod.port);
    let headers = [("Host", &*host), ("X-Two", "1"), ("X-Two", "2"), ("User-Agent", "kube-probe/1")];
    let (status, content_type, body) = pod.ask("POST", "/app-health/a/livez", &headers).await;
    assert_eq!((status, &*content_type, &*body), (200, "text/plain; charset=utf-8", "fine"));
    let wanted = format!(
        "GET /live Some(\"deep=1\") from 127.0.0.6; Connection: close; Host: shop:{}; X-Two: 1; X-Two: 2; User-Agent: kube-probe/1",
        app.port
    );
    assert_eq!(app.seen.lock().unwrap().last(), Some(&wanted));
    for (answer, passed) in [(404, 404), (503, 503), (599, 599), (301, 200), (399, 200)] {
        app.set(answer, "", "");
        assert_eq!(pod.get("/app-health/a/livez").await.0, passed, "{answer}");
    }
    app.set(503, "", &"x".repeat(20_000));
    assert_eq!(pod.get("/app-health/a/livez").await, (503, "x".repeat(10_240)));
    assert_eq!(pod.get("/app-health/a/readyz").await, (200, String::new()));
    assert_eq!(pod.get("/app-health/a/startupz").await, (500, String::new()), "gRPC without a timeout fails at once");
    assert_eq!(pod.get("/app-lifecycle/a/prestopz").await, (500, String::new()));
    let (status, body) = pod.get("/app-health/b/livez").await;
    assert_eq!((status, &*body), (400, "app prober config does not exists for /app-health/b/livez"));
}

#[tokio::test]
async fn kept_connections_serve_several_probes() {
    let app = App::start(200, "", "fine");
    let table = probers(json!({"/app-health/a/livez": {"httpGet": {"port": app.port}, "timeoutSeconds": 5}}));
    let env = [NO_ENVOY, ("ISTIO_KUBE_APP_PROBERS", &table), ("ENABLE_PROBE_KEEPALIVE_CONNECTIONS", "true")];
    let pod = pod(&env, 1);
    for _ in 0..3 {
        assert_eq!(pod.get("/app-health/a/livez").await, (200, "fine".to_owned()));
    }
    assert!(app.seen.lock().unwrap().iter().all(|seen| !seen.contains("close")));
}

#[tokio::test]
async fn caller_that_leaves_ends_probe_and_scrape() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = silent.local_addr().unwrap().port();
    let table = probers(json!({"/app-lifecycle/a/prestopz": {"httpGet": {"port": port}}}));
    let scrape = json!({"port": port.to_string()}).to_string();
    let env = [NO_ENVOY, ("ISTIO_KUBE_APP_PROBERS", &table), ("ISTIO_PROMETHEUS_ANNOTATIONS", &scrape)];
    let pod = pod(&env, 1);
    for path in ["/app-lifecycle/a/prestopz", "/metrics"] {
        let mut caller = TcpStream::connect(("127.0.0.1", pod.port)).await.unwrap();
        caller.write_all(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes()).await.unwrap();
        let (mut asked, _) = within("the application to be asked", silent.accept()).await.unwrap();
        let mut request = [0; 4096];
        assert!(asked.read(&mut request).await.unwrap() > 0);
        drop(caller);
        assert_eq!(within("its connection to end", asked.read(&mut request)).await.unwrap_or(0), 0, "{path}");
    }
}

#[tokio::test]
async fn page_joins_agent_envoy_and_applications() {
    let envoy = App::start(
        200,
        TEXT,
        "# TYPE envoy_x counter\nenvoy_x{le=\"1\"} 1\n\n# TYPE h histogram\nh_bucket{le=\"1\"} 1\n",
    );
    let first = App::start(200, OPENMETRICS, "# TYPE a_x gauge\na_x 1\n# EOF\n");
    let second = App::start(200, OPENMETRICS, "# TYPE b_x gauge\nb_x 1\nistio_agent_scrapes_total 7\n# EOF\r\n");
    let target = |app: &App| json!({"port": app.port.to_string()});
    let scrape = json!({"targets": [target(&first), target(&second)]}).to_string();
    let port = envoy.port.to_string();
    let pod = pod(&[("ENVOY_PROMETHEUS_PORT", &port), ("ISTIO_PROMETHEUS_ANNOTATIONS", &scrape)], 1);
    let headers =
        [("Accept", "application/openmetrics-text;version=1.0.0,*/*"), ("User-Agent", "p/1"), ("Cookie", "c")];
    let (_, content_type, page) = pod.ask("GET", "/stats/prometheus?usedonly", &headers).await;
    assert_eq!(content_type, OPENMETRICS);
    assert!(page.ends_with(
        "# TYPE envoy_x unknown\nenvoy_x{le=\"1.0\"} 1\n# TYPE h histogram\nh_bucket{le=\"1.0\"} 1\n\
         # TYPE a_x gauge\na_x 1\n# TYPE b_x gauge\nb_x 1\n# EOF\n"
    ));
    assert!(
        page.starts_with("# HELP istio_agent_scrape_failures ")
            && page.matches("istio_agent_scrapes_total ").count() == 1
    );
    let asked = envoy.seen.lock().unwrap().last().cloned().unwrap();
    assert!(asked.contains("Some(\"usedonly\")") && asked.contains("User-Agent: p/1") && !asked.contains("Cookie"));
    assert!(asked.contains("Accept: text/plain; q=0.1; version=0.0.4"), "{asked}");
    // One of them answers in text: then all is text.
    second.set(200, TEXT, "b_x 1");
    let (_, content_type, page) = pod.ask("GET", "/metrics", &headers).await;
    assert!(content_type.starts_with(TEXT) && page.ends_with("a_x 1\nb_x 1\n") && !page.contains("# EOF"), "{page}");
    // What fails is left out, and counted.
    first.set(500, OPENMETRICS, "a_x 1\n");
    second.set(200, TEXT, "<html>");
    let (status, _, page) = pod.ask("GET", "/metrics", &headers).await;
    assert!(status == 200 && page.contains("envoy_x{le=\"1\"} 1\n") && !page.contains("a_x") && !page.contains("html"));
    assert_eq!((pod.counted("application").await, pod.counted("envoy").await), (3, 0));
}

#[tokio::test]
async fn hanging_application_costs_only_its_own_part() {
    let envoy = App::start(200, TEXT, &"envoy_x 1\n".repeat(50_000));
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let scrape = json!({"port": silent.local_addr().unwrap().port().to_string()}).to_string();
    let port = envoy.port.to_string();
    let pod = pod(&[("ENVOY_PROMETHEUS_PORT", &port), ("ISTIO_PROMETHEUS_ANNOTATIONS", &scrape)], 1);
    let began = Instant::now();
    let timeout = [("X-Prometheus-Scrape-Timeout-Seconds", "1")];
    let page = pod.ask("GET", "/metrics", &timeout).await.2;
    assert_eq!(page.matches("envoy_x 1\n").count(), 50_000);
    assert!(page.contains("failures_total{type=\"application\"} 1\n") && began.elapsed() < Duration::from_secs(2));
    let page = pod.ask("GET", "/metrics", &[("X-Prometheus-Scrape-Timeout-Seconds", "-1")]).await.2;
    assert!(!page.contains("envoy_x") && page.contains("failures_total{type=\"envoy\"} 1\n"));
}

#[tokio::test]
async fn page_whose_source_breaks_off_stays_whole() {
    for (size, kept) in [(10_u64, false), (100_000, true)] {
        let broken = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let scrape = json!({"port": broken.local_addr().unwrap().port().to_string()}).to_string();
        let pod = pod(&[NO_ENVOY, ("ISTIO_PROMETHEUS_ANNOTATIONS", &scrape)], 1);
        let serve = async {
            let (mut stream, _) = broken.accept().await.unwrap();
            let body = "app_x 1\n".repeat(usize::try_from(size).unwrap());
            let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}app_", body.len() + 50);
            stream.write_all(answer.as_bytes()).await.unwrap();
            // Read the request, so that the end is an end and no reset.
            let _ = stream.read(&mut [0; 4096]).await;
        };
        let (page, ()) = tokio::join!(pod.get("/metrics"), serve);
        assert!(page.1.ends_with('\n') && page.1.contains("app_x 1\n") == kept, "{size}");
        assert!(!page.1.contains("app_\n"));
    }
}

#[tokio::test]
async fn scrape_that_is_sent_around_ends_at_the_tenth_request() {
    let around = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let scrape = json!({"port": around.local_addr().unwrap().port().to_string()}).to_string();
    let pod = pod(&[NO_ENVOY, ("ISTIO_PROMETHEUS_ANNOTATIONS", &scrape)], 1);
    let mut asked = 0;
    let serve = async {
        loop {
            let (mut stream, _) = around.accept().await.unwrap();
            let _ = stream.read(&mut [0; 4096]).await;
            asked += 1;
            stream.write_all(b"HTTP/1.1 302 X\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n").await.unwrap();
        }
    };
    tokio::select! { _ = pod.get("/metrics") => {}, () = serve => {} }
    assert_eq!(asked, 10);
}

#[tokio::test]
async fn control_is_for_this_pod_by_post() {
    let mut pod = pod(&[NO_ENVOY], 1);
    for path in ["/drain", "/quitquitquit"] {
        let (status, _, body) = pod.ask("GET", path, &[]).await;
        assert_eq!((status, &*body), (405, "Method Not Allowed\n"));
        let refused = pod.ask_from_outside("POST", path).await;
        assert!(
            refused.starts_with("HTTP/1.1 403 ") && refused.ends_with("Only requests from localhost are allowed\n")
        );
    }
    assert!(pod.events.try_recv().is_err());
    let url = format!("http://127.0.0.1:{}/drain", pod.port);
    let request = client::Request::post(&url, "").unwrap();
    let told = async {
        let Some(Event::Drain(done)) = pod.events.recv().await else { panic!("no drain") };
        done.send(()).unwrap();
    };
    let (answer, ()) = tokio::join!(request.send(None), told);
    assert_eq!(read(answer).await.2, "OK");
    assert_eq!(pod.ask("POST", "/quitquitquit", &[]).await.2, "OK");
    assert!(matches!(pod.events.recv().await, Some(Event::Quit)));
}

#[tokio::test]
async fn control_socket_takes_the_place_of_the_port() {
    let folder = TempDir::new();
    let socket = folder.join("control");
    let mut pod = pod(&[NO_ENVOY, ("FOOTMAN_CONTROL_SOCKET", socket.to_str().unwrap())], 1);
    assert_eq!(pod.ask("POST", "/quitquitquit", &[]).await.0, 403);
    let stream = UnixStream::connect(&socket).await.unwrap();
    let request = client::Request::post("http://localhost/quitquitquit", "").unwrap();
    assert_eq!(read(request.send_on(Box::new(stream)).await).await.2, "OK");
    assert!(matches!(pod.events.recv().await, Some(Event::Quit)));
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&socket).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
}

#[tokio::test]
async fn debug_pages_show_every_room() {
    let pod = pod(&[NO_ENVOY], 1);
    pod.pages.add("dns", || json!({"hosts": 2}));
    assert_eq!(pod.get("/debug/dns").await, (200, "{\"hosts\":2}".to_owned()));
    assert_eq!(pod.get("/debug/ndsz").await, (404, "{}".to_owned()));
    assert_eq!(pod.get("/debug/other").await.0, 404);
    let state: Value = serde_json::from_str(&pod.get("/debug/state").await.1).unwrap();
    assert_eq!((&state["ready"], &state["dns"]["hosts"]), (&json!(true), &json!(2)));
    let (status, page) = pod.get("/debug/").await;
    assert!(status == 200 && page.len() <= 12 * 1024, "{}", page.len());
    assert!(!page.contains("http://") && !page.contains("https://") && !page.contains("src="), "nothing from outside");
    assert_eq!(pod.get("/debug/pprof/cmdline").await.0, 200);
    assert_eq!(pod.get("//debug/pprof/cmdline").await.0, 307);
    assert_eq!(pod.get("/debug/pprof/heap").await.0, 501);
    for path in ["/", "/ready", "/healthz/ready/", "/metrics/x", "/app-healthz/a/livez", "/drain_listeners"] {
        assert_eq!(pod.get(path).await, (404, "404 page not found\n".to_owned()), "{path}");
    }
}

#[tokio::test]
async fn debug_pages_are_for_this_pod_unless_asked_for() {
    for (remote, status) in [("false", 403), ("true", 200)] {
        let pod = pod(&[NO_ENVOY, ("FOOTMAN_DEBUG_REMOTE", remote)], 1);
        for path in ["/debug", "/debug/", "/debug/state"] {
            let answer = pod.ask_from_outside("GET", path).await;
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{path}: {answer}");
        }
        let answer = pod.ask_from_outside("POST", "/quitquitquit").await;
        assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
    }
}

/// Ten thousand clients that each begin a request and go no further, against the binary itself.
#[tokio::test]
async fn flood_of_connections_leaves_room_for_others() {
    const FLOOD: usize = 10_000;
    /// As many as the agent keeps.
    const KEPT: usize = 2048;
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, most, most).unwrap();
    // In waves where this process may not have so many at once; the rest is for the other tests.
    let at_once = usize::try_from(most).unwrap_or(FLOOD).saturating_sub(2000).clamp(500, FLOOD);
    let istiod = Istiod::start().await;
    let agent = Agent::start(&istiod, Options { env: &[NO_ENVOY], ..Options::default() });
    let url = format!("http://127.0.0.1:{}/metrics", agent.status_port);
    let ask = || async { client::Request::get(&url).unwrap().send(None).await };
    within("the status port", async { while ask().await.is_err() {} }).await;
    let process = format!("/proc/{}", agent.pid());
    let kilobytes = |name: &str| -> usize {
        let status = std::fs::read_to_string(format!("{process}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.split_whitespace().next().unwrap().parse().unwrap()
    };
    let descriptors = || std::fs::read_dir(format!("{process}/fd")).unwrap().count();
    let (memory, before) = (kilobytes("VmRSS:"), descriptors());
    let mut flood = std::collections::VecDeque::new();
    for number in 1..=FLOOD {
        if flood.len() == at_once {
            flood.pop_front();
        }
        let mut slow = TcpStream::connect(("127.0.0.1", agent.status_port)).await.unwrap();
        slow.write_all(b"GET /healthz/ready HTTP/1.1\r\nHost: a\r\nX-Slow: ").await.unwrap();
        flood.push_back(slow);
        // Before the listener's queue is full: then the kernel would let clients wait for seconds.
        if number % 500 == 0 {
            let (status, _, page) = read(within("an answer in the flood", ask()).await).await;
            assert!(status == 200 && page.contains("istio_agent_"), "after {number}: {status}");
            assert!(descriptors() <= before + KEPT + 8, "after {number}: {}", descriptors());
        }
    }
    assert!(descriptors() >= before + KEPT.min(at_once) - 8, "a flood it was not: {}", descriptors());
    let more = kilobytes("VmHWM:") - memory;
    assert!(more <= 24 * 1024, "{more} kB for the connections");
}

/// Never answers.
struct Silent;

impl Service for Silent {
    fn call<'a>(&'a self, _: &'a Request, _: Reply<'a>) -> Answer<'a> {
        Box::pin(std::future::pending::<io::Result<()>>())
    }
}

#[tokio::test(start_paused = true)]
async fn client_that_sends_ahead_is_not_read_without_bound() {
    let (mut client, server) = tokio::io::duplex(1 << 16);
    let (_trigger, drain) = Trigger::new();
    let served = tokio::spawn(async move { serve_one(Box::new(server), &Silent, &Limits::default(), drain).await });
    client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    let endless = async {
        let mut sent = 0;
        while sent < 1 << 20 {
            client.write_all(&[b'x'; 1024]).await.unwrap();
            sent += 1024;
        }
    };
    assert!(tokio::time::timeout(Duration::from_secs(1), endless).await.is_err(), "1 MB was read ahead");
    served.abort();
}
