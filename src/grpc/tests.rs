//! Client against server over an in-memory pipe.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::Response;

use super::*;
use crate::{base::Drain, base::Trigger, proto::google::rpc::Status as Note};

/// Answers by path: what the tests below need of a server.
struct Script;

impl Service for Script {
    fn call(&self, request: Request, mut receiver: Receiver, mut sender: Sender) -> BoxFuture {
        Box::pin(async move {
            let status = match request.path.as_str() {
                "/t/Echo" => echo(&mut receiver, &mut sender).await.err().unwrap_or_else(Status::ok),
                "/t/Refuse" => {
                    let mut status = Status::new(Code::PermissionDenied, "nö: 100 %");
                    status.pushback = Some(Duration::from_secs(2));
                    status
                }
                "/t/Token" => Status::new(Code::Unknown, request.metadata.get("authorization").unwrap_or("none")),
                "/t/Hang" => std::future::pending().await,
                "/t/Drop" => return,
                _ => request.unimplemented(),
            };
            sender.close(&status);
        })
    }
}

async fn echo(receiver: &mut Receiver, sender: &mut Sender) -> Result<(), Status> {
    while let Some(piece) = receiver.piece().await? {
        match piece {
            Piece::Begin(length) => {
                sender.begin(length)?;
                if length == 0 {
                    sender.piece(Bytes::new()).await?;
                }
            }
            Piece::Data(bytes) => sender.piece(bytes).await?,
        }
    }
    Ok(())
}

async fn connect(settings: Settings) -> (Client, Trigger) {
    let (near, far) = tokio::io::duplex(4096);
    let (trigger, drain) = Trigger::new();
    tokio::spawn(serve(Box::new(far), Arc::new(Script), settings, drain));
    let (client, drive) = Client::handshake(Box::new(near), settings).await.unwrap();
    tokio::spawn(drive);
    (client, trigger)
}

fn call(path: &str) -> Call<'_> {
    Call { path, authority: "test", ..Call::default() }
}

fn note(message: &str) -> Note {
    Note { message: message.to_owned(), ..Note::default() }
}

#[tokio::test]
async fn unary() {
    let (client, _trigger) = connect(Settings::default()).await;
    let answer: Note = client.unary(&call("/t/Echo"), &note("hello")).await.unwrap();
    assert_eq!(answer.message, "hello");
    let small = Call { max_message: 4, ..call("/t/Echo") };
    let status = client.unary::<_, Note>(&small, &note("hello")).await.unwrap_err();
    assert_eq!(status.code, Code::ResourceExhausted);
    assert_eq!(status.message, "grpc: received message larger than max (7 vs. 4)");
}

#[tokio::test]
async fn statuses_reach_the_client() {
    let (client, _trigger) = connect(Settings::default()).await;
    let status = client.unary::<_, Note>(&call("/t/Refuse"), &note("")).await.unwrap_err();
    assert_eq!((status.code, status.message.as_str()), (Code::PermissionDenied, "nö: 100 %"));
    assert_eq!(status.pushback, Some(Duration::from_secs(2)));
    assert!(!status.is_transport());
    let status = client.unary::<_, Note>(&call("/a.B/Nope"), &note("")).await.unwrap_err();
    assert_eq!(status.code, Code::Unimplemented);
    assert_eq!(status.message, "unknown method Nope for service a.B");
    let status = client.unary::<_, Note>(&call("/t/Drop"), &note("")).await.unwrap_err();
    assert!(status.is_transport(), "{status}");
}

#[tokio::test]
async fn metadata_is_sent() {
    let (client, _trigger) = connect(Settings::default()).await;
    let mut call = call("/t/Token");
    call.metadata.add("authorization", "Bearer x").unwrap();
    assert_eq!(client.unary::<_, Note>(&call, &note("")).await.unwrap_err().message, "Bearer x");
}

#[tokio::test(start_paused = true)]
async fn deadlines_end_a_call() {
    let (client, _trigger) = connect(Settings { keepalive: None, ..Settings::default() }).await;
    let call = Call { deadline: Some(Duration::from_secs(3)), ..call("/t/Hang") };
    let status = client.unary::<_, Note>(&call, &note("")).await.unwrap_err();
    assert_eq!(status.code, Code::DeadlineExceeded);
}

#[tokio::test]
async fn large_messages_pass_small_windows_both_ways() {
    let settings = Settings { stream_window: 65_535, send_buffer: 16 * 1024, ..Settings::default() };
    let (client, _trigger) = connect(settings).await;
    let (mut sender, mut receiver) = client.stream(&call("/t/Echo")).await.unwrap();
    let large: Bytes = (0..3_000_000u32).map(|index| index as u8).collect::<Vec<u8>>().into();
    let send = async {
        sender.send_raw(large.clone()).await.unwrap();
        sender.send_raw(Bytes::new()).await.unwrap();
        sender.send(&note("last")).await.unwrap();
        sender.finish().await.unwrap();
    };
    let receive = async {
        assert_eq!(receiver.raw(MAX_MESSAGE).await.unwrap(), Some(large.clone()));
        assert_eq!(receiver.raw(MAX_MESSAGE).await.unwrap(), Some(Bytes::new()));
        assert_eq!(receiver.message::<Note>(MAX_MESSAGE).await.unwrap(), Some(note("last")));
        assert_eq!(receiver.raw(MAX_MESSAGE).await.unwrap(), None);
    };
    tokio::join!(send, receive);
}

#[tokio::test]
async fn stalled_stream_holds_its_sender_and_nobody_else() {
    let (client, _trigger) = connect(Settings::default()).await;
    let (mut sender, receiver) = client.stream(&call("/t/Echo")).await.unwrap();
    let flood = tokio::spawn(async move {
        loop {
            if sender.send_raw(Bytes::from(vec![1; 100_000])).await.is_err() {
                break;
            }
        }
    });
    for _ in 0..100 {
        let answer: Note = client.unary(&call("/t/Echo"), &note("still here")).await.unwrap();
        assert_eq!(answer.message, "still here");
    }
    assert!(!flood.is_finished());
    drop(receiver);
    flood.abort();
}

#[tokio::test]
async fn drained_server_says_goodbye_and_finishes_what_it_began() {
    let (mut client, trigger) = connect(Settings::default()).await;
    let (mut sender, mut receiver) = client.stream(&call("/t/Echo")).await.unwrap();
    sender.send(&note("one")).await.unwrap();
    receiver.message::<Note>(100).await.unwrap();
    trigger.start();
    while client.is_usable() {
        tokio::task::yield_now().await;
    }
    let refused = client.stream(&call("/t/Echo")).await.err().unwrap();
    assert!(refused.is_unprocessed(), "{refused}");
    sender.send(&note("two")).await.unwrap();
    assert_eq!(receiver.message::<Note>(100).await.unwrap(), Some(note("two")));
    sender.finish().await.unwrap();
    assert_eq!(receiver.piece().await.unwrap(), None);
}

#[tokio::test(start_paused = true)]
async fn silent_peer_is_given_up() {
    let (near, far) = tokio::io::duplex(1 << 20);
    let (client, drive) = Client::handshake(Box::new(near), Settings::default()).await.unwrap();
    let driver = tokio::spawn(drive);
    let begun = tokio::time::Instant::now();
    let (_sender, mut receiver) = client.stream(&call("/t/Hang")).await.unwrap();
    let status = receiver.piece().await.unwrap_err();
    assert_eq!(status.message, "keepalive ping failed to receive ACK within timeout: nothing heard for 40 s");
    assert_eq!((status.code, begun.elapsed().as_secs()), (Code::Unavailable, 40));
    assert!(driver.await.unwrap().is_err());
    drop(far);
}

#[tokio::test(start_paused = true)]
async fn without_an_interval_nobody_is_asked_for_signs_of_life() {
    let (near, _far) = tokio::io::duplex(1 << 16);
    let keepalive = Some(Keepalive { interval: Duration::ZERO, timeout: Duration::from_secs(10) });
    let settings = Settings { keepalive, ..Settings::default() };
    let (client, drive) = Client::handshake(Box::new(near), settings).await.unwrap();
    tokio::spawn(drive);
    let (_sender, mut receiver) = client.stream(&call("/t/Hang")).await.unwrap();
    let waited = tokio::time::timeout(Duration::from_secs(3600), receiver.piece()).await;
    assert!(waited.is_err(), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn answering_peer_is_kept() {
    let (client, _trigger) = connect(Settings::default()).await;
    let (_sender, mut receiver) = client.stream(&call("/t/Hang")).await.unwrap();
    let waited = tokio::time::timeout(Duration::from_secs(3600), receiver.piece()).await;
    assert!(waited.is_err(), "{waited:?}");
}

/// Sends a message of 1 MiB, and says when it has gone.
struct Push(Arc<tokio::sync::Notify>);

impl Service for Push {
    fn call(&self, _: Request, receiver: Receiver, mut sender: Sender) -> BoxFuture {
        let gone = Arc::clone(&self.0);
        Box::pin(async move {
            sender.send_raw(vec![7; 1 << 20].into()).await.unwrap();
            gone.notify_one();
            sender.close(&Status::ok());
            drop(receiver);
        })
    }
}

/// The rest of a message that cannot be passed on comes in piece by piece: who is only slow is waited for, nobody else for long.
#[tokio::test(start_paused = true)]
async fn rest_of_a_held_message_comes_slowly() {
    let settings = Settings { stream_window: 2 << 20, ..Settings::default() };
    for (held, least, most) in [(false, 0, 0), (true, 30, 50)] {
        let (near, far) = tokio::io::duplex(4096);
        let gone = Arc::new(tokio::sync::Notify::new());
        tokio::spawn(serve(Box::new(far), Arc::new(Push(Arc::clone(&gone))), settings, Drain::never()));
        let (client, drive) = Client::handshake(Box::new(near), settings).await.unwrap();
        tokio::spawn(drive);
        let (_sender, mut receiver) = client.stream(&call("/t/Push")).await.unwrap();
        assert_eq!(receiver.piece().await.unwrap(), Some(Piece::Begin(1 << 20)));
        let begun = tokio::time::Instant::now();
        let hold = receiver.hold().filter(|_| held);
        gone.notified().await;
        let took = begun.elapsed().as_millis();
        assert!(took >= least && took <= most, "held: {held}, {took} ms");
        drop(hold);
        assert_eq!(receiver.rest(1 << 20, MAX_MESSAGE).await.unwrap().len(), 1 << 20);
    }
}

/// A server on bare h2, for answers that ours does not give.
async fn bare(answer: impl FnOnce(h2::server::SendResponse<Bytes>) + Send + 'static) -> Status {
    let (near, far) = tokio::io::duplex(4096);
    tokio::spawn(async move {
        let mut connection = h2::server::handshake(far).await.unwrap();
        let (_request, respond) = connection.accept().await.unwrap().unwrap();
        answer(respond);
        while connection.accept().await.is_some() {}
    });
    let (client, drive) = Client::handshake(Box::new(near), Settings::default()).await.unwrap();
    tokio::spawn(drive);
    client.unary::<_, Note>(&call("/t/Echo"), &note("x")).await.unwrap_err()
}

fn grpc_response() -> http::response::Builder {
    Response::builder().header("content-type", "application/grpc")
}

#[tokio::test]
async fn odd_answers_become_statuses() {
    let status = bare(|mut respond| {
        let response = Response::builder().status(503).body(()).unwrap();
        respond.send_response(response, true).unwrap();
    });
    assert_eq!(status.await.code, Code::Unavailable);
    let status = bare(|mut respond| {
        let response = Response::builder().header("content-type", "text/html").body(()).unwrap();
        respond.send_response(response, true).unwrap();
    });
    assert_eq!(status.await.code, Code::Unknown);
    let status = bare(|mut respond| {
        let mut stream = respond.send_response(grpc_response().body(()).unwrap(), false).unwrap();
        stream.send_data(Bytes::from_static(&[1, 0, 0, 0, 1, 7]), false).unwrap();
        std::mem::forget(stream);
    });
    assert_eq!(status.await.message, "grpc: compressed flag set with identity or empty encoding");
    let status = bare(|mut respond| {
        let mut stream = respond.send_response(grpc_response().body(()).unwrap(), false).unwrap();
        stream.send_data(Bytes::from_static(&[0, 0, 0, 0, 9, 7]), true).unwrap();
    });
    assert_eq!(status.await.message, "server closed the stream without sending trailers");
    let status = bare(|mut respond| respond.send_reset(h2::Reason::ENHANCE_YOUR_CALM));
    assert_eq!(status.await.code, Code::ResourceExhausted);
}

#[tokio::test]
async fn requests_that_are_no_grpc_are_refused() {
    let (near, far) = tokio::io::duplex(4096);
    tokio::spawn(serve(Box::new(far), Arc::new(Script), Settings::default(), Drain::never()));
    let (requests, connection) = h2::client::handshake(near).await.unwrap();
    tokio::spawn(connection);
    for (method, content_type, status) in
        [("GET", "application/grpc", 405), ("POST", "text/plain", 415), ("POST", "application/grpc+proto", 200)]
    {
        let request = http::Request::builder()
            .method(method)
            .uri("http://test/t/Token")
            .header("content-type", content_type)
            .body(())
            .unwrap();
        let (answer, _) = requests.clone().ready().await.unwrap().send_request(request, true).unwrap();
        assert_eq!(answer.await.unwrap().status().as_u16(), status);
    }
}

#[tokio::test]
async fn garbage_ends_its_connection() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let (mut near, far) = tokio::io::duplex(4096);
    let served = tokio::spawn(serve(Box::new(far), Arc::new(Script), Settings::default(), Drain::never()));
    near.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n\0\0\0\0").await.unwrap();
    served.await.unwrap();
    let mut rest = Vec::new();
    near.read_to_end(&mut rest).await.unwrap();
}
