//! Keeps the files that somebody wants as secrets read: reads them when they are first wanted, again when they change, and
//! publishes what they hold in one table.
//!
//! Readers lease a file and look into the table; what nobody leases any more is forgotten. The last good content stays while
//! files are half written, mismatched or away for a moment; equal bytes are no change.

use std::{
    collections::BTreeMap,
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::{
    sync::{mpsc, oneshot, watch},
    time::Instant,
};

use super::file::{Content, FileError, Found, Source};
use crate::{
    base::{Backoff, Clock, Drain, Policy},
    net::files::Watcher,
    telemetry::metrics::{Counter, Registry},
};

/// However busy the files are, they are read again after so long.
const MAX_DEBOUNCE: Duration = Duration::from_secs(1);
/// Files that cannot be used are tried again after so long at the earliest, however short the debounce.
const SHORTEST_RETRY: Duration = Duration::from_millis(100);
/// Files that are gone for so long are not about to be replaced.
const GONE: Duration = Duration::from_secs(10);
/// How often leases are looked through.
const SWEEP: Duration = Duration::from_secs(30);
/// Files wanted at a time: a gateway may have a pair for each of its hosts, but every local process may ask for any, and each is
/// watched and kept.
const MAX_SOURCES: usize = 1024;
/// More than this all of them together may not hold when one more is wanted: one large file has many names.
const MAX_KEPT: usize = 16 << 20;
/// Requests that wait for the task; askers wait when it is full.
const QUEUE: usize = 64;

/// What all wanted files hold.
pub type Table = Arc<BTreeMap<Source, State>>;

/// What the files of one source hold.
#[derive(Debug, Clone, Default)]
pub struct State {
    /// The newest that could be used.
    pub content: Option<Content>,
    /// Why they cannot be used now.
    pub error: Option<Arc<str>>,
    /// Whether there have been no files for a while.
    gone: bool,
}

/// Where files are wanted; cheap to clone.
#[derive(Clone)]
pub struct Files {
    wanted: mpsc::Sender<Wanted>,
    table: watch::Receiver<Table>,
}

/// Keeps a source in the table as long as it lives.
#[derive(Debug, Clone)]
pub struct Lease(Arc<Source>);

struct Wanted {
    source: Source,
    is_optional: bool,
    reply: oneshot::Sender<Option<Lease>>,
}

/// The task that reads.
pub struct Reader {
    wanted: mpsc::Receiver<Wanted>,
    table: watch::Sender<Table>,
    entries: Vec<Entry>,
    watcher: Watcher,
    debounce: Duration,
    clock: Clock,
    watch_failures: Counter,
    read_failures: Counter,
}

struct Entry {
    source: Weak<Source>,
    key: Source,
    state: State,
    /// When the files are to be read again.
    due: Option<Instant>,
    /// When the first change came that was not read yet.
    changed: Option<Instant>,
    missing_since: Option<Instant>,
    /// Whether it is usual that there are no such files.
    is_optional: bool,
    retry: Backoff,
}

impl Files {
    /// The handle, and the task behind it. `debounce` is `FILE_DEBOUNCE_DURATION`: how long files must be still before they are
    /// read again, and the first pause after a failure.
    pub fn new(debounce: Duration, clock: Clock, registry: &Registry) -> (Files, Reader) {
        let (wanted, requests) = mpsc::channel(QUEUE);
        let (table, published) = watch::channel(Table::default());
        let reader = Reader {
            wanted: requests,
            table,
            entries: Vec::new(),
            watcher: Watcher::default(),
            debounce,
            clock,
            watch_failures: registry.counter(
                "num_file_watcher_failures_total",
                "Failures of watching certificate files.",
                &[],
            ),
            read_failures: registry.counter(
                "num_file_secret_failures_total",
                "Failed attempts to read a secret from files.",
                &[],
            ),
        };
        (Files { wanted, table: published }, reader)
    }

    /// Has a source read and watched; afterwards it is in the table. `None` when too many are wanted, or at the end.
    pub async fn lease(&self, source: Source) -> Option<Lease> {
        self.want(source, false).await
    }

    /// The same for files that usually do not exist, which then is nothing to warn of.
    pub async fn lease_optional(&self, source: Source) -> Option<Lease> {
        self.want(source, true).await
    }

    async fn want(&self, source: Source, is_optional: bool) -> Option<Lease> {
        let (reply, answer) = oneshot::channel();
        self.wanted.send(Wanted { source, is_optional, reply }).await.ok()?;
        answer.await.ok()?
    }

    /// What all leased sources hold, and how it changes.
    pub fn table(&self) -> watch::Receiver<Table> {
        self.table.clone()
    }
}

impl State {
    /// A pair at a place where there may be none.
    pub(crate) fn found(&self) -> Found<Content> {
        match (&self.content, &self.error) {
            (Some(content), _) if !self.gone => Found::Good(content.clone()),
            (None, Some(error)) if !self.gone => Found::Broken(Arc::clone(error)),
            _ => Found::Missing,
        }
    }
}

impl Reader {
    /// Reads and watches until `drain` starts.
    pub async fn run(mut self, mut drain: Drain) {
        let mut sweep = Instant::now() + SWEEP;
        loop {
            let due = self.entries.iter().filter_map(|entry| entry.due).fold(sweep, Instant::min);
            tokio::select! {
                Some(wanted) = self.wanted.recv() => {
                    let lease = self.lease(&wanted.source, wanted.is_optional);
                    // An asker that has gone needs no answer.
                    let _ = wanted.reply.send(lease);
                }
                changed = self.watcher.changed(), if !self.entries.is_empty() => match changed {
                    Ok(paths) => self.changed(|index| paths.contains(&index)),
                    Err(error) => {
                        self.watch_failures.inc();
                        log::warn!(target: "cache", "watching certificate files: {error}; comparing time stamps meanwhile");
                    }
                },
                () = tokio::time::sleep_until(due) => {
                    if Instant::now() >= sweep {
                        sweep = Instant::now() + SWEEP;
                        self.sweep();
                    }
                    self.read_due();
                }
                () = drain.started() => return,
            }
        }
    }

    fn lease(&mut self, source: &Source, is_optional: bool) -> Option<Lease> {
        if let Some(lease) =
            self.entries.iter().find(|entry| entry.key == *source).and_then(|entry| entry.source.upgrade())
        {
            return Some(Lease(lease));
        }
        self.sweep();
        let kept = self.entries.iter().filter_map(|entry| entry.state.content.as_ref()).map(Content::size);
        if self.entries.len() >= MAX_SOURCES || kept.sum::<usize>() > MAX_KEPT {
            return None;
        }
        let lease = Lease(Arc::new(source.clone()));
        self.entries.push(Entry::new(&lease, is_optional, self.debounce));
        self.watch();
        let last = self.entries.len() - 1;
        self.read(last);
        self.publish();
        Some(lease)
    }

    /// Forgets what nobody leases.
    fn sweep(&mut self) {
        let before = self.entries.len();
        self.entries.retain(|entry| entry.source.strong_count() > 0);
        if self.entries.len() < before {
            self.watch();
            self.publish();
        }
    }

    fn watch(&mut self) {
        self.watcher.watch(self.entries.iter().flat_map(|entry| entry.key.paths()));
    }

    /// Has the sources read again whose paths (counted through all sources) changed.
    fn changed(&mut self, is_changed: impl Fn(usize) -> bool) {
        let now = Instant::now();
        let mut first = 0;
        for entry in &mut self.entries {
            let paths = entry.key.paths().len();
            if (first..first + paths).any(&is_changed) {
                let since = *entry.changed.get_or_insert(now);
                entry.due = Some((now + self.debounce).min(since + MAX_DEBOUNCE));
            }
            first += paths;
        }
    }

    fn read_due(&mut self) {
        let now = Instant::now();
        let due: Vec<usize> =
            (0..self.entries.len()).filter(|index| self.entries[*index].due.is_some_and(|due| due <= now)).collect();
        let mut news = false;
        for index in due {
            news |= self.read(index);
        }
        if news {
            self.publish();
        }
    }

    /// Reads one source; whether the table changes by it.
    fn read(&mut self, index: usize) -> bool {
        let entry = &mut self.entries[index];
        entry.changed = None;
        match entry.key.read(self.clock.now()) {
            Ok(content) => entry.good(content),
            Err(error) => {
                if !(entry.is_optional && error.is_missing()) {
                    self.read_failures.inc();
                }
                entry.bad(&error)
            }
        }
    }

    fn publish(&self) {
        let table = self.entries.iter().map(|entry| (entry.key.clone(), entry.state.clone())).collect();
        self.table.send_replace(Arc::new(table));
    }
}

impl Entry {
    fn new(lease: &Lease, is_optional: bool, debounce: Duration) -> Entry {
        // Istio's: x1.5, ±50 %, at most 60 s.
        let policy =
            Policy { initial: debounce.max(SHORTEST_RETRY), factor: 1.5, max: Duration::from_secs(60), jitter: 0.5 };
        Entry {
            source: Arc::downgrade(&lease.0),
            key: (*lease.0).clone(),
            state: State::default(),
            due: None,
            changed: None,
            missing_since: None,
            is_optional,
            retry: Backoff::new(policy),
        }
    }

    fn good(&mut self, content: Content) -> bool {
        (self.due, self.missing_since) = (None, None);
        self.retry.reset();
        let same = self.state.content.as_ref().is_some_and(|old| old.equals(&content));
        if same && self.state.error.is_none() && !self.state.gone {
            return false;
        }
        if !same && self.state.content.is_some() {
            log::info!(target: "cache", "{} changed", self.name());
        }
        // Equal content stays the same object, so that nobody takes it for news.
        let content = if same { self.state.content.take() } else { Some(content) };
        self.state = State { content, error: None, gone: false };
        true
    }

    fn bad(&mut self, error: &FileError) -> bool {
        let now = Instant::now();
        self.due = Some(now + self.retry.next_delay());
        if error.is_missing() {
            self.missing_since.get_or_insert(now);
        } else {
            self.missing_since = None;
        }
        let never_there = self.state.content.is_none();
        let gone = self.missing_since.is_some_and(|since| never_there || now.duration_since(since) >= GONE);
        let text = error.to_string();
        let known = self.state.error.as_deref() == Some(&text);
        if known && gone == self.state.gone {
            return false;
        }
        if !known {
            let is_usual = self.is_optional && never_there && error.is_missing();
            let level = if is_usual { log::Level::Debug } else { log::Level::Warn };
            log::log!(target: "cache", level, "{}: {text}", self.name());
        }
        self.state.error = Some(text.into());
        self.state.gone = gone;
        true
    }

    fn name(&self) -> String {
        self.key.paths().iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(" and ")
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::{
        base::Trigger,
        secrets::testing::{Authority, Scratch},
    };

    const DEBOUNCE: Duration = Duration::from_millis(5);

    struct Running {
        files: Files,
        table: watch::Receiver<Table>,
        _trigger: Trigger,
    }

    fn run() -> Running {
        let (files, reader) = Files::new(DEBOUNCE, Clock::System, &Registry::default());
        let (trigger, drain) = Trigger::new();
        tokio::spawn(reader.run(drain));
        Running { table: files.table(), files, _trigger: trigger }
    }

    impl Running {
        /// Waits until the state of a source is such.
        async fn until(&mut self, source: &Source, wanted: impl Fn(&State) -> bool) -> State {
            let seen = self.table.wait_for(|table| table.get(source).is_some_and(&wanted));
            let table = tokio::time::timeout(Duration::from_secs(60), seen).await.expect("in time").unwrap();
            table[source].clone()
        }
    }

    fn pem(state: &State) -> String {
        match &state.content {
            Some(Content::Roots(roots)) => String::from_utf8(roots.pem.to_vec()).unwrap(),
            Some(Content::Pair(pair)) => String::from_utf8(pair.chain.to_vec()).unwrap(),
            None => String::new(),
        }
    }

    #[tokio::test]
    async fn content_follows_the_file_and_survives_its_absence() {
        let (scratch, a, b) = (Scratch::new(), Authority::new("a"), Authority::new("b"));
        let source = Source::Roots(scratch.path("ca.pem"));
        let mut running = run();
        let _lease = running.files.lease(source.clone()).await.unwrap();
        assert!(running.until(&source, |state| state.error.is_some()).await.content.is_none());
        fs::write(scratch.path("ca.pem"), a.pem()).unwrap();
        running.until(&source, |state| pem(state) == a.pem() && state.error.is_none()).await;
        fs::write(scratch.path("ca.pem"), "half").unwrap();
        let half = running.until(&source, |state| state.error.is_some()).await;
        assert_eq!(pem(&half), a.pem());
        assert!(matches!(half.found(), Found::Good(_)));
        fs::write(scratch.path("ca.pem"), b.pem()).unwrap();
        running.until(&source, |state| pem(state) == b.pem() && state.error.is_none()).await;
    }

    #[tokio::test]
    async fn halves_of_different_pairs_are_never_published() {
        let (scratch, ca) = (Scratch::new(), Authority::new("a"));
        let (first, second) = (ca.issue_pem("spiffe://td/ns/n/sa/s"), ca.issue_pem("spiffe://td/ns/n/sa/s"));
        let source = scratch.pair(&first.0, &first.1);
        let mut running = run();
        let _lease = running.files.lease(source.clone()).await.unwrap();
        fs::write(scratch.path("tls.crt"), &second.0).unwrap();
        assert_eq!(pem(&running.until(&source, |state| state.error.is_some()).await), first.0);
        fs::write(scratch.path("tls.key"), &second.1).unwrap();
        assert_eq!(pem(&running.until(&source, |state| state.error.is_none()).await), second.0);
    }

    #[tokio::test]
    async fn equal_bytes_are_no_news() {
        let (scratch, a, b) = (Scratch::new(), Authority::new("a"), Authority::new("b"));
        for name in ["ca.pem", "marker"] {
            fs::write(scratch.path(name), a.pem()).unwrap();
        }
        let (source, marker) = (Source::Roots(scratch.path("ca.pem")), Source::Roots(scratch.path("marker")));
        let mut running = run();
        let _leases =
            (running.files.lease(source.clone()).await.unwrap(), running.files.lease(marker.clone()).await.unwrap());
        let Some(Content::Roots(before)) = running.table.borrow()[&source].content.clone() else { panic!("no roots") };
        for (text, marker_text) in [(a.pem(), b.pem()), (format!("# a comment\n{}", a.pem()), a.pem())] {
            fs::write(scratch.path("new"), text).unwrap();
            fs::rename(scratch.path("new"), scratch.path("ca.pem")).unwrap();
            // Changes later, so what came before has been read when this is.
            fs::write(scratch.path("marker"), &marker_text).unwrap();
            running.until(&marker, |state| pem(state) == marker_text && state.error.is_none()).await;
        }
        let Some(Content::Roots(after)) = running.table.borrow()[&source].content.clone() else { panic!("no roots") };
        assert!(Arc::ptr_eq(&before, &after));
    }

    #[tokio::test(start_paused = true)]
    async fn files_that_stay_away_are_gone_and_what_nobody_wants_is_forgotten() {
        let (scratch, a) = (Scratch::new(), Authority::new("a"));
        fs::write(scratch.path("ca.pem"), a.pem()).unwrap();
        let source = Source::Roots(scratch.path("ca.pem"));
        let mut running = run();
        let lease = running.files.lease(source.clone()).await.unwrap();
        fs::remove_file(scratch.path("ca.pem")).unwrap();
        let removed = Instant::now();
        let gone = running.until(&source, |state| matches!(state.found(), Found::Missing)).await;
        assert!(removed.elapsed() >= GONE && pem(&gone) == a.pem());
        drop(lease);
        running.table.wait_for(|table| table.is_empty()).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn without_debounce_a_broken_file_is_not_read_all_the_time() {
        let lease = Lease(Arc::new(Source::Roots("/no/ca.pem".into())));
        let mut entry = Entry::new(&lease, false, Duration::ZERO);
        entry.bad(&FileError::Empty("/no/ca.pem".into()));
        assert!(entry.due.unwrap() >= Instant::now() + SHORTEST_RETRY / 2);
    }

    #[tokio::test]
    async fn one_lease_after_the_other_does_not_fill_the_table() {
        let running = run();
        for index in 0..2 * MAX_SOURCES {
            assert!(running.files.lease(Source::Roots(format!("/no/{index}").into())).await.is_some());
        }
        let mut leases = Vec::new();
        while let Some(lease) = running.files.lease(Source::Roots(format!("/no/{}", leases.len()).into())).await {
            leases.push(lease);
        }
        assert_eq!(leases.len(), MAX_SOURCES);
    }

    #[tokio::test]
    async fn one_large_file_under_many_names_does_not_fill_the_memory() {
        let (scratch, a) = (Scratch::new(), Authority::new("a"));
        let large = a.pem().repeat((MAX_KEPT >> 3) / a.pem().len());
        fs::write(scratch.path("ca.pem"), &large).unwrap();
        let (running, mut leases) = (run(), Vec::new());
        let name = |number: usize| Source::Roots(scratch.path(&format!("{number}.pem")));
        for number in 0..16 {
            fs::hard_link(scratch.path("ca.pem"), scratch.path(&format!("{number}.pem"))).unwrap();
            leases.extend(running.files.lease(name(number)).await);
        }
        assert!((8..=9).contains(&leases.len()), "{}", leases.len());
        drop(leases);
        assert!(running.files.lease(name(0)).await.is_some(), "there is room again");
    }
}
