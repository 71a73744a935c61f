//! A scripted web server: a route for each path, and a record of what was asked. Registries are made of it.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use footman::{
    base::Trigger,
    net::http1::server::{Answer, Reply, Request, Server, Service},
};
use tokio::sync::watch;

/// What a path gives.
pub struct Response {
    pub status: u16,
    pub headers: Vec<(&'static str, String)>,
    pub body: Vec<u8>,
}

type Route = Arc<dyn Fn(&Request) -> Response + Send + Sync>;

/// It ends with the value.
pub struct Web {
    pub address: SocketAddr,
    script: Arc<Script>,
    _serving: Trigger,
}

struct Script {
    routes: Mutex<BTreeMap<String, Route>>,
    seen: Mutex<Vec<String>>,
    /// How many requests came; tests wait for the next.
    count: watch::Sender<usize>,
    /// Answers wait while it is shut.
    open: watch::Sender<bool>,
}

impl Response {
    pub fn new(status: u16, body: impl Into<Vec<u8>>) -> Response {
        Response { status, headers: Vec::new(), body: body.into() }
    }

    pub fn header(mut self, name: &'static str, value: impl Into<String>) -> Response {
        self.headers.push((name, value.into()));
        self
    }
}

impl Web {
    /// One that listens on a free port of loopback.
    pub fn start() -> Web {
        let server = Server::bind_address(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let address = server.address().unwrap();
        let (routes, seen) = Default::default();
        let script = Arc::new(Script { routes, seen, count: watch::Sender::new(0), open: watch::Sender::new(true) });
        let (serving, drain) = Trigger::new();
        tokio::spawn(server.run(script.clone(), drain));
        Web { address, script, _serving: serving }
    }

    /// Answers `path` with 200 and these bytes; gives the URL.
    pub fn put(&self, path: &str, body: impl Into<Vec<u8>>) -> String {
        let body = body.into();
        self.route(path, move |_| Response::new(200, body.clone()))
    }

    /// Answers `path` by a function; gives the URL.
    pub fn route(&self, path: &str, route: impl Fn(&Request) -> Response + Send + Sync + 'static) -> String {
        self.script.routes.lock().unwrap().insert(path.to_owned(), Arc::new(route));
        format!("http://{}{path}", self.address)
    }

    /// What was asked so far: method and path.
    pub fn seen(&self) -> Vec<String> {
        self.script.seen.lock().unwrap().clone()
    }

    /// Holds answers back, or lets them go.
    pub fn set_open(&self, open: bool) {
        self.script.open.send_replace(open);
    }

    /// Waits until so many requests have come.
    pub async fn asked(&self, times: usize) {
        let mut count = self.script.count.subscribe();
        super::within("requests", count.wait_for(|count| *count >= times)).await.unwrap();
    }
}

impl Service for Script {
    fn call<'a>(&'a self, request: &'a Request, reply: Reply<'a>) -> Answer<'a> {
        Box::pin(async move {
            self.seen.lock().unwrap().push(format!("{} {}", request.method, request.path));
            self.count.send_modify(|count| *count += 1);
            let route = self.routes.lock().unwrap().get(&request.path).cloned();
            let response = route.map_or_else(|| Response::new(404, ""), |route| route(request));
            let mut open = self.open.subscribe();
            let _ = open.wait_for(|open| *open).await;
            let mut reply = reply;
            let mut content_type = "application/octet-stream".to_owned();
            for (name, value) in response.headers {
                match name {
                    "Content-Type" => content_type = value,
                    _ => reply = reply.header(name, value),
                }
            }
            reply.send(response.status, &content_type, &response.body).await
        })
    }
}
