//! A small control plane for a laptop: certificate authority and ADS (state of the world and delta), fed from one mesh file.
//!
//! `cargo run --example control-plane -- --mesh mesh.json` and an agent with `discoveryAddress: localhost:15012`; an edit of the file
//! reaches every Envoy at once. Built on the agent's own gRPC server. Not for production: tokens are read, not verified.

mod ads;
mod ca;
mod envoy;
mod mesh;
mod resources;
mod service;

use std::{error::Error, net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use footman::{
    base::Drain,
    config::parse_go_duration,
    grpc::{Settings, serve},
    net::files::Watcher,
};
use rustls::ServerConfig;
use tokio::{net::TcpListener, sync::watch};
use tokio_rustls::TlsAcceptor;

use crate::{ca::Ca, mesh::Mesh, service::ControlPlane};

const HELP: &str = "\
Usage: control-plane --mesh FILE [options]
  --mesh FILE        services and workloads (see examples/control_plane/mesh.rs); watched for changes
  --listen ADDRESS   default 127.0.0.1:15012; port 0 takes a free one
  --root-cert FILE   where to write the root certificate, for the agents' /var/run/secrets/istio/root-cert.pem
  --max-ttl TIME     longest validity of a certificate, default 24h
";

struct Options {
    mesh: PathBuf,
    listen: SocketAddr,
    root_cert: Option<PathBuf>,
    max_ttl: Duration,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let options = match parse(lexopt::Parser::from_env()) {
        Ok(Some(options)) => options,
        Ok(None) => {
            print!("{HELP}");
            return Ok(());
        }
        Err(error) => {
            eprint!("control-plane: {error}\n\n{HELP}");
            std::process::exit(64);
        }
    };
    let ca = Arc::new(Ca::new("development root")?);
    if let Some(path) = &options.root_cert {
        std::fs::write(path, ca.root_pem()).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    let mut watcher = Watcher::new([&options.mesh]);
    let (publish, mesh) = watch::channel(Arc::new(read(&options)?));
    let tls = ca.server_config(&["localhost", "127.0.0.1", "istiod.istio-system.svc"])?;
    let listener = TcpListener::bind(options.listen).await.map_err(|error| format!("{}: {error}", options.listen))?;
    println!("control plane on {}", listener.local_addr()?);
    tokio::spawn(accept(listener, tls, Arc::new(ControlPlane { ca, max_ttl: options.max_ttl, mesh })));
    loop {
        watcher.changed().await?;
        match read(&options) {
            Ok(mesh) => drop(publish.send_replace(Arc::new(mesh))),
            Err(error) => eprintln!("{error}; the mesh stays as it was"),
        }
    }
}

fn parse(mut parser: lexopt::Parser) -> Result<Option<Options>, lexopt::Error> {
    use lexopt::prelude::*;
    let (mut mesh, mut listen, mut root_cert) = (None, SocketAddr::from(([127, 0, 0, 1], 15012)), None);
    let mut max_ttl = Duration::from_secs(86_400);
    while let Some(argument) = parser.next()? {
        match argument {
            Long("mesh") => mesh = Some(parser.value()?.into()),
            Long("listen") => listen = parser.value()?.parse()?,
            Long("root-cert") => root_cert = Some(parser.value()?.into()),
            Long("max-ttl") => {
                let value = parser.value()?.string()?;
                max_ttl =
                    parse_go_duration(&value).ok_or(format!("--max-ttl: {value:?} is no duration such as 30s"))?;
            }
            Long("help") | Short('h') => return Ok(None),
            _ => return Err(argument.unexpected()),
        }
    }
    Ok(Some(Options { mesh: mesh.ok_or("--mesh is needed")?, listen, root_cert, max_ttl }))
}

fn read(options: &Options) -> Result<Mesh, String> {
    let path = options.mesh.display();
    let text = std::fs::read_to_string(&options.mesh).map_err(|error| format!("{path}: {error}"))?;
    Mesh::parse(&text).map_err(|error| format!("{path}: {error}"))
}

/// Serves every connection until the process ends.
async fn accept(listener: TcpListener, tls: Arc<ServerConfig>, service: Arc<ControlPlane>) {
    let acceptor = TlsAcceptor::from(tls);
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                eprintln!("accept: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let (acceptor, service) = (acceptor.clone(), service.clone());
        tokio::spawn(async move {
            match acceptor.accept(stream).await {
                Ok(stream) => serve(Box::new(stream), service, Settings::default(), Drain::never()).await,
                Err(error) => eprintln!("{peer}: {error}"),
            }
        });
    }
}
