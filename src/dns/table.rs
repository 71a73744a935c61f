//! The index over a name table: from a name as a client asks for it to the entry that answers. Pure.
//!
//! Every form of every host has a slot of eight bytes in one open-addressing table; names stay where they are, in the bytes
//! that istiod sent. Names expanded by the search list are not stored but taken apart when they are asked for. A name is looked at
//! as lower-case text without a final dot.

use std::{net::IpAddr, sync::Arc};

use super::view::{Form, Pieces, View};
use crate::{
    base::random_u64,
    wires::{NameEntry, NameTable},
};

/// Longest name as text, and most labels it can have.
pub const MAX_TEXT: usize = 254;
const MAX_LABELS: usize = 128;
/// Entry number of an empty slot.
const EMPTY: u32 = u32::MAX;

/// A searchable name table.
#[derive(Debug)]
pub struct Index {
    table: Arc<NameTable>,
    view: View,
    slots: Box<[Slot]>,
    seed: u64,
    has_wildcards: bool,
    /// Entries by address, sorted; empty unless asked for.
    addresses: Vec<(IpAddr, u32)>,
}

/// An index in the making: it is filled some entries at a time, so that queries are answered in between.
#[derive(Debug)]
pub struct Builder {
    index: Index,
    next: usize,
    pointers: bool,
}

#[derive(Debug, Clone, Copy)]
struct Slot {
    entry: u32,
    form: Form,
    /// Upper bits of the name's hash, to pass over most other names without looking at them.
    tag: u16,
}

/// What answers a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hit {
    /// Number of the entry in the table.
    pub entry: usize,
    /// The form of it that goes into a CNAME; `None` when the addresses stand directly under the name asked.
    pub alias: Option<Form>,
}

impl Builder {
    /// Makes room for all names of a table; with `pointers` also for the names of its addresses.
    pub fn new(table: Arc<NameTable>, view: View, pointers: bool) -> Builder {
        let mut names = 0usize;
        for entry in table.iter() {
            view.forms(&entry, |_| names += 1);
        }
        let slots = vec![Slot { entry: EMPTY, form: Form::FULL, tag: 0 }; (names * 4 / 3 + 1).next_power_of_two()];
        let index =
            Index { table, view, slots: slots.into(), seed: random_u64(), has_wildcards: false, addresses: Vec::new() };
        Builder { index, next: 0, pointers }
    }

    /// Adds up to `count` entries; whether there are more.
    pub fn step(&mut self, count: usize) -> bool {
        let end = self.index.table.len().min(self.next.saturating_add(count));
        for entry in self.next..end {
            self.index.add(entry, self.pointers);
        }
        self.next = end;
        end < self.index.table.len()
    }

    /// The index, with whatever was not added yet.
    pub fn finish(mut self) -> Index {
        while self.step(usize::MAX) {}
        let table = self.index.table.clone();
        self.index.addresses.sort_by(|(a, left), (b, right)| {
            let rank = |number: &u32| rank(&table.entry(*number as usize));
            a.cmp(b).then_with(|| rank(left).cmp(&rank(right)))
        });
        self.index.addresses.dedup_by_key(|(ip, _)| *ip);
        self.index
    }
}

impl Index {
    /// The table below.
    pub fn table(&self) -> &NameTable {
        &self.table
    }

    /// Who looks at it.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// The entry that answers `name`: exact names before those expanded by the search list, exact ones before wildcards, the most
    /// specific wildcard first. A wildcard covers any number of labels but not its own parent.
    pub fn lookup(&self, name: &[u8], search: Option<&[u8]>) -> Option<Hit> {
        if name.is_empty() {
            return None;
        }
        let mut labels = [(0, 0); MAX_LABELS];
        let labels = self.labels(name, &mut labels)?;
        let &(_, whole) = labels.first()?;
        if let Some(slot) = self.find(whole, &[name]) {
            return Some(Hit { entry: slot.entry as usize, alias: None });
        }
        let unexpanded = search.and_then(|search| name.strip_suffix(search)?.strip_suffix(b"."));
        if let Some(base) = unexpanded.filter(|base| !base.is_empty())
            && let Some(hit) = self.expanded(base, search)
        {
            return Some(hit);
        }
        if self.has_wildcards { self.wildcard(name, labels, unexpanded, search) } else { None }
    }

    /// The host that has an address, when names of addresses were asked for.
    pub fn host_of(&self, ip: IpAddr) -> Option<&str> {
        let at = self.addresses.binary_search_by_key(&ip, |(ip, _)| *ip).ok()?;
        Some(self.table.entry(self.addresses[at].1 as usize).host.trim_end_matches('.'))
    }

    /// How many names it knows, those by the search list aside.
    pub fn names(&self) -> usize {
        self.slots.iter().filter(|slot| slot.entry != EMPTY).count()
    }

    /// Calls `each` with every name, its final dot included, and the entry that answers it.
    pub fn each_name<'a>(&'a self, mut each: impl FnMut(Vec<u8>, &NameEntry<'a>)) {
        for slot in self.slots.iter().filter(|slot| slot.entry != EMPTY) {
            let entry = self.table.entry(slot.entry as usize);
            let mut name = self.view.pieces(&entry, slot.form).concat();
            name.push(b'.');
            each(name, &entry);
        }
    }

    /// The name `base` behind one that carries the search domain on top.
    fn expanded(&self, base: &[u8], search: Option<&[u8]>) -> Option<Hit> {
        if carries(base, search) {
            return None;
        }
        let slot = self.find(self.hash(base), &[base])?;
        let alias = if slot.form.is_absolute() { slot.form } else { Form::FULL };
        // A literal asterisk in an answer breaks resolvers, so an expanded wildcard answers under the name asked.
        Some(Hit { entry: slot.entry as usize, alias: (!base.starts_with(b"*")).then_some(alias) })
    }

    fn wildcard(
        &self,
        name: &[u8],
        labels: &[(usize, u64)],
        unexpanded: Option<&[u8]>,
        search: Option<&[u8]>,
    ) -> Option<Hit> {
        for &(start, suffix) in &labels[1..] {
            let parent = &name[start..];
            let hit = |slot: Slot| Hit { entry: slot.entry as usize, alias: None };
            if let Some(slot) = self.find(starred(suffix), &[b"*.", parent]) {
                return Some(hit(slot));
            }
            let base = unexpanded.and_then(|base| base.get(start..)).filter(|base| !carries(base, search));
            if let Some(base) = base
                && let Some(slot) = self.find(starred(self.hash(base)), &[b"*.", base])
            {
                return Some(hit(slot));
            }
        }
        None
    }

    fn add(&mut self, number: usize, pointers: bool) {
        let table = self.table.clone();
        let entry = table.entry(number);
        if !entry.ips().any(|ip| ip.parse::<IpAddr>().is_ok()) {
            return;
        }
        let wildcard = entry.host.starts_with('*');
        self.has_wildcards |= wildcard;
        if pointers && !wildcard {
            self.addresses.extend(entry.ips().filter_map(|ip| Some((ip.parse().ok()?, number as u32))));
        }
        let view = std::mem::take(&mut self.view);
        view.forms(&entry, |form| self.insert(number as u32, form, &entry, &view.pieces(&entry, form), &view));
        self.view = view;
    }

    fn insert(&mut self, number: u32, form: Form, entry: &NameEntry<'_>, name: &Pieces<'_>, view: &View) {
        let hash = name.iter().rev().fold(self.seed, |hash, piece| extend(hash, piece));
        let (mask, tag) = (self.slots.len() - 1, tag(hash));
        let mut at = hash as usize & mask;
        loop {
            let slot = self.slots[at];
            if slot.entry == EMPTY {
                break;
            }
            let other = self.table.entry(slot.entry as usize);
            if slot.tag == tag && same(&view.pieces(&other, slot.form), name) {
                if slot.entry == number || beats(&other, entry) {
                    return;
                }
                break;
            }
            at = (at + 1) & mask;
        }
        self.slots[at] = Slot { entry: number, form, tag };
    }

    fn find(&self, hash: u64, name: &[&[u8]]) -> Option<Slot> {
        let (mask, tag) = (self.slots.len() - 1, tag(hash));
        let mut at = hash as usize & mask;
        loop {
            let slot = self.slots[at];
            if slot.entry == EMPTY {
                return None;
            }
            if slot.tag == tag {
                let entry = self.table.entry(slot.entry as usize);
                if same(&self.view.pieces(&entry, slot.form), name) {
                    return Some(slot);
                }
            }
            at = (at + 1) & mask;
        }
    }

    /// Where each label begins, with the hash of the name from there on; the whole name first.
    fn labels<'a>(&self, name: &[u8], labels: &'a mut [(usize, u64); MAX_LABELS]) -> Option<&'a [(usize, u64)]> {
        let mut first = MAX_LABELS;
        let mut hash = self.seed;
        for at in (0..name.len()).rev() {
            hash = extend(hash, &name[at..=at]);
            if at == 0 || name[at - 1] == b'.' {
                first = first.checked_sub(1)?;
                labels[first] = (at, hash);
            }
        }
        Some(&labels[first..])
    }

    fn hash(&self, name: &[u8]) -> u64 {
        extend(self.seed, name)
    }
}

/// Carries a hash on over `piece`, from its end to its beginning, without letter case: so one pass gives the hash of every
/// suffix. The step is that of FNV-1a, with a fold that lets high bits reach the low ones.
fn extend(hash: u64, piece: &[u8]) -> u64 {
    piece.iter().rev().fold(hash, |hash, byte| {
        let mixed = (hash ^ u64::from(byte.to_ascii_lowercase())).wrapping_mul(0x0000_0100_0000_01b3);
        mixed ^ (mixed >> 29)
    })
}

/// The hash of `*.` before a suffix.
fn starred(suffix: u64) -> u64 {
    extend(suffix, b"*.")
}

fn tag(hash: u64) -> u16 {
    (hash >> 48) as u16
}

/// Whether two names in pieces are the same text, letter case aside.
fn same(a: &[&[u8]], b: &[&[u8]]) -> bool {
    let length = |pieces: &[&[u8]]| pieces.iter().map(|piece| piece.len()).sum::<usize>();
    length(a) == length(b)
        && a.iter()
            .flat_map(|piece| piece.iter())
            .zip(b.iter().flat_map(|piece| piece.iter()))
            .all(|(a, b)| a.eq_ignore_ascii_case(b))
}

/// Whether a name ends in the search domain already.
fn carries(name: &[u8], search: Option<&[u8]>) -> bool {
    let rest = search.and_then(|search| name.strip_suffix(search));
    rest.is_some_and(|rest| rest.is_empty() || rest.ends_with(b"."))
}

/// Whether `held` keeps a name that `new` has too. Of the same host the later entry counts.
fn beats(held: &NameEntry<'_>, new: &NameEntry<'_>) -> bool {
    rank(held) < rank(new)
}

/// Who comes first where several claim the same: Kubernetes before others, then by host.
fn rank<'a>(entry: &NameEntry<'a>) -> (bool, &'a str) {
    (!View::is_kubernetes(entry), entry.host)
}
