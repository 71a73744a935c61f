//! A scripted istiod: its CA answers by itself, its ADS streams are handed to the test.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use footman::{
    base::{Drain, Trigger},
    grpc::{BoxFuture, Code, Metadata, Receiver, Request, Sender, Service, Settings, Status, serve},
    proto::istio::v1::auth::{IstioCertificateRequest, IstioCertificateResponse},
};
use tokio::{
    net::{TcpListener, TcpSocket},
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    task::JoinSet,
};
use tokio_rustls::TlsAcceptor;

use super::{ca::Ca, within};

pub const SPIFFE_ID: &str = "spiffe://cluster.local/ns/ns1/sa/sa1";
pub const SOTW: &str = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";
pub const DELTA: &str = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources";
const CREATE_CERTIFICATE: &str = "/istio.v1.auth.IstioCertificateService/CreateCertificate";

/// It ends with the value: no new connections, and those there are see the end of their streams.
pub struct Istiod {
    pub address: SocketAddr,
    pub ca: Arc<Ca>,
    streams: UnboundedReceiver<Ads>,
    certificates: UnboundedReceiver<Instant>,
    serving: Trigger,
}

/// One ADS stream of an agent.
pub struct Ads {
    pub path: String,
    pub metadata: Metadata,
    pub requests: Receiver,
    pub responses: Sender,
}

struct Script {
    ca: Arc<Ca>,
    streams: UnboundedSender<Ads>,
    certificates: UnboundedSender<Instant>,
}

impl Istiod {
    /// One that listens on a free port of loopback, with TLS.
    pub async fn start() -> Istiod {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Istiod::serve(listener, Arc::new(Ca::new("test root").unwrap()))
    }

    /// Ends every connection at once, as a killed process does, and begins anew at the same address.
    pub async fn restart(self) -> Istiod {
        let Istiod { address, ca, serving, .. } = self;
        drop(serving);
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_reuseaddr(true).unwrap();
        // The old listener goes when its task runs next.
        while socket.bind(address).is_err() {
            tokio::task::yield_now().await;
        }
        Istiod::serve(socket.listen(128).unwrap(), ca)
    }

    /// The next ADS stream.
    pub async fn stream(&mut self) -> Ads {
        within("an ADS stream at istiod", self.streams.recv()).await.unwrap()
    }

    /// When the next certificate was handed out.
    pub async fn certificate(&mut self) -> Instant {
        within("a CSR at istiod", self.certificates.recv()).await.unwrap()
    }

    fn serve(listener: TcpListener, ca: Arc<Ca>) -> Istiod {
        let tls = TlsAcceptor::from(ca.server_config(&["localhost", "127.0.0.1", "istiod.istio-system.svc"]).unwrap());
        let address = listener.local_addr().unwrap();
        let (stream_sender, streams) = unbounded_channel();
        let (certificate_sender, certificates) = unbounded_channel();
        let (serving, drain) = Trigger::new();
        let script = Arc::new(Script { ca: Arc::clone(&ca), streams: stream_sender, certificates: certificate_sender });
        tokio::spawn(accept(listener, tls, script, drain));
        Istiod { address, ca, streams, certificates, serving }
    }
}

/// Connections end with the listener, in the middle of whatever they do.
async fn accept(listener: TcpListener, tls: TlsAcceptor, script: Arc<Script>, mut drain: Drain) {
    let mut connections = JoinSet::new();
    loop {
        let stream = tokio::select! {
            accepted = listener.accept() => accepted.unwrap().0,
            () = drain.started() => return,
        };
        // As istiod's server does: a small response does not wait for the acknowledgement of the one before.
        stream.set_nodelay(true).unwrap();
        let (tls, script) = (tls.clone(), Arc::clone(&script));
        connections.spawn(async move {
            if let Ok(stream) = tls.accept(stream).await {
                serve(Box::new(stream), script, Settings::default(), Drain::never()).await;
            }
        });
    }
}

impl Service for Script {
    fn call(&self, request: Request, mut receiver: Receiver, mut sender: Sender) -> BoxFuture {
        match request.path.as_str() {
            SOTW | DELTA => {
                let ads = Ads { path: request.path, metadata: request.metadata, requests: receiver, responses: sender };
                // A failure means that the test is over.
                let _ = self.streams.send(ads);
                Box::pin(async {})
            }
            CREATE_CERTIFICATE => {
                let (ca, certificates) = (Arc::clone(&self.ca), self.certificates.clone());
                Box::pin(async move {
                    let answer = certificate(&ca, &mut receiver).await;
                    let status = match answer {
                        Ok(answer) => sender.send(&answer).await.err().unwrap_or_else(Status::ok),
                        Err(status) => status,
                    };
                    sender.close(&status);
                    let _ = certificates.send(Instant::now());
                })
            }
            _ => {
                sender.close(&request.unimplemented());
                Box::pin(async {})
            }
        }
    }
}

async fn certificate(ca: &Ca, receiver: &mut Receiver) -> Result<IstioCertificateResponse, Status> {
    let request: IstioCertificateRequest =
        receiver.message(1 << 20).await?.ok_or_else(|| Status::new(Code::Internal, "no request"))?;
    let ttl = Duration::from_secs(request.validity_duration.try_into().unwrap_or_default());
    let leaf =
        ca.sign(&request.csr, SPIFFE_ID, ttl).map_err(|error| Status::new(Code::InvalidArgument, error.to_string()))?;
    Ok(IstioCertificateResponse { cert_chain: vec![leaf, ca.root_pem()] })
}
