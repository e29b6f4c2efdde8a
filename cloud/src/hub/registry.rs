//! The sessions of all connected nodes. The newest connection of a node wins.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use dashmap::DashMap;
use dashmap::DashSet;
use dashmap::mapref::entry::Entry;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;
use tombolo_link::identity::PeerCertificate;
use tombolo_link::{PeerInfo, Transport};
use tombolo_proto::frame::{Goodbye, GoodbyeReason};
use tombolo_proto::{NodeId, ObjectKey, SubscriptionId};
use tombolo_runtime::{Budget, LineLimit};

use super::Mailbox;
use super::duplicate_identity::NodeProcesses;
use super::node_shares::{NodeMemories, NodeMemory};
use crate::bootstrap::identities::Denied;
use crate::edgecontroller::Outlet;

/// All sessions of one hub.
#[derive(Debug)]
pub struct Registry {
    sessions: DashMap<NodeId, Arc<SessionHandle>>,
    count: AtomicUsize,
    limit: usize,
    generations: AtomicU64,
    /// Nodes that have reported devices; each is logged once. When `limit` is reached, disconnected nodes are dropped.
    with_devices: DashSet<NodeId>,
    memories: NodeMemories,
    lines: LineLimit<NodeId>,
}

/// Log lines per minute that one node can cause, and that all nodes together can cause.
const LINES_OF_ONE: u32 = 30;
const LINES_OF_ALL: u32 = 6_000;

/// One session as the rest of the hub sees it.
#[derive(Debug)]
pub struct SessionHandle {
    /// The node of the session.
    pub node: NodeId,
    /// Distinguishes this session from earlier and later sessions of the same node.
    pub generation: u64,
    /// Pending work of the session task.
    pub mailbox: Mailbox,
    /// The transport of the session.
    pub transport: Transport,
    /// The client certificate of the connection; none for connections that did not come through a listener.
    pub certificate: Option<PeerCertificate>,
    /// The memory share of the node, for this and its other sessions.
    pub(super) memory: Arc<NodeMemory>,
    start: Mutex<Start>,
    over: AtomicBool,
    ended: Notify,
    /// What this node's sessions have shown about other processes with its identity.
    processes: Mutex<NodeProcesses>,
    /// Status for operators.
    pub facts: Mutex<SessionFacts>,
}

/// Whether a session has begun.
#[derive(Debug)]
enum Start {
    /// It waits for a permit. Holds the previous session, if one had begun.
    Waiting(Option<Arc<SessionHandle>>),
    Begun,
    /// A newer session arrived before this one could begin.
    Superseded,
}

impl SessionHandle {
    /// The previous session, as long as this one has not begun.
    pub(super) fn former(&self) -> Option<Arc<Self>> {
        match &*self.start.lock() {
            Start::Waiting(former) => former.clone(),
            Start::Begun | Start::Superseded => None,
        }
    }

    /// Begins the session. False when a newer session has already arrived. A session that never began leaves nothing to
    /// wait for.
    pub(super) fn begin(&self) -> bool {
        let mut start = self.start.lock();
        let begins = matches!(*start, Start::Waiting(_));
        if begins {
            *start = Start::Begun;
        }
        begins
    }

    /// Records a proof that two processes have this node's identity. Returns the number of proofs.
    fn prove(&self) -> u32 {
        self.processes.lock().prove(Instant::now())
    }

    /// The session that a replacement of this one must wait for.
    fn supersede(self: &Arc<Self>) -> Option<Arc<Self>> {
        let mut start = self.start.lock();
        match &mut *start {
            Start::Waiting(former) => {
                let former = former.take();
                *start = Start::Superseded;
                former
            }
            Start::Begun | Start::Superseded => Some(Arc::clone(self)),
        }
    }

    /// A process of the edge has begun this session. Returns the number of proofs that there are two processes; none if
    /// this is not such a proof.
    pub(super) fn introduce(&self, instance: u64) -> Option<u32> {
        self.processes.lock().introduce(instance, Instant::now())
    }

    /// Marks the session as over: it does nothing more.
    pub(super) fn set_over(&self) {
        self.over.store(true, Ordering::Release);
        self.ended.notify_waiters();
    }

    /// Waits until the session is over.
    pub(super) async fn over(&self) {
        loop {
            let ended = self.ended.notified();
            if self.over.load(Ordering::Acquire) {
                return;
            }
            ended.await;
        }
    }
}

/// Status of one session.
#[derive(Debug, Clone, Default)]
pub struct SessionFacts {
    /// Software version of the edge.
    pub agent: String,
    /// Number of acknowledged deliveries.
    pub acked: u64,
    /// Latency of the newest acknowledgement.
    pub last_ack: Option<Duration>,
    /// Newest measured round trip.
    pub round_trip: Option<Duration>,
    /// Whether everything that was missing at the start of the session has been delivered.
    pub caught_up: bool,
}

/// Outcome of registering a connection.
#[derive(Debug)]
pub enum Admission {
    /// The connection is now the node's session.
    Admitted(Arc<SessionHandle>),
    /// The hub already serves this many nodes.
    Full(usize),
}

impl Registry {
    /// A registry for at most `limit` nodes.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        let (sessions, with_devices) = (DashMap::new(), DashSet::new());
        let (count, generations) = (AtomicUsize::new(0), AtomicU64::new(0));
        let memories = NodeMemories::new(&Budget::new(usize::MAX));
        let lines = LineLimit::new(LINES_OF_ONE, LINES_OF_ALL);
        Self { sessions, count, limit, generations, with_devices, memories, lines }
    }

    /// The same, with this budget for everything that all nodes make the hub keep.
    #[must_use]
    pub fn with_memory(self, bytes: &Budget) -> Self {
        Self { memories: NodeMemories::new(bytes), ..self }
    }

    /// Forgets the memory shares of nodes that are gone. Called periodically.
    pub fn sweep(&self) {
        self.memories.sweep();
    }

    /// The highest memory use by one node: in total, and for requests.
    pub(crate) fn highest(&self) -> (usize, usize) {
        self.memories.highest()
    }

    /// Registers a connection. An older connection of the same node receives a goodbye that it was replaced, and does
    /// not count towards the limit.
    pub fn admit(&self, node: &NodeId, peer: &PeerInfo) -> Admission {
        let handle = Arc::new(SessionHandle {
            node: node.clone(),
            generation: self.generations.fetch_add(1, Ordering::Relaxed) + 1,
            mailbox: Mailbox::default(),
            transport: peer.transport,
            certificate: peer.certificate,
            memory: self.memories.of(node),
            start: Mutex::new(Start::Waiting(None)),
            over: AtomicBool::new(false),
            ended: Notify::new(),
            processes: Mutex::default(),
            facts: Mutex::default(),
        });
        match self.sessions.entry(node.clone()) {
            Entry::Occupied(mut entry) => {
                let old = entry.insert(Arc::clone(&handle));
                *handle.start.lock() = Start::Waiting(old.supersede());
                let processes = old.processes.lock().clone();
                let retry_after = processes.wait(Instant::now());
                *handle.processes.lock() = processes;
                old.mailbox.end(Goodbye {
                    reason: GoodbyeReason::Replaced,
                    message: format!("a newer connection of {node} took over"),
                    retry_after,
                });
            }
            Entry::Vacant(entry) => {
                if self.count.fetch_add(1, Ordering::Relaxed) >= self.limit {
                    self.count.fetch_sub(1, Ordering::Relaxed);
                    return Admission::Full(self.limit);
                }
                entry.insert(Arc::clone(&handle));
            }
        }
        Admission::Admitted(handle)
    }

    /// Records that the node's session was replaced by another process, as was found out after the replacement. Returns
    /// the number of proofs.
    pub(super) fn prove(&self, node: &NodeId) -> u32 {
        self.get(node).map_or(1, |session| session.prove())
    }

    /// Whether a KubeEdge edge's current session must not be replaced, because another process has recently taken it
    /// over.
    pub(super) fn keeps_out(&self, node: &NodeId) -> bool {
        self.get(node).is_some_and(|session| session.processes.lock().are_kept_out(Instant::now()))
    }

    /// Whether a line about a node may be logged now, with the number of lines suppressed before. Every line that a
    /// peer can trigger at will needs this check.
    pub(crate) fn may_log(&self, node: &NodeId) -> Option<u64> {
        self.lines.admit(node)
    }

    /// Whether this is the first report of devices from a node.
    pub(super) fn first_device_report(&self, node: &NodeId) -> bool {
        if self.with_devices.len() >= self.limit && !self.with_devices.contains(node) {
            self.with_devices.retain(|node| self.sessions.contains_key(node));
        }
        self.with_devices.len() < self.limit && self.with_devices.insert(node.clone())
    }

    /// Removes a session. False when a newer one has already taken its place.
    pub fn remove(&self, node: &NodeId, handle: &SessionHandle) -> bool {
        let own = |_: &NodeId, current: &Arc<SessionHandle>| current.generation == handle.generation;
        let removed = self.sessions.remove_if(node, own).is_some();
        if removed {
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
        removed
    }

    /// The session of a node.
    #[must_use]
    pub fn get(&self, node: &NodeId) -> Option<Arc<SessionHandle>> {
        self.sessions.get(node).map(|handle| Arc::clone(&handle))
    }

    /// Number of sessions.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Whether no node is connected.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Names and sessions of all connected nodes.
    #[must_use]
    pub fn all(&self) -> Vec<(NodeId, Arc<SessionHandle>)> {
        self.sessions.iter().map(|entry| (entry.key().clone(), Arc::clone(entry.value()))).collect()
    }

    /// Ends every session, each with its own goodbye.
    pub fn end_all(&self, goodbye: impl Fn(&NodeId) -> Goodbye) {
        for entry in &self.sessions {
            entry.mailbox.end(goodbye(entry.key()));
        }
    }
}

impl Outlet for Registry {
    fn offer(&self, node: &NodeId, key: &ObjectKey) {
        if let Some(session) = self.sessions.get(node) {
            session.mailbox.offer(SubscriptionId::NODE, key);
        }
    }

    fn ready(&self, node: &NodeId) {
        if let Some(session) = self.sessions.get(node) {
            session.mailbox.ready();
        }
    }

    fn node_deleted(&self, node: &NodeId) {
        if let Some(session) = self.sessions.get(node) {
            session.mailbox.end(Goodbye {
                reason: GoodbyeReason::NodeDeleted,
                message: format!("Node {node}: {}", Denied::Deleted),
                retry_after: Duration::from_secs(1),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer() -> PeerInfo {
        PeerInfo {
            remote: ([127, 0, 0, 1], 1).into(),
            transport: Transport::Memory,
            node: None,
            certificate: None,
        }
    }

    fn node(name: &str) -> NodeId {
        NodeId::parse(name).expect("valid")
    }

    fn admitted(registry: &Registry, name: &str) -> Arc<SessionHandle> {
        match registry.admit(&node(name), &peer()) {
            Admission::Admitted(handle) => handle,
            Admission::Full(limit) => panic!("full at {limit}"),
        }
    }

    #[test]
    fn the_newest_connection_wins_and_replacing_is_not_counted() {
        let registry = Registry::new(1);
        let old = admitted(&registry, "a");
        assert!(matches!(registry.admit(&node("b"), &peer()), Admission::Full(1)));
        let new = admitted(&registry, "a");
        let goodbye = old.mailbox.take().goodbye.expect("the old session is notified");
        assert_eq!(goodbye.reason, GoodbyeReason::Replaced);
        assert!(!registry.remove(&node("a"), &old), "the end of the old one does not end the new one");
        assert_eq!(registry.len(), 1);
        assert!(registry.remove(&node("a"), &new));
        assert!(registry.is_empty());
        admitted(&registry, "b");
    }

    /// A session that never began leaves nothing that others must wait for.
    #[test]
    fn session_waits_for_the_end_of_the_previous_one() {
        let registry = Registry::new(1);
        let first = admitted(&registry, "a");
        assert!(first.begin() && first.former().is_none());
        let second = admitted(&registry, "a");
        assert_eq!(second.former().map(|former| former.generation), Some(first.generation));
        let third = admitted(&registry, "a");
        assert!(!second.begin(), "a newer one has come");
        assert_eq!(third.former().map(|former| former.generation), Some(first.generation));
        assert!(third.begin() && third.former().is_none());
        assert!(Arc::ptr_eq(&first.memory, &third.memory), "one share for all sessions");
    }

    /// Two machines from one disk image: each new session ends the session of the other machine.
    #[test]
    fn two_processes_with_one_identity_are_detected_and_slowed_down() {
        let registry = Registry::new(1);
        let (mut proofs, mut waits) = (Vec::new(), Vec::new());
        let mut before: Option<Arc<SessionHandle>> = None;
        for turn in 0..6 {
            let handle = admitted(&registry, "a");
            proofs.push(handle.introduce(7 + turn % 2));
            if let Some(before) = before.replace(handle) {
                let goodbye = before.mailbox.take().goodbye.expect("the old session is notified");
                assert_eq!(goodbye.reason, GoodbyeReason::Replaced);
                waits.push(goodbye.retry_after.as_secs());
            }
        }
        assert_eq!(proofs, [None, None, Some(1), Some(2), Some(3), Some(4)]);
        assert_eq!(waits, [0, 0, 30, 60, 120]);
    }

    #[tokio::test(start_paused = true)]
    async fn kubeedge_session_is_kept_for_a_while_after_a_proven_conflict() {
        let registry = Registry::new(1);
        let first = admitted(&registry, "a");
        assert!(!registry.keeps_out(&node("a")));
        let second = admitted(&registry, "a");
        assert_eq!(registry.prove(&node("a")), 1);
        assert!(!registry.remove(&node("a"), &first) && registry.keeps_out(&node("a")));
        tokio::time::advance(Duration::from_secs(30)).await;
        assert!(!registry.keeps_out(&node("a")));
        let third = admitted(&registry, "a");
        assert_eq!(registry.prove(&node("a")), 2, "the session that replaces it is notified");
        tokio::time::advance(Duration::from_secs(59)).await;
        assert!(registry.keeps_out(&node("a")) && !registry.remove(&node("a"), &second));
        assert!(registry.remove(&node("a"), &third));
        assert!(!registry.keeps_out(&node("a")), "without a session, no entry is kept");
        assert_eq!(registry.prove(&node("a")), 1, "it has moved to another replica");
    }

    #[test]
    fn node_with_devices_is_logged_once() {
        let registry = Registry::new(2);
        let sessions = ["a", "b"].map(|name| admitted(&registry, name));
        let first = |name: &str| registry.first_device_report(&node(name));
        assert_eq!([first("a"), first("a"), first("b"), first("b")], [true, false, true, false]);
        assert!(registry.remove(&node("a"), &sessions[0]));
        assert!(!first("a"), "it is reported once, connected or not");
        admitted(&registry, "c");
        assert_eq!([first("c"), first("c"), first("b")], [true, false, false], "deleted names make room");
        assert_eq!(registry.with_devices.len(), 2);
    }

    #[test]
    fn offers_coalesce_and_orders_reach_the_session() {
        let registry = Registry::new(5);
        let handle = admitted(&registry, "a");
        let key = crate::edgecontroller::node_object_cache::node_key(&node("a"));
        for _ in 0..10 {
            registry.offer(&node("a"), &key);
        }
        registry.offer(&node("b"), &key);
        registry.ready(&node("a"));
        registry.node_deleted(&node("a"));
        let mail = handle.mailbox.take();
        assert_eq!((mail.dirty.len(), mail.ready), (1, true));
        assert_eq!(mail.goodbye.expect("ordered").reason, GoodbyeReason::NodeDeleted);
        assert_eq!(handle.mailbox.pending(), 0);
    }

    #[tokio::test]
    async fn ending_hub_notifies_every_session_and_its_waiters() {
        let registry = Registry::new(5);
        let sessions = ["a", "b"].map(|name| admitted(&registry, name));
        registry.end_all(|node| Goodbye {
            reason: GoodbyeReason::Draining,
            message: node.to_string(),
            retry_after: Duration::ZERO,
        });
        for session in sessions {
            let goodbye = session.mailbox.take().goodbye.expect("it is notified");
            assert_eq!(
                (goodbye.reason, goodbye.message),
                (GoodbyeReason::Draining, session.node.to_string())
            );
            let mut over = std::pin::pin!(session.over());
            assert!(futures::poll!(&mut over).is_pending());
            session.set_over();
            assert!(futures::poll!(&mut over).is_ready());
            session.over().await;
        }
    }

    #[test]
    fn single_node_cannot_fill_the_log() {
        let registry = Registry::new(5);
        let lines = (0..1000).filter(|_| registry.may_log(&node("a")).is_some()).count();
        assert!(lines <= LINES_OF_ONE as usize, "{lines} lines");
        assert!(registry.may_log(&node("b")).is_some(), "others have their own");
    }
}
