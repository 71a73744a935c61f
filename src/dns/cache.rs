//! Answers of the servers behind us, kept for as long as they say (opt-in). Pure: `now` is passed in.
//!
//! Keyed by the whole query but for id and letter case, so that clients with other flags or EDNS options never share an answer.
//! Negative answers live as RFC 2308 says; expired ones may serve while no server answers (RFC 8767).

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;

use super::message::Query;
use crate::net::resolve::frame::{self, HEADER, OPT, Section, TC, rcode};

/// Longest life of an answer, whatever it says (RFC 8767 §4 suggests days; a mesh changes faster).
const MAX_TTL: u32 = 3600;
/// Longest life of a negative answer (RFC 2308 §5).
const MAX_NEGATIVE_TTL: u32 = 300;
/// Life that a stale answer tells its client (RFC 8767 §4).
const STALE_TTL: u32 = 30;
/// What an entry costs beside its bytes: the maps' own share, about.
const OVERHEAD: usize = 200;
/// Type of the record that says how long a negative answer lives.
const SOA: u16 = 6;

/// How answers are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// Most bytes to keep.
    pub size: usize,
    /// How long expired answers may serve while no server answers.
    pub stale: Duration,
}

/// Kept answers, the oldest first to go.
#[derive(Debug)]
pub struct Cache {
    policy: Policy,
    entries: HashMap<Arc<[u8]>, Entry>,
    /// Keys in the order of their coming; one that was replaced stands here twice, with its older number first.
    queue: VecDeque<(u64, Arc<[u8]>)>,
    number: u64,
    size: usize,
}

#[derive(Debug)]
struct Entry {
    reply: Box<[u8]>,
    stored: Instant,
    ttl: u32,
    number: u64,
}

/// What the cache has for a query.
#[derive(Debug, PartialEq, Eq)]
pub enum Cached {
    /// A living answer.
    Fresh(Vec<u8>),
    /// An expired one, for the case that no server answers.
    Stale(Vec<u8>),
    /// Nothing.
    Nothing,
}

impl Cache {
    /// An empty cache.
    pub fn new(policy: Policy) -> Cache {
        Cache { policy, entries: HashMap::new(), queue: VecDeque::new(), number: 0, size: 0 }
    }

    /// What is kept for `query`, made out to it: its id and letter case, lives reduced by the time passed.
    pub fn get(&self, query: &Query<'_>, now: Instant) -> Cached {
        let Some(entry) = self.entries.get(&*key(query)) else { return Cached::Nothing };
        let age = now.duration_since(entry.stored);
        let life = Duration::from_secs(u64::from(entry.ttl));
        if age < life {
            Cached::Fresh(entry.made_out_to(query, |ttl| ttl.saturating_sub(age.as_secs() as u32)))
        } else if age < life + self.policy.stale {
            Cached::Stale(entry.made_out_to(query, |ttl| ttl.min(STALE_TTL)))
        } else {
            Cached::Nothing
        }
    }

    /// Keeps an answer for as long as it says, if it is one that may be kept.
    pub fn put(&mut self, query: &Query<'_>, reply: &[u8], now: Instant) {
        let Some(ttl) = ttl(query, reply).filter(|ttl| *ttl > 0) else { return };
        let key: Arc<[u8]> = key(query).into();
        let cost = key.len() + reply.len() + OVERHEAD;
        if cost > self.policy.size {
            return;
        }
        self.remove(&key);
        self.number += 1;
        self.size += cost;
        self.queue.push_back((self.number, key.clone()));
        self.entries.insert(key, Entry { reply: reply.into(), stored: now, ttl, number: self.number });
        while self.size > self.policy.size {
            let Some((number, key)) = self.queue.pop_front() else { break };
            if self.entries.get(&key).is_some_and(|entry| entry.number == number) {
                self.remove(&key);
            }
        }
        if self.queue.len() > 2 * self.entries.len() + 16 {
            let entries = &self.entries;
            self.queue.retain(|(number, key)| entries.get(key).is_some_and(|entry| entry.number == *number));
        }
    }

    /// How many answers are kept.
    pub fn count(&self) -> usize {
        self.entries.len()
    }

    fn remove(&mut self, key: &[u8]) {
        if let Some(entry) = self.entries.remove(key) {
            self.size -= key.len() + entry.reply.len() + OVERHEAD;
        }
    }
}

impl Entry {
    fn made_out_to(&self, query: &Query<'_>, ttl: impl Fn(u32) -> u32) -> Vec<u8> {
        let mut reply = self.reply.to_vec();
        let end = query.question.end;
        reply[..2].copy_from_slice(&query.bytes[..2]);
        reply[HEADER..end].copy_from_slice(&query.bytes[HEADER..end]);
        for record in frame::records(&self.reply, end).filter(|record| record.rtype != OPT) {
            let at = record.fixed + 4;
            if let Some(field) = reply.get_mut(at..at + 4) {
                let old = u32::from_be_bytes([field[0], field[1], field[2], field[3]]);
                field.copy_from_slice(&ttl(old).to_be_bytes());
            }
        }
        reply
    }
}

/// The query without its id, its name in lower case.
fn key(query: &Query<'_>) -> Vec<u8> {
    let mut key = query.bytes[2..].to_vec();
    key[HEADER - 2..query.question.end - 2].make_ascii_lowercase();
    key
}

/// How long an answer may be kept, in seconds; `None` when it may not.
fn ttl(query: &Query<'_>, reply: &[u8]) -> Option<u32> {
    let code = frame::rcode_of(reply);
    if !matches!(code, rcode::NOERROR | rcode::NXDOMAIN)
        || reply[2] & TC != 0
        || frame::question(reply)?.end != query.question.end
    {
        return None;
    }
    let (mut least, mut negative, mut answered) = (MAX_TTL, None, false);
    for record in frame::records(reply, query.question.end).filter(|record| record.rtype != OPT) {
        let ttl = u32_at(reply, record.fixed + 4)?;
        least = least.min(ttl);
        answered |= record.section == Section::Answer && record.rtype == query.question.qtype;
        if record.section == Section::Authority && record.rtype == SOA {
            // The last field of SOA is the life of negative answers, bounded by its own.
            negative = Some(u32_at(reply, record.end - 4)?.min(ttl));
        }
    }
    if answered && code == rcode::NOERROR {
        Some(least)
    } else {
        negative.map(|ttl| ttl.min(least).min(MAX_NEGATIVE_TTL))
    }
}

fn u32_at(message: &[u8], at: usize) -> Option<u32> {
    let field = message.get(at..at.checked_add(4)?)?;
    Some(u32::from_be_bytes([field[0], field[1], field[2], field[3]]))
}

#[cfg(test)]
mod tests {
    use super::{
        super::message::{self, Message},
        *,
    };

    /// A query for a name, upper case and id to choose.
    fn query(id: u16, name: &str) -> Vec<u8> {
        let mut bytes = vec![0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        bytes[..2].copy_from_slice(&id.to_be_bytes());
        for label in name.split('.') {
            bytes.push(label.len() as u8);
            bytes.extend_from_slice(label.as_bytes());
        }
        bytes.extend_from_slice(&[0, 0, 1, 0, 1]);
        bytes
    }

    /// An answer to it: records of (section, type, TTL, last four bytes of the data).
    fn reply(query: &[u8], code: u8, records: &[(Section, u16, u32, u32)]) -> Vec<u8> {
        let mut bytes = query.to_vec();
        bytes[2] |= frame::QR;
        bytes[3] = code;
        for (section, rtype, ttl, data) in records {
            bytes.extend_from_slice(&[0xc0, 12]);
            bytes.extend_from_slice(&rtype.to_be_bytes());
            bytes.extend_from_slice(&[0, 1]);
            bytes.extend_from_slice(&ttl.to_be_bytes());
            bytes.extend_from_slice(&[0, 4]);
            bytes.extend_from_slice(&data.to_be_bytes());
            let count = frame::count(&bytes, *section) + 1;
            frame::set_count(&mut bytes, *section, count);
        }
        bytes
    }

    fn asked(bytes: &[u8]) -> Query<'_> {
        match message::read(bytes) {
            Message::Ask(query) => query,
            other => panic!("{other:?}"),
        }
    }

    fn cache(size: usize) -> Cache {
        Cache::new(Policy { size, stale: Duration::from_secs(100) })
    }

    const A: u16 = 1;

    #[test]
    fn an_answer_is_made_out_to_who_asks_and_grows_older() {
        let (first, second) = (query(1, "www.example"), query(2, "WWW.Example"));
        let (mut cache, now) = (cache(10_000), Instant::now());
        cache.put(&asked(&first), &reply(&first, 0, &[(Section::Answer, A, 60, 7), (Section::Answer, A, 90, 8)]), now);
        let later = now + Duration::from_secs(10);
        let wanted = reply(&second, 0, &[(Section::Answer, A, 50, 7), (Section::Answer, A, 80, 8)]);
        assert_eq!(cache.get(&asked(&second), later), Cached::Fresh(wanted));
        let stale = reply(&first, 0, &[(Section::Answer, A, 30, 7), (Section::Answer, A, 30, 8)]);
        assert_eq!(cache.get(&asked(&first), now + Duration::from_secs(60)), Cached::Stale(stale));
        assert_eq!(cache.get(&asked(&first), now + Duration::from_secs(160)), Cached::Nothing);
    }

    #[test]
    fn other_flags_are_another_question() {
        let (mut cache, now) = (cache(10_000), Instant::now());
        let plain = query(1, "www.example");
        cache.put(&asked(&plain), &reply(&plain, 0, &[(Section::Answer, A, 60, 7)]), now);
        let mut unchecked = plain.clone();
        unchecked[3] |= frame::CD;
        assert_eq!(cache.get(&asked(&unchecked), now), Cached::Nothing);
        assert_eq!(cache.get(&asked(&query(1, "www.example.org")), now), Cached::Nothing);
    }

    #[test]
    fn lives_of_answers() {
        let (soa, ns) = (6, 2);
        let bytes = query(1, "www.example");
        for (records, code, flags, wanted) in [
            (vec![(Section::Answer, A, 60, 0), (Section::Answer, A, 20, 0)], 0, 0, Some(20)),
            (vec![(Section::Answer, A, 60, 0), (Section::Additional, A, 5, 0)], 0, 0, Some(5)),
            (vec![(Section::Answer, A, 100_000, 0)], 0, 0, Some(3600)),
            (vec![(Section::Answer, A, 60, 0)], 0, TC, None),
            (vec![(Section::Answer, A, 0, 0)], 0, 0, Some(0)),
            (vec![(Section::Authority, soa, 60, 15)], 3, 0, Some(15)),
            (vec![(Section::Authority, soa, 10, 15)], 3, 0, Some(10)),
            (vec![(Section::Authority, soa, 9999, 9999)], 0, 0, Some(300)),
            (vec![(Section::Answer, 5, 60, 0), (Section::Authority, soa, 60, 15)], 0, 0, Some(15)),
            (vec![(Section::Authority, ns, 60, 0)], 0, 0, None),
            (vec![], 3, 0, None),
            (vec![(Section::Answer, A, 60, 0)], 2, 0, None),
        ] {
            let mut answer = reply(&bytes, code, &records);
            answer[2] |= flags;
            assert_eq!(ttl(&asked(&bytes), &answer), wanted, "{records:?} code {code}");
        }
    }

    #[test]
    fn size_is_bounded_and_the_oldest_goes_first() {
        let (mut cache, now) = (cache(3_000), Instant::now());
        let queries: Vec<Vec<u8>> = (0..100).map(|index| query(1, &format!("n{index:02}.example"))).collect();
        for bytes in &queries {
            cache.put(&asked(bytes), &reply(bytes, 0, &[(Section::Answer, A, 60, 0)]), now);
            assert!(cache.size <= 3_000);
        }
        assert_eq!(cache.get(&asked(&queries[0]), now), Cached::Nothing);
        assert!(matches!(cache.get(&asked(&queries[99]), now), Cached::Fresh(_)));
        let kept = cache.count();
        for _ in 0..1000 {
            cache.put(&asked(&queries[99]), &reply(&queries[99], 0, &[(Section::Answer, A, 60, 0)]), now);
        }
        assert_eq!(cache.count(), kept, "a new answer takes the old one's place");
        assert!(cache.queue.len() <= 2 * kept + 17);
        let mut huge = reply(&queries[1], 0, &[(Section::Answer, A, 60, 0)]);
        huge.resize(4_000, 0);
        cache.put(&asked(&queries[1]), &huge, now);
        assert_eq!(cache.count(), kept, "what is larger than everything is not kept");
    }
}
