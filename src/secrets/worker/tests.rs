//! The worker against a scripted CA, on paused time.

use proptest::prelude::*;

use super::*;
use crate::{
    secrets::testing::Authority,
    wires::{Leaf, PrivateKey, Source},
};

const HOUR: Duration = Duration::from_secs(3600);
const SECOND: Duration = Duration::from_secs(1);
const RESERVE: Reserve = Reserve { ratio: 0.5, jitter: 0.0 };

fn begin() -> Now {
    Now { wall: SystemTime::UNIX_EPOCH + 500_000 * HOUR, steady: Instant::now() }
}

impl Now {
    fn after(self, delay: Duration) -> Now {
        Now { wall: self.wall + delay, steady: self.steady + delay }
    }
}

fn worker(now: Now) -> Worker {
    Worker::new(RESERVE, true, now)
}

fn pair(now: Now, life: Duration) -> Workload {
    let leaf = Leaf {
        subject: String::new(),
        issuer: String::new(),
        names: Vec::new(),
        serial: String::new(),
        not_before: now.wall,
        not_after: now.wall + life,
    };
    let key = PrivateKey::from_pem(zeroize::Zeroizing::new(Vec::new()));
    Workload { chain: Bytes::new(), key, leaf, source: Source::Authority, obtained: now.wall }
}

fn issued(now: Now, life: Duration) -> Issued {
    Issued { workload: Arc::new(pair(now, life)), roots: Bytes::new(), expires: now.wall + life, warnings: Vec::new() }
}

fn failure(cause: Cause) -> Failure {
    Failure { cause, message: "no".to_owned(), pushback: None }
}

/// When the next request is sent, counted from `now`.
fn next_request(worker: &mut Worker, now: Now) -> Duration {
    let rest = worker.rest(now).expect("a request is planned");
    assert_eq!(worker.poll(now.after(rest.saturating_sub(Duration::from_nanos(1)))), None, "too early");
    assert!(worker.poll(now.after(rest)).is_some());
    rest
}

#[test]
fn asks_at_once_and_again_at_the_renewal() {
    let now = begin();
    let mut worker = worker(now);
    assert_eq!(worker.poll(now), Some(DEADLINE));
    assert_eq!(worker.poll(now.after(HOUR)), None, "one request in flight");
    worker.issued(issued(now, HOUR), now, 0.5);
    assert!(worker.snapshot(now).workload.is_some());
    assert_eq!(worker.snapshot(now).renewal, Some(now.wall + HOUR / 2));
    assert_eq!(next_request(&mut worker, now), HOUR / 2);
}

#[test]
fn failures_are_spaced_by_cause_and_success_begins_anew() {
    let mut now = begin();
    let mut worker = worker(now);
    let mut pauses = Vec::new();
    assert!(worker.poll(now).is_some());
    for cause in [Cause::Unavailable, Cause::Unavailable, Cause::Unavailable, Cause::Refused, Cause::Unavailable] {
        worker.failed(&failure(cause), now);
        assert_eq!(worker.snapshot(now).error.as_deref(), Some("no"));
        let pause = next_request(&mut worker, now);
        now = now.after(pause);
        pauses.push(pause.as_secs_f64());
    }
    for (pause, wanted) in pauses.iter().zip([1.0, 2.0, 4.0, 1.0, 8.0]) {
        assert!((wanted * 0.8..=wanted * 1.2).contains(pause) && *pause >= 1.0, "{pauses:?}");
    }
    worker.issued(issued(now, HOUR), now, 0.5);
    assert!(worker.snapshot(now).error.is_none());
}

#[test]
fn whoever_has_no_certificate_asks_as_soon_as_somebody_reaches_the_ca() {
    let now = begin();
    let pushed = Failure { pushback: Some(90 * SECOND), ..failure(Cause::Unavailable) };
    for (last, hurries) in [
        (failure(Cause::Unavailable), true),
        (failure(Cause::Refused), false),
        (failure(Cause::Timeout), false),
        (pushed, false),
    ] {
        let mut worker = worker(now);
        let mut late = now;
        for _ in 0..6 {
            worker.poll(late);
            worker.reached(late);
            assert!(worker.poll(late).is_none(), "one request in flight");
            worker.failed(&last, late);
            late = late.after(100 * SECOND);
        }
        late = now.after(502 * SECOND);
        worker.reached(late);
        assert_eq!(worker.poll(late).is_some(), hurries, "{last:?}");
    }
    // Not more than once a second, and not while a certificate is there.
    let mut worker = worker(now);
    worker.poll(now);
    worker.failed(&failure(Cause::Unavailable), now);
    worker.reached(now);
    assert_eq!(next_request(&mut worker, now), SECOND);
    worker.issued(issued(now, HOUR), now, 0.5);
    let late = now.after(HOUR / 2);
    worker.poll(late);
    for _ in 0..9 {
        worker.failed(&failure(Cause::Unavailable), late);
    }
    worker.reached(late.after(2 * SECOND));
    assert!(worker.poll(late.after(2 * SECOND)).is_none());
}

#[test]
fn silence_of_the_ca_is_waited_for_longer_each_time() {
    let mut now = begin();
    let mut worker = worker(now);
    let mut deadlines = Vec::new();
    for _ in 0..5 {
        deadlines.extend(worker.poll(now).map(|deadline| deadline.as_secs()));
        worker.failed(&failure(Cause::Timeout), now);
        now = now.after(100 * SECOND);
    }
    assert_eq!(deadlines, [10, 20, 40, 60, 60]);
}

#[test]
fn refusals_count_as_permanent_from_the_fifth_in_a_row_on() {
    let mut now = begin();
    let mut worker = worker(now);
    let mut refuse = |worker: &mut Worker, cause| {
        now = now.after(100 * SECOND);
        assert!(worker.poll(now).is_some(), "still asked");
        worker.failed(&failure(cause), now);
        worker.refusals() >= PERMANENT
    };
    let mut seen: Vec<bool> = (0..4).map(|_| refuse(&mut worker, Cause::Refused)).collect();
    seen.push(refuse(&mut worker, Cause::Unavailable));
    seen.extend((0..6).map(|_| refuse(&mut worker, Cause::Refused)));
    assert_eq!(seen, [[false; 9].as_slice(), &[true; 2]].concat());
}

#[test]
fn pushback_is_honoured_and_the_end_of_the_certificate_is_not_slept_through() {
    let now = begin();
    let mut worker = worker(now);
    worker.poll(now);
    worker.failed(&Failure { pushback: Some(90 * SECOND), ..failure(Cause::Unavailable) }, now);
    assert_eq!(next_request(&mut worker, now), 90 * SECOND);
    let now = now.after(90 * SECOND);
    worker.issued(issued(now, 10 * SECOND), now, 0.5);
    let mut late = now.after(5 * SECOND);
    assert!(worker.poll(late).is_some());
    // 1 s, then 2 s; the third pause of 4 s would end after the certificate.
    for _ in 0..2 {
        worker.failed(&failure(Cause::Unavailable), late);
        late = late.after(next_request(&mut worker, late));
    }
    worker.failed(&failure(Cause::Unavailable), late);
    assert!(late.after(next_request(&mut worker, late)).wall <= now.wall + 10 * SECOND + SPACING);
}

#[test]
fn the_last_good_certificate_is_served_until_its_end() {
    let now = begin();
    let mut worker = worker(now);
    worker.poll(now);
    worker.issued(issued(now, HOUR), now, 0.5);
    worker.poll(now.after(HOUR / 2));
    worker.failed(&failure(Cause::Refused), now.after(HOUR / 2));
    assert!(worker.snapshot(now.after(HOUR - SECOND)).workload.is_some());
    assert!(worker.snapshot(now.after(HOUR)).workload.is_none());
    assert!(worker.rest(now.after(HOUR - SECOND)).unwrap() <= SECOND, "its end is noticed");
}

#[test]
fn certificates_of_seconds_are_renewed_in_time_and_never_more_than_once_a_second() {
    let mut now = begin();
    let mut worker = worker(now);
    for life in [2, 3, 4] {
        assert!(worker.poll(now).is_some());
        worker.issued(issued(now, life * SECOND), now, 0.5);
        let pause = next_request(&mut worker, now);
        assert_eq!(pause, SECOND.max(life * SECOND / 2));
        worker.issued(issued(now.after(pause), HOUR), now.after(pause), 0.5);
        now = now.after(HOUR);
    }
    let mut hasty = Worker::new(Reserve { ratio: 1.0, jitter: 0.0 }, true, now);
    hasty.poll(now);
    hasty.issued(issued(now, HOUR), now, 0.5);
    assert_eq!(next_request(&mut hasty, now), SECOND);
}

#[test]
fn either_clock_brings_the_renewal() {
    let now = begin();
    let mut worker = worker(now);
    worker.poll(now);
    worker.issued(issued(now, HOUR), now, 0.5);
    // The machine slept: only the wall clock went on.
    assert!(worker.poll(Now { wall: now.wall + HOUR, steady: now.steady + SECOND }).is_some());
    worker.issued(issued(now, HOUR), now, 0.5);
    // The wall clock was set back.
    assert!(worker.poll(Now { wall: now.wall - 24 * HOUR, steady: now.steady + HOUR }).is_some());
}

#[test]
fn a_certificate_of_the_future_is_no_reason_to_hurry() {
    let now = begin();
    let mut worker = worker(now);
    worker.poll(now);
    worker.issued(Issued { expires: now.wall + HOUR + 20 * SECOND, ..issued(now.after(20 * SECOND), HOUR) }, now, 0.5);
    assert_eq!(next_request(&mut worker, now), HOUR / 2 + 20 * SECOND);
}

#[test]
fn a_new_trust_bundle_costs_a_request_only_when_the_certificate_does_not_chain_to_it() {
    let now = begin();
    let (a, b) = (Authority::new("a"), Authority::new("b"));
    let bundle = |authorities: &[&Authority]| {
        let pem: String = authorities.iter().map(|authority| authority.pem()).collect();
        Arc::new(TrustBundle { pem: pem.into() })
    };
    let by_a = |now: Now| {
        let chain = format!("{}{}", a.issue_pem("spiffe://td/ns/n/sa/s").0, a.pem());
        let workload = Workload { chain: chain.into(), ..pair(now, HOUR) };
        Issued { workload: Arc::new(workload), roots: a.pem().into(), ..issued(now, HOUR) }
    };
    let mut worker = worker(now);
    // The first bundle comes while the first request is under way.
    worker.poll(now);
    worker.anchors(bundle(&[&a, &b]), now);
    worker.issued(by_a(now), now, 0.5);
    assert_eq!(worker.rest(now), Some(HOUR / 2));
    let merged = worker.snapshot(now).bundle.unwrap();
    assert_eq!(certificate::ders(&merged.pem).len(), 2);
    // Equal bytes, then the same certificates in another order: nothing changes.
    worker.anchors(bundle(&[&a, &b]), now);
    worker.anchors(bundle(&[&b, &a]), now);
    assert!(Arc::ptr_eq(&merged, &worker.snapshot(now).bundle.unwrap()));
    assert_eq!(worker.rest(now), Some(HOUR / 2));
    // The old root is dropped: roots first, then one request, and no second one when its answer is no better.
    let later = now.after(10 * SECOND);
    worker.anchors(bundle(&[&b]), later);
    assert!(worker.snapshot(later).workload.is_some());
    assert!(worker.poll(later).is_some());
    worker.issued(by_a(later), later, 0.5);
    assert_eq!(worker.rest(later), Some(HOUR / 2));
}

#[test]
fn files_count_instead_of_the_authority_as_long_as_they_are_there() {
    let now = begin();
    let mut worker = worker(now);
    let file = Arc::new(Workload { source: Source::Files, ..pair(now, HOUR) });
    let ca = Authority::new("a");
    let roots = Arc::new(TrustBundle { pem: ca.pem().into() });
    worker.files(Found::Good(Arc::clone(&file)), Found::Good(roots));
    assert_eq!(worker.poll(now), None);
    let snapshot = worker.snapshot(now);
    assert!(Arc::ptr_eq(&snapshot.workload.unwrap(), &file) && snapshot.renewal.is_none());
    assert_eq!(snapshot.bundle.unwrap().pem, ca.pem().trim().as_bytes());
    // Only the roots are there: the certificate comes from the authority, the old one serves until then.
    worker.files(Found::Missing, Found::Good(Arc::new(TrustBundle { pem: ca.pem().into() })));
    assert!(worker.poll(now).is_some());
    assert!(Arc::ptr_eq(&worker.snapshot(now).workload.unwrap(), &file));
    worker.issued(issued(now, HOUR), now, 0.5);
    assert!(!Arc::ptr_eq(&worker.snapshot(now).workload.unwrap(), &file));
    // Broken files are said to be broken, not replaced.
    worker.files(Found::Broken("torn".into()), Found::Missing);
    let snapshot = worker.snapshot(now);
    assert!(snapshot.workload.is_none() && snapshot.error.as_deref() == Some("torn"));
}

#[test]
fn without_an_authority_and_without_files_it_says_so() {
    let now = begin();
    let mut worker = Worker::new(RESERVE, false, now);
    assert_eq!(worker.poll(now), None);
    assert!(worker.snapshot(now).error.unwrap().contains("ca client is nil"));
}

#[derive(Debug, Clone)]
enum Step {
    Pass(u64),
    Sleep(u64),
    SetBack(u64),
    Sign { life: u64, valid_in: u64 },
    Fail(Cause, Option<u64>),
}

fn steps() -> impl Strategy<Value = Step> {
    let cause =
        prop_oneof![Just(Cause::Unavailable), Just(Cause::Timeout), Just(Cause::Refused), Just(Cause::Unusable)];
    prop_oneof![
        4 => (0u64..100_000).prop_map(Step::Pass),
        1 => (0u64..100_000_000).prop_map(Step::Sleep),
        1 => (0u64..10_000_000).prop_map(Step::SetBack),
        4 => (1u64..10_000_000, 0u64..60_000).prop_map(|(life, valid_in)| Step::Sign { life, valid_in }),
        4 => (cause, prop::option::of(0u64..100_000)).prop_map(|(cause, pushback)| Step::Fail(cause, pushback)),
    ]
}

proptest! {
    /// Whatever the CA answers and the clocks do: what is served is the newest certificate while it is valid, else an older one that
    /// still is; nothing is served that is over; requests are a second apart, one at a time, and never stop.
    #[test]
    fn serves_what_is_valid_and_never_hurries(steps in prop::collection::vec(steps(), 1..200)) {
        let mut now = begin();
        let mut worker = worker(now);
        let mut all: Vec<Issued> = Vec::new();
        let (mut asking, mut last) = (false, None::<Instant>);
        for step in steps {
            if worker.poll(now).is_some() {
                prop_assert!(!asking);
                prop_assert!(last.is_none_or(|last| now.steady.duration_since(last) >= SPACING));
                (asking, last) = (true, Some(now.steady));
            }
            match step {
                Step::Pass(millis) => now = now.after(Duration::from_millis(millis)),
                Step::Sleep(millis) => now.wall += Duration::from_millis(millis),
                Step::SetBack(millis) => now.wall -= Duration::from_millis(millis),
                Step::Sign { life, valid_in } if asking => {
                    let from = now.after(Duration::from_millis(valid_in));
                    let life = Duration::from_millis(life);
                    let made = Issued { expires: from.wall + life, ..issued(from, life) };
                    all.push(Issued { workload: Arc::clone(&made.workload), ..issued(from, life) });
                    worker.issued(made, now, 0.5);
                    asking = false;
                }
                Step::Fail(cause, pushback) if asking => {
                    worker.failed(&Failure { pushback: pushback.map(Duration::from_millis), ..failure(cause) }, now);
                    asking = false;
                }
                Step::Sign { .. } | Step::Fail(..) => {}
            }
            let served = worker.snapshot(now).workload;
            let valid = |issued: &&Issued| issued.expires > now.wall;
            match all.last().filter(valid) {
                Some(newest) => prop_assert!(Arc::ptr_eq(served.as_ref().unwrap(), &newest.workload)),
                None => {
                    let of = |served: &Arc<Workload>| all.iter().find(|issued| Arc::ptr_eq(&issued.workload, served));
                    let is_served = served.as_ref().and_then(of).is_some_and(|issued| valid(&issued));
                    prop_assert_eq!(is_served, all.iter().any(|issued| valid(&issued)));
                    prop_assert!(is_served || served.is_none());
                }
            }
            prop_assert!(asking || worker.rest(now).is_some());
        }
    }
}
