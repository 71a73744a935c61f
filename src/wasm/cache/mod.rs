//! Modules on disk: found again, fetched once, never handed out damaged.
//!
//! Called by `rewrite`. What is looked up and what is kept decides `table`; files are `files`'s; the network is `fetch`'s and `oci`'s.

mod files;
mod flight;
mod index;
mod table;

pub(super) use table::{Key, Lease};

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};

use serde_json::{Value, json};
use tokio::{sync::Notify, time::Instant};

use crate::base::{Clock, later, random_u64};

use super::{
    aot, archive,
    config::Config,
    error::{Error, Stage},
    fetch,
    metrics::Metrics,
    oci::{self, Credentials, Reference},
    resource::Local,
    settings::{PullPolicy, PullSecret},
    spool::{Spooled, sha256_hex},
};

use files::sync;
use flight::Flights;
use table::{Module, Question, Table};

pub(super) fn fuzz_index(data: &[u8], folder: &Path) {
    if let Some(index) = index::decode(data, folder) {
        let text = index::encode(&index.table, &index.salt, folder);
        let again =
            index::decode(text.as_bytes(), folder).map(|again| index::encode(&again.table, &again.salt, folder));
        assert_eq!(again, Some(text), "the index does not come back as it was");
    }
}

/// The cache; a clone is the same one.
#[derive(Clone)]
pub(super) struct Cache(Arc<Inner>);

struct Inner {
    config: Config,
    clock: Clock,
    metrics: Metrics,
    table: Mutex<Table>,
    salt: String,
    fetches: Flights<Result<Key, Error>>,
    checks: Flights<bool>,
    /// Told whenever the index on disk is behind.
    changed: Notify,
}

/// What a plugin wants.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted<'a> {
    pub(super) url: &'a str,
    /// Lower-case hexadecimal; empty when nobody gave one.
    pub(super) checksum: &'a str,
    pub(super) resource: &'a str,
    pub(super) version: &'a str,
    pub(super) policy: PullPolicy,
    pub(super) secret: &'a PullSecret,
    pub(super) timeout: Duration,
}

/// A module at hand; its file stays as long as the lease.
#[derive(Debug, Clone)]
pub(super) struct Hit {
    pub(super) local: Local,
    pub(super) lease: Lease,
}

/// Where a module comes from, as the URL says.
#[derive(Clone)]
struct Origin {
    /// Without login.
    url: String,
    /// What is asked, with login.
    request: String,
    image: Option<Reference>,
    credentials: Credentials,
    /// Names the login without telling it.
    login: String,
    /// The module's name in the cache.
    name: String,
}

impl Cache {
    /// The cache in the configured folder, with what an earlier start left there.
    pub(super) fn open(config: Config, clock: Clock, metrics: Metrics) -> Cache {
        if let Err(error) = files::prepare(&config.folder) {
            log::warn!(target: "wasm", "{}: {error}; Wasm modules cannot be fetched", config.folder.display());
        }
        let index = index::load(&config.folder).unwrap_or_default();
        let mut table = index.table;
        // Contents are checked when they are first wanted; this start must not wait for them.
        let gone = |module: &Module| files::stamp(&module.path).map_or(true, |stamp| stamp.size != module.size);
        let lost: Vec<Key> =
            table.modules.iter().filter(|(_, module)| gone(module)).map(|(key, _)| key.clone()).collect();
        lost.iter().for_each(|key| drop(table.remove(key)));
        files::tidy(&config.folder, table.modules.values());
        metrics.entries.set(table.modules.len() as f64);
        let salt =
            if index.salt.is_empty() { format!("{:016x}{:016x}", random_u64(), random_u64()) } else { index.salt };
        Cache(Arc::new(Inner {
            config,
            clock,
            metrics,
            table: Mutex::new(table),
            salt,
            fetches: Flights::default(),
            checks: Flights::default(),
            changed: Notify::new(),
        }))
    }

    /// The module that a plugin wants: at hand, or fetched within its timeout.
    pub(super) async fn get(&self, wanted: &Wanted<'_>) -> Result<Hit, Error> {
        let inner = &self.0;
        let origin = inner.origin(wanted)?;
        let pinned = origin.image.as_ref().and_then(Reference::pinned).unwrap_or_default();
        let question = Question {
            url: &origin.url,
            name: &origin.name,
            expected: if wanted.checksum.is_empty() { pinned } else { wanted.checksum },
            moves: pinned.is_empty(),
            resource: wanted.resource,
            version: wanted.version,
            ignore_version: wanted.policy.ignores_version(&origin.url),
        };
        if inner.config.key.is_some() && origin.image.is_none() && wanted.checksum.is_empty() {
            let text = "FOOTMAN_WASM_PUBLIC_KEY is set, so a module from a web server must have a checksum (sha256)";
            return Err(Error::Config(text.to_owned()));
        }
        if let Some(hit) = self.find(&question, &origin.login).await {
            return Ok(hit);
        }
        let deadline = later(Instant::now(), wanted.timeout);
        let flight = [&origin.request, question.expected, &origin.login].map(|part| part.to_owned()).join("\n");
        let key = inner
            .fetches
            .join(&flight, || {
                let (cache, origin, expected) = (self.clone(), origin.clone(), question.expected.to_owned());
                Box::pin(async move { cache.fetch(&origin, &expected, deadline).await })
            })
            .await?;
        let hit = inner.take(&key, &question);
        hit.ok_or_else(|| Error::fetch(Stage::Download, format!("{} was removed while it was fetched", origin.url)))
    }

    /// Counted lookup of a module that may be handed to who has this login.
    async fn find(&self, question: &Question<'_>, login: &str) -> Option<Hit> {
        let inner = &self.0;
        let key = inner.lock().find(question);
        let usable = match key {
            Some(key) if inner.allows(&key, login) && self.is_intact(&key).await => Some(key),
            _ => None,
        };
        let hit = usable.and_then(|key| inner.take(&key, question));
        if hit.is_some() {
            inner.metrics.hit.inc()
        } else {
            inner.metrics.miss.inc()
        }
        hit
    }

    /// Whether the module's file is what was stored; a module that is not is forgotten.
    async fn is_intact(&self, key: &Key) -> bool {
        let Some(module) = self.0.lock().modules.get(key).cloned() else {
            return false;
        };
        if module.seen.is_some() && files::stamp(&module.path).ok() == module.seen {
            return true;
        }
        let cache = self.clone();
        let (flight, key) = (module.path.display().to_string(), key.clone());
        self.0.checks.join(&flight, || Box::pin(async move { cache.check(&key, &module).await })).await
    }

    async fn check(&self, key: &Key, module: &Module) -> bool {
        let stamp = files::stamp(&module.path);
        let intact = files::holds(&module.path, &module.sha256).await;
        if let (Ok(true), Ok(stamp)) = (&intact, stamp) {
            if let Some(module) = self.0.lock().modules.get_mut(key) {
                module.seen = Some(stamp);
            }
            return true;
        }
        let why = intact.err().map_or_else(|| "damaged".to_owned(), |error| error.to_string());
        log::warn!(target: "wasm", "{}: {why}; fetching {} anew", module.path.display(), key.name);
        self.0.forget(key);
        false
    }

    /// Fetches, verifies and stores; what is stored is not handed out here.
    async fn fetch(&self, origin: &Origin, expected: &str, deadline: Instant) -> Result<Key, Error> {
        let fetched = match &origin.image {
            None => self.fetch_web(origin, expected, deadline).await,
            Some(image) => self.fetch_image(origin, image, expected, deadline).await,
        };
        let metrics = &self.0.metrics;
        match &fetched {
            Ok(_) => {}
            Err(Error::Fetch { stage: Stage::Manifest, .. }) => metrics.manifest_failure.inc(),
            Err(Error::Fetch { .. } | Error::Config(_) | Error::Storage(_)) => metrics.download_failure.inc(),
            Err(Error::Mismatch { .. }) => metrics.checksum_mismatched.inc(),
            Err(Error::Invalid { .. }) => metrics.fetch_failure.inc(),
        }
        fetched
    }

    async fn fetch_web(&self, origin: &Origin, expected: &str, deadline: Instant) -> Result<Key, Error> {
        let config = &self.0.config;
        let attempts = fetch::Attempts { count: config.attempts, timeout: config.request_timeout, deadline };
        let limit = config.max_module;
        self.0.prepare()?;
        let boxed = fetch::fetch(&config.client, &origin.request, attempts, &config.folder, limit).await?;
        let module = archive::unbox(boxed, &config.folder, limit).await;
        let module = module.map_err(|error| Error::from_spool(&origin.url, error))?;
        let key = Key { name: origin.name.clone(), checksum: module.sha256.clone() };
        if expected.is_empty() {
            if self.is_at_hand(&key, origin).await {
                return Ok(key);
            }
        } else if key.checksum != expected {
            let (actual, expected) = (key.checksum, expected.to_owned());
            return Err(Error::Mismatch { url: origin.url.clone(), actual, expected });
        }
        self.store(&key, module, origin, None).await?;
        Ok(key)
    }

    async fn fetch_image(
        &self,
        origin: &Origin,
        image: &Reference,
        expected: &str,
        deadline: Instant,
    ) -> Result<Key, Error> {
        let config = &self.0.config;
        let late = |stage| Error::fetch(stage, format!("{image}: context deadline exceeded"));
        let found =
            tokio::time::timeout_at(deadline, oci::resolve(&config.client, image, &origin.credentials, deadline));
        let mut found = found.await.map_err(|_| late(Stage::Manifest))??;
        let key = Key { name: origin.name.clone(), checksum: found.digest.clone() };
        if !expected.is_empty() && !found.is(expected) {
            let (actual, expected) = (key.checksum, expected.to_owned());
            return Err(Error::Mismatch { url: origin.url.clone(), actual, expected });
        }
        let index = found.index.clone();
        if !self.is_at_hand(&key, origin).await {
            let pull = async {
                if let Some(key) = &config.key {
                    found.verify(key).await?;
                }
                self.0.prepare()?;
                found.pull(&config.folder, config.max_module).await
            };
            let module = tokio::time::timeout_at(deadline, pull).await.map_err(|_| late(Stage::Download))??;
            self.store(&key, module, origin, config.key.as_ref().map(oci::PublicKey::fingerprint)).await?;
        }
        if let Some(index) = index {
            let alias = Key { name: key.name.clone(), checksum: index };
            self.0.lock().aliases.insert(alias, key.checksum.clone());
            self.0.changed.notify_one();
        }
        Ok(key)
    }

    /// Whether what was just found out is stored already; who found it out may have it.
    async fn is_at_hand(&self, key: &Key, origin: &Origin) -> bool {
        let inner = &self.0;
        let known = inner.lock().modules.get(key).is_some_and(|module| inner.is_signed(module));
        let intact = known && self.is_intact(key).await;
        if let (true, Some(module)) = (intact, inner.lock().modules.get_mut(key)) {
            module.logins.insert(origin.login.clone());
        }
        if intact {
            inner.metrics.hit.inc()
        } else {
            inner.metrics.miss.inc()
        }
        intact
    }

    async fn store(
        &self,
        key: &Key,
        mut fetched: Spooled,
        origin: &Origin,
        signer: Option<String>,
    ) -> Result<(), Error> {
        let inner = &self.0;
        let failed = |error| Error::storage("module", &error);
        if !archive::is_module(&mut fetched.file).map_err(failed)? {
            return Err(Error::Invalid { url: origin.url.clone(), why: None });
        }
        let path = files::path(&inner.config.folder, key);
        let mut module = Module::new(path.clone(), fetched.sha256.clone(), fetched.size, inner.clock.now());
        module.aot = aot::needs_wamr(&mut fetched.file);
        module.signer = signer;
        module.logins.insert(origin.login.clone());
        files::place(fetched, &path).await.map_err(failed)?;
        module.seen = files::stamp(&path).ok();
        let surplus = {
            let mut table = inner.lock();
            table.modules.insert(key.clone(), module);
            table.surplus(inner.config.max_total, key)
        };
        surplus.iter().for_each(|key| inner.forget(key));
        inner.metrics.fetched.inc();
        inner.count();
        log::info!(target: "wasm", "fetched Wasm module {} to {}", origin.url, path.display());
        Ok(())
    }

    /// Removes what nobody has used for the configured time.
    pub(super) fn purge(&self) {
        let inner = &self.0;
        let expired = inner.lock().expired(inner.clock.now(), inner.config.expiry);
        for key in &expired {
            log::info!(target: "wasm", "removed unused Wasm module {} {}", key.name, key.checksum);
            inner.forget(key);
        }
        inner.count();
    }

    /// Waits until the index on disk is behind.
    pub(super) async fn changed(&self) {
        self.0.changed.notified().await;
    }

    /// Writes the index; a disk that does not take it costs the next start its cache, no more.
    pub(super) async fn save(&self) {
        let inner = &self.0;
        let text = index::encode(&inner.lock(), &inner.salt, &inner.config.folder);
        if let Err(error) = index::save(&inner.config.folder, text).await {
            log::warn!(target: "wasm", "{}", Error::storage("cache index", &error));
        }
    }

    /// The modules, for people.
    pub(super) fn debug(&self) -> Value {
        let table = self.0.lock();
        let modules = table.modules.iter().map(|(key, module)| {
            let here = |latest: &table::Latest| latest.name == key.name && latest.checksum == key.checksum;
            let urls: Vec<&String> = table.urls.iter().filter(|(_, latest)| here(latest)).map(|(url, _)| url).collect();
            let last_use = module.last_use.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
            json!({
                "name": key.name, "checksum": key.checksum, "path": module.path.display().to_string(), "size": module.size,
                "lastUse": last_use, "inUse": module.is_in_use(), "private": !module.is_open_to(""),
                "signed": module.signer.is_some(), "urls": urls,
            })
        });
        modules.collect()
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the URL and finds the login.
    fn origin(&self, wanted: &Wanted<'_>) -> Result<Origin, Error> {
        let scheme = wanted.url.split_once("://").map_or("", |(scheme, _)| scheme).to_ascii_lowercase();
        match scheme.as_str() {
            "http" | "https" => {
                let (login, url) = fetch::split_login(wanted.url);
                let login = self.fingerprint(login.unwrap_or_default());
                let credentials = Credentials::Anonymous;
                Ok(Origin { name: url.clone(), url, request: wanted.url.to_owned(), image: None, credentials, login })
            }
            "oci" => {
                let image = Reference::from_url(wanted.url)
                    .map_err(|error| Error::Config(format!("could not fetch Wasm OCI image: {error}")))?;
                let credentials = match wanted.secret {
                    PullSecret::DockerConfig(text) => Credentials::from_docker_config(text, &image)
                        .map_err(|error| Error::Config(format!("image pull secret: {error}")))?,
                    _ => self.config.keychain.resolve(&image).map_err(|error| Error::fetch(Stage::Manifest, error))?,
                };
                let login = self.fingerprint(&credentials.identity());
                let (name, url) = (format!("oci://{}/{}", image.registry, image.repository), wanted.url.to_owned());
                Ok(Origin { request: url.clone(), url, name, image: Some(image), credentials, login })
            }
            other => Err(Error::Config(format!("unsupported Wasm module downloading URL scheme: {other}"))),
        }
    }

    /// Tells logins apart without telling them; empty for none.
    fn fingerprint(&self, login: &str) -> String {
        if login.is_empty() { String::new() } else { sha256_hex(format!("{}{login}", self.salt).as_bytes()) }
    }

    fn allows(&self, key: &Key, login: &str) -> bool {
        self.lock().modules.get(key).is_some_and(|module| module.is_open_to(login) && self.is_signed(module))
    }

    /// Whether the module may be used under the configured key; a download is vouched for by its checksum.
    fn is_signed(&self, module: &Module) -> bool {
        let is_download = module.path.file_stem().and_then(|stem| stem.to_str()) == Some(&module.sha256);
        self.config.key.as_ref().is_none_or(|key| is_download || module.signer == Some(key.fingerprint()))
    }

    fn take(&self, key: &Key, question: &Question<'_>) -> Option<Hit> {
        let mut table = self.lock();
        table.used(key, question, self.clock.now());
        let module = table.modules.get(key)?;
        let local = Local { path: module.path.display().to_string(), aot: module.aot };
        self.changed.notify_one();
        Some(Hit { local, lease: module.lease() })
    }

    /// Takes a module out, its file too.
    fn forget(&self, key: &Key) {
        let removed = self.lock().remove(key);
        if let Some(module) = removed {
            files::discard(&module.path);
            // Succeeds when no other version is left.
            let _ = std::fs::remove_dir(module.path.parent().unwrap_or(Path::new("")));
        }
        self.changed.notify_one();
    }

    fn count(&self) {
        self.metrics.entries.set(self.lock().modules.len() as f64);
    }

    /// The folder may have been removed since the start.
    fn prepare(&self) -> Result<(), Error> {
        files::prepare(&self.config.folder).map_err(|error| {
            let path: PathBuf = self.config.folder.clone();
            Error::storage(&format!("cache folder {}", path.display()), &error)
        })
    }
}
