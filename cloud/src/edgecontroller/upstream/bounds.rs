//! Bounds on the requests of all nodes together, by kind. A kind without a bound has only the bounds of each node.
//!
//! All nodes share the permits. A request that waits for its own node to read a large earlier answer holds none
//! meanwhile.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tombolo_proto::NodeId;
use tombolo_proto::message::{Message, Operation, ResourceType};

use crate::kube::{GivesWay, Room};
use crate::turns::{Turn, Turns};

/// Kinds of requests that can be bounded: those for which KubeEdge cloudcore has separate workers
/// (docs/reference/kubeedge.md#workers-and-buffers). Closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum RequestKind {
    /// Events.
    Event,
    /// Pod status of older edges.
    PodStatus,
    /// Node status of older edges.
    NodeStatus,
    /// Results of rules.
    RuleStatus,
    /// Reads of ConfigMaps that memory does not answer.
    QueryConfigMap,
    /// Reads of Secrets that memory does not answer.
    QuerySecret,
    /// Reads of persistent volumes.
    QueryPersistentVolume,
    /// Reads of persistent volume claims.
    QueryPersistentVolumeClaim,
    /// Reads of volume attachments.
    QueryVolumeAttachment,
    /// Registrations of nodes.
    CreateNode,
    /// Patches of node status.
    PatchNode,
    /// Reads of nodes.
    QueryNode,
    /// Updates of nodes.
    UpdateNode,
    /// Patches of pod status.
    PatchPod,
    /// Deletions of pods.
    DeletePod,
    /// Mirror pods.
    CreatePod,
    /// Leases, created or renewed.
    WriteLease,
    /// Reads of leases.
    QueryLease,
    /// Tokens of service accounts.
    ServiceAccountToken,
    /// Certificate signing requests, created or read.
    CertificateSigningRequest,
}

impl RequestKind {
    /// The kind of a message. `None` for messages that are refused or answered without the API.
    fn of(message: &Message) -> Option<Self> {
        use {Operation as Op, ResourceType as Type};
        let path = message.route.resource.as_object()?;
        Some(match (&path.resource_type, &message.route.operation) {
            (Type::Event, _) => Self::Event,
            (Type::PodStatus, _) => Self::PodStatus,
            (Type::NodeStatus, Op::Insert) | (Type::Node, Op::Insert) => Self::CreateNode,
            (Type::NodeStatus, _) => Self::NodeStatus,
            (Type::RuleStatus, _) => Self::RuleStatus,
            (Type::ConfigMap, _) => Self::QueryConfigMap,
            (Type::Secret, _) => Self::QuerySecret,
            (Type::PersistentVolume, _) => Self::QueryPersistentVolume,
            (Type::PersistentVolumeClaim, _) => Self::QueryPersistentVolumeClaim,
            (Type::VolumeAttachment, _) => Self::QueryVolumeAttachment,
            (Type::NodePatch, _) => Self::PatchNode,
            (Type::Node, Op::Query) => Self::QueryNode,
            (Type::Node, _) => Self::UpdateNode,
            (Type::PodPatch, _) => Self::PatchPod,
            (Type::Pod, Op::Delete) => Self::DeletePod,
            (Type::Pod, _) => Self::CreatePod,
            (Type::Lease, Op::Query) => Self::QueryLease,
            (Type::Lease, _) => Self::WriteLease,
            (Type::ServiceAccountToken, _) => Self::ServiceAccountToken,
            (Type::CertificateSigningRequest, _) => Self::CertificateSigningRequest,
            _ => return None,
        })
    }
}

/// A bound on one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct RequestBound {
    /// Maximum number of concurrent requests.
    pub running: NonZeroU32,
    /// Maximum number of waiting requests; further ones are refused at once.
    pub waiting: u32,
}

/// One node's part of the concurrent requests of a kind: a quarter, but at least one.
const NODE_PART: u32 = 4;

/// Bounds by kind.
pub type RequestBounds = BTreeMap<RequestKind, RequestBound>;

/// Too many requests of a kind. The text is sent to the edge.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{running} requests of this kind are running and {waiting} are waiting: try again later")]
pub(super) struct Crowded {
    running: u32,
    waiting: u32,
}

/// Held by a running request; dropping it releases the permits.
#[derive(Debug)]
pub(super) struct Pass {
    gates: Gates,
    node: NodeId,
    kind: RequestKind,
    /// `None` while it waits for its node.
    held: Mutex<Option<PassPermits>>,
}

/// A permit of `admission`, one of `slots`, and the node's turn.
type PassPermits = ([OwnedSemaphorePermit; 2], Turn<(NodeId, RequestKind)>);

impl GivesWay for Pass {
    fn give_way(&self) {
        *self.held.lock() = None;
    }

    fn go_on(&self) -> BoxFuture<'_, ()> {
        async {
            let Some(gate) = self.gates.0.get(&self.kind) else { return };
            let turn = self.gates.turn(&self.node, self.kind, gate).await;
            // It had its permits before, so it waits for them however many others wait. The semaphores are never
            // closed.
            let Ok(permit) = Arc::clone(&gate.admission).acquire_owned().await else { return };
            let Ok(slot) = Arc::clone(&gate.slots).acquire_owned().await else { return };
            *self.held.lock() = Some(([permit, slot], turn));
        }
        .boxed()
    }
}

/// Admits requests of each kind. Of each kind a node has at most its part running or waiting here; its further requests
/// queue behind those. However many requests a node makes, the queue rotates among the nodes.
#[derive(Debug, Clone, Default)]
pub(super) struct Gates(Arc<BTreeMap<RequestKind, RequestKindGate>>, Turns<(NodeId, RequestKind)>);

#[derive(Debug)]
struct RequestKindGate {
    bound: RequestBound,
    /// One permit for each request that runs or waits.
    admission: Arc<Semaphore>,
    /// One permit for each request that runs. Fair: the longest waiting request is next.
    slots: Arc<Semaphore>,
}

impl Gates {
    pub(super) fn new(bounds: &RequestBounds) -> Self {
        let permits = |count: u64| {
            Arc::new(Semaphore::new(usize::try_from(count).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS)))
        };
        let gate = |bound: RequestBound| RequestKindGate {
            bound,
            admission: permits(u64::from(bound.running.get()) + u64::from(bound.waiting)),
            slots: permits(bound.running.get().into()),
        };
        let gates = bounds.iter().map(|(kind, bound)| (*kind, gate(*bound))).collect();
        Self(Arc::new(gates), Turns::default())
    }

    /// Waits until this message of a node may run. `None` if it has no bound.
    pub(super) async fn pass(&self, node: &NodeId, message: &Message) -> Result<Option<Arc<Pass>>, Crowded> {
        match RequestKind::of(message) {
            Some(kind) => self.pass_kind(node, kind).await,
            None => Ok(None),
        }
    }

    /// Waits until a request of this kind may run for a node.
    pub(super) async fn pass_kind(
        &self,
        node: &NodeId,
        kind: RequestKind,
    ) -> Result<Option<Arc<Pass>>, Crowded> {
        let Some(gate) = self.0.get(&kind) else { return Ok(None) };
        let RequestBound { running, waiting } = gate.bound;
        let crowded = || Crowded { running: running.get(), waiting };
        let turn = self.turn(node, kind, gate).await;
        let permit = Arc::clone(&gate.admission).try_acquire_owned().map_err(|_| crowded())?;
        let slot = Arc::clone(&gate.slots).acquire_owned().await.map_err(|_| crowded())?;
        let held = Mutex::new(Some(([permit, slot], turn)));
        let pass = Arc::new(Pass { gates: self.clone(), node: node.clone(), kind, held });
        if let Some(room) = Room::current() {
            room.gives_way(&pass);
        }
        Ok(Some(pass))
    }

    /// Waits for the node's turn, before it waits with other nodes.
    async fn turn(
        &self,
        node: &NodeId,
        kind: RequestKind,
        gate: &RequestKindGate,
    ) -> Turn<(NodeId, RequestKind)> {
        let running = gate.bound.running.get();
        let part = usize::try_from(running / NODE_PART).unwrap_or(usize::MAX).max(1);
        self.1.take(&(node.clone(), kind), part.min(Semaphore::MAX_PERMITS)).await
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn node(name: &str) -> NodeId {
        NodeId::parse(name).expect("a name")
    }

    #[test]
    fn requests_beyond_the_bound_wait_and_those_beyond_that_are_refused() {
        let bound = RequestBound { running: NonZeroU32::MIN, waiting: 1 };
        let gates = Gates::new(&[(RequestKind::QuerySecret, bound)].into());
        let [a, b, c] = ["a", "b", "c"].map(node);
        let pass = |node| gates.pass_kind(node, RequestKind::QuerySecret);
        let first = pass(&a).now_or_never().expect("at once").expect("a free slot");
        let mut second = Box::pin(pass(&b));
        assert!(second.as_mut().now_or_never().is_none(), "it waits for the first");
        let refused = pass(&c).now_or_never().expect("at once").expect_err("no place").to_string();
        assert!(refused.contains("1 requests") && refused.contains("1 are waiting"), "{refused}");
        drop(first);
        let second = second.now_or_never().expect("its turn").expect("a free slot");
        drop(second);
        assert!(pass(&a).now_or_never().is_some_and(|passed| passed.is_ok()));
        assert!(gates.pass_kind(&a, RequestKind::QueryConfigMap).now_or_never().is_some());
    }

    #[test]
    fn abandoned_waiting_request_releases_its_slot() {
        let bound = RequestBound { running: NonZeroU32::MIN, waiting: 1 };
        let gates = Gates::new(&[(RequestKind::WriteLease, bound)].into());
        let [a, b] = ["a", "b"].map(node);
        let _first = gates.pass_kind(&a, RequestKind::WriteLease).now_or_never().expect("at once");
        for _ in 0..3 {
            let waits = gates.pass_kind(&b, RequestKind::WriteLease);
            assert!(waits.now_or_never().is_none(), "there is a slot to wait in");
        }
    }

    /// Many requests of one node of a bounded kind neither delay nor refuse those of others.
    #[test]
    fn node_has_a_share_of_each_kind_of_request_and_queues_behind_itself() {
        let bound = RequestBound { running: NonZeroU32::new(8).expect("not zero"), waiting: 8 };
        let gates = Gates::new(&[(RequestKind::QuerySecret, bound)].into());
        let [greedy, modest] = ["greedy", "modest"].map(node);
        let pass = |node| Box::pin(gates.pass_kind(node, RequestKind::QuerySecret));
        let mut many: Vec<_> = (0..100).map(|_| pass(&greedy)).collect();
        let passed: Vec<_> = many.iter_mut().filter_map(FutureExt::now_or_never).collect();
        assert_eq!(passed.len(), 2, "a quarter of the eight, and none is refused");
        for _ in 0..2 {
            assert!(pass(&modest).now_or_never().is_some_and(|passed| passed.is_ok()));
        }
        drop((many, passed));
        assert_eq!(gates.1.len(), 0, "no state is kept for idle nodes");
    }

    /// A request that has waited for its node needs a permit again to continue, as others do.
    #[test]
    fn resumed_request_gets_its_slot_again() {
        let bound = RequestBound { running: NonZeroU32::MIN, waiting: 0 };
        let gates = Gates::new(&[(RequestKind::QuerySecret, bound)].into());
        let [a, b] = ["a", "b"].map(node);
        let pass = |node| gates.pass_kind(node, RequestKind::QuerySecret).now_or_never().expect("at once");
        let first = pass(&a).expect("a free slot").expect("a bounded kind");
        pass(&b).expect_err("one slot is free");
        first.give_way();
        drop(pass(&b).expect("it has given way"));
        first.go_on().now_or_never().expect("at once");
        pass(&b).expect_err("it has continued");
        drop(first);
        pass(&b).expect("it is done");
    }
}
