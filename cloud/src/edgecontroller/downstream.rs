//! The task that owns the index. It takes watch events and session events, reads missing objects, and notifies the hub.

use std::collections::HashMap;
use std::sync::Arc;

use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt as _};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};
use tokio::time::Instant;
use tombolo_proto::{NodeId, ObjectKey};
use tombolo_runtime::ReadyGuard;
use tombolo_runtime::time::sleep_until;

use super::index::{Effect, Index, PodList, ReadToken};
use super::kind::Kind;
use super::node_object_cache::node_key;
use super::pod_manager::coalesce;
use super::reads::{Read, Reads};
use crate::kube::{ApiCall, CallError, Caller, Kube, ObjectEvent, RawObject, is_refusal, path_of};

#[cfg(test)]
mod tests;

/// Maximum number of events that wait for the index. When the queue is full, the watches block.
pub(crate) const INPUTS_MAX: usize = 1024;

/// Maximum number of events taken at a time. Within them, several changes of one object are coalesced into one.
const BATCH_MAX: usize = 256;

/// Number of consecutive failures after which an object counts as unreadable. A refusal counts at once.
const FAILURES_MAX: u32 = 5;

/// An event for the index.
#[derive(Debug)]
pub enum Input {
    /// An event of the watch of this kind. If the watch has a bound of its own, the event holds one of its permits
    /// until it is taken.
    Watched(Kind, ObjectEvent, Option<OwnedSemaphorePermit>),
    /// A node has connected.
    Joined(NodeId),
    /// A node's last session has ended.
    Left(NodeId),
    /// A session is about to remove these objects from the node. The controller asks the API server which pods the node
    /// has, and reads those of the objects that the node needs and the index considers absent. The answer is sent once
    /// the index has taken the results. If no answer comes, ask again.
    Prove(NodeId, Vec<ObjectKey>, oneshot::Sender<Proven>),
    /// The cloud's history went back: forget all state, then answer.
    Reset(oneshot::Sender<()>),
}

/// The API server's answer about objects that the index considered absent. An object that it refuses to show is
/// [`Lookup::Unreadable`](tombolo_proto::session::Lookup) from then on.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Proven {
    /// The object does not exist, or the index now knows it.
    pub read: Vec<ObjectKey>,
    /// Not known yet. These objects are read again, and offered when the API server has answered. Asking earlier is no
    /// use.
    pub put_off: Vec<ObjectKey>,
}

/// Receiver of the index's decisions: the hub.
pub trait Outlet: Send + Sync + 'static {
    /// The state under this key may have changed for the node.
    fn offer(&self, node: &NodeId, key: &ObjectKey);
    /// Everything that the node should hold is known.
    fn ready(&self, node: &NodeId);
    /// The Node object was deleted: notify the edge and end the session.
    fn node_deleted(&self, node: &NodeId);
}

/// Drives an [`Index`].
pub struct DownstreamController {
    index: Index,
    kube: Kube,
    outlet: Arc<dyn Outlet>,
    queue: Reads,
    reads: FuturesUnordered<BoxFuture<'static, FinishedRead>>,
    /// Pending requests of sessions, by number.
    proofs: HashMap<u64, Proof>,
    newest_proof: u64,
    /// Dropped once every kind has been listed.
    ready: Option<ReadyGuard>,
    /// Incremented by each reset. Answers from an earlier era are dropped.
    era: u64,
}

struct Proof {
    node: NodeId,
    /// Objects that the node needs and that the index considers absent.
    absent: Vec<ObjectKey>,
    answer: oneshot::Sender<Proven>,
}

struct FinishedRead {
    era: u64,
    read: Read,
    token: ReadToken,
    result: Result<FetchedObjects, ReadError>,
}

/// A read of the API, with everything that it asks for.
struct Question {
    read: Read,
    node: Option<NodeId>,
    objects: Vec<ObjectKey>,
}

/// The answer to a [`Question`].
#[derive(Default)]
struct FetchedObjects {
    pods: PodList,
    objects: Vec<(ObjectKey, FetchResult)>,
}

/// The answer for one object; `None` if it does not exist.
type FetchResult = Result<Option<RawObject>, ReadError>;

/// Why there is no answer, with the status code if there is one.
#[derive(Clone)]
struct ReadError {
    code: Option<u16>,
    text: String,
}

impl ReadError {
    /// The status code of an answer about the object. `None` for other failures, from which nothing follows.
    fn refusal(&self) -> Option<u16> {
        self.code.filter(|code| is_refusal(*code))
    }
}

impl From<CallError> for ReadError {
    fn from(error: CallError) -> Self {
        Self { code: None, text: error.to_string() }
    }
}

impl DownstreamController {
    /// A controller that makes the process ready once every kind has been listed.
    #[must_use]
    pub fn new(index: Index, kube: Kube, outlet: Arc<dyn Outlet>, ready: ReadyGuard) -> Self {
        let (queue, reads, proofs) = Default::default();
        Self { index, kube, outlet, queue, reads, proofs, newest_proof: 0, ready: Some(ready), era: 0 }
    }

    /// Runs until every sender of inputs is dropped.
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
                Some(finished) = self.reads.next() => self.found(finished),
            }
            self.act();
        }
    }

    fn take(&mut self, input: Input) {
        match input {
            Input::Watched(kind, event, _permit) => self.index.handle(kind, event),
            Input::Joined(node) => self.index.joined(&node),
            Input::Left(node) => self.index.left(&node),
            Input::Prove(node, keys, answer) => self.prove(node, &keys, answer),
            Input::Reset(done) => {
                self.era += 1;
                self.queue = Reads::default();
                // The requesting sessions get no answer: they end.
                self.proofs.clear();
                self.reads.clear();
                self.index.reset();
                // The requester may be gone.
                let _ = done.send(());
            }
        }
    }

    /// For objects that the node does not need, a list of its pods is the proof: every object that they refer to is
    /// needed.
    fn prove(&mut self, node: NodeId, keys: &[ObjectKey], answer: oneshot::Sender<Proven>) {
        let absent = keys.iter().filter(|key| self.index.is_absent(&node, key)).cloned().collect();
        self.newest_proof += 1;
        let read = Read::Proof(self.newest_proof);
        self.queue.add(&node, read);
        self.proofs.insert(self.newest_proof, Proof { node, absent, answer });
    }

    fn found(&mut self, finished: FinishedRead) {
        let FinishedRead { era, read, token, result } = finished;
        if era != self.era {
            return;
        }
        let fresh = self.index.read_ended(token);
        if self.queue.repeats(&read) {
            return;
        }
        match result {
            Ok(found) if fresh => self.take_answer(read, token, found),
            // More deletions happened meanwhile than are remembered: the answer may show deleted objects.
            Ok(_) => self.put_off(read, &ReadError { code: None, text: "the read took too long".to_owned() }),
            Err(error) => self.put_off(read, &error),
        }
    }

    fn take_answer(&mut self, read: Read, token: ReadToken, found: FetchedObjects) {
        if let (Read::Object(..), [(_, Err(error))]) = (&read, &*found.objects) {
            return self.put_off(read, error);
        }
        if let Read::Proof(number) = &read
            && let Some(proof) = self.proofs.get(number)
            && self.index.is_outdated(&node_key(&proof.node), token)
        {
            let text = "the node was registered during the read".to_owned();
            return self.put_off(read, &ReadError { code: None, text });
        }
        self.queue.ended(&read);
        match read {
            Read::Object(_, expected) => {
                for (key, outcome) in found.objects {
                    // A node that needs the object now has another read for it.
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
                // The session may have ended.
                let _ = proof.answer.send(proven);
            }
        }
    }

    /// Each object has its own outcome: an unreadable one does not hold back the node's other objects.
    fn objects_read(
        &mut self,
        node: &NodeId,
        token: ReadToken,
        objects: Vec<(ObjectKey, FetchResult)>,
    ) -> Proven {
        let mut proven = Proven::default();
        for (key, outcome) in objects {
            match outcome {
                // Another read is running for the node that needs it now.
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
        // Log the first failure, and later ones ever more rarely.
        if failures.is_power_of_two() {
            tracing::warn!(
                error = error.text,
                failures,
                "cannot read objects that a node needs; trying again"
            );
        }
        if let Some(key) = key {
            self.failed_to_read(&key, failures, error);
        }
    }

    /// A refusal is recorded at once, other failures when they persist.
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
            FinishedRead { era, read: question.read, token, result }
        }));
    }
}

/// Whether the answer of this read is still needed.
fn is_needed(index: &Index, proofs: &HashMap<u64, Proof>, read: &Read) -> bool {
    match read {
        Read::Object(key, _) => index.who_needs(key).is_some(),
        Read::Pods(node) => index.is_registered(node),
        Read::Proof(number) => proofs.get(number).is_some_and(|proof| !proof.answer.is_closed()),
    }
}

/// The object that an input is about. `None` for inputs that no other may overtake.
fn changed_key(input: &Input) -> Option<ObjectKey> {
    match input {
        // A pod that replaces a deleted one may be bound to another node; its event would not reach the former node.
        Input::Watched(Kind::Pod, ObjectEvent::Deleted(_), _) => None,
        Input::Watched(kind, ObjectEvent::Applied(raw) | ObjectEvent::Deleted(raw), _) => {
            Some(raw.key(&kind.resource()))
        }
        _ => None,
    }
}

/// Reads once. A failure is never taken as absence, and each object has its own failure.
async fn perform(kube: &Kube, question: &Question) -> Result<FetchedObjects, ReadError> {
    let mut found = FetchedObjects::default();
    if let Some(node) = &question.node {
        found.pods = list_pods(kube, node).await?;
    }
    let mut silence = None;
    for key in &question.objects {
        // After an unanswered request each further one could take just as long.
        let outcome = match &silence {
            None => fetch(kube, key).await,
            Some(error) => Err(ReadError::clone(error)),
        };
        silence = outcome.as_ref().err().filter(|error| error.code.is_none()).cloned();
        found.objects.push((key.clone(), outcome));
    }
    Ok(found)
}

async fn fetch(kube: &Kube, key: &ObjectKey) -> FetchResult {
    let path = path_of(key.resource(), key.namespace(), key.name());
    let answer = kube.call(Caller::Own, ApiCall::get(path)).await?;
    match answer.code {
        200 => {
            let unread = |error: serde_json::Error| ReadError {
                code: None,
                text: format!("the answer to GET {key} cannot be read: {error}"),
            };
            RawObject::of_kind(key.resource(), &answer.body).map(Some).map_err(unread)
        }
        404 => Ok(None),
        code => Err(ReadError { code: Some(code), text: format!("GET {key}: {}", answer.message()) }),
    }
}

/// The node's pods. Each is trimmed as it is read.
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
