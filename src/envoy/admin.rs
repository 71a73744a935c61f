//! Envoy's admin port: the few questions that the agent asks it, each with a deadline.

use std::time::Duration;

use crate::net::http1::{Error, client::Request};

/// Limit of an answer that is held whole, and of a line of one that is not.
const MAX_ANSWER: usize = 1 << 20;

/// A client of the admin port; cheap to clone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Admin {
    port: u16,
}

impl Admin {
    /// The admin port on this machine.
    pub fn new(port: u16) -> Admin {
        Admin { port }
    }

    /// Its URL without a path. By name, since Envoy listens on either family's loopback.
    pub fn url(&self) -> String {
        format!("http://localhost:{}", self.port)
    }

    /// `POST /drain_listeners?<query>`: clients are told to leave. The answer's status and body.
    ///
    /// # Errors
    /// When the port does not answer within `limit`.
    pub async fn drain_listeners(&self, query: &str, limit: Duration) -> Result<(u16, String), Error> {
        let request = Request::post(&format!("{}/drain_listeners?{query}", self.url()), "")?.timeout(limit);
        answer(request).await
    }

    /// GET of `path` with its query. The answer's status and body, at most 1 MiB.
    ///
    /// # Errors
    /// When the port does not answer within `limit`.
    pub async fn get(&self, path: &str, limit: Duration) -> Result<(u16, String), Error> {
        answer(Request::get(&format!("{}{path}", self.url()))?.timeout(limit)).await
    }

    /// GET of `path` with its query, whose answer may have any length: `take` gets its lines as they come. The answer's status.
    ///
    /// # Errors
    /// When the port does not answer within `limit`, or a line is longer than 1 MiB.
    pub async fn lines(&self, path: &str, limit: Duration, take: &mut (dyn FnMut(&str) + Send)) -> Result<u16, Error> {
        let request = Request::get(&format!("{}{path}", self.url()))?.timeout(limit);
        let mut response = request.send(None).await?;
        let mut held = Vec::new();
        while let Some(piece) = response.body.chunk().await? {
            held.extend_from_slice(&piece);
            if let Some(end) = memchr::memrchr(b'\n', &held) {
                String::from_utf8_lossy(&held[..end]).lines().for_each(&mut *take);
                held.drain(..=end);
            } else if held.len() > MAX_ANSWER {
                return Err(Error::TooLarge("line", MAX_ANSWER as u64));
            }
        }
        String::from_utf8_lossy(&held).lines().for_each(take);
        Ok(response.status)
    }
}

async fn answer(request: Request) -> Result<(u16, String), Error> {
    let mut response = request.send(None).await?;
    let body = response.body.collect(MAX_ANSWER).await?;
    Ok((response.status, String::from_utf8_lossy(&body).into_owned()))
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;

    #[tokio::test]
    async fn lines_of_an_answer_of_any_length() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let admin = Admin::new(listener.local_addr().unwrap().port());
        let line = format!("listener.{}.downstream_cx_active: 1\n", "x".repeat(80));
        let count = MAX_ANSWER / line.len() + 1;
        let body = line.repeat(count) + "last";
        let envoy = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let _ = stream.read(&mut [0; 1024]).await.unwrap();
            let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
            stream.write_all(answer.as_bytes()).await.unwrap();
        };
        let mut lines = Vec::new();
        let mut take = |line: &str| lines.push(line.to_owned());
        let (status, ()) = tokio::join!(admin.lines("/stats", Duration::from_secs(30), &mut take), envoy);
        assert_eq!((status.unwrap(), lines.len()), (200, count + 1));
        assert!(lines[..count].iter().all(|other| *other == line.trim_end()));
        assert_eq!(lines[count], "last");
    }
}
