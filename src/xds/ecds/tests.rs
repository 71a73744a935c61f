//! Tables, and interleavings of responses, downloads and repairs.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Mutex,
};

use proptest::prelude::*;
use prost::Message;

use super::*;
use crate::proto::{envoy::service::discovery::v3 as discovery, google::protobuf::Any};
use crate::wires::ecds::Resource;

/// Rewrites by what a resource's value says: `plain…` passes, `slow…` waits until it is released, `poor…` gets a stand-in until it is
/// released, `bad…` is refused. What is real at Envoy has the prefix `real:`.
#[derive(Default)]
struct Script {
    released: Mutex<BTreeSet<String>>,
    accepted: Mutex<Vec<String>>,
}

impl Script {
    fn release(&self, value: &str) {
        self.released.lock().unwrap().insert(value.to_owned());
    }

    fn is_released(&self, value: &str) -> bool {
        self.released.lock().unwrap().contains(value)
    }
}

fn value(any: &Bytes) -> String {
    String::from_utf8(Any::decode(any.clone()).unwrap().value.to_vec()).unwrap()
}

fn any(value: &str) -> Any {
    Any { type_url: "t".to_owned(), value: value.to_owned().into() }
}

fn encoded(value: &str) -> Bytes {
    any(value).encode_to_vec().into()
}

#[derive(Clone)]
struct Scripted(Arc<Script>);

impl Rewrite for Scripted {
    fn rewrite(&self, update: Update) -> BoxFuture<'static, Result<Rewritten, String>> {
        let script = self.0.clone();
        Box::pin(poll_fn(move |_| {
            let values: Vec<String> = update.resources.iter().map(value).collect();
            if let Some(bad) = values.iter().find(|value| value.starts_with("bad")) {
                return Poll::Ready(Err(format!("broken: {bad}")));
            }
            if values.iter().any(|value| value.starts_with("slow") && !script.is_released(value)) {
                return Poll::Pending;
            }
            let resources = values.iter().map(|value| rewritten(&script, value)).collect();
            let (script, joined) = (script.clone(), values.join(","));
            let accepted = Box::new(move || script.accepted.lock().unwrap().push(joined));
            Poll::Ready(Ok(Rewritten { resources, accepted }))
        }))
    }
}

fn rewritten(script: &Arc<Script>, value: &str) -> Resource {
    if value.starts_with("plain") {
        return Resource { bytes: encoded(value), repair: None };
    }
    if value.starts_with("slow") || script.is_released(value) {
        return Resource { bytes: encoded(&format!("real:{value}")), repair: None };
    }
    let (script, value) = (script.clone(), value.to_owned());
    let bytes = encoded(&format!("standin:{value}"));
    let repair: BoxFuture<'static, Mended> = Box::pin(poll_fn(move |_| {
        if !script.is_released(&value) {
            return Poll::Pending;
        }
        let (script, real) = (script.clone(), format!("real:{value}"));
        let bytes = encoded(&real);
        let accepted = Box::new(move || script.accepted.lock().unwrap().push(real));
        Poll::Ready(Mended { bytes, accepted })
    }));
    Resource { bytes, repair: Some(repair) }
}

struct Stream {
    ecds: Ecds,
    script: Arc<Script>,
}

fn stream(kind: Kind) -> Stream {
    let script = Arc::new(Script::default());
    Stream { ecds: Ecds::new(kind, Arc::new(Scripted(script.clone()))), script }
}

fn sotw(nonce: &str, values: &[&str]) -> Bytes {
    discovery::DiscoveryResponse {
        version_info: format!("v-{nonce}"),
        resources: values.iter().map(|value| any(value)).collect(),
        nonce: nonce.to_owned(),
        ..Default::default()
    }
    .encode_to_vec()
    .into()
}

fn delta(nonce: &str, resources: &[(&str, &str)], removed: &[&str]) -> Bytes {
    let resources = resources.iter().map(|(name, value)| discovery::Resource {
        name: (*name).to_owned(),
        version: "7".to_owned(),
        resource: Some(any(value)),
        ..Default::default()
    });
    discovery::DeltaDiscoveryResponse {
        resources: resources.collect(),
        removed_resources: removed.iter().map(|name| (*name).to_owned()).collect(),
        nonce: nonce.to_owned(),
        ..Default::default()
    }
    .encode_to_vec()
    .into()
}

impl Stream {
    /// Everything that is to be sent now, as short text: `nonce[values]`, `nonce[name=value -removed]`, `NACK nonce version: text`.
    fn drain(&mut self) -> Vec<String> {
        let mut shown = Vec::new();
        while let Poll::Ready(step) = self.ecds.poll(&mut Context::from_waker(Waker::noop())) {
            shown.push(match (step, self.ecds.kind) {
                (Step::ToEnvoy(message), Kind::Sotw) => {
                    let message = discovery::DiscoveryResponse::decode(message).unwrap();
                    let values: Vec<String> =
                        message.resources.iter().map(|any| value(&any.encode_to_vec().into())).collect();
                    format!("{}[{}]", message.nonce, values.join(" "))
                }
                (Step::ToEnvoy(message), Kind::Delta) => {
                    let message = discovery::DeltaDiscoveryResponse::decode(message).unwrap();
                    let mut parts: Vec<String> = Vec::new();
                    for resource in &message.resources {
                        let any = resource.resource.as_ref().unwrap().encode_to_vec().into();
                        assert_eq!(resource.version, "7");
                        parts.push(format!("{}={}", resource.name, value(&any)));
                    }
                    parts.extend(message.removed_resources.iter().map(|name| format!("-{name}")));
                    format!("{}[{}]", message.nonce, parts.join(" "))
                }
                (Step::ToIstiod(message), Kind::Sotw) => {
                    let request = discovery::DiscoveryRequest::decode(message).unwrap();
                    let error = request.error_detail.unwrap();
                    assert_eq!((error.code, request.type_url.ends_with("TypedExtensionConfig")), (13, true));
                    format!("NACK {} {}: {}", request.response_nonce, request.version_info, error.message)
                }
                (Step::ToIstiod(message), Kind::Delta) => {
                    let request = discovery::DeltaDiscoveryRequest::decode(message).unwrap();
                    format!("NACK {}: {}", request.response_nonce, request.error_detail.unwrap().message)
                }
            });
        }
        shown
    }

    fn receive(&mut self, message: Bytes) -> Vec<String> {
        self.ecds.received(message);
        self.drain()
    }

    fn release(&mut self, value: &str) -> Vec<String> {
        self.script.release(value);
        self.drain()
    }

    /// A SotW request; gives the nonce that istiod sees, `None` when it sees nothing.
    fn request(&mut self, version: &str, nonce: &str, names: &[&str], refused: bool) -> Option<String> {
        let request = discovery::DiscoveryRequest {
            version_info: version.to_owned(),
            response_nonce: nonce.to_owned(),
            resource_names: names.iter().map(|name| (*name).to_owned()).collect(),
            error_detail: refused.then(Default::default),
            ..Default::default()
        };
        let seen = self.ecds.request(request.encode_to_vec().into())?;
        Some(discovery::DiscoveryRequest::decode(seen).unwrap().response_nonce)
    }

    fn accepted(&self) -> Vec<String> {
        self.script.accepted.lock().unwrap().clone()
    }
}

#[test]
fn responses_without_fetch_pass_at_once_and_untouched() {
    let mut stream = stream(Kind::Sotw);
    let message = sotw("n1", &["plain1", "plain2"]);
    stream.ecds.received(message.clone());
    let step = stream.ecds.poll(&mut Context::from_waker(Waker::noop()));
    assert_eq!(step, Poll::Ready(Step::ToEnvoy(message)));
    assert_eq!(stream.receive(sotw("n2", &[])), ["n2[]"]);
}

#[test]
fn newer_response_overtakes_and_the_older_never_follows() {
    let mut stream = stream(Kind::Sotw);
    assert!(stream.receive(sotw("n1", &["slow1"])).is_empty());
    assert_eq!(stream.receive(sotw("n2", &["plain2"])), ["n2[plain2]"]);
    assert!(stream.release("slow1").is_empty());
}

#[test]
fn broken_response_is_refused_and_what_waits_goes_on() {
    let mut stream = stream(Kind::Sotw);
    stream.request("v0", "n0", &["a"], false);
    stream.request("v-refused", "n1", &["a"], true);
    assert!(stream.receive(sotw("n1", &["slow1"])).is_empty());
    assert_eq!(stream.receive(sotw("n2", &["bad2"])), ["NACK n2 v0: broken: bad2"]);
    assert_eq!(stream.release("slow1"), ["n1[real:slow1]"]);
    assert!(stream.receive(Bytes::from_static(b"\x12\x7f"))[0].starts_with("NACK  v0: undecodable ECDS response"));
}

#[test]
fn stand_in_is_repaired_with_a_nonce_that_istiod_never_sees() {
    let mut stream = stream(Kind::Sotw);
    assert_eq!(stream.request("", "", &["a", "b"], false).as_deref(), Some(""));
    assert_eq!(stream.receive(sotw("n1", &["poor1", "plain2"])), ["n1[standin:poor1 plain2]"]);
    assert_eq!(stream.request("v-n1", "n1", &["a", "b"], false).as_deref(), Some("n1"));
    assert_eq!(stream.release("poor1"), ["footman-1[real:poor1 plain2]"]);
    assert_eq!(stream.request("v-n1", "footman-1", &["a", "b"], false), None);
    // A changed subscription and a refusal are istiod's to know, by the nonce that it gave.
    assert_eq!(stream.request("v-n1", "footman-1", &["a"], false).as_deref(), Some("n1"));
    assert_eq!(stream.request("v-n1", "footman-1", &["a"], true).as_deref(), Some("n1"));
}

#[test]
fn repairs_add_up_and_end_with_their_response() {
    let mut stream = stream(Kind::Sotw);
    stream.receive(sotw("n1", &["poor1", "poor2", "poor3"]));
    assert_eq!(stream.release("poor2"), ["footman-1[standin:poor1 real:poor2 standin:poor3]"]);
    assert_eq!(stream.release("poor1"), ["footman-2[real:poor1 real:poor2 standin:poor3]"]);
    assert_eq!(stream.receive(sotw("n2", &["plain"])), ["n2[plain]"]);
    assert!(stream.release("poor3").is_empty());
}

#[test]
fn acceptance_is_told_once_and_only_after_envoys() {
    let mut stream = stream(Kind::Sotw);
    for nonce in ["n1", "n2", "n3"] {
        stream.receive(sotw(nonce, &[&format!("plain-{nonce}")]));
    }
    stream.request("", "n1", &["a"], true);
    assert!(stream.accepted().is_empty());
    stream.request("v-n3", "n3", &["a"], false);
    stream.request("v-n3", "n3", &["a", "b"], false);
    assert_eq!(stream.accepted(), ["plain-n3"]);
}

#[test]
fn acceptance_of_a_repair_is_told_after_that_of_its_stand_in() {
    let mut stream = stream(Kind::Sotw);
    stream.receive(sotw("n1", &["poor1", "poor2", "poor3"]));
    stream.script.release("poor1");
    assert_eq!(stream.release("poor2").len(), 1);
    stream.request("v-n1", "n1", &["a"], false);
    stream.request("v-n1", &format!("footman-{}", stream.ecds.serial), &["a"], false);
    assert_eq!(stream.accepted(), ["poor1,poor2,poor3", "real:poor1", "real:poor2"]);
    assert_eq!(stream.release("poor3").len(), 1);
    stream.request("v-n1", "footman-3", &["a"], true);
    assert_eq!(stream.accepted().len(), 3, "refused");
}

#[test]
fn delta_supersedes_by_name() {
    let mut stream = stream(Kind::Delta);
    assert!(stream.receive(delta("n1", &[("a", "slow1"), ("b", "plain1")], &["x", "y"])).is_empty());
    // The slow one is replaced: the rest need not wait for it any longer.
    assert_eq!(
        stream.receive(delta("n2", &[("a", "plain2"), ("x", "plain2")], &[])),
        ["n1[b=plain1 -y]", "n2[a=plain2 x=plain2]"]
    );
    assert!(stream.release("slow1").is_empty());
}

#[test]
fn delta_overtakes_other_names() {
    let mut stream = stream(Kind::Delta);
    assert!(stream.receive(delta("n1", &[("a", "slow1")], &[])).is_empty());
    assert_eq!(stream.receive(delta("n2", &[("b", "plain2")], &["c"])), ["n2[b=plain2 -c]"]);
    assert_eq!(stream.release("slow1"), ["n1[a=real:slow1]"]);
}

#[test]
fn removed_plugin_never_comes_back() {
    let mut stream = stream(Kind::Delta);
    stream.receive(delta("n1", &[("a", "slow1")], &[]));
    assert_eq!(stream.receive(delta("n2", &[("b", "poor2")], &[])), ["n2[b=standin:poor2]"]);
    assert_eq!(stream.receive(delta("n3", &[], &["a", "b"])), ["n3[-a -b]"]);
    assert!(stream.release("slow1").is_empty());
    assert!(stream.release("poor2").is_empty());
}

#[test]
fn delta_repairs_one_resource() {
    let mut stream = stream(Kind::Delta);
    stream.receive(delta("n1", &[("a", "plain"), ("b", "poor1")], &["c"]));
    assert_eq!(stream.release("poor1"), ["footman-1[b=real:poor1]"]);
    let request = |subscribe: &[&str], refused: bool| {
        let request = discovery::DeltaDiscoveryRequest {
            response_nonce: "footman-1".to_owned(),
            resource_names_subscribe: subscribe.iter().map(|name| (*name).to_owned()).collect(),
            error_detail: refused.then(Default::default),
            ..Default::default()
        };
        Bytes::from(request.encode_to_vec())
    };
    assert_eq!(stream.ecds.request(request(&[], false)), None);
    let nonce = |seen: Option<Bytes>| discovery::DeltaDiscoveryRequest::decode(seen.unwrap()).unwrap().response_nonce;
    assert_eq!(nonce(stream.ecds.request(request(&["d"], false))), "");
    assert_eq!(nonce(stream.ecds.request(request(&[], true))), "n1");
}

/// What may happen to a stream.
#[derive(Debug, Clone)]
enum Act {
    /// A response with a kind of value for each name, and removals.
    Respond(Vec<(u8, u8)>, Vec<u8>),
    /// The download of an earlier value, counted back, succeeds.
    Release(usize),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let respond = (prop::collection::vec((0u8..4, 0u8..3), 0..4), prop::collection::vec(0u8..4, 0..2))
        .prop_map(|(resources, removed)| Act::Respond(resources, removed));
    prop::collection::vec(prop_oneof![respond, (0usize..8).prop_map(Act::Release)], 1..24)
}

/// Runs the acts and gives (response number, what was sent of it) in the order of sending, and what each response said.
fn run(kind: Kind, acts: &[Act]) -> (Vec<String>, Vec<BTreeMap<String, Option<String>>>) {
    let mut stream = stream(kind);
    let (mut sent, mut said, mut values) = (Vec::new(), Vec::new(), Vec::<String>::new());
    for act in acts {
        match act {
            Act::Respond(resources, removed) => {
                let number = said.len();
                let mut names: BTreeMap<String, Option<String>> = BTreeMap::new();
                for (name, shape) in resources {
                    let shape = ["plain", "slow", "poor"][usize::from(*shape)];
                    names.insert(format!("r{name}"), Some(format!("{shape}-{number:03}-r{name}")));
                }
                for name in removed.iter().filter(|_| kind == Kind::Delta) {
                    names.entry(format!("r{name}")).or_insert(None);
                }
                let present: Vec<(&str, &str)> =
                    names.iter().filter_map(|(name, value)| Some((name.as_str(), value.as_deref()?))).collect();
                let gone: Vec<&str> =
                    names.iter().filter(|(_, value)| value.is_none()).map(|(name, _)| name.as_str()).collect();
                values.extend(present.iter().map(|(_, value)| (*value).to_owned()));
                let nonce = format!("n{number}");
                sent.extend(stream.receive(match kind {
                    Kind::Sotw => sotw(&nonce, &present.iter().map(|(_, value)| *value).collect::<Vec<_>>()),
                    Kind::Delta => delta(&nonce, &present, &gone),
                }));
                said.push(names);
            }
            Act::Release(back) => {
                if let Some(value) = values.iter().rev().nth(*back).cloned() {
                    sent.extend(stream.release(&value));
                }
            }
        }
    }
    for value in values {
        sent.extend(stream.release(&value));
    }
    (sent, said)
}

/// The response number in a value such as `real:slow-003-r1`.
fn number(value: &str) -> usize {
    value.split('-').nth(1).and_then(|digits| digits.parse().ok()).unwrap()
}

fn parts(shown: &str) -> (&str, Vec<&str>) {
    let (nonce, rest) = shown.split_once('[').unwrap();
    (nonce, rest.trim_end_matches(']').split(' ').filter(|part| !part.is_empty()).collect())
}

proptest! {
    #[test]
    fn sotw_only_moves_forward_and_ends_with_the_newest(acts in acts()) {
        let (sent, said) = run(Kind::Sotw, &acts);
        let mut last = 0;
        let mut delivered = BTreeSet::new();
        for shown in &sent {
            let (nonce, values) = parts(shown);
            if let Some(digits) = nonce.strip_prefix('n') {
                let this = digits.parse::<usize>().unwrap();
                prop_assert!(last <= this, "{sent:?}");
                last = this;
                delivered.insert(this);
            }
            prop_assert!(values.iter().all(|value| number(value) == last), "{sent:?}");
        }
        for (index, names) in said.iter().enumerate() {
            let waits = names.values().flatten().any(|value| value.starts_with("slow"));
            prop_assert!(waits || delivered.contains(&index), "{index} is lost: {sent:?}");
        }
        if let (Some(newest), Some(shown)) = (said.last(), sent.last()) {
            let (_, values) = parts(shown);
            let expected: Vec<String> = newest.values().flatten().map(|value| match value.starts_with("plain") {
                true => value.clone(),
                false => format!("real:{value}"),
            }).collect();
            prop_assert_eq!(values, expected);
        }
    }

    #[test]
    fn delta_only_moves_forward_by_name_and_ends_with_the_newest(acts in acts()) {
        let (sent, said) = run(Kind::Delta, &acts);
        let mut envoy: BTreeMap<String, (usize, Option<String>)> = BTreeMap::new();
        for shown in &sent {
            let (nonce, changes) = parts(shown);
            for change in changes {
                let (name, version, value) = match change.split_once('=') {
                    Some((name, value)) => (name, number(value), Some(value.to_owned())),
                    None => (&change[1..], nonce[1..].parse::<usize>().unwrap(), None),
                };
                let before = envoy.insert(name.to_owned(), (version, value));
                prop_assert!(before.is_none_or(|(before, _)| before <= version), "{name} goes back: {sent:?}");
            }
        }
        let mut expected: BTreeMap<String, (usize, Option<String>)> = BTreeMap::new();
        for (index, names) in said.iter().enumerate() {
            for (name, value) in names {
                let value = value.as_ref().map(|value| match value.starts_with("plain") {
                    true => value.clone(),
                    false => format!("real:{value}"),
                });
                expected.insert(name.clone(), (index, value));
            }
        }
        prop_assert_eq!(envoy, expected);
    }
}
