//! The index over a name table: from a name as a client asks for it to the entry that answers. Pure.
//!
//! Every form of every host has a slot of eight bytes in one open-addressing table; names stay where they are, in the bytes
//! that istiod sent. Names expanded by the search list are not stored but taken apart when they are asked for. A name is looked at
//! as lower-case text without a final dot.

use std::{net::IpAddr, sync::Arc};

use super::view::{Form, View, undotted};
use crate::{
    base::random_u64,
    wires::{NameEntry, NameTable},
};

/// Longest name as text.
pub const MAX_TEXT: usize = 254;
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

/// An index in the making: names are counted, then added, some entries at a time, so that queries are answered in between.
#[derive(Debug)]
pub struct Builder {
    index: Index,
    names: usize,
    counted: usize,
    added: usize,
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
    /// Of a table; with `pointers` also for the names of its addresses.
    pub fn new(table: Arc<NameTable>, view: View, pointers: bool) -> Builder {
        let (slots, addresses) = Default::default();
        let index = Index { table, view, slots, seed: random_u64(), has_wildcards: false, addresses };
        Builder { index, names: 0, counted: 0, added: 0, pointers }
    }

    /// Goes on over up to `count` entries; whether there is more to do.
    pub fn step(&mut self, count: usize) -> bool {
        let index = &mut self.index;
        let total = index.table.len();
        if index.slots.is_empty() {
            let end = total.min(self.counted.saturating_add(count));
            for entry in self.counted..end {
                index.view.forms(&index.table.entry(entry), |_| self.names += 1);
            }
            self.counted = end;
            if end == total {
                let empty = Slot { entry: EMPTY, form: Form::FULL, tag: 0 };
                index.slots = vec![empty; (self.names * 4 / 3 + 1).next_power_of_two()].into();
            }
            return true;
        }
        let end = total.min(self.added.saturating_add(count));
        for entry in self.added..end {
            index.add(entry, self.pointers);
        }
        self.added = end;
        end < total
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
        if let Some(slot) = self.find(name) {
            return Some(Hit { entry: slot.entry as usize, alias: None });
        }
        let unexpanded = search.and_then(|search| name.strip_suffix(search)?.strip_suffix(b"."));
        if let Some(base) = unexpanded.filter(|base| !base.is_empty())
            && let Some(hit) = self.expanded(base, search)
        {
            return Some(hit);
        }
        if self.has_wildcards { self.wildcard(name, unexpanded, search) } else { None }
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
        let slot = self.find(base)?;
        let alias = if slot.form.is_absolute() { slot.form } else { Form::FULL };
        // A literal asterisk in an answer breaks resolvers, so an expanded wildcard answers under the name asked.
        Some(Hit { entry: slot.entry as usize, alias: (!base.starts_with(b"*")).then_some(alias) })
    }

    fn wildcard(&self, name: &[u8], unexpanded: Option<&[u8]>, search: Option<&[u8]>) -> Option<Hit> {
        // In a copy, `*.` is written over what stands before each parent in turn.
        let mut buffer = [0; MAX_TEXT];
        let copy = buffer.get_mut(..name.len())?;
        copy.copy_from_slice(name);
        for start in (2..name.len()).filter(|start| name[start - 1] == b'.') {
            copy[start - 2] = b'*';
            let hit = |slot: Slot| Hit { entry: slot.entry as usize, alias: None };
            if let Some(slot) = self.find(&copy[start - 2..]) {
                return Some(hit(slot));
            }
            let base = unexpanded.filter(|base| base.get(start..).is_some_and(|base| !carries(base, search)));
            if let Some(base) = base
                && let Some(slot) = self.find(&copy[start - 2..base.len()])
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
        let mut name = Vec::new();
        view.forms(&entry, |form| {
            name.clear();
            view.pieces(&entry, form).iter().for_each(|piece| name.extend_from_slice(piece));
            name.make_ascii_lowercase();
            self.insert(number as u32, form, &name, &view);
        });
        self.view = view;
    }

    fn insert(&mut self, number: u32, form: Form, name: &[u8], view: &View) {
        let hash = hash(self.seed, name);
        let (mask, tag) = (self.slots.len() - 1, tag(hash));
        let mut at = hash as usize & mask;
        loop {
            let slot = self.slots[at];
            if slot.entry == EMPTY {
                break;
            }
            if slot.tag == tag && self.is_named(slot, name, view) {
                let entry = |number: u32| self.table.entry(number as usize);
                if slot.entry == number || beats(&entry(slot.entry), &entry(number)) {
                    return;
                }
                break;
            }
            at = (at + 1) & mask;
        }
        self.slots[at] = Slot { entry: number, form, tag };
    }

    fn find(&self, name: &[u8]) -> Option<Slot> {
        let hash = hash(self.seed, name);
        let (mask, tag) = (self.slots.len() - 1, tag(hash));
        let mut at = hash as usize & mask;
        loop {
            let slot = self.slots[at];
            if slot.entry == EMPTY {
                return None;
            }
            if slot.tag == tag && self.is_named(slot, name, &self.view) {
                return Some(slot);
            }
            at = (at + 1) & mask;
        }
    }

    /// Whether the name in a slot is `name`, which is lower-case.
    fn is_named(&self, slot: Slot, name: &[u8], view: &View) -> bool {
        let number = slot.entry as usize;
        if slot.form == Form::FULL {
            return undotted(self.table.host(number)).eq_ignore_ascii_case(name);
        }
        let mut rest = name;
        let entry = self.table.entry(number);
        let starts = view.pieces(&entry, slot.form).iter().all(|piece| match rest.split_at_checked(piece.len()) {
            Some((start, tail)) => {
                rest = tail;
                start.eq_ignore_ascii_case(piece)
            }
            None => false,
        });
        starts && rest.is_empty()
    }
}

/// The hash of a lower-case name, eight bytes at a step: each is mixed in as FNV does, and high bits are let reach the low ones.
fn hash(seed: u64, name: &[u8]) -> u64 {
    let (words, rest) = name.as_chunks::<8>();
    let last = rest.iter().fold(name.len() as u64, |word, byte| (word << 8) | u64::from(*byte));
    let mix = |hash: u64, word: u64| {
        let mixed = (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed ^ (mixed >> 32)
    };
    mix(words.iter().fold(seed, |hash, word| mix(hash, u64::from_le_bytes(*word))), last)
}

fn tag(hash: u64) -> u16 {
    (hash >> 48) as u16
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
