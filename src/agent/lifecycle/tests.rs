//! The lifecycle by stories, and by a model: an Envoy, an admin port and an operator who do anything at any time.

use std::{collections::BTreeMap, io, os::unix::process::ExitStatusExt};

use proptest::{collection::vec, prelude::*};

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn plan(wait: Wait) -> Plan {
    Plan {
        envoy: true,
        inbound_only: true,
        wait,
        pre_drain: Duration::ZERO,
        farewell: false,
        force_on_signal: None,
        restart: false,
    }
}

fn sidecar() -> Plan {
    plan(Wait::Fixed(5 * SECOND))
}

fn gateway(limit: Option<Duration>) -> Plan {
    Plan { inbound_only: false, ..plan(Wait::Connections { minimum: 2 * SECOND, limit }) }
}

/// A lifecycle with its own time.
struct Story {
    lifecycle: Lifecycle,
    now: Instant,
    did: Vec<String>,
}

impl Story {
    fn new(plan: Plan) -> Story {
        let now = Instant::now();
        let (lifecycle, actions) = Lifecycle::start(plan, now);
        let mut story = Story { lifecycle, now, did: Vec::new() };
        story.note(actions);
        story
    }

    fn note(&mut self, actions: Vec<Action>) {
        self.did.extend(actions.into_iter().map(|action| match action {
            Action::Start => "start".to_owned(),
            Action::Unready(reason) => format!("unready {reason}"),
            Action::Farewell => "farewell".to_owned(),
            Action::PostDrain(query) => format!("drain {query}"),
            Action::Count => "count".to_owned(),
            Action::Terminate => "term".to_owned(),
            Action::Kill => "kill".to_owned(),
            Action::End(code) => format!("end {code}"),
        }));
    }

    fn input(&mut self, input: Input) -> Vec<String> {
        let actions = self.lifecycle.step(input, self.now);
        self.note(actions);
        std::mem::take(&mut self.did)
    }

    fn event(&mut self, event: Event) -> Vec<String> {
        self.input(Input::Event(event))
    }

    fn signal(&mut self) -> Vec<String> {
        self.event(Event::Signal(15))
    }

    fn exit(&mut self, raw: i32) -> Vec<String> {
        self.event(Event::EnvoyExited(ExitStatus::from_raw(raw)))
    }

    /// Lets time pass, waking the lifecycle whenever it wants to be woken.
    fn after(&mut self, time: Duration) -> Vec<String> {
        let end = self.now + time;
        while let Some(deadline) = self.lifecycle.deadline().filter(|deadline| *deadline <= end) {
            assert!(deadline > self.now, "it wants to be woken at a time that has passed: {:?}", self.lifecycle);
            self.now = deadline;
            let actions = self.lifecycle.step(Input::Time, self.now);
            self.note(actions);
        }
        self.now = end;
        std::mem::take(&mut self.did)
    }
}

const UNREADY: &str = "unready server is terminated: received signal: terminated";

#[test]
fn sidecar_drains_waits_and_ends_with_zero() {
    let mut story = Story::new(sidecar());
    assert_eq!(story.did, ["start"]);
    story.did.clear();
    assert_eq!(story.signal(), [UNREADY, "drain inboundonly&graceful"]);
    assert_eq!(story.input(Input::DrainAnswered(Ok(()))), [""; 0]);
    assert_eq!(story.after(Duration::from_millis(4999)), [""; 0]);
    assert_eq!(story.signal(), [""; 0], "a second signal changes nothing");
    assert_eq!(story.after(Duration::from_millis(1)), ["term"]);
    assert_eq!(story.exit(15), ["end 0"], "asked for, whatever the status");
}

#[test]
fn istiod_is_told_before_the_drain_where_asked_for() {
    let asked = Plan { farewell: true, ..sidecar() };
    let mut story = Story::new(asked.clone());
    story.did.clear();
    assert_eq!(story.signal(), [UNREADY, "farewell"]);
    assert_eq!(story.after(Duration::from_millis(300)), [""; 0]);
    assert_eq!(story.input(Input::Farewell), ["drain inboundonly&graceful"]);

    let mut story = Story::new(Plan { pre_drain: Duration::from_millis(500), ..asked.clone() });
    story.did.clear();
    story.signal();
    assert_eq!(story.input(Input::Farewell), [""; 0], "not before FOOTMAN_PRE_DRAIN_DELAY");
    assert_eq!(story.after(Duration::from_millis(500)), ["drain inboundonly&graceful"]);

    let mut story = Story::new(asked.clone());
    story.did.clear();
    story.signal();
    assert_eq!(story.after(FAREWELL), ["drain inboundonly&graceful"], "istiod is away");

    let mut story = Story::new(Plan { envoy: false, force_on_signal: Some(2), ..asked.clone() });
    assert_eq!(story.signal(), [UNREADY, "farewell"]);
    assert_eq!(story.signal(), ["end 0"], "there is no Envoy to kill");

    // Nobody to drain: it is told all the same.
    let mut story = Story::new(Plan { envoy: false, ..asked.clone() });
    assert_eq!(story.signal(), [UNREADY, "farewell"]);
    assert_eq!(story.input(Input::Farewell), ["end 0"]);
    let mut story = Story::new(asked);
    story.event(Event::Drain(oneshot::channel().0));
    story.input(Input::DrainAnswered(Ok(())));
    assert_eq!(story.signal(), [UNREADY, "farewell"]);
    assert_eq!(story.input(Input::Farewell), ["term"]);
}

#[test]
fn silent_admin_port_and_silent_envoy_cost_their_limits_only() {
    let mut story = Story::new(plan(Wait::Fixed(Duration::ZERO)));
    story.did.clear();
    story.signal();
    assert_eq!(story.after(DRAIN_REQUEST), ["term"]);
    assert_eq!(story.after(TERM_GRACE), ["kill"]);
    assert_eq!(story.after(KILL_WAIT), ["end 0"]);
}

#[test]
fn failed_drain_request_does_not_shorten_the_wait() {
    let mut story = Story::new(sidecar());
    story.did.clear();
    story.signal();
    assert_eq!(story.input(Input::DrainAnswered(Err("refused".to_owned()))), [""; 0]);
    assert_eq!(story.after(Duration::from_millis(4999)), [""; 0]);
    assert_eq!(story.after(Duration::from_millis(1)), ["term"]);
}

#[test]
fn exit_codes() {
    for (raw, code) in [(0, 0), (1 << 8, 1), (7 << 8, 7), (11, 139), (9, 137), (6 | 0x80, 134)] {
        let mut story = Story::new(sidecar());
        story.did.clear();
        assert_eq!(story.exit(raw), [format!("end {code}")]);
    }
    for (kind, code) in [(io::ErrorKind::NotFound, 127), (io::ErrorKind::PermissionDenied, 126)] {
        let mut story = Story::new(sidecar());
        story.did.clear();
        assert_eq!(story.event(Event::EnvoyFailed(kind.into())), [format!("end {code}")]);
    }
}

#[test]
fn envoy_that_ends_in_any_wait_ends_the_agent() {
    let stories: [(Plan, &[Duration]); 4] = [
        (Plan { pre_drain: 9 * SECOND, ..sidecar() }, &[SECOND]),
        (sidecar(), &[SECOND]),
        (gateway(None), &[SECOND]),
        (sidecar(), &[Duration::from_secs(5), Duration::from_millis(500)]),
    ];
    for (plan, waits) in stories {
        let mut story = Story::new(plan);
        story.signal();
        story.input(Input::DrainAnswered(Ok(())));
        for wait in waits {
            story.after(*wait);
        }
        assert_eq!(story.exit(0), ["end 0"]);
    }
}

#[test]
fn pre_drain_delay_is_unready_but_not_drained() {
    let mut story = Story::new(Plan { pre_drain: 3 * SECOND, ..sidecar() });
    story.did.clear();
    assert_eq!(story.signal(), [UNREADY]);
    assert_eq!(story.after(3 * SECOND), ["drain inboundonly&graceful"]);
}

#[test]
fn third_signal_kills_where_asked_for() {
    let mut story = Story::new(Plan { force_on_signal: Some(3), ..sidecar() });
    story.signal();
    assert_eq!(story.signal(), [""; 0]);
    assert_eq!(story.signal(), ["kill"]);
    assert_eq!(story.exit(9), ["end 0"]);
}

#[test]
fn quit_ends_without_drain_and_cuts_one_short() {
    let mut story = Story::new(sidecar());
    story.did.clear();
    assert_eq!(story.event(Event::Quit), ["unready server is terminated: /quitquitquit called", "term"]);
    let mut story = Story::new(sidecar());
    story.signal();
    assert_eq!(story.event(Event::Quit), ["term"]);
}

#[test]
fn drain_by_request_answers_and_spares_the_second_drain() {
    let mut story = Story::new(sidecar());
    story.did.clear();
    let (reply, mut answered) = oneshot::channel();
    assert_eq!(story.event(Event::Drain(reply)), ["drain inboundonly&graceful&skip_exit"]);
    assert!(answered.try_recv().is_err());
    story.input(Input::DrainAnswered(Ok(())));
    assert_eq!(answered.try_recv(), Ok(()));
    assert_eq!(story.after(3600 * SECOND), [""; 0]);
    assert_eq!(story.signal(), [UNREADY, "term"]);
}

#[test]
fn drain_request_that_fails_is_answered_and_not_repeated_by_the_signal() {
    for refused in [false, true] {
        let mut story = Story::new(Plan { restart: true, ..sidecar() });
        let (reply, mut answered) = oneshot::channel();
        story.event(Event::Drain(reply));
        if refused {
            story.input(Input::DrainAnswered(Err("refused".to_owned())));
        }
        story.after(DRAIN_REQUEST);
        assert_eq!(answered.try_recv(), Ok(()));
        assert_eq!(story.signal(), [UNREADY, "term"]);
    }
}

#[test]
fn drain_request_of_a_run_that_failed_does_not_count_for_the_next_one() {
    let mut story = Story::new(Plan { restart: true, ..sidecar() });
    story.event(Event::Drain(oneshot::channel().0));
    story.exit(1 << 8);
    story.input(Input::DrainAnswered(Err("reset".to_owned())));
    story.after(RESTART.max);
    assert_eq!(story.signal(), [UNREADY, "drain inboundonly&graceful"]);
}

#[test]
fn without_envoy_everything_ends_at_once() {
    let plan = Plan { envoy: false, ..sidecar() };
    let mut story = Story::new(plan.clone());
    assert_eq!(story.did, [""; 0]);
    let (reply, mut answered) = oneshot::channel();
    assert_eq!(story.event(Event::Drain(reply)), [""; 0]);
    assert_eq!(answered.try_recv(), Ok(()));
    assert_eq!(story.signal(), [UNREADY, "end 0"]);
    assert_eq!(Story::new(plan).event(Event::Quit), ["unready server is terminated: /quitquitquit called", "end 0"]);
}

#[test]
fn gateway_lives_as_long_as_its_connections() {
    let mut story = Story::new(gateway(None));
    story.did.clear();
    assert_eq!(story.signal(), [UNREADY, "drain graceful"]);
    story.input(Input::DrainAnswered(Ok(())));
    assert_eq!(story.after(Duration::from_millis(2999)), [""; 0], "minimum and a period");
    assert_eq!(story.after(Duration::from_millis(1)), ["count"]);
    assert_eq!(story.input(Input::Connections(Ok(Some(5600)))), [""; 0]);
    for _ in 0..POLL_FAILURES - 1 {
        assert_eq!(story.after(SECOND), ["count"]);
        assert_eq!(story.input(Input::Connections(Err("500".to_owned()))), [""; 0]);
    }
    assert_eq!(story.after(SECOND), ["count"]);
    story.input(Input::Connections(Ok(Some(1))));
    assert_eq!(story.after(SECOND), ["count"]);
    assert_eq!(story.input(Input::Connections(Ok(Some(0)))), ["term"]);
}

#[test]
fn counts_that_fail_or_never_come_end_the_wait_at_the_fifth() {
    let mut story = Story::new(gateway(None));
    story.signal();
    story.input(Input::DrainAnswered(Ok(())));
    let did = story.after(3 * SECOND + 5 * POLL_LIMIT + 4 * SECOND);
    assert_eq!(did, ["count", "count", "count", "count", "count", "term"]);
    let mut story = Story::new(gateway(None));
    story.signal();
    story.after(3 * SECOND);
    assert_eq!(story.input(Input::Connections(Ok(None))), ["term"], "no statistics");
}

#[test]
fn explicit_drain_duration_bounds_the_wait_for_connections() {
    let mut story = Story::new(gateway(Some(10 * SECOND)));
    story.signal();
    story.input(Input::DrainAnswered(Ok(())));
    story.after(3 * SECOND);
    for _ in 0..6 {
        story.input(Input::Connections(Ok(Some(1))));
        assert_eq!(story.after(SECOND), ["count"]);
    }
    story.input(Input::Connections(Ok(Some(1))));
    assert_eq!(story.after(SECOND), ["term"]);
}

#[test]
fn failed_envoy_is_restarted_with_growing_delays_where_asked_for() {
    let mut story = Story::new(Plan { restart: true, ..sidecar() });
    story.did.clear();
    for longest in [2, 3, 5, 10] {
        assert_eq!(story.exit(1 << 8), [""; 0]);
        assert_eq!(story.after(Duration::from_secs(longest)), ["start"]);
    }
    story.after(STABLE_RUN);
    story.exit(11);
    assert_eq!(story.after(2 * SECOND), ["start"], "a stable run begins the delays anew");
    story.exit(11);
    assert_eq!(story.signal(), [UNREADY, "end 0"], "nobody to drain while it waits");
    let mut story = Story::new(Plan { restart: true, ..sidecar() });
    story.did.clear();
    assert_eq!(story.exit(0), ["end 0"], "a clean exit is none of a failure");
}

#[test]
fn dead_task_drains_and_fails() {
    let mut story = Story::new(sidecar());
    story.did.clear();
    let ended = |error: Option<&str>| Event::TaskEnded { name: "xds", error: error.map(str::to_owned) };
    assert_eq!(story.event(ended(None)), [""; 0]);
    let did = story.event(ended(Some("gone")));
    assert_eq!(did, ["unready server is terminated: xds ended", "drain inboundonly&graceful"]);
    story.input(Input::DrainAnswered(Ok(())));
    story.after(5 * SECOND);
    assert_eq!(story.exit(0), ["end 1"]);
}

/// What the operator and fate do.
#[derive(Debug, Clone)]
enum Fate {
    Signal,
    Quit,
    Drain,
    Exit(i32),
    TaskEnds(bool),
}

/// How Envoy and its admin port behave; delays in milliseconds, `None` is never.
#[derive(Debug, Clone)]
struct Behaviour {
    term: Option<u64>,
    farewell: Option<u64>,
    drain: (Option<u64>, bool),
    counts: Vec<(Option<u64>, Option<u64>)>,
}

fn fates() -> impl Strategy<Value = Vec<(u64, Fate)>> {
    let fate = prop_oneof![
        3 => Just(Fate::Signal),
        1 => Just(Fate::Quit),
        2 => Just(Fate::Drain),
        1 => prop_oneof![Just(0), Just(1 << 8), Just(11)].prop_map(Fate::Exit),
        1 => any::<bool>().prop_map(Fate::TaskEnds),
    ];
    vec((0..9_000u64, fate), 0..8)
}

fn behaviour() -> impl Strategy<Value = Behaviour> {
    let delay = || prop_oneof![Just(None), (0..4_000u64).prop_map(Some)];
    let count = (delay(), prop_oneof![Just(None), (0..3u64).prop_map(Some)]);
    (delay(), delay(), (delay(), any::<bool>()), vec(count, 0..12))
        .prop_map(|(term, farewell, drain, counts)| Behaviour { term, farewell, drain, counts })
}

fn plans() -> impl Strategy<Value = Plan> {
    let millis = |most: u64| (0..most).prop_map(Duration::from_millis);
    let wait = prop_oneof![
        millis(8_000).prop_map(Wait::Fixed),
        (millis(6_000), proptest::option::of(millis(9_000)))
            .prop_map(|(minimum, limit)| Wait::Connections { minimum, limit }),
    ];
    let flags = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    (flags, wait, millis(3_000), proptest::option::of(1..4u32)).prop_map(
        |((envoy, inbound_only, farewell, restart), wait, pre_drain, force_on_signal)| Plan {
            envoy,
            inbound_only,
            wait,
            pre_drain,
            farewell,
            force_on_signal,
            restart,
        },
    )
}

/// What may still happen in the model, by time.
enum Future {
    Input(Box<dyn FnOnce() -> Input>),
    /// Envoy, the run of this number, ends.
    Exit(u32, i32),
}

/// The longest time from the first request to end to the end.
fn bound(plan: &Plan, counts: usize) -> Duration {
    let wait = match plan.wait {
        Wait::Fixed(wait) => wait.max(DRAIN_REQUEST),
        Wait::Connections { minimum, limit: Some(limit) } => limit.max(minimum).max(DRAIN_REQUEST),
        // Each count may take its limit and starts a period later; after the scripted ones all fail.
        Wait::Connections { minimum, limit: None } => {
            minimum + (POLL_PERIOD + POLL_LIMIT) * (counts as u32 + POLL_FAILURES + 1)
        }
    };
    plan.pre_drain.max(if plan.farewell { FAREWELL } else { Duration::ZERO }) + wait + TERM_GRACE + KILL_WAIT
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever happens: it ends within the bound once asked to, never with a running Envoy, and answers every drain request.
    #[test]
    fn always_ends_in_time_and_never_with_a_running_envoy(plan in plans(), fates in fates(), how in behaviour()) {
        let start = Instant::now();
        let mut now = start;
        let mut pending: BTreeMap<(Instant, u32), Future> = BTreeMap::new();
        let mut order = 0;
        let mut later = |pending: &mut BTreeMap<_, _>, at: Instant, future: Future| {
            order += 1;
            pending.insert((at, order), future);
        };
        let mut drains = Vec::new();
        for (delay, fate) in fates {
            let input: Box<dyn FnOnce() -> Input> = match fate {
                Fate::Signal => Box::new(|| Input::Event(Event::Signal(15))),
                Fate::Quit => Box::new(|| Input::Event(Event::Quit)),
                Fate::Drain => {
                    let (reply, answered) = oneshot::channel();
                    drains.push((start + Duration::from_millis(delay), answered));
                    Box::new(move || Input::Event(Event::Drain(reply)))
                }
                Fate::TaskEnds(failed) => Box::new(move || {
                    Input::Event(Event::TaskEnded { name: "x", error: failed.then(|| "gone".to_owned()) })
                }),
                Fate::Exit(raw) => {
                    later(&mut pending, start + Duration::from_millis(delay), Future::Exit(0, raw));
                    continue;
                }
            };
            later(&mut pending, start + Duration::from_millis(delay), Future::Input(input));
        }
        // In the end somebody always asks.
        later(&mut pending, start + 20 * SECOND, Future::Input(Box::new(|| Input::Event(Event::Signal(2)))));

        let counts = how.counts.len();
        let mut how_counts = how.counts.into_iter();
        let (mut run, mut running) = (0, false);
        let (mut lifecycle, mut actions) = Lifecycle::start(plan.clone(), now);
        let mut asked: Option<Instant> = None;
        'life: loop {
            for action in std::mem::take(&mut actions) {
                match action {
                    Action::Start => {
                        prop_assert!(!running, "two Envoys");
                        (run, running) = (run + 1, true);
                    }
                    Action::Unready(_) => {
                        prop_assert!(asked.is_none(), "unready twice");
                        asked = Some(now);
                    }
                    Action::Farewell => if let Some(delay) = how.farewell {
                        later(&mut pending, now + Duration::from_millis(delay), Future::Input(Box::new(|| Input::Farewell)));
                    },
                    Action::PostDrain(_) => {
                        prop_assert!(running);
                        if let (Some(delay), ok) = how.drain {
                            let input = move || Input::DrainAnswered(if ok { Ok(()) } else { Err("refused".to_owned()) });
                            later(&mut pending, now + Duration::from_millis(delay), Future::Input(Box::new(input)));
                        }
                    }
                    Action::Count => {
                        prop_assert!(running);
                        if let Some((Some(delay), count)) = how_counts.next() {
                            let input = move || Input::Connections(Ok(count));
                            later(&mut pending, now + Duration::from_millis(delay), Future::Input(Box::new(input)));
                        }
                    }
                    Action::Terminate => if let Some(delay) = how.term {
                        later(&mut pending, now + Duration::from_millis(delay), Future::Exit(run, 15));
                    },
                    Action::Kill => later(&mut pending, now + Duration::from_millis(5), Future::Exit(run, 9)),
                    Action::End(_) => break 'life,
                }
            }
            let next = pending.first_key_value().map(|((at, _), _)| *at);
            let deadline = lifecycle.deadline();
            prop_assert!(deadline.is_none_or(|at| at > now), "woken for a time that has passed");
            if deadline.is_some_and(|at| next.is_none_or(|next| at < next)) {
                now = deadline.unwrap_or(now);
                actions = lifecycle.step(Input::Time, now);
                continue;
            }
            let Some(((at, _), future)) = pending.pop_first() else {
                prop_assert!(false, "it hangs: {lifecycle:?}");
                break;
            };
            now = at;
            actions = match future {
                Future::Input(input) => lifecycle.step(input(), now),
                Future::Exit(of, raw) if running && (of == run || of == 0) => {
                    running = false;
                    lifecycle.step(Input::Event(Event::EnvoyExited(ExitStatus::from_raw(raw))), now)
                }
                Future::Exit(..) => Vec::new(),
            };
        }
        prop_assert!(!running, "ended with a running Envoy");
        if let Some(asked) = asked {
            let took = now - asked;
            prop_assert!(took <= bound(&plan, counts), "took {took:?}, {plan:?}");
        }
        for (at, mut answered) in drains {
            let told = answered.try_recv() != Err(oneshot::error::TryRecvError::Empty);
            // One of the very moment of the end may have come too late.
            prop_assert!(told || now <= at, "a drain request got no answer");
        }
    }
}
