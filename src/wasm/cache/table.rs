//! What the cache holds, and which module a plugin means. Pure: time is passed in, files are somebody else's.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::Arc,
    time::{Duration, SystemTime},
};

/// A module's identity: where it comes from, and its checksum.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::wasm) struct Key {
    /// Repository of an image, or the whole URL.
    pub(in crate::wasm) name: String,
    /// Hexadecimal: of the module for a web server, of the image's manifest for a registry.
    pub(in crate::wasm) checksum: String,
}

/// A module on disk.
#[derive(Debug, Clone)]
pub(in crate::wasm) struct Module {
    pub(in crate::wasm) path: PathBuf,
    /// Of the file, whatever the checksum is of.
    pub(in crate::wasm) sha256: String,
    pub(in crate::wasm) size: u64,
    /// Compiled ahead of time.
    pub(in crate::wasm) aot: bool,
    pub(in crate::wasm) last_use: SystemTime,
    /// Fingerprints of the logins that got it; empty text for none at all.
    pub(in crate::wasm) logins: BTreeSet<String>,
    /// Fingerprint of the key whose signature was verified.
    pub(in crate::wasm) signer: Option<String>,
    /// How the file looked when it was last found intact, in this process.
    pub(in crate::wasm) seen: Option<Stamp>,
    lease: Lease,
}

/// Keeps a module's file.
#[derive(Debug, Clone, Default)]
pub(in crate::wasm) struct Lease(#[allow(dead_code, reason = "counted, never read")] Arc<()>);

/// A file's state, as far as `stat` tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::wasm) struct Stamp {
    pub(in crate::wasm) inode: u64,
    pub(in crate::wasm) size: u64,
    /// Seconds and nanoseconds.
    pub(in crate::wasm) modified: (i64, i64),
}

/// Where a URL last led.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::wasm) struct Latest {
    pub(in crate::wasm) name: String,
    pub(in crate::wasm) checksum: String,
    /// For each resource the version for which it was looked up.
    pub(in crate::wasm) versions: BTreeMap<String, String>,
}

/// What a plugin asks for.
#[derive(Debug, Clone, Copy)]
pub(in crate::wasm) struct Question<'a> {
    pub(in crate::wasm) url: &'a str,
    pub(in crate::wasm) name: &'a str,
    /// The checksum or pinned digest; empty when there is neither.
    pub(in crate::wasm) expected: &'a str,
    /// Whether the URL may lead elsewhere tomorrow.
    pub(in crate::wasm) moves: bool,
    pub(in crate::wasm) resource: &'a str,
    pub(in crate::wasm) version: &'a str,
    pub(in crate::wasm) ignore_version: bool,
}

/// All of it.
#[derive(Debug, Default)]
pub(in crate::wasm) struct Table {
    pub(in crate::wasm) modules: BTreeMap<Key, Module>,
    pub(in crate::wasm) urls: BTreeMap<String, Latest>,
    /// Digests of indexes, with the digest of the image that each led to.
    pub(in crate::wasm) aliases: BTreeMap<Key, String>,
}

impl Module {
    pub(in crate::wasm) fn new(path: PathBuf, sha256: String, size: u64, now: SystemTime) -> Module {
        Module {
            path,
            sha256,
            size,
            aot: false,
            last_use: now,
            logins: BTreeSet::new(),
            signer: None,
            seen: None,
            lease: Lease::default(),
        }
    }

    pub(in crate::wasm) fn lease(&self) -> Lease {
        self.lease.clone()
    }

    pub(in crate::wasm) fn is_in_use(&self) -> bool {
        Arc::strong_count(&self.lease.0) > 1
    }

    /// Whether who has this login may have it: the one that got it, or anybody when none was needed.
    pub(in crate::wasm) fn is_open_to(&self, login: &str) -> bool {
        self.logins.contains("") || self.logins.contains(login)
    }
}

impl Table {
    /// The module at hand that answers the question.
    ///
    /// A checksum decides alone. Without one, what the URL last led to counts if the plugin has not changed, or its policy says so.
    pub(in crate::wasm) fn find(&self, question: &Question<'_>) -> Option<Key> {
        let checksum = if question.expected.is_empty() {
            let latest = self.urls.get(question.url)?;
            let version = latest.versions.get(question.resource).map_or("", String::as_str);
            if !question.ignore_version && version != question.version {
                return None;
            }
            &latest.checksum
        } else {
            question.expected
        };
        self.key(question.name, checksum)
    }

    /// The key of a module at hand, by its own checksum or by its index's digest.
    pub(in crate::wasm) fn key(&self, name: &str, checksum: &str) -> Option<Key> {
        let key = Key { name: name.to_owned(), checksum: checksum.to_owned() };
        let key = match self.aliases.get(&key) {
            Some(checksum) => Key { checksum: checksum.clone(), ..key },
            None => key,
        };
        self.modules.contains_key(&key).then_some(key)
    }

    /// Notes that the question was answered by that module.
    pub(in crate::wasm) fn used(&mut self, key: &Key, question: &Question<'_>, now: SystemTime) {
        if let Some(module) = self.modules.get_mut(key) {
            module.last_use = now;
        }
        if question.moves {
            let latest = self.urls.entry(question.url.to_owned()).or_default();
            latest.name.clone_from(&key.name);
            latest.checksum.clone_from(&key.checksum);
            latest.versions.insert(question.resource.to_owned(), question.version.to_owned());
        }
    }

    /// Takes a module out with everything that led to it; its file is the caller's.
    pub(in crate::wasm) fn remove(&mut self, key: &Key) -> Option<Module> {
        self.urls.retain(|_, latest| latest.name != key.name || latest.checksum != key.checksum);
        self.aliases.retain(|alias, checksum| alias.name != key.name || *checksum != key.checksum);
        self.modules.remove(key)
    }

    /// Modules that nobody uses and nobody used for `expiry`. Those in use grow no older.
    pub(in crate::wasm) fn expired(&mut self, now: SystemTime, expiry: Duration) -> Vec<Key> {
        for module in self.modules.values_mut().filter(|module| module.is_in_use()) {
            module.last_use = now;
        }
        let old = |module: &Module| now.duration_since(module.last_use).is_ok_and(|age| age > expiry);
        self.modules.iter().filter(|(_, module)| old(module)).map(|(key, _)| key.clone()).collect()
    }

    /// The modules to remove so that at most `most` bytes are left: unused ones, the longest unused first, never `keep`.
    pub(in crate::wasm) fn surplus(&self, most: u64, keep: &Key) -> Vec<Key> {
        let mut total: u64 = self.modules.values().map(|module| module.size).sum();
        let mut unused: Vec<_> =
            self.modules.iter().filter(|(key, module)| *key != keep && !module.is_in_use()).collect();
        unused.sort_by_key(|(_, module)| module.last_use);
        let mut surplus = Vec::new();
        for (key, module) in unused {
            if total <= most {
                break;
            }
            total -= module.size;
            surplus.push(key.clone());
        }
        surplus
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: SystemTime = SystemTime::UNIX_EPOCH;

    fn key(name: &str, checksum: &str) -> Key {
        Key { name: name.to_owned(), checksum: checksum.to_owned() }
    }

    fn module(size: u64, age: u64) -> Module {
        Module::new(PathBuf::from("/m"), String::new(), size, NOW + Duration::from_secs(1000 - age))
    }

    fn question<'a>(url: &'a str, expected: &'a str, version: &'a str, ignore_version: bool) -> Question<'a> {
        Question { url, name: "n", expected, moves: true, resource: "r", version, ignore_version }
    }

    fn table() -> Table {
        let mut table = Table::default();
        table.modules.insert(key("n", "c1"), module(10, 0));
        table.modules.insert(key("n", "c2"), module(10, 0));
        table.used(&key("n", "c1"), &question("u", "", "1", false), NOW);
        table
    }

    #[test]
    fn checksum_decides_alone() {
        let table = table();
        for (url, expected, found) in [("other", "c2", Some("c2")), ("u", "c3", None), ("u", "c1", Some("c1"))] {
            let answer = table.find(&question(url, expected, "9", false));
            assert_eq!(answer, found.map(|checksum| key("n", checksum)), "{url} {expected}");
        }
        let elsewhere = Question { name: "elsewhere", ..question("u", "c1", "1", false) };
        assert_eq!(table.find(&elsewhere), None);
    }

    #[test]
    fn version_counts_unless_the_policy_ignores_it() {
        let table = table();
        for (url, version, ignore, hit) in
            [("u", "1", false, true), ("u", "2", false, false), ("u", "2", true, true), ("v", "1", true, false)]
        {
            assert_eq!(table.find(&question(url, "", version, ignore)).is_some(), hit, "{url} {version} {ignore}");
        }
        // Another resource that asks for no version has none on record either.
        assert!(table.find(&Question { resource: "s", ..question("u", "", "", false) }).is_some());
        assert!(table.find(&Question { resource: "s", ..question("u", "", "1", false) }).is_none());
    }

    #[test]
    fn pinned_urls_leave_no_trace() {
        let mut table = table();
        let pinned = Question { moves: false, ..question("p@c2", "c2", "1", false) };
        table.used(&key("n", "c2"), &pinned, NOW);
        assert!(!table.urls.contains_key("p@c2"));
    }

    #[test]
    fn index_leads_to_its_image() {
        let mut table = table();
        table.aliases.insert(key("n", "index"), "c2".to_owned());
        assert_eq!(table.find(&question("u", "index", "", false)), Some(key("n", "c2")));
        table.remove(&key("n", "c2"));
        assert_eq!((table.find(&question("u", "index", "", false)), table.aliases.len()), (None, 0));
    }

    #[test]
    fn removal_forgets_only_its_own_urls() {
        let mut table = table();
        table.used(&key("n", "c2"), &question("w", "", "1", false), NOW);
        table.remove(&key("n", "c1"));
        assert_eq!(table.urls.keys().collect::<Vec<_>>(), ["w"]);
        assert!(table.find(&question("u", "", "1", false)).is_none());
    }

    #[test]
    fn only_unused_modules_expire_and_use_starts_the_clock_anew() {
        let mut table = Table::default();
        table.modules.insert(key("n", "old"), module(1, 100));
        table.modules.insert(key("n", "young"), module(1, 50));
        table.modules.insert(key("n", "used"), module(1, 100));
        let lease = table.modules[&key("n", "used")].lease();
        let (now, expiry) = (NOW + Duration::from_secs(1000), Duration::from_secs(60));
        assert_eq!(table.expired(now, expiry), [key("n", "old")]);
        table.remove(&key("n", "old"));
        drop(lease);
        assert!(table.expired(now + Duration::from_secs(5), expiry).is_empty());
        assert_eq!(table.expired(now + Duration::from_secs(61), expiry).len(), 2);
        // A clock that jumped back makes nothing old.
        assert!(table.expired(NOW, expiry).is_empty());
    }

    #[test]
    fn surplus_goes_by_last_use() {
        let mut table = Table::default();
        for (name, age) in [("a", 30), ("b", 40), ("c", 10), ("d", 50)] {
            table.modules.insert(key(name, ""), module(10, age));
        }
        let lease = table.modules[&key("d", "")].lease();
        assert_eq!(table.surplus(20, &key("c", "")), [key("b", ""), key("a", "")]);
        assert!(table.surplus(40, &key("c", "")).is_empty());
        assert_eq!(table.surplus(0, &key("b", "")), [key("a", ""), key("c", "")]);
        drop(lease);
    }

    #[test]
    fn login_opens_only_its_own() {
        let mut module = module(1, 0);
        module.logins.insert("x".to_owned());
        assert!(module.is_open_to("x") && !module.is_open_to("y") && !module.is_open_to(""));
        module.logins.insert(String::new());
        assert!(module.is_open_to("y"));
    }
}
