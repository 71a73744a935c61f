//! One stream's extension configuration (ECDS) on its way from istiod to Envoy: it waits for the Wasm rewrite, and nothing else does.
//!
//! Called by the relay of an ADS stream with every ECDS response and request. A response that needs no fetch goes on at once. One that
//! waits is dropped when a newer one comes: in SotW as a whole, in delta name by name, so that an older configuration never follows a
//! newer one whatever the download times are. A stand-in that was delivered is replaced when its plugin can be had at last; such a
//! response has a nonce of the agent's own, whose acknowledgement istiod never sees. Does no I/O and spawns nothing.

mod message;

use std::{
    collections::VecDeque,
    future::poll_fn,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use bytes::Bytes;

use crate::{
    base::BoxFuture,
    wires::ecds::{Accepted, Delta, Mended, Rewritten, Update},
};

use super::Kind;
use message::{Fate, Item};

/// What makes remote Wasm plugins local.
pub trait Rewrite: Send + Sync {
    /// Rewrites the resources of one response; the error is what istiod is told. Dropping the future cancels it.
    fn rewrite(&self, update: Update) -> BoxFuture<'static, Result<Rewritten, String>>;
}

/// Something to send.
#[derive(Debug, PartialEq)]
pub enum Step {
    /// A response.
    ToEnvoy(Bytes),
    /// A refusal.
    ToIstiod(Bytes),
}

/// How many responses Envoy may leave unanswered before the oldest is forgotten.
const MAX_UNANSWERED: usize = 64;
/// How many of the nonces made here are remembered; Envoy names the newest, or one that is on its way.
const MAX_MADE: usize = 16;

/// The state of one stream.
pub struct Ecds {
    kind: Kind,
    rewrite: Arc<dyn Rewrite>,
    /// Responses that wait for a fetch, the oldest first; at most one in SotW.
    waiting: Vec<Waiting>,
    ready: VecDeque<Step>,
    /// Sent to Envoy, not answered yet.
    unanswered: VecDeque<Sent>,
    /// Stand-ins at Envoy that may be replaced.
    repairs: Vec<Repair>,
    /// Nonces made here, with istiod's nonce of the response that each repaired.
    made: VecDeque<(String, String)>,
    serial: u64,
    /// The version that Envoy last accepted.
    accepted: String,
    /// The names that Envoy last subscribed to (SotW).
    names: Vec<String>,
}

struct Waiting {
    message: Bytes,
    nonce: String,
    resources: Vec<Item>,
    /// By position: not superseded.
    live: Vec<bool>,
    /// Not superseded.
    removed: Vec<String>,
    rewriting: BoxFuture<'static, Result<Rewritten, String>>,
}

struct Sent {
    nonce: String,
    accepted: Accepted,
}

struct Repair {
    /// The resource's name (delta).
    name: String,
    /// The response to send again: in SotW whole and as Envoy has it, in delta with this resource only.
    message: Bytes,
    /// Which of its resources.
    position: usize,
    nonce: String,
    mending: BoxFuture<'static, Mended>,
}

impl Ecds {
    /// A stream without any response yet.
    pub fn new(kind: Kind, rewrite: Arc<dyn Rewrite>) -> Ecds {
        Ecds {
            kind,
            rewrite,
            waiting: Vec::new(),
            ready: VecDeque::new(),
            unanswered: VecDeque::new(),
            repairs: Vec::new(),
            made: VecDeque::new(),
            serial: 0,
            accepted: String::new(),
            names: Vec::new(),
        }
    }

    /// Takes an ECDS response of istiod's, without gRPC prefix.
    pub fn received(&mut self, message: Bytes) {
        let content = match message::content(self.kind, &message) {
            Ok(content) => content,
            Err(error) => return self.refuse("", format!("undecodable ECDS response: {error}")),
        };
        let update = Update {
            resources: content.resources.iter().map(|item| item.any.clone()).collect(),
            delta: (self.kind == Kind::Delta).then(|| Delta {
                names: content.resources.iter().map(|item| item.name.clone()).collect(),
                removed: content.removed.clone(),
            }),
        };
        let mut waiting = Waiting {
            message,
            nonce: content.nonce,
            live: vec![true; content.resources.len()],
            resources: content.resources,
            removed: content.removed,
            rewriting: self.rewrite.rewrite(update),
        };
        match poll_once(&mut waiting.rewriting) {
            // What istiod is told to be broken replaces nothing.
            Poll::Ready(Err(error)) => self.refuse(&waiting.nonce, error),
            Poll::Ready(Ok(rewritten)) => {
                self.supersede(&waiting);
                self.deliver(waiting, rewritten);
            }
            Poll::Pending => {
                self.supersede(&waiting);
                self.waiting.push(waiting);
            }
        }
    }

    /// Takes an ECDS request of Envoy's and gives what istiod is to see of it, `None` for nothing.
    pub fn request(&mut self, message: Bytes) -> Option<Bytes> {
        let request = message::request(self.kind, &message);
        if !request.refused && !request.version.is_empty() {
            self.accepted.clone_from(&request.version);
        }
        self.answered(&request.nonce, request.refused);
        let subscribes = match self.kind {
            Kind::Sotw => request.names != self.names,
            Kind::Delta => !request.names.is_empty(),
        };
        self.names = request.names;
        let Some((_, original)) = self.made.iter().find(|(made, _)| *made == request.nonce) else {
            return Some(message);
        };
        if !request.refused && !subscribes {
            return None;
        }
        // istiod knows that response by its own nonce only, and ignores a delta subscription whose nonce is not its latest.
        let nonce = (self.kind == Kind::Sotw || request.refused).then_some(original.as_str());
        message::with_nonce(self.kind, &message, nonce).ok()
    }

    /// The next thing to send; waits while there is none. Cancel-safe.
    pub async fn next(&mut self) -> Step {
        poll_fn(|context| self.poll(context)).await
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Step> {
        let mut index = 0;
        while index < self.waiting.len() {
            match self.waiting[index].rewriting.as_mut().poll(context) {
                Poll::Pending => index += 1,
                Poll::Ready(rewritten) => {
                    let waiting = self.waiting.remove(index);
                    self.finish(waiting, rewritten);
                }
            }
        }
        self.poll_repairs(context);
        self.ready.pop_front().map_or(Poll::Pending, Poll::Ready)
    }

    fn finish(&mut self, waiting: Waiting, rewritten: Result<Rewritten, String>) {
        match rewritten {
            Ok(rewritten) => self.deliver(waiting, rewritten),
            Err(error) => self.refuse(&waiting.nonce, error),
        }
    }

    fn refuse(&mut self, nonce: &str, error: String) {
        log::warn!(target: "xdsproxy", "refused ECDS response {nonce}: {error}");
        self.ready.push_back(Step::ToIstiod(message::refusal(self.kind, &self.accepted, nonce, error)));
    }

    /// Drops what waits or may still be repaired and is replaced by `newer`.
    fn supersede(&mut self, newer: &Waiting) {
        if self.kind == Kind::Sotw {
            self.waiting.clear();
            self.repairs.clear();
            return;
        }
        let replaced = |name: &str| {
            newer.resources.iter().any(|item| item.name == name) || newer.removed.iter().any(|gone| gone == name)
        };
        self.repairs.retain(|repair| !replaced(&repair.name));
        for mut waiting in std::mem::take(&mut self.waiting) {
            let before = waiting.live.iter().filter(|live| **live).count();
            for (live, item) in waiting.live.iter_mut().zip(&waiting.resources) {
                *live &= !replaced(&item.name);
            }
            waiting.removed.retain(|name| !replaced(name));
            if before == waiting.live.iter().filter(|live| **live).count() {
                self.waiting.push(waiting);
                continue;
            }
            // The new future begins before the old one ends, so that fetches that both want go on.
            let mut rest = self.rewrite.rewrite(waiting.update());
            let polled = poll_once(&mut rest);
            waiting.rewriting = rest;
            match polled {
                Poll::Pending => self.waiting.push(waiting),
                Poll::Ready(rewritten) => self.finish(waiting, rewritten),
            }
        }
    }

    fn deliver(&mut self, waiting: Waiting, rewritten: Rewritten) {
        let Waiting { message, nonce, resources, live, removed, .. } = waiting;
        if self.kind == Kind::Delta && removed.is_empty() && !live.is_empty() && !live.contains(&true) {
            return;
        }
        let mut fates = vec![Fate::Drop; live.len()];
        let mut stand_ins = Vec::new();
        let positions = (0..live.len()).filter(|position| live[*position]);
        for (position, resource) in positions.zip(rewritten.resources) {
            let same = resource.bytes == resources[position].any;
            fates[position] = if same { Fate::Keep } else { Fate::Replace(resource.bytes) };
            stand_ins.extend(resource.repair.map(|mending| (position, mending)));
        }
        let keep_removed = |name: &str| removed.iter().any(|kept| kept == name);
        let Ok(assembled) = message::assemble(self.kind, &message, &fates, &keep_removed, None) else {
            return self.refuse(&nonce, "undecodable ECDS response".to_owned());
        };
        for (position, mending) in stand_ins {
            let name = resources[position].name.clone();
            let (message, position) = match self.kind {
                Kind::Sotw => (assembled.clone(), position),
                Kind::Delta => (alone(&message, fates.len(), position), 0),
            };
            self.repairs.push(Repair { name, message, position, nonce: nonce.clone(), mending });
        }
        self.send(assembled, nonce, rewritten.accepted);
    }

    fn send(&mut self, message: Bytes, nonce: String, accepted: Accepted) {
        self.ready.push_back(Step::ToEnvoy(message));
        self.unanswered.push_back(Sent { nonce, accepted });
        if self.unanswered.len() > MAX_UNANSWERED {
            self.unanswered.pop_front();
        }
    }

    /// Notes Envoy's answer: what came before it has been answered too, or never will be.
    fn answered(&mut self, nonce: &str, refused: bool) {
        let Some(position) = self.unanswered.iter().position(|sent| sent.nonce == nonce) else {
            return;
        };
        if let (Some(sent), false) = (self.unanswered.drain(..=position).next_back(), refused) {
            (sent.accepted)();
        }
    }

    fn poll_repairs(&mut self, context: &mut Context<'_>) {
        let (mut whole, mut all) = (None, Vec::new());
        let mut index = 0;
        while index < self.repairs.len() {
            let Poll::Ready(Mended { bytes, accepted }) = self.repairs[index].mending.as_mut().poll(context) else {
                index += 1;
                continue;
            };
            let Repair { message, position, nonce, .. } = self.repairs.swap_remove(index);
            let mut fates = vec![Fate::Keep; position];
            fates.push(Fate::Replace(bytes));
            let made = self.make_nonce(&nonce);
            let Ok(mended) = message::assemble(self.kind, &message, &fates, &|_| false, Some(&made)) else {
                continue;
            };
            match self.kind {
                Kind::Delta => self.send(mended, made, accepted),
                Kind::Sotw => {
                    self.repairs.iter_mut().for_each(|repair| repair.message = mended.clone());
                    all.push(accepted);
                    whole = Some((mended, made));
                }
            }
        }
        if let Some((mended, made)) = whole {
            self.send(mended, made, Box::new(move || all.into_iter().for_each(|accepted| accepted())));
        }
    }

    fn make_nonce(&mut self, original: &str) -> String {
        self.serial += 1;
        let made = format!("footman-{}", self.serial);
        self.made.push_back((made.clone(), original.to_owned()));
        if self.made.len() > MAX_MADE {
            self.made.pop_front();
        }
        made
    }
}

impl Waiting {
    /// What is left of it to be rewritten; delta only.
    fn update(&self) -> Update {
        let live = || self.resources.iter().zip(&self.live).filter(|(_, live)| **live).map(|(item, _)| item);
        let names = live().map(|item| item.name.clone()).collect();
        Update {
            resources: live().map(|item| item.any.clone()).collect(),
            delta: Some(Delta { names, removed: self.removed.clone() }),
        }
    }
}

/// A delta response with the resource at `position` only; empty when it cannot be read, which `content` has ruled out.
fn alone(message: &Bytes, count: usize, position: usize) -> Bytes {
    let mut fates = vec![Fate::Drop; count];
    fates[position] = Fate::Keep;
    message::assemble(Kind::Delta, message, &fates, &|_| false, None).unwrap_or_default()
}

/// Polls without being woken; who gets `Pending` polls again.
fn poll_once<T>(future: &mut BoxFuture<'static, T>) -> Poll<T> {
    future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

#[cfg(test)]
mod tests;
