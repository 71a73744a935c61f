//! Google's services as a certificate authority's client sees them: one exchanges tokens, one answers calls by a script and
//! remembers them.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use prost::Message;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use crate::{
    base::Drain,
    grpc::{BoxFuture, Keepalive, Receiver, Request, Sender, Service, Settings, Status, serve},
    istiod::{Config, Endpoint, Exchange, Istiod, Token},
    net::tls::{Policy, SystemStore},
    secrets::Order,
};

/// The audience for which there are tokens.
pub(crate) const KNOWN: &str = "identitynamespace:td:c";

pub(crate) struct Google {
    calls: u16,
    tokens: u16,
    script: Script,
}

/// Path, metadata, message.
type Asked = (String, String, Bytes);
/// A message, or how the call fails.
type Answer = Result<Vec<u8>, Status>;

#[derive(Clone, Default)]
struct Script {
    answers: Arc<Mutex<VecDeque<Answer>>>,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Google {
    pub(crate) async fn start() -> Google {
        let calls = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let tokens = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = |listener: &TcpListener| listener.local_addr().unwrap().port();
        let google = Google { calls: port(&calls), tokens: port(&tokens), script: Script::default() };
        let script = google.script.clone();
        tokio::spawn(async move {
            while let Ok((tcp, _)) = calls.accept().await {
                tokio::spawn(serve(Box::new(tcp), Arc::new(script.clone()), Settings::default(), Drain::never()));
            }
        });
        tokio::spawn(async move {
            while let Ok((tcp, _)) = tokens.accept().await {
                exchange(tcp).await;
            }
        });
        google
    }

    /// The way to it, by a token for `audience`; only [`KNOWN`] gets one.
    pub(crate) fn way(&self, audience: &str) -> Istiod {
        let endpoint = Endpoint {
            address: format!("127.0.0.1:{}", self.calls),
            host: "127.0.0.1".to_owned(),
            port: self.calls,
            proxy: None,
            authority: "google".to_owned(),
            tls: None,
            keepalive: Keepalive { interval: Duration::from_secs(30), timeout: Duration::from_secs(10) },
        };
        let exchange = Exchange {
            url: format!("http://127.0.0.1:{}/v1/token", self.tokens),
            audience: audience.to_owned(),
            store: SystemStore::default(),
            policy: Policy::default(),
        };
        Istiod::new(Config {
            endpoint,
            headers: Vec::new(),
            token: Token::Fixed("test_token"),
            exchange: Some(exchange),
        })
    }

    pub(crate) fn order() -> Order {
        Order { csr: "csr".to_owned(), validity: Duration::from_secs(90), deadline: Duration::from_secs(5) }
    }

    pub(crate) fn will_answer(&self, message: &impl Message) {
        self.script.answers.lock().unwrap().push_back(Ok(message.encode_to_vec()));
    }

    pub(crate) fn will_fail(&self, status: Status) {
        self.script.answers.lock().unwrap().push_back(Err(status));
    }

    /// The calls so far, all read as the same message.
    pub(crate) fn asked<M: Message + Default>(&self) -> Vec<(String, String, M)> {
        let asked = self.script.asked.lock().unwrap();
        let read = |(path, head, body): &Asked| (path.clone(), head.clone(), M::decode(&body[..]).unwrap_or_default());
        asked.iter().map(read).collect()
    }
}

impl Service for Script {
    fn call(&self, request: Request, mut receiver: Receiver, mut sender: Sender) -> BoxFuture {
        let transport = ["te", "content-type", "user-agent", "grpc-timeout"];
        let own = request.metadata.iter().filter(|(name, _)| !transport.contains(name));
        let mut head: Vec<String> = own.map(|(name, value)| format!("{name}={value}")).collect();
        head.sort();
        let answer = self.answers.lock().unwrap().pop_front().unwrap_or_else(|| Err(request.unimplemented()));
        let asked = Arc::clone(&self.asked);
        Box::pin(async move {
            let message = receiver.raw(1 << 20).await.unwrap().unwrap();
            asked.lock().unwrap().push((request.path, head.join(" "), message));
            match answer {
                Ok(message) => {
                    sender.send_raw(message.into()).await.unwrap();
                    sender.close(&Status::ok());
                }
                Err(status) => sender.close(&status),
            }
        })
    }
}

async fn exchange(mut tcp: TcpStream) {
    let (mut request, mut part) = (String::new(), [0; 4096]);
    // The body is one JSON object without others in it.
    while !request.ends_with('}') {
        let read = tcp.read(&mut part).await.unwrap();
        request.push_str(std::str::from_utf8(&part[..read]).unwrap());
    }
    let (head, body) = request.split_once("\r\n\r\n").unwrap();
    let body: serde_json::Value = serde_json::from_str(body).unwrap();
    assert!(head.starts_with("POST /v1/token HTTP/1.1\r\n"), "{head}");
    assert!(head.to_ascii_lowercase().contains("content-type: application/json"), "{head}");
    assert_eq!(body["grantType"], "urn:ietf:params:oauth:grant-type:token-exchange");
    let is_known = body["subjectToken"] == "test_token" && body["audience"] == KNOWN;
    let (status, answer) = if is_known {
        ("200 OK", r#"{"access_token":"exchanged","expires_in":3600}"#)
    } else {
        ("400 Bad Request", r#"{"error":"invalid_request","error_description":"who is that"}"#)
    };
    let length = answer.len();
    let answer = format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{answer}");
    tcp.write_all(answer.as_bytes()).await.unwrap();
}
