//! The whole room on paused time, against an authority that follows a script.

use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError},
    time::SystemTime,
};

use super::*;
use crate::{
    base::{Gates, Trigger},
    secrets::{Answer, Config, Curve, Provider, Reserve, Secrets, testing::Authority as Signer},
    telemetry::metrics::Registry,
    wires::Workload,
};

const HOUR: Duration = Duration::from_secs(3600);
const ID: &str = "spiffe://cluster.local/ns/ns1/sa/sa1";

/// What the authority does with one request.
#[derive(Debug, Clone, Copy)]
enum Act {
    /// Signs for so long.
    Sign(Duration),
    /// Fails.
    Fail(Cause),
    /// Never answers.
    Hang,
    /// Sends one of the answers that must not be used.
    OtherKey,
    OtherRoot,
    Expired,
    LeafOnly,
}

struct Scripted {
    signer: Signer,
    clock: Clock,
    script: Mutex<VecDeque<Act>>,
    /// When requests came.
    asked: Mutex<Vec<Instant>>,
    /// What an exhausted script does.
    last: Act,
    reached: watch::Sender<u64>,
}

impl Scripted {
    fn answer(&self, act: Act, csr: &str) -> Answer {
        let now = self.clock.now();
        let root = self.signer.pem();
        let chain = match act {
            Act::Sign(life) => vec![self.signer.sign_at(csr, now, life), root],
            Act::OtherKey => vec![self.signer.issue_pem(ID).0, root],
            Act::OtherRoot => vec![self.signer.sign_at(csr, now, HOUR), Signer::new("other").pem()],
            Act::Expired => vec![self.signer.sign_at(csr, now - 2 * HOUR, HOUR), root],
            Act::LeafOnly | Act::Fail(_) | Act::Hang => vec![self.signer.sign_at(csr, now, HOUR)],
        };
        Answer { chain, roots: None }
    }
}

impl Authority for Scripted {
    fn sign<'a>(&'a self, order: &'a Order) -> Pin<Box<dyn Future<Output = Result<Answer, Failure>> + Send + 'a>> {
        Box::pin(async move {
            self.asked.lock().unwrap_or_else(PoisonError::into_inner).push(Instant::now());
            // The request itself reaches it, too.
            self.reached.send_modify(|count| *count += 1);
            let act = self.script.lock().unwrap_or_else(PoisonError::into_inner).pop_front().unwrap_or(self.last);
            match act {
                Act::Fail(cause) => Err(Failure { cause, message: format!("scripted {cause:?}"), pushback: None }),
                Act::Hang => std::future::pending().await,
                act => Ok(self.answer(act, &order.csr)),
            }
        })
    }

    fn reached(&self) -> Option<watch::Receiver<u64>> {
        Some(self.reached.subscribe())
    }
}

struct Room {
    authority: Arc<Scripted>,
    snapshots: watch::Receiver<Snapshot>,
    anchors: watch::Sender<Option<Arc<TrustBundle>>>,
    gates: Gates,
    registry: Registry,
    clock: Clock,
    _trigger: Trigger,
}

fn config() -> Config {
    Config {
        identity: ID.to_owned(),
        key: KeyStyle { curve: Curve::P256, pkcs8: false },
        validity: 24 * HOUR,
        reserve: Reserve { ratio: 0.5, jitter: 0.01 },
        provider: Provider::Citadel(String::new()),
        authority: None,
        faults: crate::config::Errors::default(),
        pair: None,
        roots: None,
        debounce: Duration::from_millis(100),
        output: None,
    }
}

/// Starts the room; wall time is the machine's at first, so that rcgen's certificates fit, and follows the paused clock.
fn start(script: &[Act], last: Act) -> Room {
    let clock = Clock::following(SystemTime::now());
    let authority = Arc::new(Scripted {
        signer: Signer::new("root"),
        clock,
        script: Mutex::new(script.iter().copied().collect()),
        asked: Mutex::default(),
        last,
        reached: watch::Sender::new(0),
    });
    let (anchors, announced) = watch::channel(None);
    let (gates, registry) = (Gates::default(), Registry::default());
    let signing: Arc<dyn Authority> = Arc::clone(&authority) as _;
    let room = Secrets::new(&config(), Some(signing), announced, (&gates, &registry), clock);
    let (trigger, drain) = Trigger::new();
    tokio::spawn(room.reader.run(drain.clone()));
    tokio::spawn(room.task.run(drain));
    Room { authority, snapshots: room.snapshots, anchors, gates, registry, clock, _trigger: trigger }
}

impl Room {
    async fn until(&mut self, wanted: impl Fn(&Snapshot) -> bool) -> Snapshot {
        self.snapshots.wait_for(|snapshot| wanted(snapshot)).await.unwrap().clone()
    }

    fn asked(&self) -> Vec<Instant> {
        self.authority.asked.lock().unwrap().clone()
    }
}

fn serial(snapshot: &Snapshot) -> Option<&str> {
    snapshot.workload.as_ref().map(|workload| workload.leaf.serial.as_str())
}

#[tokio::test(start_paused = true)]
async fn a_day_with_failures_at_every_step() {
    use Act::*;
    let lives = [4 * HOUR, HOUR, 2 * HOUR, 6 * HOUR, 3 * HOUR];
    let faults = [
        Fail(Cause::Unavailable),
        Hang,
        Fail(Cause::Refused),
        OtherKey,
        OtherRoot,
        Expired,
        LeafOnly,
        Fail(Cause::Timeout),
    ];
    // Before each success another number of failures, each kind in turn, never so long that a certificate ends.
    let mut script = Vec::new();
    for round in 0..200 {
        script.extend((0..round % 6).map(|index| faults[(round + index) % faults.len()]));
        script.push(Sign(lives[round % lives.len()]));
    }
    let mut room = start(&script, Sign(HOUR));
    let end = Instant::now() + 24 * HOUR;
    let first = room.until(|snapshot| snapshot.workload.is_some()).await;
    let mut served: Arc<Workload> = first.workload.unwrap();
    let mut renewals = 0;
    while Instant::now() < end {
        let look = Instant::now() + Duration::from_secs(7);
        tokio::select! {
            changed = room.snapshots.changed() => changed.unwrap(),
            () = tokio::time::sleep_until(look) => {}
        }
        let snapshot = room.snapshots.borrow_and_update().clone();
        let workload = snapshot.workload.expect("an identity at every moment");
        assert!(workload.leaf.not_after > room.clock.now(), "a valid one");
        assert!(snapshot.bundle.is_some());
        if !Arc::ptr_eq(&workload, &served) {
            assert!(workload.leaf.serial != served.leaf.serial && workload.key != served.key);
            (served, renewals) = (workload, renewals + 1);
        }
    }
    assert!(renewals >= 12, "{renewals} renewals");
    let asked = room.asked();
    let closest = asked.windows(2).map(|pair| pair[1] - pair[0]).min().unwrap();
    assert!(closest >= Duration::from_secs(1), "{closest:?}");
    let text = room.registry.text();
    assert!(
        text.contains(&format!("istio_agent_num_outgoing_requests{{request_type=\"csr\"}} {}", asked.len())),
        "{text}"
    );
    assert!(text.contains("istio_agent_cert_expiry_seconds{resource_name=\"default\"}"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn an_outage_ends_the_identity_only_with_the_certificate() {
    let mut room = start(&[Act::Sign(HOUR)], Act::Fail(Cause::Unavailable));
    let first = room.until(|snapshot| snapshot.workload.is_some()).await;
    let end = first.workload.as_ref().unwrap().leaf.not_after;
    let lost = room.until(|snapshot| snapshot.workload.is_none()).await;
    assert!(room.clock.now() >= end);
    assert!(lost.error.unwrap().contains("scripted Unavailable"));
    assert!(room.gates.shut().is_empty(), "an outage is no refusal");
    room.authority.script.lock().unwrap().push_back(Act::Sign(HOUR));
    let back = room.until(|snapshot| snapshot.workload.is_some()).await;
    assert!(back.error.is_none() && serial(&back) != serial(&first));
}

#[tokio::test(start_paused = true)]
async fn refusals_show_in_readiness_from_the_fifth_on_while_there_is_no_certificate() {
    let mut room = start(&[Act::Fail(Cause::Refused); 6], Act::Sign(HOUR));
    let mut shut_after = Vec::new();
    for _ in 0..6 {
        let before = room.asked().len();
        while room.asked().len() == before {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        tokio::task::yield_now().await;
        shut_after.push(!room.gates.shut().is_empty());
    }
    assert_eq!(shut_after, [false, false, false, false, true, true]);
    assert_eq!(room.gates.shut()[0], ("identity", "scripted Refused".to_owned()));
    room.until(|snapshot| snapshot.workload.is_some()).await;
    assert!(room.gates.shut().is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_first_trust_bundle_costs_no_second_request() {
    let mut room = start(&[], Act::Sign(HOUR));
    let other = Signer::new("extra").pem();
    let bundle = format!("{}{other}", room.authority.signer.pem());
    room.anchors.send_replace(Some(Arc::new(TrustBundle { pem: bundle.into() })));
    let two = |snapshot: &Snapshot| {
        snapshot.bundle.as_ref().is_some_and(|bundle| super::super::certificate::ders(&bundle.pem).len() == 2)
    };
    let first = room.until(|snapshot| snapshot.workload.is_some() && two(snapshot)).await;
    tokio::time::sleep(HOUR / 3).await;
    assert_eq!(room.asked().len(), 1);
    // The root of the certificate is taken away: the roots change first, then the certificate.
    room.anchors.send_replace(Some(Arc::new(TrustBundle { pem: other.into() })));
    let second = room.until(|snapshot| serial(snapshot) != serial(&first)).await;
    assert!(second.workload.is_some() && room.asked().len() == 2);
}

#[tokio::test(start_paused = true)]
async fn after_an_outage_the_first_connection_of_anybody_brings_the_certificate() {
    const SECOND: Duration = Duration::from_secs(1);
    let mut room = start(&[Act::Fail(Cause::Unavailable); 8], Act::Sign(HOUR));
    let begun = Instant::now();
    while room.asked().len() < 8 {
        tokio::time::sleep(SECOND).await;
    }
    assert!(begun.elapsed() > 90 * SECOND, "its own requests are no sign");
    tokio::time::sleep(SECOND).await;
    let begun = Instant::now();
    room.authority.reached.send_modify(|count| *count += 1);
    room.until(|snapshot| snapshot.workload.is_some()).await;
    assert!(begun.elapsed() < SECOND, "{:?}", begun.elapsed());
}
