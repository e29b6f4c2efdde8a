//! The task that owns the index: takes watch events and news of sessions, reads what is missing, tells the hub.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt as _};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};
use tombolo_proto::object::ObjectVersion;
use tombolo_proto::{NodeId, ObjectKey};
use tombolo_runtime::{Backoff, BackoffConfig, ReadyGuard};

use super::index::{Effect, Index, Kind};
use super::pod_manager::coalesce;
use crate::kube::{ApiCall, CallError, Caller, Kube, ObjectEvent, RawObject, path_of};

/// Events that wait for the index; the watches wait when it is full.
pub(crate) const INPUTS_MAX: usize = 1024;

/// Events taken at a time; a burst within them becomes one change an object.
const BATCH_MAX: usize = 256;

/// Reads of the API at a time.
const READS_MAX: usize = 16;

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
    /// The cloud's history went back: forget it, then answer.
    Reset(oneshot::Sender<()>),
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
    /// Reads that wait for their turn. Bounded by what is referenced, because each key is asked for once at a time.
    queue: std::collections::VecDeque<Effect>,
    reads: FuturesUnordered<BoxFuture<'static, Finding>>,
    /// Dropped once everything has been listed.
    ready: Option<ReadyGuard>,
    /// Grows with each reset: an answer from before it is dropped.
    era: u64,
}

struct Finding {
    era: u64,
    result: Found,
}

enum Found {
    Object { key: ObjectKey, expected: Option<ObjectVersion>, object: Option<RawObject> },
    Pods { node: NodeId, pods: Vec<RawObject> },
}

impl Controller {
    /// A controller that makes the process ready once every kind has been listed.
    #[must_use]
    pub fn new(index: Index, kube: Kube, outlet: Arc<dyn Outlet>, ready: ReadyGuard) -> Self {
        let (queue, reads) = Default::default();
        Self { index, kube, outlet, queue, reads, ready: Some(ready), era: 0 }
    }

    /// Runs until every sender of inputs is gone.
    pub async fn run(mut self, mut inputs: mpsc::Receiver<Input>) {
        let mut batch = Vec::new();
        loop {
            tokio::select! {
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
            Input::Reset(done) => {
                self.era += 1;
                self.queue.clear();
                self.index.reset();
                // Whoever asked may be gone.
                let _ = done.send(());
            }
        }
    }

    fn found(&mut self, finding: Finding) {
        if finding.era != self.era {
            return;
        }
        match finding.result {
            Found::Object { key, expected, object } => self.index.fetched(&key, expected.as_ref(), object),
            Found::Pods { node, pods } => self.index.pods_listed(&node, pods),
        }
    }

    fn act(&mut self) {
        for effect in self.index.take_effects() {
            match effect {
                Effect::Offer(node, key) => self.outlet.offer(&node, &key),
                Effect::Ready(node) => self.outlet.ready(&node),
                Effect::NodeDeleted(node) => self.outlet.node_deleted(&node),
                read @ (Effect::Fetch(..) | Effect::ListPods(_)) => self.queue.push_back(read),
            }
        }
        while self.reads.len() < READS_MAX {
            let Some(read) = self.queue.pop_front() else { break };
            self.reads.push(Box::pin(perform(self.kube.clone(), self.era, read)));
        }
        if self.index.is_synced() {
            self.ready = None;
        }
    }
}

/// Which object an input is about; none for those that nothing may overtake.
fn changed_key(input: &Input) -> Option<ObjectKey> {
    match input {
        Input::Watched(kind, ObjectEvent::Applied(raw) | ObjectEvent::Deleted(raw), _) => {
            Some(raw.key(&kind.resource()))
        }
        _ => None,
    }
}

/// Reads until there is an answer: a failure is never taken for an absence.
async fn perform(kube: Kube, era: u64, read: Effect) -> Finding {
    let bounds =
        BackoffConfig { first: Duration::from_millis(200), max: Duration::from_secs(30), factor: 2.0 };
    let mut backoff = Backoff::new(bounds);
    loop {
        let attempt = match &read {
            Effect::Fetch(key, expected) => fetch(&kube, key).await.map(|object| Found::Object {
                key: key.clone(),
                expected: expected.clone(),
                object,
            }),
            Effect::ListPods(node) => {
                list_pods(&kube, node).await.map(|pods| Found::Pods { node: node.clone(), pods })
            }
            // `act` sends only reads here; anything else finds nothing.
            Effect::Offer(node, _) | Effect::Ready(node) | Effect::NodeDeleted(node) => {
                Ok(Found::Pods { node: node.clone(), pods: Vec::new() })
            }
        };
        match attempt {
            Ok(result) => return Finding { era, result },
            Err(error) => {
                tracing::warn!(%error, "cannot read what a node needs; trying again");
                let delay = backoff.next_delay(&mut rand::rng());
                tokio::time::sleep(delay).await;
            }
        }
    }
}

async fn fetch(kube: &Kube, key: &ObjectKey) -> Result<Option<RawObject>, CallError> {
    let path = path_of(key.resource(), key.namespace(), key.name());
    let answer = kube.call(Caller::Own, ApiCall::get(path)).await?;
    match answer.code {
        200 => Ok(Some(RawObject::new(answer.json()))),
        404 => Ok(None),
        _ => Err(CallError::Unreachable(format!("GET {key}: {}", answer.message()))),
    }
}

async fn list_pods(kube: &Kube, node: &NodeId) -> Result<Vec<RawObject>, CallError> {
    let path = format!("/api/v1/pods?fieldSelector=spec.nodeName%3D{node}");
    let mut pods = Vec::new();
    match kube.list(Caller::Own, &path, |pod| pods.push(RawObject::new(pod))).await? {
        None => Ok(pods),
        Some(answer) => {
            Err(CallError::Unreachable(format!("list of the pods of {node}: {}", answer.message())))
        }
    }
}
