//! One ECDS response: plugins with remote code become plugins with a local file, or what stands in for them.
//!
//! Called by xds through the trait that it declares (`agent` joins the two). A response without remote code is done at the first poll.

use std::{
    collections::BTreeMap,
    future::poll_fn,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::Poll,
    time::{Duration, Instant},
};

use bytes::Bytes;
use serde_json::{Value, json};

use crate::{
    base::{Backoff, BoxFuture, Policy},
    wires::ecds::{self, Mended, Rewritten, Update},
};

use super::{
    cache::{Cache, Lease, Wanted},
    error::Error,
    fetch,
    metrics::Metrics,
    resource::{self, Remote, Resource},
    settings::PullSecret,
    standin::stand_in,
};

/// Attempts after a failure that may pass: recovery within seconds once the server is back.
const SOON: Policy = Policy { initial: Duration::from_secs(2), factor: 1.5, max: Duration::from_secs(10), jitter: 0.2 };
/// Attempts after a failure that somebody has to mend: a wrong checksum, an image that does not exist.
const LATER: Policy = Policy { max: Duration::from_secs(60), ..SOON };

/// Makes remote plugins local; a clone is the same one.
#[derive(Clone)]
pub struct Rewriter(Arc<Inner>);

struct Inner {
    cache: Cache,
    metrics: Metrics,
    nack_on_failure: bool,
    /// What Envoy last accepted, by resource name.
    running: Mutex<BTreeMap<String, Running>>,
    /// Plugins whose module is being waited for, by resource name.
    failing: Mutex<BTreeMap<String, Failing>>,
}

/// A plugin at Envoy.
#[derive(Clone)]
struct Running {
    resource: Bytes,
    path: String,
    #[allow(dead_code, reason = "held, never read")]
    lease: Lease,
}

struct Failing {
    url: String,
    error: String,
    attempts: u32,
}

/// A plugin that is to be made local.
struct Plugin {
    /// The resource's name; Envoy and istiod know it by this one.
    name: String,
    remote: Remote,
}

/// What one resource became.
struct Outcome {
    rewritten: ecds::Resource,
    /// `None` for a resource of SotW that is no plugin: it has no name that matters.
    name: Option<String>,
    running: Option<Running>,
}

impl Rewriter {
    pub(super) fn new(cache: Cache, metrics: Metrics, nack_on_failure: bool) -> Rewriter {
        let (running, failing) = Default::default();
        Rewriter(Arc::new(Inner { cache, metrics, nack_on_failure, running, failing }))
    }

    /// Rewrites the resources of one response; the error is what istiod is told.
    pub fn rewrite(&self, update: Update) -> BoxFuture<'static, Result<Rewritten, String>> {
        let rewriter = self.clone();
        Box::pin(async move {
            let started = Instant::now();
            let rewritten = rewriter.rewrite_all(update).await;
            rewriter.0.metrics.duration.observe(started.elapsed().as_secs_f64() * 1000.0);
            rewritten
        })
    }

    async fn rewrite_all(&self, update: Update) -> Result<Rewritten, String> {
        let metrics = &self.0.metrics;
        let recognised: Vec<_> = update.resources.iter().map(resource::recognise).collect();
        let errors: Vec<&String> = recognised.iter().filter_map(|resource| resource.as_ref().err()).collect();
        if !errors.is_empty() {
            metrics.unmarshal_failure.add(errors.len() as f64);
            return Err(combined(&errors));
        }
        let (names, removed) = match update.delta {
            Some(delta) => (delta.names, Some(delta.removed)),
            None => (Vec::new(), None),
        };
        let mut outcomes: Vec<BoxFuture<'static, Result<Outcome, String>>> = Vec::new();
        for (index, (resource, bytes)) in recognised.into_iter().flatten().zip(update.resources).enumerate() {
            let name = names.get(index).cloned();
            outcomes.push(match resource {
                Resource::Other => {
                    metrics.no_remote_load.inc();
                    let rewritten = ecds::Resource { bytes, repair: None };
                    Box::pin(std::future::ready(Ok(Outcome { rewritten, name, running: None })))
                }
                Resource::Remote(remote) => {
                    let name = name.unwrap_or_else(|| remote.name.clone());
                    Box::pin(self.clone().convert(Arc::new(Plugin { name, remote: *remote })))
                }
            });
        }
        let (mut resources, mut plugins) = (Vec::new(), Vec::new());
        for outcome in join_all(outcomes).await {
            let outcome = outcome?;
            resources.push(outcome.rewritten);
            plugins.extend(outcome.name.map(|name| (name, outcome.running)));
        }
        let rewriter = self.clone();
        Ok(Rewritten { resources, accepted: Box::new(move || rewriter.accepted(plugins, removed)) })
    }

    /// Notes what Envoy runs from now on; the files of what it replaces may go.
    fn accepted(&self, plugins: Vec<(String, Option<Running>)>, removed: Option<Vec<String>>) {
        let mut running = self.0.running();
        match removed {
            None => running.clear(),
            Some(removed) => removed.iter().for_each(|name| drop(running.remove(name))),
        }
        for (name, plugin) in plugins {
            match plugin {
                Some(plugin) => drop(running.insert(name, plugin)),
                None => drop(running.remove(&name)),
            }
        }
    }

    async fn convert(self, plugin: Arc<Plugin>) -> Result<Outcome, String> {
        match self.local(&plugin).await {
            Ok(running) => {
                self.0.metrics.converted.inc();
                let rewritten = ecds::Resource { bytes: running.resource.clone(), repair: None };
                Ok(Outcome { rewritten, name: Some(plugin.name.clone()), running: Some(running) })
            }
            Err(error) => self.replace(plugin, error),
        }
    }

    /// The plugin with its module in a local file.
    async fn local(&self, plugin: &Plugin) -> Result<Running, Error> {
        let remote = &plugin.remote;
        let settings = &remote.settings;
        if settings.secret == PullSecret::Missing {
            return Err(Error::Config("missing image pulling secret".to_owned()));
        }
        let Some(source) = &remote.source else {
            return Err(Error::Config("missing remote fetch hint: no http_uri".to_owned()));
        };
        let wanted = Wanted {
            url: &source.uri,
            checksum: &source.sha256,
            resource: &remote.name,
            version: &settings.version,
            policy: settings.policy,
            secret: &settings.secret,
            timeout: source.timeout,
        };
        let hit = self.0.cache.get(&wanted).await?;
        let resource = remote.with_code(&hit.local).map_err(|error| {
            self.0.metrics.marshal_failure.inc();
            Error::Config(error)
        })?;
        Ok(Running { resource, path: hit.local.path, lease: hit.lease })
    }

    /// What Envoy gets in the place of a plugin that has no module: as the plugin's fail strategy says. A disk that takes nothing
    /// is no reason to take away what runs.
    fn replace(&self, plugin: Arc<Plugin>, error: Error) -> Result<Outcome, String> {
        let remote = &plugin.remote;
        match remote.source {
            None => self.0.metrics.no_address.inc(),
            Some(_) => self.0.metrics.conversion_failure.inc(),
        }
        let text = format!("cannot fetch Wasm module {}: {error}", plugin.shown());
        if self.0.nack_on_failure {
            return Err(text);
        }
        let kept = matches!(error, Error::Storage(_)).then(|| self.0.running().get(&plugin.name).cloned()).flatten();
        let what = match (&kept, remote.fail_open) {
            (Some(_), _) => "keeping the one that runs",
            (None, true) => "applying allow RBAC filter",
            (None, false) => "applying deny RBAC filter",
        };
        log::error!(target: "wasm", "{}: {text}; {what}", plugin.name);
        let bytes = match &kept {
            Some(running) => running.resource.clone(),
            None => stand_in(&remote.name, remote.kind, remote.fail_open),
        };
        let name = Some(plugin.name.clone());
        let repair = error.is_curable().then(|| self.repair(plugin, error));
        Ok(Outcome { rewritten: ecds::Resource { bytes, repair }, name, running: kept })
    }

    /// Tries until the module comes; ends with it. Dropping it ends the attempts.
    fn repair(&self, plugin: Arc<Plugin>, error: Error) -> BoxFuture<'static, Mended> {
        let rewriter = self.clone();
        let watch = Watch::new(self.clone(), &plugin, &error);
        Box::pin(async move {
            let mut error = error;
            let mut backoff = Backoff::new(policy(&error));
            loop {
                let delay = backoff.next_delay().max(error.after().unwrap_or_default());
                tokio::time::sleep(delay).await;
                match rewriter.local(&plugin).await {
                    Ok(running) => {
                        log::info!(target: "wasm", "{}: Wasm module {} is there now", plugin.name, plugin.shown());
                        rewriter.0.metrics.converted.inc();
                        let (bytes, rewriter) = (running.resource.clone(), rewriter.clone());
                        let name = plugin.name.clone();
                        // The stand-in's acceptance may come after this, and takes the name out.
                        let accepted = Box::new(move || drop(rewriter.0.running().insert(name, running)));
                        return Mended { bytes, accepted };
                    }
                    Err(next) => {
                        if next.is_retryable() != error.is_retryable() {
                            backoff = Backoff::new(policy(&next));
                        }
                        watch.failed(&next);
                        error = next;
                    }
                }
            }
        })
    }

    /// Modules, plugins at Envoy and plugins that are waited for, for people.
    pub fn debug(&self) -> Value {
        let running: Vec<Value> =
            self.0.running().iter().map(|(name, plugin)| json!({"name": name, "path": plugin.path})).collect();
        let failing = self.0.failing();
        let failing: Vec<Value> = failing
            .iter()
            .map(|(name, plugin)| {
                json!({"name": name, "url": plugin.url, "error": plugin.error, "attempts": plugin.attempts})
            })
            .collect();
        json!({"modules": self.0.cache.debug(), "running": running, "failing": failing})
    }
}

impl Inner {
    fn running(&self) -> MutexGuard<'_, BTreeMap<String, Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failing(&self) -> MutexGuard<'_, BTreeMap<String, Failing>> {
        self.failing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Plugin {
    /// What is fetched, without login; the plugin's name when it does not say.
    fn shown(&self) -> String {
        match &self.remote.source {
            Some(source) if self.remote.settings.secret != PullSecret::Missing => fetch::split_login(&source.uri).1,
            _ => self.remote.plugin.clone(),
        }
    }
}

/// Keeps a plugin in the list of failing ones.
struct Watch {
    rewriter: Rewriter,
    name: String,
}

impl Watch {
    fn new(rewriter: Rewriter, plugin: &Plugin, error: &Error) -> Watch {
        let failing = Failing { url: plugin.shown(), error: error.to_string(), attempts: 1 };
        rewriter.0.failing().insert(plugin.name.clone(), failing);
        Watch { rewriter, name: plugin.name.clone() }
    }

    /// Logged only when the reason is another than before.
    fn failed(&self, error: &Error) {
        let text = error.to_string();
        if let Some(failing) = self.rewriter.0.failing().get_mut(&self.name) {
            failing.attempts += 1;
            if failing.error != text {
                log::warn!(target: "wasm", "{}: still no Wasm module {}: {text}", self.name, failing.url);
                failing.error = text;
            }
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.rewriter.0.failing().remove(&self.name);
    }
}

fn policy(error: &Error) -> Policy {
    if error.is_retryable() { SOON } else { LATER }
}

/// Several errors in one text, as Istio's multierror writes them.
fn combined(errors: &[&String]) -> String {
    match errors {
        [only] => (*only).clone(),
        _ => {
            let mut text = format!("{} errors occurred:\n", errors.len());
            for error in errors {
                text.push_str("\t* ");
                text.push_str(error);
                text.push('\n');
            }
            text
        }
    }
}

/// The results of all, in order, once all are there.
async fn join_all<T>(mut futures: Vec<BoxFuture<'static, T>>) -> Vec<T> {
    let mut results: Vec<Option<T>> = futures.iter().map(|_| None).collect();
    poll_fn(|context| {
        let mut pending = false;
        for (future, result) in futures.iter_mut().zip(&mut results).filter(|(_, result)| result.is_none()) {
            match future.as_mut().poll(context) {
                Poll::Ready(value) => *result = Some(value),
                Poll::Pending => pending = true,
            }
        }
        if pending { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
    results.into_iter().flatten().collect()
}
