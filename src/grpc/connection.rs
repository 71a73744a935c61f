//! What both ends of a connection share: window sizes, keepalive, and the turn in which frames are gathered and sent.

use std::{
    future::Future as _,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use h2::{Ping, PingPong};
use tokio::time::{Instant, Sleep};

use super::Status;
use crate::net::Flusher;

/// The connection's window is as large as HTTP/2 allows: larger than the sum of its streams' windows, so that a stream whose reader
/// has stopped never holds back another one. What can be held in memory is bounded by the windows of the streams.
pub(super) const CONNECTION_WINDOW: u32 = (1 << 31) - 1;

/// What unread DATA frames may cost beyond their payload, in h2's measure (256 bytes less the frame's length for each short frame):
/// room for some 60,000 one-byte frames, which is more than any peer of ours leaves unread.
pub(super) const SMALL_FRAMES: usize = 16 << 20;

/// So long no more than a turn's share is read while a message cannot be passed on: a receiver that is only slow goes on before, one
/// that has stopped holds up nobody else for longer.
const PAUSE: Duration = Duration::from_millis(2);

/// After so many pauses in a row the message's window is used up, and pausing is of no use any more.
const PAUSES: u32 = 64;

/// The largest header block that is accepted; tokens of several KiB occur.
pub(super) const HEADER_LIST: u32 = 64 * 1024;

/// Limits of a connection.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Bytes that the peer may send on one stream before they are taken: the receive buffer of a stream.
    pub stream_window: u32,
    /// Bytes that a sender may have queued on one stream: its send buffer.
    pub send_buffer: usize,
    /// Streams that the peer may have open at a time (server).
    pub max_streams: u32,
    /// Pings on a quiet connection; `None` for none.
    pub keepalive: Option<Keepalive>,
}

/// When a quiet peer is asked for a sign of life, and when it is given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keepalive {
    /// So long without a byte from the peer, then a ping; 0 for no pings.
    pub interval: Duration,
    /// So long without a byte after the ping, then the connection is given up.
    pub timeout: Duration,
}

impl Default for Settings {
    /// 256 KiB a stream each way in sum, and grpc-go's keepalive of Istio: 30 s and 10 s.
    fn default() -> Settings {
        Settings {
            stream_window: 256 * 1024,
            send_buffer: 64 * 1024,
            max_streams: 1000,
            keepalive: Some(Keepalive { interval: Duration::from_secs(30), timeout: Duration::from_secs(10) }),
        }
    }
}

/// Beginning and end of each turn of a connection: decides if anything is read, sends what was gathered, watches over the peer's
/// signs of life.
pub(super) struct Turn {
    flusher: Flusher,
    keepalive: Option<Watch>,
    /// The pause at hand, and how many there were in a row.
    pause: Option<Pin<Box<Sleep>>>,
    pauses: u32,
}

struct Watch {
    settings: Keepalive,
    pings: PingPong,
    timer: Pin<Box<Sleep>>,
    begun: Instant,
    /// When a ping went out that nothing has followed; the timer is its timeout.
    asked: Option<Instant>,
}

impl Turn {
    pub(super) fn new(flusher: Flusher, keepalive: Option<Keepalive>, pings: Option<PingPong>) -> Turn {
        let keepalive = keepalive.filter(|settings| !settings.interval.is_zero());
        let keepalive = keepalive.zip(pings).map(|(settings, pings)| Watch {
            settings,
            pings,
            timer: Box::pin(tokio::time::sleep(settings.interval)),
            begun: Instant::now(),
            asked: None,
        });
        Turn { flusher, keepalive, pause: None, pauses: 0 }
    }

    /// Whether the peer has said anything yet.
    pub(super) fn has_heard(&self) -> bool {
        self.flusher.heard().is_some()
    }

    /// Call before the connection is polled. `held`: whether somebody waits with a message that came in and cannot be passed on. Then
    /// the rest of it waits in the kernel's memory rather than in ours.
    pub(super) fn begin(&mut self, cx: &mut Context<'_>, held: bool) {
        if !held {
            self.pauses = 0;
        }
        let mut paused = held && self.pauses < PAUSES;
        if paused {
            let pause = self.pause.get_or_insert_with(|| Box::pin(tokio::time::sleep(Duration::ZERO)));
            while pause.as_mut().poll(cx).is_ready() {
                // The last one is over: a turn of reading, then the next one.
                pause.as_mut().reset(Instant::now() + PAUSE);
                self.pauses += 1;
                paused = false;
            }
        }
        self.flusher.begin(paused);
    }

    /// Call after the connection was polled. Ready only when it has failed. `active`: whether the peer owes signs of life.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, active: bool) -> Poll<Status> {
        if let Poll::Ready(Err(error)) = self.flusher.poll_flush(cx) {
            return Poll::Ready(Status::transport(format!("error writing to peer: {error}")));
        }
        match &mut self.keepalive {
            // A ping that was just queued leaves with the next turn, which h2 asks for by waking this task.
            Some(watch) => {
                if let Some(until) = self.flusher.lingers() {
                    watch.look_by(until);
                }
                watch.poll(cx, self.flusher.heard(), active)
            }
            None => Poll::Pending,
        }
    }
}

impl Watch {
    /// Has a turn at that time at the latest, unless a ping is under way.
    fn look_by(&mut self, time: Instant) {
        if self.asked.is_none() && self.timer.deadline() > time {
            self.timer.as_mut().reset(time);
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>, heard: Option<Instant>, active: bool) -> Poll<Status> {
        while self.pings.poll_pong(cx).is_ready() {
            self.asked = None;
        }
        loop {
            ready!(self.timer.as_mut().poll(cx));
            let heard = heard.unwrap_or(self.begun);
            match self.asked.take() {
                Some(asked) if heard <= asked => {
                    let silence = heard.elapsed().as_secs();
                    let message =
                        format!("keepalive ping failed to receive ACK within timeout: nothing heard for {silence} s");
                    return Poll::Ready(Status::transport(message));
                }
                _ => {}
            }
            let (now, due) = (Instant::now(), heard + self.settings.interval);
            let next = if due > now {
                due
            } else if active && self.pings.send_ping(Ping::opaque()).is_ok() {
                self.asked = Some(now);
                now + self.settings.timeout
            } else {
                now + self.settings.interval
            };
            self.timer.as_mut().reset(next);
        }
    }
}
