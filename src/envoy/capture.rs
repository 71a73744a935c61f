//! Envoy's stderr in the agent's log format (opt-in, `FOOTMAN_CAPTURE_ENVOY_LOG`): early start-up lines, crash reports and whatever
//! libraries print, which Envoy's own log format does not reach.
//!
//! Lines that have the format already (the bootstrap asks Envoy for it) pass unchanged, in the agent's log; others are wrapped in
//! scope `envoy`.

use std::{io, os::fd::OwnedFd, process::ChildStderr};

use log::Level;
use tokio::{io::AsyncReadExt, net::unix::pipe::Receiver};

use crate::telemetry;

/// The longest line; a longer one is cut into several, so that a stream without line breaks stays bounded.
const MAX_LINE: usize = 64 * 1024;
/// What is read at once.
const PIECE: usize = 4096;

/// The reading end of Envoy's stderr.
#[derive(Debug)]
pub(super) struct Capture {
    pipe: Receiver,
    /// The beginning of a line whose end has not come yet.
    partial: Vec<u8>,
}

impl Capture {
    pub(super) fn new(stderr: ChildStderr) -> io::Result<Capture> {
        Ok(Capture { pipe: Receiver::from_owned_fd(OwnedFd::from(stderr))?, partial: Vec::new() })
    }

    /// Logs lines as they come, until the other end closes; cancel-safe.
    pub(super) async fn run(&mut self) {
        let mut piece = [0; PIECE];
        // An error is an end as well: nothing more can be read.
        while let Ok(length @ 1..) = self.pipe.read(&mut piece).await {
            self.take(&piece[..length]);
        }
        self.finish();
    }

    /// Logs what is there already: what Envoy wrote last, once it has ended. Does not wait for children of Envoy that live on.
    pub(super) fn rest(&mut self) {
        self.catch_up();
        self.finish();
    }

    /// Takes what is in the pipe, whether or not the runtime has had a turn since it came: an Envoy may end before that.
    fn catch_up(&mut self) {
        let mut piece = [0; PIECE];
        while let Ok(length @ 1..) = nix::unistd::read(&self.pipe, &mut piece) {
            self.take(&piece[..length]);
        }
    }

    fn take(&mut self, bytes: &[u8]) {
        self.partial.extend_from_slice(bytes);
        split(&mut self.partial, |line| log(&String::from_utf8_lossy(line)));
    }

    fn finish(&mut self) {
        if !self.partial.is_empty() {
            log(&String::from_utf8_lossy(&std::mem::take(&mut self.partial)));
        }
    }
}

/// Takes whole lines, and lines that have grown too long, off the front of `buffer`.
fn split(buffer: &mut Vec<u8>, mut line: impl FnMut(&[u8])) {
    let mut start = 0;
    loop {
        let rest = &buffer[start..];
        let window = &rest[..rest.len().min(MAX_LINE)];
        match window.iter().position(|byte| *byte == b'\n') {
            Some(end) => {
                line(&rest[..end]);
                start += end + 1;
            }
            None if window.len() == MAX_LINE => {
                line(window);
                start += MAX_LINE;
            }
            None => break,
        }
    }
    buffer.drain(..start);
}

fn log(line: &str) {
    match wrap(line) {
        None => telemetry::log::write_formatted(line),
        Some((level, text)) => log::log!(target: "envoy", level, "{text}"),
    }
}

/// Level and text for a line that has another format; `None` when it is formatted already.
fn wrap(line: &str) -> Option<(Level, &str)> {
    let mut fields = line.split('\t');
    let (time, level) = (fields.next().unwrap_or_default(), fields.next().unwrap_or_default());
    let plain = time.len() > 20 && time.ends_with('Z') && envoy_level(level).is_some();
    if plain || serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(line).is_ok() {
        return None;
    }
    // Envoy's own default: [2026-01-01 00:00:00.000][7][warning][config] [source/a.cc:1] text
    let mut parts = line.strip_prefix('[').unwrap_or_default().splitn(4, "][");
    let level = parts.nth(2).and_then(|level| envoy_level(level.split(']').next().unwrap_or_default()));
    Some((level.unwrap_or(Level::Info), line))
}

fn envoy_level(name: &str) -> Option<Level> {
    Some(match name {
        "trace" | "debug" => Level::Debug,
        "info" => Level::Info,
        "warning" | "warn" => Level::Warn,
        "error" | "critical" => Level::Error,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_split_wherever_the_pieces_end() {
        let text = b"one\ntwo\n\nthree";
        for size in 1..text.len() {
            let (mut buffer, mut lines) = (Vec::new(), Vec::new());
            for piece in text.chunks(size) {
                buffer.extend_from_slice(piece);
                split(&mut buffer, |line| lines.push(String::from_utf8_lossy(line).into_owned()));
            }
            assert_eq!((lines, buffer), (vec!["one".to_owned(), "two".into(), String::new()], b"three".to_vec()));
        }
    }

    #[tokio::test]
    async fn an_end_before_the_first_turn_loses_nothing() {
        let mut command = std::process::Command::new("sh");
        let mut child = command.args(["-c", "printf words >&2"]).stderr(std::process::Stdio::piped()).spawn().unwrap();
        child.wait().unwrap();
        let mut capture = Capture::new(child.stderr.take().unwrap()).unwrap();
        capture.catch_up();
        assert_eq!(capture.partial, b"words");
    }

    #[test]
    fn endless_line_is_cut() {
        let mut buffer = vec![b'x'; 2 * MAX_LINE + 5];
        let mut lengths = Vec::new();
        split(&mut buffer, |line| lengths.push(line.len()));
        assert_eq!((lengths, buffer.len()), (vec![MAX_LINE, MAX_LINE], 5));
    }

    #[test]
    fn only_foreign_lines_are_wrapped() {
        for (line, level) in [
            ("2026-01-01T00:00:00.000000Z\twarning\tenvoy config a.cc:1\ttext\tthread=1", None),
            ("{\"level\":\"info\",\"msg\":\"x\"}", None),
            ("[2026-01-01 00:00:00.000][7][warning][config] [source/a.cc:1] text", Some(Level::Warn)),
            ("[2026-01-01 00:00:00.000][7][critical][backtrace] Caught Segmentation fault", Some(Level::Error)),
            ("terminate called after throwing", Some(Level::Info)),
            ("[x", Some(Level::Info)),
            ("{not json", Some(Level::Info)),
            ("", Some(Level::Info)),
        ] {
            assert_eq!(wrap(line).map(|(level, _)| level), level, "{line}");
        }
    }
}
