//! The task that owns the index: takes watch events and news of sessions, reads what is missing, tells the hub.

use std::collections::HashMap;
use std::sync::Arc;

use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt as _};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};
use tokio::time::Instant;
use tombolo_proto::{NodeId, ObjectKey};
use tombolo_runtime::ReadyGuard;
use tombolo_runtime::time::sleep_until;

use super::downstream::node_key;
use super::index::{Effect, Index, Kind, PodList, ReadToken};
use super::pod_manager::coalesce;
use super::reads::{Read, Reads};
use crate::kube::{ApiCall, CallError, Caller, Kube, ObjectEvent, RawObject, is_refusal, path_of};

#[cfg(test)]
mod tests;

/// Events that wait for the index; the watches wait when it is full.
pub(crate) const INPUTS_MAX: usize = 1024;

/// Events taken at a time; a burst within them becomes one change an object.
const BATCH_MAX: usize = 256;

/// Failures in a row from which on an object counts as unreadable. A refusal counts at once.
const FAILURES_MAX: u32 = 5;

/// News for the index.
#[derive(Debug)]
pub enum Input {
    /// A watch of this kind told something. Where the watch has a bound of its own, the event holds one of its places
    /// until it is taken.
    Watched(Kind, ObjectEvent, Option<OwnedSemaphorePermit>),
    /// A node has connected.
    Joined(NodeId),
    /// A node's last session has ended.
    Left(NodeId),
    /// A session would take these from the node. The API server is asked which pods the node has, and for those of the
    /// objects that the node needs and the index takes for absent; the answer comes when the index knows what it says. No
    /// answer: ask again.
    Prove(NodeId, Vec<ObjectKey>, oneshot::Sender<Proven>),
    /// The cloud's history went back: forget it, then answer.
    Reset(oneshot::Sender<()>),
}

/// What the API server has said of the objects that the index took for absent. What it refuses to say is
/// [`Lookup::Unreadable`](tombolo_proto::session::Lookup) from then on.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Proven {
    /// There is none, or the index knows it now.
    pub read: Vec<ObjectKey>,
    /// Nothing yet. They are read again, and offered when it has answered: to ask before that is of no use.
    pub put_off: Vec<ObjectKey>,
}

/// Where the index' decisions go: the hub.
pub trait Outlet: Send + Sync + 'static {
    /// The state under this key may have changed for the node.
    fn offer(&self, node: &NodeId, key: &ObjectKey);
    /// The node's picture is complete.
    fn ready(&self, node: &NodeId);
    /// The Node object is gone: tell the edge, end the session.
    fn node_deleted(&self, node: &NodeId);
}

/// Drives an [`Index`].
pub struct Controller {
    index: Index,
    kube: Kube,
    outlet: Arc<dyn Outlet>,
    queue: Reads,
    reads: FuturesUnordered<BoxFuture<'static, Finding>>,
    /// Questions of sessions, by their numbers.
    proofs: HashMap<u64, Proof>,
    newest_proof: u64,
    /// Dropped once everything has been listed.
    ready: Option<ReadyGuard>,
    /// Grows with each reset: an answer from before it is dropped.
    era: u64,
}

struct Proof {
    node: NodeId,
    /// Objects that the node needs and that the index takes for absent.
    absent: Vec<ObjectKey>,
    answer: oneshot::Sender<Proven>,
}

struct Finding {
    era: u64,
    read: Read,
    token: ReadToken,
    result: Result<Found, ReadError>,
}

/// A read of the API, with all that it asks for.
struct Question {
    read: Read,
    node: Option<NodeId>,
    objects: Vec<ObjectKey>,
}

/// The answer to it.
#[derive(Default)]
struct Found {
    pods: PodList,
    objects: Vec<(ObjectKey, Outcome)>,
}

/// The answer for one object; none: there is no such object.
type Outcome = Result<Option<RawObject>, ReadError>;

/// Why there is no answer; the status code when there is one.
#[derive(Clone)]
struct ReadError {
    code: Option<u16>,
    text: String,
}

impl ReadError {
    /// The status code of an answer that is about the object; none for trouble, of which nothing follows.
    fn refusal(&self) -> Option<u16> {
        self.code.filter(|code| is_refusal(*code))
    }
}

impl From<CallError> for ReadError {
    fn from(error: CallError) -> Self {
        Self { code: None, text: error.to_string() }
    }
}

impl Controller {
    /// A controller that makes the process ready once every kind has been listed.
    #[must_use]
    pub fn new(index: Index, kube: Kube, outlet: Arc<dyn Outlet>, ready: ReadyGuard) -> Self {
        let (queue, reads, proofs) = Default::default();
        Self { index, kube, outlet, queue, reads, proofs, newest_proof: 0, ready: Some(ready), era: 0 }
    }

    /// Runs until every sender of inputs is gone.
    pub async fn run(mut self, mut inputs: mpsc::Receiver<Input>) {
        let mut batch = Vec::new();
        loop {
            let due = self.queue.deadline();
            tokio::select! {
                () = sleep_until(due), if due.is_some() => self.queue.wake(Instant::now()),
                taken = inputs.recv_many(&mut batch, BATCH_MAX) => {
                    if taken == 0 {
                        return;
                    }
                    let merged = coalesce(&mut batch, changed_key);
                    self.index.set_merged(merged);
                    for input in batch.drain(..) {
                        self.take(input);
                    }
                }
                Some(finding) = self.reads.next() => self.found(finding),
            }
            self.act();
        }
    }

    fn take(&mut self, input: Input) {
        match input {
            Input::Watched(kind, event, _place) => self.index.handle(kind, event),
            Input::Joined(node) => self.index.joined(&node),
            Input::Left(node) => self.index.left(&node),
            Input::Prove(node, keys, answer) => self.prove(node, &keys, answer),
            Input::Reset(done) => {
                self.era += 1;
                self.queue = Reads::default();
                // Who asked is told nothing: its session ends.
                self.proofs.clear();
                self.reads.clear();
                self.index.reset();
                // Whoever asked may be gone.
                let _ = done.send(());
            }
        }
    }

    /// Of what the node does not need, a list of its pods is the proof: whatever they refer to is needed.
    fn prove(&mut self, node: NodeId, keys: &[ObjectKey], answer: oneshot::Sender<Proven>) {
        let absent = keys.iter().filter(|key| self.index.is_absent(&node, key)).cloned().collect();
        self.newest_proof += 1;
        let read = Read::Proof(self.newest_proof);
        self.queue.add(&node, read);
        self.proofs.insert(self.newest_proof, Proof { node, absent, answer });
    }

    fn found(&mut self, finding: Finding) {
        let Finding { era, read, token, result } = finding;
        if era != self.era {
            return;
        }
        let fresh = self.index.read_ended(token);
        if self.queue.repeats(&read) {
            return;
        }
        match result {
            Ok(found) if fresh => self.take_answer(read, token, found),
            // More was deleted meanwhile than is remembered: the answer may show what is gone.
            Ok(_) => self.put_off(read, &ReadError { code: None, text: "it took too long".to_owned() }),
            Err(error) => self.put_off(read, &error),
        }
    }

    fn take_answer(&mut self, read: Read, token: ReadToken, found: Found) {
        if let (Read::Object(..), [(_, Err(error))]) = (&read, &*found.objects) {
            return self.put_off(read, error);
        }
        if let Read::Proof(number) = &read
            && let Some(proof) = self.proofs.get(number)
            && self.index.is_outdated(&node_key(&proof.node), token)
        {
            let text = "the node was registered meanwhile".to_owned();
            return self.put_off(read, &ReadError { code: None, text });
        }
        self.queue.ended(&read);
        match read {
            Read::Object(_, expected) => {
                for (key, outcome) in found.objects {
                    // Whoever needs it now has another read for it.
                    let Some(object) = outcome.ok().filter(|_| !self.index.is_outdated(&key, token)) else {
                        continue;
                    };
                    let gone = object.is_none();
                    self.index.fetched(&key, expected.as_ref(), object);
                    if gone {
                        self.index.look_again(&key);
                    }
                }
            }
            Read::Pods(node) => self.index.pods_listed(&node, found.pods),
            Read::Proof(number) => {
                let Some(proof) = self.proofs.remove(&number) else { return };
                self.index.pods_listed(&proof.node, found.pods);
                let proven = self.objects_read(&proof.node, token, found.objects);
                // The session may be over.
                let _ = proof.answer.send(proven);
            }
        }
    }

    /// Each object has its own outcome: one that cannot be read keeps nothing else of the node's back.
    fn objects_read(
        &mut self,
        node: &NodeId,
        token: ReadToken,
        objects: Vec<(ObjectKey, Outcome)>,
    ) -> Proven {
        let mut proven = Proven::default();
        for (key, outcome) in objects {
            match outcome {
                // It is being read for whoever needs it now.
                Ok(_) if self.index.is_outdated(&key, token) => proven.put_off.push(key),
                Ok(object) => {
                    self.index.fetched(&key, None, object);
                    proven.read.push(key);
                }
                Err(error) => {
                    let read = Read::Object(key.clone(), None);
                    self.queue.add_failed(node, read, Instant::now());
                    self.failed_to_read(&key, 1, &error);
                    if error.refusal().is_none() {
                        proven.put_off.push(key);
                    }
                }
            }
        }
        proven
    }

    fn put_off(&mut self, read: Read, error: &ReadError) {
        let key = match &read {
            Read::Object(key, _) => Some(key.clone()),
            Read::Pods(_) | Read::Proof(_) => None,
        };
        let (index, proofs) = (&self.index, &self.proofs);
        let failures = self.queue.failed(read, Instant::now(), |read| is_needed(index, proofs, read));
        // The first failure, and then ever fewer.
        if failures.is_power_of_two() {
            tracing::warn!(error = error.text, failures, "cannot read what a node needs; trying again");
        }
        if let Some(key) = key {
            self.failed_to_read(&key, failures, error);
        }
    }

    /// A refusal is stated at once, trouble when it lasts.
    fn failed_to_read(&mut self, key: &ObjectKey, failures: u32, error: &ReadError) {
        let lasts = failures >= FAILURES_MAX;
        if let Some(code) = error.refusal().or(lasts.then(|| error.code.unwrap_or(503))) {
            self.index.unreadable(key, code);
        }
    }

    fn act(&mut self) {
        for effect in self.index.take_effects() {
            match effect {
                Effect::Offer(node, key) => self.outlet.offer(&node, &key),
                Effect::Ready(node) => self.outlet.ready(&node),
                Effect::NodeDeleted(node) => self.outlet.node_deleted(&node),
                Effect::Fetch(key, expected) => {
                    if let Some(node) = self.index.who_needs(&key) {
                        self.queue.add(&node, Read::Object(key, expected));
                    }
                }
                Effect::ListPods(node) => self.queue.add(&node, Read::Pods(node.clone())),
            }
        }
        loop {
            let (index, proofs) = (&self.index, &self.proofs);
            let Some(read) = self.queue.next(|read| is_needed(index, proofs, read)) else { break };
            self.start(read);
        }
        self.proofs.retain(|_, proof| !proof.answer.is_closed());
        if self.index.is_synced() {
            self.ready = None;
        }
    }

    fn start(&mut self, read: Read) {
        let (node, objects) = match &read {
            Read::Object(key, _) => (None, vec![key.clone()]),
            Read::Pods(node) => (Some(node.clone()), Vec::new()),
            Read::Proof(number) => match self.proofs.get(number) {
                Some(proof) => (Some(proof.node.clone()), proof.absent.clone()),
                None => return self.queue.ended(&read),
            },
        };
        let token = self.index.read_begun();
        let (kube, era) = (self.kube.clone(), self.era);
        let question = Question { read, node, objects };
        self.reads.push(Box::pin(async move {
            let result = perform(&kube, &question).await;
            Finding { era, read: question.read, token, result }
        }));
    }
}

/// Whether somebody still waits for the answer.
fn is_needed(index: &Index, proofs: &HashMap<u64, Proof>, read: &Read) -> bool {
    match read {
        Read::Object(key, _) => index.who_needs(key).is_some(),
        Read::Pods(node) => index.is_registered(node),
        Read::Proof(number) => proofs.get(number).is_some_and(|proof| !proof.answer.is_closed()),
    }
}

/// Which object an input is about; none for those that nothing may overtake.
fn changed_key(input: &Input) -> Option<ObjectKey> {
    match input {
        // A pod that comes in the place of one that is gone may be bound elsewhere, and say nothing to the node of the former.
        Input::Watched(Kind::Pod, ObjectEvent::Deleted(_), _) => None,
        Input::Watched(kind, ObjectEvent::Applied(raw) | ObjectEvent::Deleted(raw), _) => {
            Some(raw.key(&kind.resource()))
        }
        _ => None,
    }
}

/// Reads once. A failure is never taken for an absence, and that of an object is its own.
async fn perform(kube: &Kube, question: &Question) -> Result<Found, ReadError> {
    let mut found = Found::default();
    if let Some(node) = &question.node {
        found.pods = list_pods(kube, node).await?;
    }
    let mut silence = None;
    for key in &question.objects {
        // Where nobody has answered, each further question could take as long.
        let outcome = match &silence {
            None => fetch(kube, key).await,
            Some(error) => Err(ReadError::clone(error)),
        };
        silence = outcome.as_ref().err().filter(|error| error.code.is_none()).cloned();
        found.objects.push((key.clone(), outcome));
    }
    Ok(found)
}

async fn fetch(kube: &Kube, key: &ObjectKey) -> Outcome {
    let path = path_of(key.resource(), key.namespace(), key.name());
    let answer = kube.call(Caller::Own, ApiCall::get(path)).await?;
    match answer.code {
        200 => {
            let unread = |error: serde_json::Error| ReadError {
                code: None,
                text: format!("GET {key} cannot be read: {error}"),
            };
            RawObject::of_kind(key.resource(), &answer.body).map(Some).map_err(unread)
        }
        404 => Ok(None),
        code => Err(ReadError { code: Some(code), text: format!("GET {key}: {}", answer.message()) }),
    }
}

/// The node's pods, each trimmed as it is read.
async fn list_pods(kube: &Kube, node: &NodeId) -> Result<PodList, ReadError> {
    let path = format!("/api/v1/pods?fieldSelector=spec.nodeName%3D{node}");
    let mut pods = PodList::default();
    match kube.list(Caller::Own, &path, |pod| pods.add(pod)).await? {
        None => Ok(pods),
        Some(answer) => {
            let text = format!("list of the pods of {node}: {}", answer.message());
            Err(ReadError { code: Some(answer.code), text })
        }
    }
}
