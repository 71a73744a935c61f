//! Checks of a scripted application on loopback.

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

use super::*;

/// Serves one request after the other, each connection for as many requests as come; gives the requests' heads.
async fn serve(listener: TcpListener, answer: impl Fn(&str) -> String, seen: &Mutex<Vec<String>>) {
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut head = vec![0; 4096];
        while let Ok(length @ 1..) = stream.read(&mut head).await {
            let text = String::from_utf8_lossy(&head[..length]).into_owned();
            let answer = answer(text.split(' ').nth(1).unwrap());
            seen.lock().unwrap().push(text);
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    }
}

async fn check(
    answer: impl Fn(&str) -> String,
    times: usize,
    idle: Option<&Idle>,
) -> (Vec<Result<Answer, Error>>, Vec<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/start", listener.local_addr().unwrap());
    let mut headers = Headers::default();
    headers.add("Host", "shop");
    let http = Http {
        url: Url::parse(&url).unwrap(),
        headers,
        source: Source::Any,
        body: 4,
        tls: &Tls::new(true),
        idle,
        deadline: None,
    };
    let seen = Mutex::default();
    let mut answers = Vec::new();
    let asked = async {
        for _ in 0..times {
            answers.push(http.get().await);
        }
    };
    tokio::select! { () = asked => {}, () = serve(listener, answer, &seen) => {} }
    (answers, seen.into_inner().unwrap())
}

fn answer(status: u16, more: &str) -> String {
    format!("HTTP/1.1 {status} X\r\nContent-Length: 6\r\n{more}\r\nabcdef")
}

#[tokio::test]
async fn body_is_cut() {
    let (answers, seen) = check(|_| answer(503, ""), 1, None).await;
    let first = answers[0].as_ref().unwrap();
    assert_eq!((first.status, &*first.body), (503, &b"abcd"[..]));
    assert!(seen[0].starts_with("GET /start HTTP/1.1\r\n") && seen[0].contains("Host: shop"));
}

#[tokio::test]
async fn follows_within_the_host_only() {
    let to = |location: &'static str| {
        move |path: &str| match path {
            "/start" => answer(302, &format!("Location: {location}\r\n")),
            _ => answer(200, ""),
        }
    };
    let (answers, seen) = check(to("/next"), 1, None).await;
    assert_eq!(answers[0].as_ref().unwrap().status, 200);
    assert!(seen[1].contains("GET /next ") && seen[1].contains("Host: shop"));
    for elsewhere in ["https://outside.invalid/", "app://login", "mailto:a@b", "httpx:/y", ""] {
        let (answers, seen) = check(to(elsewhere), 1, None).await;
        assert_eq!((answers[0].as_ref().unwrap().status, seen.len()), (302, 1), "{elsewhere}");
    }
    let (answers, seen) = check(to("/log in"), 1, None).await;
    assert!(answers[0].as_ref().unwrap().status == 200 && seen[1].starts_with("GET /log%20in HTTP"));
    let (answers, seen) = check(to("/start"), 1, None).await;
    assert_eq!((answers[0].is_err(), seen.len()), (true, MAX_REQUESTS));
    let (answers, _) = check(to("/a\tb:c"), 1, None).await;
    assert!(answers[0].is_err(), "no URL");
}

#[tokio::test]
async fn idle_connection_is_used_again() {
    let idle = Idle::default();
    // `serve` takes one connection at a time: a second one would only come after the first one's end.
    let (answers, seen) = check(|_| answer(200, ""), 3, Some(&idle)).await;
    assert!(answers.iter().all(|answer| answer.as_ref().unwrap().body == b"abcd"));
    assert_eq!(seen.len(), 3);
    assert!(!seen[0].contains("close"));
    assert!(idle.take().is_some());
}

#[tokio::test(start_paused = true)]
async fn body_that_does_not_end_in_time_counts_as_far_as_it_came() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let tls = Tls::new(true);
    let http = |path: &str| Http {
        url: Url::parse(&format!("http://{}{path}", listener.local_addr().unwrap())).unwrap(),
        headers: Headers::default(),
        source: Source::Any,
        body: 100,
        tls: &tls,
        idle: None,
        deadline: Some(Instant::now() + Duration::from_secs(1)),
    };
    let slow = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(b"HTTP/1.1 503 X\r\nContent-Length: 50\r\n\r\nstarting").await.unwrap();
        stream
    };
    let probe = http("/");
    let (answer, stream) = tokio::join!(probe.get(), slow);
    assert_eq!((answer.as_ref().unwrap().status, &*answer.unwrap().body), (503, &b"starting"[..]));
    drop(stream);
    let probe = http("/");
    let (answer, _stream) = tokio::join!(probe.get(), listener.accept());
    assert!(matches!(answer, Err(Error::Timeout)));
}
