//! Runs the lifecycle: carries out its actions, feeds it what happens. The only place where Envoy is started and ended.

use std::{collections::VecDeque, future::Future, pin::Pin};

use log::{error, warn};
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep_until},
};

use super::{
    lifecycle::{Action, DRAIN_REQUEST, Input, Lifecycle, POLL_TIMEOUT, Plan},
    signals::Signals,
};
use crate::{
    base::Gate,
    envoy::{
        self, Admin, Exit, Running, State,
        guard::Waiting,
        settle::{self, Active},
    },
    health::Farewell,
    wires::Event,
};

/// Everything around one Envoy.
pub(super) struct Supervisor {
    pub plan: Plan,
    pub envoy: Box<envoy::Config>,
    /// What becomes the first Envoy.
    pub waiting: Option<Waiting>,
    /// Tells istiod that the workload is leaving.
    pub farewell: Option<Farewell>,
    pub admin: Admin,
    /// Ports of Envoy's listeners that serve probes and scrapes.
    pub own_ports: Vec<u16>,
    pub events: mpsc::Receiver<Event>,
    /// Shut when the agent is to end.
    pub server: Gate,
    /// What `status` shows of Envoy.
    pub state: watch::Sender<State>,
}

type Call = Pin<Box<dyn Future<Output = Input> + Send>>;

impl Supervisor {
    /// Until the end; the agent's exit code. Envoy is gone when it returns, its bootstrap too.
    pub(super) async fn run(mut self, signals: &mut Signals) -> u8 {
        let code = self.live(signals).await;
        self.envoy.remove_bootstrap();
        code
    }

    async fn live(&mut self, signals: &mut Signals) -> u8 {
        let (mut lifecycle, first) = Lifecycle::start(self.plan.clone(), Instant::now());
        let mut actions = VecDeque::from(first);
        let mut running: Option<Running> = None;
        // The one request to the admin port that is under way; a newer one replaces it.
        let mut call: Option<Call> = None;
        loop {
            while let Some(action) = actions.pop_front() {
                match action {
                    Action::Start => match self.start() {
                        Ok(envoy) => running = Some(envoy),
                        // Before any other event: nothing is to be asked of an Envoy that is not there.
                        Err(event) => actions.extend(lifecycle.step(Input::Event(event), Instant::now())),
                    },
                    Action::Unready(reason) => self.server.shut(&reason),
                    Action::Farewell => call = self.farewell.clone().map(tell),
                    Action::PostDrain(query) => call = Some(self.drain(query)),
                    Action::Count => call = Some(self.count()),
                    Action::Terminate => running.iter_mut().for_each(Running::terminate),
                    Action::Kill => running.iter_mut().for_each(Running::kill),
                    Action::End(code) => return code,
                }
            }
            let input = tokio::select! {
                // A signal to the whole container reaches Envoy too: that the end was asked for counts before how it ended.
                biased;
                number = signals.recv() => Input::Event(Event::Signal(number)),
                Some(event) = self.events.recv() => Input::Event(event),
                exit = ended(&mut running) => {
                    running = None;
                    self.state.send_modify(|state| state.exited(&exit));
                    match exit {
                        Exit::Status(status) => Input::Event(Event::EnvoyExited(status)),
                        Exit::Failed(error) => Input::Event(Event::EnvoyFailed(error)),
                    }
                }
                input = answered(&mut call) => {
                    call = None;
                    input
                }
                () = at(lifecycle.deadline()) => Input::Time,
            };
            actions = lifecycle.step(input, Instant::now()).into();
        }
    }

    fn start(&mut self) -> Result<Running, Event> {
        let running = Running::start(&self.envoy, self.waiting.take()).map_err(Event::EnvoyFailed)?;
        self.state.send_modify(|state| state.started(running.id(), running.since()));
        Ok(running)
    }

    fn drain(&self, query: &'static str) -> Call {
        let admin = self.admin;
        Box::pin(async move {
            let answer = admin.drain_listeners(query, DRAIN_REQUEST).await;
            if let Ok((status, body)) = &answer
                && *status != 200
            {
                warn!("Envoy answers the drain request with {status}: {}", body.trim());
            }
            Input::DrainAnswered(answer.map(|_| ()).map_err(|error| error.to_string()))
        })
    }

    fn count(&self) -> Call {
        let (admin, own) = (self.admin, self.own_ports.clone());
        Box::pin(async move {
            let mut active = Active::new(&own);
            Input::Connections(match admin.lines(settle::QUERY, POLL_TIMEOUT, &mut |line| active.line(line)).await {
                Ok(200) => Ok(active.count),
                Ok(status) => Err(format!("Envoy's admin port answers {status}")),
                Err(error) => Err(error.to_string()),
            })
        })
    }
}

async fn ended(running: &mut Option<Running>) -> Exit {
    match running {
        None => std::future::pending().await,
        Some(envoy) => envoy.ended().await.unwrap_or_else(|error| {
            error!("Envoy's exit status cannot be had: {error}");
            Exit::Failed(error)
        }),
    }
}

fn tell(farewell: Farewell) -> Call {
    Box::pin(async move {
        farewell.tell().await;
        Input::Farewell
    })
}

async fn answered(call: &mut Option<Call>) -> Input {
    match call {
        None => std::future::pending().await,
        Some(call) => call.await,
    }
}

async fn at(deadline: Option<Instant>) {
    match deadline {
        None => std::future::pending().await,
        Some(deadline) => sleep_until(deadline).await,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::sync::oneshot;

    use super::*;
    use crate::{agent::lifecycle::Wait, base::Gates};

    #[tokio::test(start_paused = true)]
    async fn an_envoy_that_cannot_be_started_ends_the_agent_whatever_else_is_asked() {
        let (sender, events) = mpsc::channel(4);
        let (reply, answered) = oneshot::channel();
        sender.send(Event::Drain(reply)).await.unwrap();
        let supervisor = Supervisor {
            plan: Plan {
                envoy: true,
                inbound_only: true,
                wait: Wait::Fixed(Duration::ZERO),
                pre_drain: Duration::ZERO,
                farewell: false,
                force_on_signal: None,
                restart: false,
            },
            envoy: Box::new(envoy::Config { binary: "/nonexistent/envoy".into(), ..envoy::Config::default() }),
            waiting: None,
            farewell: None,
            admin: Admin::new(1),
            own_ports: Vec::new(),
            events,
            server: Gates::default().gate("server", ""),
            state: watch::Sender::new(State::default()),
        };
        let mut signals = Signals::install().unwrap();
        let ended = tokio::time::timeout(Duration::from_secs(60), supervisor.run(&mut signals)).await;
        assert_eq!(ended, Ok(127));
        assert!(answered.await.is_err(), "nobody is left to answer");
    }
}
