//! What happens to the agent as a whole, as a pure state machine: events and time in, actions out.
//!
//! `agent::supervise` feeds it and carries out what it says. It does no I/O and sleeps nowhere: [`Lifecycle::deadline`] tells when
//! it wants to be woken. Every state but `Running` has a deadline, so nothing that is asked of Envoy can hang the end.

use std::{os::unix::process::ExitStatusExt, process::ExitStatus, time::Duration};

use log::{error, info, warn};
use nix::sys::signal::Signal;
use tokio::{sync::oneshot, time::Instant};

use crate::{
    base::{Backoff, Policy},
    wires::Event,
};

/// How long Envoy's admin port may take to answer a drain request. Istio waits for ever; a stuck admin thread must not.
pub const DRAIN_REQUEST: Duration = Duration::from_secs(2);
/// How long istiod may take to be told that this workload is leaving.
pub const FAREWELL: Duration = Duration::from_secs(1);
/// Between two counts of open connections, as Istio.
pub const POLL_PERIOD: Duration = Duration::from_secs(1);
/// How long Envoy's admin port may take to answer with its statistics, as Istio.
pub const POLL_TIMEOUT: Duration = Duration::from_secs(2);
/// When a count counts as failed although nobody said so.
pub const POLL_LIMIT: Duration = Duration::from_millis(2500);
/// So many failed counts in a row end the wait, as Istio.
pub const POLL_FAILURES: u32 = 5;
/// From SIGTERM to SIGKILL: enough to flush access logs.
pub const TERM_GRACE: Duration = Duration::from_secs(1);
/// From SIGKILL to giving up: only a process stuck in the kernel takes longer.
pub const KILL_WAIT: Duration = Duration::from_secs(2);
/// An Envoy that ran so long before it failed starts the backoff of restarts anew.
pub const STABLE_RUN: Duration = Duration::from_secs(60);
/// Delays between restarts of a failed Envoy (`FOOTMAN_RESTART_ENVOY=on-failure`).
pub const RESTART: Policy =
    Policy { initial: Duration::from_secs(1), factor: 2.0, max: Duration::from_secs(30), jitter: 0.2 };

/// What the configuration says about the end.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Whether there is an Envoy at all (`DISABLE_ENVOY`).
    pub envoy: bool,
    /// Only inbound listeners are drained: sidecars; gateways drain all.
    pub inbound_only: bool,
    /// How long Envoy lives on after the drain request.
    pub wait: Wait,
    /// Time between the first signal, which makes the agent unready, and the drain request (`FOOTMAN_PRE_DRAIN_DELAY`).
    pub pre_drain: Duration,
    /// istiod is told before that the workload is unhealthy (`FOOTMAN_UNHEALTHY_ON_DRAIN`).
    pub farewell: bool,
    /// The signal that cuts everything short, counted from 1 (`FOOTMAN_FORCE_ON_SIGNAL`); `None`: none does.
    pub force_on_signal: Option<u32>,
    /// A failed Envoy is started again (`FOOTMAN_RESTART_ENVOY=on-failure`).
    pub restart: bool,
}

/// How long a draining Envoy is waited for.
#[derive(Debug, Clone, Copy)]
pub enum Wait {
    /// terminationDrainDuration.
    Fixed(Duration),
    /// Until no connection is left (`EXIT_ON_ZERO_ACTIVE_CONNECTIONS`).
    Connections {
        /// Not shorter than this (`MINIMUM_DRAIN_DURATION`).
        minimum: Duration,
        /// Not longer than this, if given: an explicit terminationDrainDuration.
        limit: Option<Duration>,
    },
}

/// What has happened.
#[derive(Debug)]
pub enum Input {
    /// Something that a room or the system tells.
    Event(Event),
    /// istiod has been told.
    Farewell,
    /// Envoy's admin port answered the drain request, with any status; or why it did not.
    DrainAnswered(Result<(), String>),
    /// Open connections of clients, `None` when Envoy has no such statistics; or why they could not be counted.
    Connections(Result<Option<u64>, String>),
    /// The deadline has passed.
    Time,
}

/// What is to be done, in the order given.
#[derive(Debug)]
pub enum Action {
    /// Start Envoy.
    Start,
    /// Fail readiness for this reason, for good.
    Unready(String),
    /// Tell istiod that the workload is unhealthy; answered by [`Input::Farewell`].
    Farewell,
    /// `POST /drain_listeners?…`; answered by [`Input::DrainAnswered`].
    PostDrain(&'static str),
    /// Count connections; answered by [`Input::Connections`].
    Count,
    /// Send SIGTERM to Envoy.
    Terminate,
    /// Send SIGKILL to Envoy's process group.
    Kill,
    /// Close all rooms and leave with this exit code.
    End(u8),
}

/// The states.
///
/// ```text
///               exit 0, exit without restart, cannot be started
///   Running ──────────────────────────────────────────────────────────────────────▶ Ended
///    │ ▲ │  exit ≠ 0                                  exit in any state below ─────▶  ▲ ▲
///    │ │ └───────────▶ Waiting ── signal, quit ───────────────────────────────────────┘ │
///    │ └── backoff over ──┘   (FOOTMAN_RESTART_ENVOY)                                   │
///    │                                                                                  │
///    ├─ signal ─▶ Holding ─ FOOTMAN_PRE_DRAIN_DELAY ─▶ Draining ─ wait over ─▶ Stopping │
///    │                                                                        (SIGTERM) │
///    └─ quit, signal after /drain ──────────────────────────────────────────────▶ │     │
///                                                                     TERM_GRACE  ▼     │
///                                     (third signal, where asked for) ────▶ Killing ────┘
///                                                                         (SIGKILL)  KILL_WAIT
/// ```
///
/// With `FOOTMAN_UNHEALTHY_ON_DRAIN` a signal always leads to `Holding`, until istiod has been told as well; where nobody is to be
/// drained (no Envoy, or after /drain) `Stopping` follows, or the end.
#[derive(Debug)]
enum State {
    Running {
        since: Instant,
    },
    Waiting {
        until: Instant,
    },
    /// `farewell`: until when istiod may take to be told.
    Holding {
        until: Instant,
        farewell: Option<Instant>,
    },
    Draining(Draining),
    Stopping {
        until: Instant,
    },
    Killing {
        until: Instant,
    },
    Ended,
}

#[derive(Debug)]
struct Draining {
    since: Instant,
    /// The admin port has answered, or was given up.
    answered: bool,
    poll: Poll,
}

/// The wait for connections; for a fixed wait only `Off`.
#[derive(Debug)]
enum Poll {
    Off,
    At(Instant),
    Asked(Instant),
}

/// Decides what happens to the agent as a whole.
#[derive(Debug)]
pub struct Lifecycle {
    plan: Plan,
    state: State,
    /// Why it ends and with which code, once it is to end.
    stop: Option<u8>,
    signals: u32,
    /// Clients have been told to leave by `/drain`: no second drain.
    drained: bool,
    /// The running `/drain` request: since when, and who waits for it.
    drain_request: Option<(Instant, Vec<oneshot::Sender<()>>)>,
    poll_failures: u32,
    backoff: Backoff,
}

impl Lifecycle {
    /// The state at the start, and what to do first.
    pub fn start(plan: Plan, now: Instant) -> (Lifecycle, Vec<Action>) {
        let actions = if plan.envoy { vec![Action::Start] } else { Vec::new() };
        let lifecycle = Lifecycle {
            plan,
            state: State::Running { since: now },
            stop: None,
            signals: 0,
            drained: false,
            drain_request: None,
            poll_failures: 0,
            backoff: Backoff::new(RESTART),
        };
        (lifecycle, actions)
    }

    /// When [`Input::Time`] is wanted, at the latest.
    pub fn deadline(&self) -> Option<Instant> {
        match &self.state {
            State::Running { .. } => self.drain_request.as_ref().map(|(since, _)| *since + DRAIN_REQUEST),
            State::Waiting { until } | State::Stopping { until } | State::Killing { until } => Some(*until),
            State::Holding { until, farewell } => Some(farewell.unwrap_or(*until).max(*until)),
            State::Draining(draining) => draining.deadline(&self.plan.wait),
            State::Ended => None,
        }
    }

    /// Takes one input at time `now`.
    pub fn step(&mut self, input: Input, now: Instant) -> Vec<Action> {
        let mut actions = Vec::new();
        match input {
            Input::Event(event) => self.event(event, now, &mut actions),
            Input::Farewell => self.farewell(),
            Input::DrainAnswered(result) => self.drain_answered(result),
            Input::Connections(result) => self.connections(result, now, &mut actions),
            Input::Time => {}
        }
        self.time(now, &mut actions);
        actions
    }

    fn event(&mut self, event: Event, now: Instant, actions: &mut Vec<Action>) {
        match event {
            Event::Signal(number) => self.signal(number, now, actions),
            Event::Quit => {
                if self.stop.is_none() {
                    self.announce("/quitquitquit called", 0, actions);
                }
                self.terminate(now, actions);
            }
            Event::Drain(reply) => self.drain_request(reply, now, actions),
            Event::EnvoyExited(status) => self.envoy_exited(status, now, actions),
            Event::EnvoyFailed(error) => {
                error!("Envoy cannot be started: {error}");
                let code = if error.kind() == std::io::ErrorKind::NotFound { 127 } else { 126 };
                self.end(self.stop.unwrap_or(code), actions);
            }
            Event::TaskEnded { name, error: Some(error) } => {
                error!("{name} ended: {error}; the agent ends as well");
                if self.stop.is_none() {
                    self.announce(&format!("{name} ended"), 1, actions);
                    self.begin_stop(now, actions);
                }
            }
            Event::TaskEnded { name, error: None } => warn!("{name} ended"),
        }
    }

    fn signal(&mut self, number: i32, now: Instant, actions: &mut Vec<Action>) {
        self.signals += 1;
        let name = signal_name(number);
        if self.stop.is_none() {
            self.announce(&format!("received signal: {name}"), 0, actions);
            self.begin_stop(now, actions);
        } else if self.plan.force_on_signal.is_some_and(|count| self.signals >= count) {
            warn!("received signal: {name}, the {}th; Envoy is killed", self.signals);
            self.kill(now, actions);
        } else {
            info!("received signal: {name}; already terminating");
        }
    }

    /// From now on the agent is unready and ends with `code`.
    fn announce(&mut self, cause: &str, code: u8, actions: &mut Vec<Action>) {
        info!("Agent is terminating: {cause}");
        self.stop = Some(code);
        actions.push(Action::Unready(format!("server is terminated: {cause}")));
    }

    fn begin_stop(&mut self, now: Instant, actions: &mut Vec<Action>) {
        if !matches!(self.state, State::Running { .. }) || !self.plan.farewell && !self.has_clients() {
            return self.terminate(now, actions);
        }
        let farewell = self.plan.farewell.then(|| now + FAREWELL);
        actions.extend(farewell.map(|_| Action::Farewell));
        let pre_drain = if self.has_clients() { self.plan.pre_drain } else { Duration::ZERO };
        self.state = State::Holding { until: now + pre_drain, farewell };
    }

    /// There is an Envoy, whose clients have not been told to leave.
    fn has_clients(&self) -> bool {
        self.plan.envoy && !self.drained && self.drain_request.is_none()
    }

    fn farewell(&mut self) {
        if let State::Holding { farewell, .. } = &mut self.state {
            *farewell = None;
        }
    }

    fn drain_request(&mut self, reply: oneshot::Sender<()>, now: Instant, actions: &mut Vec<Action>) {
        if let Some((_, waiting)) = &mut self.drain_request {
            return waiting.push(reply);
        }
        if !matches!(self.state, State::Running { .. }) || !self.plan.envoy || self.stop.is_some() {
            // Nobody to drain, or drained already. A requester that has gone needs no answer.
            let _ = reply.send(());
            return;
        }
        info!("Agent draining proxy: clients are told to leave, Envoy serves on");
        actions.push(Action::PostDrain(match self.plan.inbound_only {
            true => "inboundonly&graceful&skip_exit",
            false => "graceful&skip_exit",
        }));
        self.drain_request = Some((now, vec![reply]));
    }

    fn drain_answered(&mut self, result: Result<(), String>) {
        if let Err(error) = &result {
            warn!("Error in invoking drain listeners endpoint: {error}");
        }
        if let State::Draining(draining) = &mut self.state {
            draining.answered = true;
        }
        self.answer_drain_request();
    }

    /// Clients count as told even where Envoy did not answer, as with Istio: the signal that follows a preStop hook ends at once.
    fn answer_drain_request(&mut self) {
        self.drained |= self.drain_request.is_some();
        for reply in self.drain_request.take().into_iter().flat_map(|(_, waiting)| waiting) {
            let _ = reply.send(());
        }
    }

    fn connections(&mut self, result: Result<Option<u64>, String>, now: Instant, actions: &mut Vec<Action>) {
        let State::Draining(draining) = &mut self.state else { return };
        if !matches!(draining.poll, Poll::Asked(_)) {
            return;
        }
        draining.poll = Poll::At(now + POLL_PERIOD);
        match result {
            Ok(Some(0)) => info!("There are no more active connections. terminating proxy..."),
            Ok(None) => warn!("Envoy has no statistics of its listeners. terminating proxy..."),
            Ok(Some(count)) => {
                self.poll_failures = 0;
                return info!("There are still {count} active connections");
            }
            Err(error) => {
                self.poll_failures += 1;
                if self.poll_failures < POLL_FAILURES {
                    return warn!("active connections could not be counted: {error}; trying again");
                }
                warn!("active connections could not be counted {POLL_FAILURES} times: {error}. terminating proxy...");
            }
        }
        self.terminate(now, actions);
    }

    fn envoy_exited(&mut self, status: ExitStatus, now: Instant, actions: &mut Vec<Action>) {
        let code = exit_code(status);
        if let Some(requested) = self.stop {
            return self.end(requested, actions);
        }
        let State::Running { since } = self.state else { return self.end(code, actions) };
        if code == 0 || !self.plan.restart {
            return self.end(code, actions);
        }
        if now.duration_since(since) >= STABLE_RUN {
            self.backoff.reset();
        }
        let delay = self.backoff.next_delay();
        warn!("Envoy starts again in {:.1} s (FOOTMAN_RESTART_ENVOY)", delay.as_secs_f64());
        self.answer_drain_request();
        self.drained = false;
        self.state = State::Waiting { until: now + delay };
    }

    /// Moves on where a deadline has passed; several states may pass at once when time jumps.
    fn time(&mut self, now: Instant, actions: &mut Vec<Action>) {
        if self.drain_request.as_ref().is_some_and(|(since, _)| now >= *since + DRAIN_REQUEST) {
            warn!("Envoy's admin port does not answer the drain request");
            self.answer_drain_request();
        }
        match &mut self.state {
            State::Waiting { until } if now >= *until => {
                self.state = State::Running { since: now };
                actions.push(Action::Start);
            }
            State::Holding { until, farewell } if now >= *until && farewell.is_none_or(|end| now >= end) => {
                match self.has_clients() {
                    true => self.drain(now, actions),
                    false => self.terminate(now, actions),
                }
            }
            State::Draining(draining) => match draining.time(&self.plan.wait, now) {
                Next::Stay => {}
                Next::Count => actions.push(Action::Count),
                Next::CountFailed => self.connections(Err("no answer".to_owned()), now, actions),
                Next::Over => self.terminate(now, actions),
            },
            State::Stopping { until } if now >= *until => {
                warn!("Envoy has not ended {} s after SIGTERM; it is killed", TERM_GRACE.as_secs());
                self.kill(now, actions);
            }
            State::Killing { until } if now >= *until => {
                error!("Envoy has not ended {} s after SIGKILL", KILL_WAIT.as_secs());
                self.end(self.stop.unwrap_or(1), actions);
            }
            _ => {}
        }
    }

    fn drain(&mut self, now: Instant, actions: &mut Vec<Action>) {
        info!("Agent draining Proxy for termination");
        actions.push(Action::PostDrain(if self.plan.inbound_only { "inboundonly&graceful" } else { "graceful" }));
        let poll = match self.plan.wait {
            Wait::Fixed(wait) => {
                info!("Graceful termination period is {wait:?}, starting...");
                Poll::Off
            }
            Wait::Connections { minimum, .. } => {
                info!("Agent draining proxy for {minimum:?}, then waiting for active connections to terminate...");
                Poll::At(now + minimum + POLL_PERIOD)
            }
        };
        self.state = State::Draining(Draining { since: now, answered: false, poll });
    }

    /// SIGTERM, or the end where there is no Envoy to send it to.
    fn terminate(&mut self, now: Instant, actions: &mut Vec<Action>) {
        self.answer_drain_request();
        match self.state {
            State::Stopping { .. } | State::Killing { .. } | State::Ended => {}
            State::Running { .. } | State::Holding { .. } if !self.plan.envoy => {
                self.end(self.stop.unwrap_or(0), actions)
            }
            State::Waiting { .. } => self.end(self.stop.unwrap_or(0), actions),
            State::Running { .. } | State::Holding { .. } | State::Draining(_) => {
                actions.push(Action::Terminate);
                self.state = State::Stopping { until: now + TERM_GRACE };
            }
        }
    }

    /// SIGKILL, or the end where there is no Envoy to send it to.
    fn kill(&mut self, now: Instant, actions: &mut Vec<Action>) {
        if !self.plan.envoy {
            return self.end(self.stop.unwrap_or(0), actions);
        }
        if !matches!(self.state, State::Killing { .. } | State::Ended) {
            actions.push(Action::Kill);
            self.state = State::Killing { until: now + KILL_WAIT };
        }
    }

    fn end(&mut self, code: u8, actions: &mut Vec<Action>) {
        if !matches!(self.state, State::Ended) {
            self.answer_drain_request();
            self.state = State::Ended;
            actions.push(Action::End(code));
        }
    }
}

enum Next {
    Stay,
    Count,
    CountFailed,
    Over,
}

impl Draining {
    fn over(&self, wait: &Wait) -> Option<Instant> {
        match wait {
            Wait::Fixed(wait) => Some(self.since + *wait),
            Wait::Connections { minimum, limit } => limit.map(|limit| self.since + limit.max(*minimum)),
        }
    }

    fn deadline(&self, wait: &Wait) -> Option<Instant> {
        let over = self.over(wait).map(|over| if self.answered { over } else { over.max(self.since + DRAIN_REQUEST) });
        let poll = match self.poll {
            Poll::Off => None,
            Poll::At(at) => Some(at),
            Poll::Asked(since) => Some(since + POLL_LIMIT),
        };
        over.into_iter().chain(poll).min()
    }

    fn time(&mut self, wait: &Wait, now: Instant) -> Next {
        self.answered |= now >= self.since + DRAIN_REQUEST;
        if self.answered && self.over(wait).is_some_and(|over| now >= over) {
            return Next::Over;
        }
        match self.poll {
            Poll::At(at) if now >= at => {
                self.poll = Poll::Asked(now);
                Next::Count
            }
            Poll::Asked(since) if now >= since + POLL_LIMIT => Next::CountFailed,
            _ => Next::Stay,
        }
    }
}

/// Envoy's exit status as the agent's own: its code, or 128 plus the signal that ended it, as a shell has it.
pub fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    u8::try_from(code).unwrap_or(1)
}

/// The signal as Go prints it, which is what people grep for.
fn signal_name(number: i32) -> String {
    match Signal::try_from(number) {
        Ok(Signal::SIGTERM) => "terminated".to_owned(),
        Ok(Signal::SIGINT) => "interrupt".to_owned(),
        Ok(signal) => signal.to_string(),
        Err(_) => number.to_string(),
    }
}

#[cfg(test)]
mod tests;
