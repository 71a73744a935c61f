//! The application of the demo: it answers every request with what it was asked and who asked, as Envoy's
//! `x-forwarded-client-cert` tells.
//!
//! `cargo run --example app -- 127.0.0.1:8080`

use std::{error::Error, net::SocketAddr, sync::Arc};

use footman::{
    base::Drain,
    net::http1::server::{Answer, Reply, Request, Server, Service},
};

struct App;

impl Service for App {
    fn call<'a>(&'a self, request: &'a Request, reply: Reply<'a>) -> Answer<'a> {
        let caller = request.headers.get("x-forwarded-client-cert").unwrap_or("nobody that Envoy knows");
        let body = format!("{} {}\ncalled by {caller}\n", request.method, request.path);
        Box::pin(async move { reply.send(200, "text/plain", body.as_bytes()).await })
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let address: SocketAddr = std::env::args().nth(1).ok_or("usage: app ADDRESS")?.parse()?;
    let server = Server::bind_address(address)?;
    println!("app on {}", server.address()?);
    server.run(Arc::new(App), Drain::never()).await;
    Ok(())
}
