//! What is on disk after responses, answers and compactions in every order.

use std::time::Duration;

use bytes::Bytes;
use prost::Message;

use super::*;
use crate::{
    proto::{
        envoy::service::discovery::v3::{DeltaDiscoveryResponse, DiscoveryResponse, Resource},
        google::protobuf::Any,
    },
    xds::types,
};

struct Folder(Store);

impl Folder {
    fn new(name: &str, max_bytes: u64) -> Folder {
        let folder = std::env::temp_dir().join(format!("footman-lastgood-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        Folder(Store { folder, max_age: Duration::from_secs(60), max_bytes })
    }

    fn all(&self, kind: Kind, type_url: &str) -> Vec<Bytes> {
        let stored = self.0.accepted(kind, type_url).unwrap_or_default();
        stored.iter().map(|stored| stored.chunks().unwrap().flat_map(Result::unwrap).collect()).collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0.folder);
    }
}

fn pass(recorder: &mut Recorder, type_url: &str, nonce: &str, response: &[u8]) {
    recorder.begin(type_url, response.len());
    response.chunks(7).for_each(|piece| recorder.piece(type_url, piece));
    recorder.end(type_url, nonce);
}

fn sotw(nonce: &str) -> Vec<u8> {
    DiscoveryResponse { nonce: nonce.into(), version_info: "v".repeat(50), ..Default::default() }.encode_to_vec()
}

#[test]
fn only_what_was_accepted_is_kept() {
    let folder = Folder::new("sotw", 1000);
    let mut recorder = folder.0.recorder(Kind::Sotw);
    pass(&mut recorder, types::LDS, "1", &sotw("1"));
    assert_eq!(folder.0.age(Kind::Sotw), None);
    recorder.accepted(types::LDS, "1");
    pass(&mut recorder, types::LDS, "2", &sotw("2"));
    recorder.accepted(types::LDS, "stale");
    assert_eq!(folder.all(Kind::Sotw, types::LDS), [sotw("1")]);
    recorder.accepted(types::LDS, "2");
    assert_eq!(folder.all(Kind::Sotw, types::LDS), [sotw("2")]);
    assert!(folder.0.age(Kind::Sotw).is_some());
    assert_eq!(folder.0.age(Kind::Delta), None);
}

#[test]
fn endpoints_add_up() {
    let folder = Folder::new("endpoints", 1000);
    let mut recorder = folder.0.recorder(Kind::Sotw);
    for nonce in ["1", "2"] {
        pass(&mut recorder, ENDPOINTS, nonce, &sotw(nonce));
        recorder.accepted(ENDPOINTS, nonce);
    }
    assert_eq!(folder.all(Kind::Sotw, ENDPOINTS), [sotw("1"), sotw("2")]);
}

#[test]
fn delta_keeps_what_one_stream_carried() {
    let folder = Folder::new("delta", 1000);
    let response = |nonce: &str| DeltaDiscoveryResponse { nonce: nonce.into(), ..Default::default() }.encode_to_vec();
    let mut recorder = folder.0.recorder(Kind::Delta);
    for nonce in ["1", "2", "3"] {
        pass(&mut recorder, types::LDS, nonce, &response(nonce));
        if nonce != "2" {
            recorder.accepted(types::LDS, nonce);
        }
    }
    assert_eq!(folder.all(Kind::Delta, types::LDS), [response("1"), response("3")]);
    let mut recorder = folder.0.recorder(Kind::Delta);
    pass(&mut recorder, types::LDS, "4", &response("4"));
    assert_eq!(folder.all(Kind::Delta, types::LDS).len(), 2);
    recorder.accepted(types::LDS, "4");
    assert_eq!(folder.all(Kind::Delta, types::LDS), [response("4")]);
}

fn delta(nonce: &str, resources: &[(&str, u32)], removed: &str) -> Vec<u8> {
    let resource = |(name, version): &(&str, u32)| Resource {
        name: (*name).to_owned(),
        version: version.to_string(),
        resource: Some(Any { type_url: types::LDS.into(), value: vec![7; 100].into() }),
        ..Resource::default()
    };
    DeltaDiscoveryResponse {
        nonce: nonce.into(),
        type_url: types::LDS.into(),
        resources: resources.iter().map(resource).collect(),
        removed_resources: removed.split_terminator(' ').map(str::to_owned).collect(),
        ..Default::default()
    }
    .encode_to_vec()
}

/// Waits until the compaction that runs is done; the next write will take it.
async fn compacted(recorder: &mut Recorder, type_url: &str) {
    let recording = recorder.types.get_mut(type_url).unwrap();
    let result = recording.compaction.take().unwrap().await.unwrap();
    let (done, compaction) = oneshot::channel();
    recording.compaction = Some(compaction);
    assert!(done.send(result).is_ok());
}

#[tokio::test]
async fn a_recording_is_compacted_before_it_is_too_large() {
    let folder = Folder::new("compact", 10_000);
    let (mut recorder, mut compactions) = (folder.0.recorder(Kind::Delta), 0);
    pass(&mut recorder, types::LDS, "0", &delta("0", &[("stays", 1), ("goes", 1), ("changes", 0)], ""));
    recorder.accepted(types::LDS, "0");
    pass(&mut recorder, types::LDS, "unanswered", &delta("unanswered", &[("late", 1)], ""));
    pass(&mut recorder, types::LDS, "refused", &delta("refused", &[("stays", 666); 10], ""));
    recorder.refused(types::LDS, "refused");
    pass(&mut recorder, types::LDS, "1", &delta("1", &[], "goes unknown"));
    for version in 2..100 {
        let nonce = version.to_string();
        let response = delta(&nonce, &[("changes", version), (&nonce, 1)], &(version - 1).to_string());
        // Envoy answers while the next response is on its way; a compaction that it begins ends at any later time.
        let (one, two) = response.split_at(version as usize);
        recorder.begin(types::LDS, response.len());
        recorder.piece(types::LDS, one);
        recorder.accepted(types::LDS, &(version - 1).to_string());
        if version == 60 {
            recorder.accepted(types::LDS, "unanswered");
        }
        if version % 3 == 0 && recorder.types[types::LDS].compaction.is_some() {
            compacted(&mut recorder, types::LDS).await;
            compactions += 1;
        }
        recorder.piece(types::LDS, two);
        recorder.end(types::LDS, &nonce);
    }
    recorder.accepted(types::LDS, "99");
    let mut state = BTreeMap::new();
    for response in folder.all(Kind::Delta, types::LDS) {
        let response = DeltaDiscoveryResponse::decode(response).unwrap();
        assert_eq!(response.type_url, types::LDS);
        response.removed_resources.iter().for_each(|name| drop(state.remove(name)));
        state.extend(response.resources.into_iter().map(|resource| (resource.name, resource.version)));
    }
    let expected = [("99", "1"), ("changes", "99"), ("late", "1"), ("stays", "1")];
    assert!(state.iter().map(|(name, version)| (&name[..], &version[..])).eq(expected), "{state:?}");
    assert!(compactions > 3);
    let refused = fs::read(folder.0.path(Kind::Delta, types::LDS)).unwrap();
    assert!(!refused.windows(3).any(|three| three == b"666"), "it was kept");
    let files: Vec<_> = fs::read_dir(&folder.0.folder).unwrap().map(Result::unwrap).collect();
    assert!(files.iter().map(|file| file.metadata().unwrap().len()).sum::<u64>() < 10_000, "{files:?}");
}

#[tokio::test]
async fn what_comes_during_a_compaction_is_copied_apart_and_an_end_leaves_nothing_behind() {
    let folder = Folder::new("compact-rest", 400_000);
    let mut recorder = folder.0.recorder(Kind::Delta);
    let accept = |recorder: &mut Recorder, nonce: &str, size: usize| {
        let response = [&delta(nonce, &[(nonce, 1)], "")[..], &[0x7a, 0xa0, 0x8d, 6], &vec![0; size]].concat();
        pass(recorder, types::LDS, nonce, &response);
        recorder.accepted(types::LDS, nonce);
    };
    accept(&mut recorder, "1", 100_000);
    accept(&mut recorder, "2", 100_000);
    let first = recorder.types.get_mut(types::LDS).unwrap().compaction.take().unwrap().await.unwrap();
    accept(&mut recorder, "3", 100_000);
    let (done, compaction) = oneshot::channel();
    assert!(done.send(first).is_ok());
    recorder.types.get_mut(types::LDS).unwrap().compaction = Some(compaction);
    // Too much for one step.
    recorder.piece(types::LDS, b"");
    compacted(&mut recorder, types::LDS).await;
    recorder.piece(types::LDS, b"");
    assert_eq!(folder.all(Kind::Delta, types::LDS).len(), 2, "the first two in one");
    assert!(recorder.types[types::LDS].compaction.is_none());

    accept(&mut recorder, "4", 100_000);
    accept(&mut recorder, "5", 100_000);
    compacted(&mut recorder, types::LDS).await;
    drop(recorder);
    let files: Vec<_> = fs::read_dir(&folder.0.folder).unwrap().map(|file| file.unwrap().file_name()).collect();
    assert_eq!(files, ["delta-Listener"]);
}

#[tokio::test]
async fn endpoints_are_compacted_by_the_name_of_their_cluster() {
    let folder = Folder::new("compact-endpoints", 2000);
    let mut recorder = folder.0.recorder(Kind::Sotw);
    for number in 0..60_u8 {
        // A ClusterLoadAssignment: its name, and something.
        let value = [&[0x0a, 1, b'a' + number % 3, 0x7a, 50][..], &[number; 50]].concat();
        let any = Any { type_url: ENDPOINTS.into(), value: value.into() };
        let nonce = number.to_string();
        let response = DiscoveryResponse { nonce: nonce.clone(), resources: vec![any], ..Default::default() };
        pass(&mut recorder, ENDPOINTS, &nonce, &response.encode_to_vec());
        recorder.accepted(ENDPOINTS, &nonce);
        if recorder.types[ENDPOINTS].compaction.is_some() {
            compacted(&mut recorder, ENDPOINTS).await;
        }
    }
    let last = folder.all(Kind::Sotw, ENDPOINTS).into_iter().flat_map(|response| {
        DiscoveryResponse::decode(response).unwrap().resources.into_iter().map(|any| (any.value[2], any.value[5]))
    });
    assert_eq!(last.collect::<BTreeMap<_, _>>(), BTreeMap::from([(b'a', 57), (b'b', 58), (b'c', 59)]));
}

#[tokio::test]
async fn what_cannot_be_compacted_is_kept_until_it_is_too_large() {
    let folder = Folder::new("uncompacted", 1000);
    let mut recorder = folder.0.recorder(Kind::Delta);
    // No protobuf message.
    pass(&mut recorder, types::LDS, "", &[0x0f; 500]);
    recorder.accepted(types::LDS, "");
    compacted(&mut recorder, types::LDS).await;
    pass(&mut recorder, types::LDS, "2", &delta("2", &[("some", 2)], ""));
    recorder.accepted(types::LDS, "2");
    assert_eq!(folder.all(Kind::Delta, types::LDS).len(), 2);
    pass(&mut recorder, types::LDS, "3", &delta("3", &[("more", 2), ("than", 2), ("can be", 2)], ""));
    assert!(fs::read_dir(&folder.0.folder).unwrap().next().is_none());
}

#[test]
fn secrets_and_what_is_too_large_are_not_kept() {
    let folder = Folder::new("large", 100);
    let mut recorder = folder.0.recorder(Kind::Sotw);
    let secret = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret";
    pass(&mut recorder, secret, "1", &sotw("1"));
    recorder.accepted(secret, "1");
    pass(&mut recorder, types::LDS, "2", &[sotw("2"), vec![0x40; 100]].concat());
    recorder.accepted(types::LDS, "2");
    assert!(fs::read_dir(&folder.0.folder).unwrap().next().is_none());
}

#[test]
fn file_of_another_version_is_not_read() {
    let folder = Folder::new("version", 100);
    fs::create_dir_all(&folder.0.folder).unwrap();
    fs::write(folder.0.path(Kind::Sotw, types::LDS), "footman last good 9\nR").unwrap();
    assert_eq!(folder.0.accepted(Kind::Sotw, types::LDS).unwrap_err().kind(), io::ErrorKind::InvalidData);
}
