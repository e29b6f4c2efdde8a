//! Limits the concurrent calls to the API server, by purpose and by node.
//!
//! A fleet that reconnects requests everything in the same second. Calls that keep nodes alive must not wait behind
//! these requests, so each class of calls has slots of its own that no other class can take. Within a class, nodes
//! share most slots, and some are reserved for cloudcore. A node has only a few calls at a time in the common queue,
//! however many it wants to make, so the queue is fair among nodes.

use std::fmt;
use std::sync::Arc;

use futures::future::BoxFuture;
use http::Method;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tokio::sync::{Semaphore, SemaphorePermit};
use tombolo_apicore::query::Query;
use tombolo_apicore::query::path::Target;
use tombolo_proto::NodeId;

use super::api_call::CallError;
use crate::metrics::Label;
use crate::turns::Turns;

/// Slots in each class that are reserved for cloudcore.
const OWN_MAX: usize = 32;

/// API groups that contain only reviews.
const REVIEWS: [&str; 2] = ["authorization.k8s.io", "authentication.k8s.io"];

/// The purpose of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Class {
    /// Leases, which keep a node alive. They wait for nothing else, not even for slow reports of the same node.
    Lease,
    /// Writes of nodes about themselves and their pods.
    Report,
    /// cloudcore's access reviews and token reviews. They do not wait behind the requests of nodes, which may never be
    /// answered: otherwise a revoked right would outlive its revocation.
    Review,
    /// Reviews requested by a node or its pod.
    Question,
    /// Reads of single objects, and all other writes.
    Read,
    /// Lists, events, and the large documents about the API.
    Bulk,
    /// Creation of Nodes.
    Register,
}

impl Class {
    const ALL: [Self; 7] =
        [Self::Lease, Self::Report, Self::Review, Self::Question, Self::Read, Self::Bulk, Self::Register];

    pub(super) fn of(method: &Method, asked: &Query) -> Self {
        let Target::Resource(path) = &asked.target else {
            return if asked.path.starts_with("/openapi") { Self::Bulk } else { Self::Read };
        };
        let reads = *method == Method::GET;
        let own = path.group.is_empty() && matches!(&*path.resource, "nodes" | "pods");
        match &*path.resource {
            "leases" => Self::Lease,
            _ if REVIEWS.contains(&&*path.group) => Self::Review,
            "events" => Self::Bulk,
            _ if reads && path.name.is_none() => Self::Bulk,
            "nodes" if own && *method == Method::POST && path.name.is_none() => Self::Register,
            _ if own && !reads => Self::Report,
            _ => Self::Read,
        }
    }

    /// Slots that all nodes share, and how many calls one node may have running or queued.
    fn limits(self) -> (usize, usize) {
        match self {
            Self::Lease => (128, 4),
            Self::Report => (128, 8),
            Self::Review | Self::Question => (64, 8),
            Self::Read => (96, 8),
            Self::Bulk => (32, 4),
            Self::Register => (16, 1),
        }
    }

    fn label(self) -> Label {
        let kind = match self {
            Self::Lease => "lease",
            Self::Report => "report",
            Self::Review => "review",
            Self::Question => "question",
            Self::Read => "read",
            Self::Bulk => "bulk",
            Self::Register => "register",
        };
        Label { kind }
    }
}

/// Concurrent lists of what one node follows, running or next in line. Further lists of the node wait behind them,
/// because a node can invent any number of selectors.
const NODE_LISTS_MAX: usize = 1;

/// The call slots of one cloudcore.
#[derive(Debug)]
pub(super) struct Gate {
    lanes: [Lane; 7],
    /// The nodes for which lists are made.
    lists: Turns<NodeId>,
    /// The calls that one node may have running or queued, by class.
    turns: Turns<(NodeId, Class)>,
    calls: Family<Label, Counter>,
    running: Family<Label, Gauge>,
    waiting: Family<Label, Gauge>,
}

#[derive(Debug)]
struct Lane {
    nodes: Semaphore,
    own: Semaphore,
    calls: Counter,
    running: Gauge,
    waiting: Gauge,
}

/// The turn of one call among its node's calls, until it is answered or abandoned.
pub(super) type Turn = crate::turns::Turn<(NodeId, Class)>;

/// The one turn of a node to list what it follows, including its turn for the calls. It covers everything that the node
/// waits for behind its own calls. The holder may then wait with others for shared slots.
#[derive(Debug)]
pub struct ListTurn {
    pub(super) node: NodeId,
    _list: crate::turns::Turn<NodeId>,
    _call: Option<Turn>,
}

/// Provides the turns for the lists of a watch; none for a watch whose lists need no node's turn.
#[derive(Clone)]
pub(crate) struct ListTurns(Arc<TakeTurn>);

type TakeTurn = dyn Fn() -> BoxFuture<'static, Option<ListTurn>> + Send + Sync;

impl ListTurns {
    pub(crate) fn new(
        take: impl Fn() -> BoxFuture<'static, Option<ListTurn>> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(take))
    }

    pub(super) async fn take(&self) -> Option<ListTurn> {
        (self.0)().await
    }
}

impl fmt::Debug for ListTurns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ListTurns").finish_non_exhaustive()
    }
}

/// A slot of a call, held until the call is answered or abandoned.
pub(super) struct CallPermit<'a> {
    _running: Counted<'a>,
    _permit: Option<SemaphorePermit<'a>>,
}

/// Counts one in a gauge for as long as this value lives.
struct Counted<'a>(&'a Gauge);

impl<'a> Counted<'a> {
    fn new(gauge: &'a Gauge) -> Self {
        gauge.inc();
        Self(gauge)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl Default for Gate {
    fn default() -> Self {
        let (calls, running, waiting) = <(Family<_, Counter>, Family<_, Gauge>, Family<_, Gauge>)>::default();
        let lanes = Class::ALL.map(|class| {
            let label = class.label();
            Lane {
                nodes: Semaphore::new(class.limits().0),
                own: Semaphore::new(OWN_MAX),
                calls: calls.get_or_create(&label).clone(),
                running: running.get_or_create(&label).clone(),
                waiting: waiting.get_or_create(&label).clone(),
            }
        });
        let (lists, turns) = (Turns::default(), Turns::default());
        Self { lanes, lists, turns, calls, running, waiting }
    }
}

impl Gate {
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register("api_calls", "Calls made to the API server, by purpose", self.calls.clone());
        let text = "Calls to the API server in progress";
        registry.register("api_calls_running", text, self.running.clone());
        let text = "Calls to the API server that wait for a slot";
        registry.register("api_calls_waiting", text, self.waiting.clone());
    }

    /// Waits until a call is next among its node's calls, before it waits for a slot in [`Self::enter`]. cloudcore's
    /// own calls need no turn.
    ///
    /// # Errors
    /// [`CallError::Registering`]: registrations of one node do not queue. Otherwise a client that repeats an
    /// unanswered registration would pile them up.
    pub(super) async fn turn(&self, node: Option<&NodeId>, class: Class) -> Result<Option<Turn>, CallError> {
        let Some(node) = node else { return Ok(None) };
        let (key, (_, at_a_time)) = ((node.clone(), class), class.limits());
        if class == Class::Register {
            return self.turns.try_take(&key, at_a_time).map(Some).ok_or(CallError::Registering);
        }
        let _waiting = Counted::new(&self.lanes[class as usize].waiting);
        Ok(Some(self.turns.take(&key, at_a_time).await))
    }

    /// Waits until a node may list what it follows.
    pub(super) async fn list_turn(&self, node: &NodeId) -> ListTurn {
        let list = self.lists.take(node, NODE_LISTS_MAX).await;
        // Only registrations are refused.
        let call = self.turn(Some(node), Class::Bulk).await.ok().flatten();
        ListTurn { node: node.clone(), _list: list, _call: call }
    }

    /// Number of nodes that have turns, or wait for one.
    #[cfg(test)]
    pub(super) fn nodes(&self) -> usize {
        self.lists.len() + self.turns.len()
    }

    /// Waits for a slot: a shared one for a node's call, otherwise a reserved one of cloudcore. First come, first
    /// served.
    pub(super) async fn enter(&self, class: Class, for_node: bool) -> CallPermit<'_> {
        let lane = &self.lanes[class as usize];
        let semaphore = if for_node { &lane.nodes } else { &lane.own };
        let waiting = Counted::new(&lane.waiting);
        // The semaphore is never closed.
        let permit = semaphore.acquire().await.ok();
        drop(waiting);
        lane.calls.inc();
        CallPermit { _running: Counted::new(&lane.running), _permit: permit }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::time::Duration;

    use futures::FutureExt as _;
    use futures::future::join_all;

    use super::*;
    use crate::kube::endless::read;
    use crate::kube::{ApiCall, Caller, Kube, Room};
    use crate::metrics::Refusals;

    fn node(name: &str) -> NodeId {
        NodeId::parse(name).expect("a name")
    }

    #[test]
    fn calls_are_classified_by_purpose() {
        let class = |method: Method, path: &str| {
            Class::of(&method, &read(&ApiCall { method: method.clone(), ..ApiCall::get(path) }).expect(path))
        };
        let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n";
        for (method, path, expected) in [
            (Method::PATCH, leases, Class::Lease),
            (Method::GET, leases, Class::Lease),
            (Method::PATCH, "/api/v1/nodes/n/status", Class::Report),
            (Method::PATCH, "/api/v1/nodes/n", Class::Report),
            (Method::DELETE, "/api/v1/namespaces/d/pods/p", Class::Report),
            (Method::POST, "/api/v1/namespaces/d/pods", Class::Report),
            (Method::POST, "/api/v1/nodes?fieldManager=kubelet", Class::Register),
            (Method::POST, "/apis/example.com/v1/nodes", Class::Read),
            (Method::GET, "/api/v1/namespaces/d/pods/p", Class::Read),
            (Method::POST, "/apis/authorization.k8s.io/v1/subjectaccessreviews", Class::Review),
            (Method::POST, "/api/v1/namespaces/d/serviceaccounts/a/token", Class::Read),
            (Method::GET, "/api/v1", Class::Read),
            (Method::GET, "/api/v1/namespaces/d/pods?limit=5", Class::Bulk),
            (Method::GET, "/api/v1/namespaces/d/%70ods", Class::Bulk),
            (Method::POST, "/api/v1/namespaces/d/events", Class::Bulk),
            (Method::GET, "/openapi/v3/api/v1?hash=x", Class::Bulk),
        ] {
            assert_eq!(class(method.clone(), path), expected, "{method} {path}");
        }
    }

    #[test]
    fn call_slots_are_separate_for_each_class_and_for_cloudcore() {
        let gate = Gate::default();
        let enter = |class, for_node| gate.enter(class, for_node).now_or_never();
        let limits = Class::Bulk.limits().0;
        let bulk: Vec<_> = (0..limits).map(|_| enter(Class::Bulk, true).expect("a place")).collect();
        assert!(enter(Class::Bulk, true).is_none(), "one more waits");
        let own: Vec<_> = (0..OWN_MAX).map(|_| enter(Class::Bulk, false).expect("cloudcore's own")).collect();
        assert!(enter(Class::Bulk, false).is_none(), "those have an end as well");
        let _report = enter(Class::Report, true).expect("reports do not wait for lists");
        assert!(enter(Class::Read, true).is_some() && gate.lanes[Class::Report as usize].running.get() == 1);
        assert_eq!(
            (gate.lanes[Class::Bulk as usize].running.get(), gate.lanes[Class::Bulk as usize].waiting.get()),
            (i64::try_from(limits + OWN_MAX).unwrap(), 0)
        );
        drop((bulk, own));
        assert!(enter(Class::Bulk, true).is_some(), "the slots are free again");
    }

    /// Removes those that have completed.
    fn ended<F: Future>(waiting: &mut Vec<Pin<Box<F>>>) -> Vec<F::Output> {
        let mut ended = Vec::new();
        waiting.retain_mut(|call| match call.as_mut().now_or_never() {
            Some(permit) => {
                ended.push(permit);
                false
            }
            None => true,
        });
        ended
    }

    /// Many nodes request a hundred lists each, then one node requests a single list. It waits behind a few calls of
    /// each node, not behind all of them.
    #[test]
    fn call_queue_is_round_robin_over_nodes() {
        let gate = Gate::default();
        let (limits, share) = Class::Bulk.limits();
        let list = async |name: String| {
            let turn = gate.turn(Some(&node(&name)), Class::Bulk).await.expect("a turn");
            (turn, gate.enter(Class::Bulk, true).await)
        };
        let greedy = (0..16).flat_map(|number| (0..100).map(move |_| format!("greedy-{number}")));
        let mut waiting: Vec<_> = greedy.map(|name| Box::pin(list(name))).collect();
        let mut held = ended(&mut waiting);
        assert_eq!(held.len(), limits, "no more at a time");
        let mut modest = vec![Box::pin(list("modest".to_owned()))];
        let mut answered = 0;
        while ended(&mut modest).is_empty() {
            assert!(answered <= 16 * share, "it waits behind {answered} lists of others");
            held.remove(0);
            answered += 1;
            held.extend(ended(&mut waiting));
        }
        assert_eq!(gate.turns.len(), 16, "shares of the nodes with calls");
        drop((waiting, held));
        assert_eq!(gate.turns.len(), 0, "no state is kept for idle nodes");
    }

    const LARGE: &str = "/api/v1/pods";
    const REVIEW: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
    /// This is never answered.
    const HANGING: &str = "/api/v1/namespaces/d/pods/p/log";
    /// This is never answered either: the cluster asks a webhook about the token.
    const HANGING_REVIEW: &str = "/apis/authentication.k8s.io/v1/tokenreviews";
    const SOON: Duration = Duration::from_secs(1);

    /// An API server with large answers for lists of pods and for paths that are named large.
    fn kube() -> Kube {
        let service = tower::service_fn(|request: http::Request<kube::client::Body>| async move {
            if [HANGING, HANGING_REVIEW].contains(&request.uri().path()) {
                std::future::pending::<()>().await;
            }
            let large = [LARGE, "/api/v1/namespaces/d/configmaps/large"].contains(&request.uri().path());
            let len = if large { 2 * crate::kube::LARGE_ANSWER } else { 10 };
            let body = kube::client::Body::from(vec![b' '; len]);
            Ok::<_, tower::BoxError>(http::Response::new(body))
        });
        Kube::from(kube::Client::new(service, "default"))
    }

    /// The requests of a node, with its share of memory and its permit for one large answer.
    struct Asking {
        node: NodeId,
        large: Arc<Semaphore>,
        share: tombolo_runtime::Share,
    }

    impl Asking {
        fn new(name: &str, large: usize) -> Self {
            let share = tombolo_runtime::Budget::new(usize::MAX).share(usize::MAX);
            Self { node: node(name), large: Arc::new(Semaphore::new(large)), share }
        }

        /// The code of the last answer to some calls that belong to one request.
        async fn ask(&self, kube: &Kube, calls: &[(Method, &str)]) -> u16 {
            let asked = async {
                let mut code = 0;
                for (method, path) in calls {
                    let call = ApiCall { method: method.clone(), ..ApiCall::get(*path) };
                    code = kube.call(Caller::Node(&self.node), call).await.expect("an answer").code;
                }
                code
            };
            Room::new(&self.share, &self.large, &Refusals::default()).scope(asked).await
        }
    }

    /// A node requests large lists and does not read them. It holds no shared slots, and none of its own turns.
    #[tokio::test(start_paused = true)]
    async fn node_that_does_not_read_holds_no_call_slots() {
        let (kube, greedy) = (kube(), Asking::new("n", 0));
        let lists = [(Method::GET, LARGE)];
        let mut lists: Vec<_> = (0..16).map(|_| Box::pin(greedy.ask(&kube, &lists))).collect();
        assert!(tokio::time::timeout(SOON, join_all(&mut lists)).await.is_err(), "no byte is read");
        let lane = &kube.gate.lanes[Class::Bulk as usize];
        assert_eq!((lane.running.get(), lane.nodes.available_permits()), (0, Class::Bulk.limits().0));
        assert_eq!((lane.calls.get(), kube.gate.turns.len()), (16, 0), "each was requested once");
        let lease = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n";
        for (who, name, method, path) in [
            ("its own lease", "n", Method::PATCH, lease),
            ("a question about its rights", "n", Method::POST, REVIEW),
            ("its own small list", "n", Method::GET, "/api/v1/services"),
            ("a list of another node", "other", Method::GET, "/api/v1/services"),
        ] {
            let (calls, asking) = ([(method, path)], Asking::new(name, 0));
            assert!(tokio::time::timeout(SOON, asking.ask(&kube, &calls)).await.is_ok(), "{who}");
        }
        // The node reads one answer after the other.
        greedy.large.add_permits(1);
        assert_eq!(tokio::time::timeout(SOON, join_all(lists)).await.expect("answers"), [200; 16]);
        assert!(lane.calls.get() <= 2 * 16 + 2, "a delayed one is requested once more");
    }

    /// Nodes let their own kubelets hang and read pod logs through them, and request token reviews that take long.
    #[tokio::test(start_paused = true)]
    async fn reviews_of_rights_do_not_wait_for_requests_of_nodes() {
        let kube = kube();
        let greedy: Vec<_> = (0..16).map(|number| Asking::new(&format!("n{number}"), 1)).collect();
        let (logs, tokens) = ([(Method::GET, HANGING)], [(Method::POST, HANGING_REVIEW)]);
        let mut hanging = Vec::new();
        for asking in &greedy {
            for calls in [&logs, &tokens].into_iter().cycle().take(64) {
                hanging.push(Box::pin(asking.ask(&kube, calls)));
            }
        }
        assert!(tokio::time::timeout(SOON, join_all(&mut hanging)).await.is_err(), "no answer is given");
        for name in ["n0", "modest"] {
            let node = node(name);
            let review = ApiCall { method: Method::POST, ..ApiCall::get(REVIEW) };
            let review = tokio::time::timeout(SOON, kube.call(Caller::OwnFor(&node), review)).await;
            assert_eq!(review.expect(name).expect("an answer").code, 200);
        }
    }

    /// A request that makes several calls holds the node's large answer from its first call on, while others wait for
    /// it.
    #[tokio::test(start_paused = true)]
    async fn holder_of_the_large_answer_slot_does_not_wait_for_its_waiters() {
        let (kube, node) = (kube(), Asking::new("n", 1));
        let (object, other) = ("/api/v1/namespaces/d/configmaps/large", "/api/v1/namespaces/d/configmaps/a");
        let update = [(Method::GET, object), (Method::GET, other), (Method::PUT, other)];
        let reads = [(Method::GET, object)];
        let updates = node.ask(&kube, &update);
        let others = join_all((0..15).map(|_| node.ask(&kube, &reads)));
        let both = futures::future::join(updates, others);
        let (code, codes) = tokio::time::timeout(SOON, both).await.expect("neither waits for the other");
        assert!(code == 200 && codes == [200; 15]);
    }

    #[tokio::test]
    async fn a_node_registers_once_at_a_time() {
        let gate = Gate::default();
        let register = |name: &str| {
            let node = node(name);
            gate.turn(Some(&node), Class::Register).now_or_never().expect("at once")
        };
        let first = register("a").expect("a turn");
        assert!(matches!(register("a"), Err(CallError::Registering)), "not behind the first");
        let _other = register("b").expect("another node's turn");
        drop(first);
        register("a").expect("its turn again");
    }
}
