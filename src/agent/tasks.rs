//! The long-lived tasks: spawned here and nowhere else, each with a name, ended in the order of their stages.

use std::{fmt::Display, future::Future, time::Duration};

use log::{debug, warn};
use tokio::{sync::mpsc, task::JoinHandle, time::timeout};

use crate::{
    base::{BoxFuture, Drain, Trigger, apart},
    wires::Event,
};

/// How long a task may take to end after its drain has begun; then it is dropped where it stands.
const CLOSE: Duration = Duration::from_millis(500);

/// When a task ends, in this order, as Istio closes: Envoy is gone already, and DNS still answered while it drained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// The xDS proxy, health checks, Wasm.
    Xds,
    /// Local DNS.
    Dns,
    /// SDS.
    Sds,
    /// Certificates and their files.
    Secrets,
    /// Watchers of files.
    Files,
    /// The status port, so that kubelet and Prometheus have answers until the end.
    Status,
}

/// All long-lived tasks.
#[derive(Debug)]
pub struct Tasks {
    events: mpsc::Sender<Event>,
    running: Vec<Task>,
}

#[derive(Debug)]
struct Task {
    stage: Stage,
    name: &'static str,
    trigger: Trigger,
    handle: JoinHandle<()>,
}

/// How a task ends.
pub trait Outcome {
    /// Why it failed, if it did.
    fn error(self) -> Option<String>;
}

impl Outcome for () {
    fn error(self) -> Option<String> {
        None
    }
}

impl<E: Display> Outcome for Result<(), E> {
    fn error(self) -> Option<String> {
        self.err().map(|error| error.to_string())
    }
}

impl Tasks {
    /// No tasks yet; one that ends unasked becomes an event.
    pub fn new(events: mpsc::Sender<Event>) -> Tasks {
        Tasks { events, running: Vec::new() }
    }

    /// Spawns what `run` makes of its drain.
    pub fn spawn<F>(&mut self, stage: Stage, name: &'static str, run: impl FnOnce(Drain) -> F)
    where
        F: Future<Output: Outcome> + Send + 'static,
    {
        let (trigger, drain) = Trigger::new();
        let future = apart(|| run(drain.clone()));
        let handle = self.watched(name, drain, Box::pin(async move { future.await.error() }));
        self.running.push(Task { stage, name, trigger, handle });
    }

    /// Runs a task, of whatever kind, and tells of its end.
    fn watched(&self, name: &'static str, drain: Drain, task: BoxFuture<'static, Option<String>>) -> JoinHandle<()> {
        let events = self.events.clone();
        let watched: BoxFuture<'static, ()> = Box::pin(async move {
            match task.await {
                Some(error) if drain.is_started() => debug!("{name} ended: {error}"),
                _ if drain.is_started() => {}
                // Fails only when the lifecycle is over already.
                error => drop(events.send(Event::TaskEnded { name, error }).await),
            }
        });
        tokio::spawn(watched)
    }

    /// Ends all tasks, stage by stage.
    pub async fn close(mut self) {
        self.running.sort_by_key(|task| task.stage);
        for stage in self.running.chunk_by_mut(|a, b| a.stage == b.stage) {
            for task in stage.iter() {
                task.trigger.start();
            }
            for task in stage {
                if timeout(CLOSE, &mut task.handle).await.is_err() {
                    warn!("{} does not end; dropped", task.name);
                    task.handle.abort();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn stages_end_in_their_order_whatever_the_order_of_spawning() {
        let (events, _keep) = mpsc::channel(1);
        let mut tasks = Tasks::new(events);
        let order = Arc::new(Mutex::new(Vec::new()));
        for stage in [Stage::Status, Stage::Sds, Stage::Xds, Stage::Dns] {
            let order = order.clone();
            tasks.spawn(stage, "room", move |mut drain| async move {
                drain.started().await;
                order.lock().unwrap().push(stage);
                Ok::<(), String>(())
            });
        }
        tasks.spawn(Stage::Dns, "stuck", |_| async { std::future::pending::<Result<(), String>>().await });
        tasks.close().await;
        assert_eq!(*order.lock().unwrap(), [Stage::Xds, Stage::Dns, Stage::Sds, Stage::Status]);
    }

    #[tokio::test]
    async fn task_that_ends_unasked_is_an_event() {
        let (events, mut received) = mpsc::channel(1);
        let mut tasks = Tasks::new(events);
        tasks.spawn(Stage::Xds, "xds", |_| async { Err("socket gone") });
        let event = received.recv().await.unwrap();
        assert!(
            matches!(&event, Event::TaskEnded { name: "xds", error: Some(error) } if error == "socket gone"),
            "{event:?}"
        );
        tasks.close().await;
        assert!(received.try_recv().is_err());
    }
}
