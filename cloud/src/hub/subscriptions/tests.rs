//! Rights of subscriptions, with a paused clock: a hub, an edge over an in-memory link, and a scripted API server.

use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwap;
use proptest::prelude::*;
use serde_json::{Value, json};
use tombolo_link::server::Accepted;
use tombolo_link::{Clock, Link, LinkEvent, Transport, mem, pump};
use tombolo_proto::frame::{Change, Goodbye, Inventory, Reply};
use tombolo_proto::session::{EdgeConfig, EdgeEvent, EdgeSession, EdgeView};
use tombolo_proto::{CloudRevision, Epoch, InventoryEntry, Resource, StoreId, SubscriptionId, Uid};
use tombolo_runtime::Budget;

use super::super::access::{REVIEW_INTERVAL, next_review};
use super::super::registry::{Admission, SessionHandle};
use super::super::{ClusterLedgers, Hub, Ledgers, Registry};
use super::*;
use crate::app::keep_house;
use crate::attestation::Attester;
use crate::config::{Devices, KubeEdgeSessions};
use crate::edgecontroller::upstream::Upstream;
use crate::edgecontroller::{Input, NodeObjectCache};
use crate::epoch::Attestations;
use crate::history_progress::HistoryProgress;
use crate::kube::tests::double::answering;

mod attestation_check;
mod deletion_checks;
mod ended;
mod group;
mod leases;
mod lists;
mod moving;
mod returning;
mod room;
mod shares;

/// What the API server is asked about rights, and how it answers.
#[derive(Default)]
struct Rights {
    withheld: AtomicBool,
    silent: AtomicBool,
    /// Lists are not answered.
    deaf: AtomicBool,
    /// Attributes of every question, in order.
    asked: parking_lot::Mutex<Vec<Value>>,
}

impl Rights {
    fn questions(&self) -> usize {
        self.asked.lock().len()
    }
}

/// A client whose API server has one ConfigMap and answers access reviews.
fn scripted(rights: &Arc<Rights>) -> Kube {
    let rights = Arc::clone(rights);
    let client = answering(move |call, body| {
        let rights = Arc::clone(&rights);
        async move {
            let query = call.uri.query().unwrap_or_default();
            match call.uri.path() {
                "/api/v1" => (200, json!({"resources": [{"name": "configmaps", "kind": "ConfigMap"}]})),
                // No event ever arrives.
                "/api/v1/namespaces/d/configmaps" if query.contains("watch") => std::future::pending().await,
                "/api/v1/namespaces/d/configmaps" if rights.deaf.load(Ordering::SeqCst) => (500, json!({})),
                "/api/v1/namespaces/d/configmaps" => (200, list()),
                "/apis/authorization.k8s.io/v1/subjectaccessreviews" => {
                    let question: Value = serde_json::from_slice(&body).unwrap_or_default();
                    rights.asked.lock().push(question["spec"].clone());
                    let allowed = !rights.withheld.load(Ordering::SeqCst);
                    let code = if rights.silent.load(Ordering::SeqCst) { 500 } else { 201 };
                    (code, json!({"status": {"allowed": allowed, "reason": "the role was taken away"}}))
                }
                path => (404, json!({"kind": "Status", "code": 404, "message": format!("no {path}")})),
            }
        }
    });
    client.into()
}

fn list() -> Value {
    let metadata = json!({"name": "m", "namespace": "d", "uid": "u", "resourceVersion": "5"});
    json!({"kind": "ConfigMapList", "apiVersion": "v1", "metadata": {"resourceVersion": "7"},
           "items": [{"metadata": metadata, "data": {"k": "v"}}]})
}

fn subscribe(subscription: SubscriptionId) -> Subscribe {
    Subscribe {
        subscription,
        resource: Resource::new("", "v1", "configmaps"),
        namespace: "d".to_owned(),
        label_selector: "tier=front".to_owned(),
        field_selector: String::new(),
        caller_token: None,
        epoch: None,
        inventory: Inventory::Full(Vec::new()),
    }
}

fn node() -> NodeId {
    NodeId::parse("n").expect("valid")
}

fn hub(kube: &Kube) -> Arc<Hub> {
    // The receiver is dropped: the edge controller is not under test.
    hub_of(kube, Arc::default(), mpsc::channel(1).0)
}

/// A hub over this index, which sends its inputs to the given channel.
fn hub_of(kube: &Kube, down: Arc<NodeObjectCache>, inputs: mpsc::Sender<Input>) -> Arc<Hub> {
    let tasks = Tasks::new();
    let metrics = Metrics::register(&mut prometheus_client::registry::Registry::default());
    let session_bytes = Budget::new(usize::MAX);
    let epoch = Epoch { cluster: Uid::parse("c").expect("valid"), generation: 1 };
    Arc::new(Hub {
        registry: Arc::new(Registry::new(64).with_memory(&session_bytes)),
        upstream: Upstream::new(kube.clone(), Arc::clone(&down)),
        ledgers: Ledgers::new(Arc::new(ClusterLedgers::new(kube.clone(), "d")), "hub"),
        subscriptions: Subscriptions::new(kube.clone(), tasks.clone(), metrics.clone()),
        session_bytes,
        down,
        inputs,
        metrics,
        kubeedge: KubeEdgeSessions { silence: Duration::from_secs(60), window: 1, devices: Devices::Refuse },
        attestations: Attestations::new(attester(), epoch.cluster.clone(), progress(1)),
        epoch: ArcSwap::from_pointee(epoch),
        clock: Clock::start(),
        tasks,
        recorder: None,
    })
}

fn progress(revision: u64) -> HistoryProgress {
    HistoryProgress { generation: 1, beat: 0, revision: CloudRevision(revision) }
}

fn attester() -> Attester {
    Attester::new(b"secret").expect("cryptography works")
}

struct NothingHeld;

impl EdgeView for NothingHeld {
    fn inventory(&self, _subscription: SubscriptionId) -> Vec<InventoryEntry> {
        Vec::new()
    }
}

/// An edge that follows what the test asks for.
struct Edge {
    session: EdgeSession,
    link: Link,
    clock: Clock,
    /// Answers that arrived.
    replies: Vec<Reply>,
    /// What the hub reported about subscriptions: caught up, or code and reason of the end.
    heard: Vec<(SubscriptionId, Option<(u16, String)>)>,
    /// Number of answered lease renewals.
    leases: usize,
    /// Number of deletions that arrived.
    deleted: usize,
    /// The hub's goodbye.
    goodbye: Option<Goodbye>,
}

impl Edge {
    fn connect(hub: &Arc<Hub>) -> Self {
        Self::connect_as(hub, node())
    }

    fn connect_as(hub: &Arc<Hub>, node: NodeId) -> Self {
        Self::connect_process(hub, node, 0)
    }

    /// Connects as a process of the edge with this instance number.
    fn connect_process(hub: &Arc<Hub>, node: NodeId, instance: u64) -> Self {
        let (cloud, link, _) = mem::pair(node.clone());
        let remote = cloud.peer().remote;
        hub.accept(Accepted { link: cloud, node: node.clone(), remote, transport: Transport::Memory });
        let clock = Clock::start();
        let config = EdgeConfig { instance, ..EdgeConfig::new(node, StoreId([7; 16])) };
        let session = EdgeSession::new(config, clock.now(), &NothingHeld);
        Self {
            session,
            link,
            clock,
            heard: Vec::new(),
            replies: Vec::new(),
            leases: 0,
            deleted: 0,
            goodbye: None,
        }
    }

    fn follow(&mut self) -> SubscriptionId {
        let subscription = self.session.next_subscription();
        self.session.subscribe(subscribe(subscription)).expect("room for one");
        subscription
    }

    /// Lets this much time pass, or less if the hub reports something about a subscription.
    async fn listen(&mut self, time: Duration) -> Option<(SubscriptionId, Option<(u16, String)>)> {
        let deadline = Instant::now() + time;
        while self.heard.is_empty() && Instant::now() < deadline {
            self.step(deadline).await;
        }
        self.heard.pop()
    }

    async fn step(&mut self, deadline: Instant) {
        let (session, now) = (&mut self.session, self.clock.now());
        pump(&mut self.link, |lane| session.poll_transmit(now, lane)).expect("the link holds");
        let timer = self.session.next_timeout().map_or(deadline, |at| self.clock.instant(at).min(deadline));
        tokio::select! {
            event = self.link.next() => match event {
                LinkEvent::Frame(lane, frame) => {
                    let now = self.clock.now();
                    self.session.handle_frame(now, lane, frame, &NothingHeld).expect("a good frame");
                }
                LinkEvent::Writable => {}
                LinkEvent::Closed(error) => assert!(self.goodbye.is_some(), "{error}"),
            },
            () = tokio::time::sleep_until(timer) => self.session.handle_timeout(self.clock.now()),
        }
        while let Some(event) = self.session.poll_event() {
            match event {
                EdgeEvent::Deliver { lane, seq, change, .. } => {
                    self.deleted += usize::from(matches!(change, Change::Delete { .. }));
                    self.session.committed(lane, seq);
                }
                EdgeEvent::Reply(reply) => self.replies.push(reply),
                EdgeEvent::LeaseRenewed { .. } => self.leases += 1,
                EdgeEvent::Closed(goodbye) => self.goodbye = Some(goodbye),
                EdgeEvent::CaughtUp { subscription, .. } if subscription != SubscriptionId::NODE => {
                    self.heard.push((subscription, None));
                }
                EdgeEvent::SubscriptionClosed { subscription, code, reason } => {
                    self.heard.push((subscription, Some((code, reason))));
                }
                _ => {}
            }
        }
    }
}

/// Questions of one check: may it list, may it watch.
const QUESTIONS: usize = 2;

/// Longer than a hub needs to open a subscription.
const SOON: Duration = Duration::from_secs(10);

#[tokio::test(start_paused = true)]
async fn every_subscription_is_reviewed_and_no_answer_is_cached() {
    let rights = Arc::new(Rights::default());
    let (access, question) = (Access::new(scripted(&rights)), subscribe(SubscriptionId(1)));
    let check = async || access.check(&node(), &question).await;
    check().await.expect("allowed");
    let asked = rights.asked.lock().clone();
    assert_eq!(
        asked.iter().map(|spec| &spec["resourceAttributes"]["verb"]).collect::<Vec<_>>(),
        ["list", "watch"]
    );
    for spec in &asked {
        assert_eq!(spec["user"], "system:node:n");
        assert_eq!(spec["groups"], json!(["system:nodes", "system:authenticated", "tombolo:edge-nodes"]));
        assert_eq!(spec["resourceAttributes"]["labelSelector"]["rawSelector"], "tier=front");
    }
    rights.withheld.store(true, Ordering::SeqCst);
    assert_eq!(check().await.expect_err("the right was just revoked").code, 403);
    assert_eq!(rights.questions(), QUESTIONS + 1, "the first refusal decides");
    rights.withheld.store(false, Ordering::SeqCst);
    check().await.expect("a refusal is not remembered");
    assert_eq!(rights.questions(), 2 * QUESTIONS + 1);
}

/// The parts of a question that the client chooses.
fn a_question() -> impl Strategy<Value = Subscribe> {
    let word = || prop::sample::select(vec!["", "a", "ab", "b"]);
    let token = prop::sample::select(vec![None, Some("t"), Some("ta"), Some("services"), Some("secrets")]);
    let plural = prop::sample::select(vec!["services", "secrets", "a", "ab"]);
    (word(), plural, word(), word(), word(), token).prop_map(
        |(group, plural, namespace, label, field, token)| {
            let fields = if field.is_empty() { String::new() } else { format!("{field}=1") };
            Subscribe {
                resource: Resource::new(group, "v1", plural),
                namespace: namespace.to_owned(),
                label_selector: label.to_owned(),
                field_selector: fields,
                caller_token: token.map(str::to_owned),
                ..subscribe(SubscriptionId(1))
            }
        },
    )
}

/// The question in the form in which the API server receives it: who asks for what.
fn asked_of_the_api_server(question: &Subscribe) -> Value {
    let about = &question.resource;
    json!([
        question.caller_token,
        about.group.to_string(),
        about.name.to_string(),
        question.namespace,
        question.label_selector,
        question.field_selector
    ])
}

/// An API server that allows one question, and knows every token as a separate user.
fn allowing(question: &Subscribe) -> Kube {
    let allowed = asked_of_the_api_server(question);
    let client = answering(move |call, body| {
        let review: Value = serde_json::from_slice(&body).unwrap_or_default();
        let spec = &review["spec"];
        let status = if call.uri.path().ends_with("tokenreviews") {
            let user = format!("token {}", spec["token"].as_str().unwrap_or_default());
            json!({"authenticated": true, "user": {"username": user}})
        } else {
            let about = &spec["resourceAttributes"];
            let token = spec["user"].as_str().and_then(|user| user.strip_prefix("token "));
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let selector = |name: &str| text(&about[name]["rawSelector"]);
            let asked = json!([
                token,
                text(&about["group"]),
                text(&about["resource"]),
                text(&about["namespace"]),
                selector("labelSelector"),
                selector("fieldSelector")
            ]);
            json!({"allowed": asked == allowed})
        };
        std::future::ready((201, json!({"status": status})))
    });
    client.into()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(tombolo_testkit::cases(200)))]
    /// This holds for any parts of a question that a node may choose, and any right that it had before.
    #[test]
    fn review_is_never_answered_with_the_answer_to_another(allowed in a_question(), other in a_question()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let access = Access::new(allowing(&allowed));
            access.check(&node(), &allowed).await.expect("allowed");
            let same = asked_of_the_api_server(&allowed) == asked_of_the_api_server(&other);
            let outcome = access.check(&node(), &other).await;
            prop_assert_eq!(outcome.is_ok(), same, "{:?} after {:?}", other, allowed);
            Ok::<(), TestCaseError>(())
        })?;
    }
}

/// These two questions once had the same digest: one by the node about Services, one by an unknown token about Secrets.
#[tokio::test(start_paused = true)]
async fn right_to_services_opens_no_watch_of_secrets() {
    let about = |plural: &str, labels: &str, token: Option<&str>| Subscribe {
        resource: Resource::new("", "v1", plural),
        namespace: String::new(),
        label_selector: labels.to_owned(),
        caller_token: token.map(str::to_owned),
        ..subscribe(SubscriptionId(1))
    };
    let services = about("services", "x", None);
    let hub = hub(&allowing(&services));
    hub.subscriptions.access.check(&node(), &services).await.expect("allowed");
    for (token, code) in [(Some("thrown-away"), 403), (None, 403), (Some(""), 401), (Some("a b"), 401)] {
        let closed =
            hub.subscriptions.open(&node(), &about("secrets", "", token)).await.expect_err("refused");
        assert_eq!(closed.code, code, "{token:?}: {}", closed.reason);
    }
    assert_eq!(hub.subscriptions.running.len(), 0, "a watch was opened");
}

#[tokio::test(start_paused = true)]
async fn unparsable_selector_is_refused_before_any_review() {
    let rights = Arc::new(Rights::default());
    let hub = hub(&scripted(&rights));
    for (labels, fields) in [("a in", ""), ("", "metadata.name"), ("", r"metadata.name=\x")] {
        let question = Subscribe {
            label_selector: labels.to_owned(),
            field_selector: fields.to_owned(),
            ..subscribe(SubscriptionId(1))
        };
        let closed = hub.subscriptions.open(&node(), &question).await.expect_err("refused");
        assert_eq!(closed.code, 400, "{}", closed.reason);
    }
    assert_eq!((rights.questions(), hub.subscriptions.running.len()), (0, 0));
}

/// Thousands of subscriptions that opened in the same second do not keep asking in the same second.
#[test]
fn reviews_of_a_fleet_are_spread() {
    let waits: Vec<Duration> = std::iter::repeat_with(next_review).take(1000).collect();
    assert!(waits.iter().all(|wait| *wait <= REVIEW_INTERVAL && *wait >= REVIEW_INTERVAL / 2));
    let early = waits.iter().filter(|wait| **wait < REVIEW_INTERVAL.mul_f64(0.9)).count();
    assert!((300..700).contains(&early), "{early} of 1000 in the first half");
}

#[tokio::test(start_paused = true)]
async fn subscription_is_closed_with_403_when_its_right_is_revoked() {
    let rights = Arc::new(Rights::default());
    let mut edge = Edge::connect(&hub(&scripted(&rights)));
    let subscription = edge.follow();
    assert_eq!(edge.listen(SOON).await, Some((subscription, None)), "opened");
    assert_eq!(rights.questions(), QUESTIONS);

    assert_eq!(edge.listen(REVIEW_INTERVAL + SOON).await, None, "still allowed");
    assert_eq!(rights.questions(), 2 * QUESTIONS, "reviewed again after five minutes");
    rights.silent.store(true, Ordering::SeqCst);
    assert_eq!(edge.listen(REVIEW_INTERVAL).await, None, "a missing answer revokes no right");
    assert!(rights.questions() > 2 * QUESTIONS, "reviewed once more");
    rights.silent.store(false, Ordering::SeqCst);

    rights.withheld.store(true, Ordering::SeqCst);
    let begin = Instant::now();
    let (closed, end) = edge.listen(REVIEW_INTERVAL + SOON).await.expect("closed");
    let (code, reason) = end.expect("an end");
    assert_eq!((closed, code), (subscription, 403));
    for part in ["system:node:n may not list", "configmaps", "the role was taken away"] {
        assert!(reason.contains(part), "{part:?} is not in {reason}");
    }
    assert!(begin.elapsed() <= REVIEW_INTERVAL, "closed after {:?}", begin.elapsed());
}

/// A session that follows nothing yet.
fn session(hub: &Hub) -> Arc<SessionHandle> {
    let (link, ..) = mem::pair(node());
    match hub.registry.admit(&node(), link.peer()) {
        Admission::Admitted(handle) => handle,
        Admission::Full(limit) => panic!("{limit} nodes are there"),
    }
}

/// A shared watch is closed ten minutes after its last client.
#[tokio::test(start_paused = true)]
async fn unfollowed_watch_is_closed_after_ten_minutes() {
    let hub = hub(&scripted(&Arc::default()));
    let subscriptions = &hub.subscriptions;
    let watch = subscriptions.open(&node(), &subscribe(SubscriptionId(1))).await.expect("allowed");
    let (first, last) = (session(&hub), session(&hub));
    watch.follow(&first, SubscriptionId(1)).expect("it continues");
    watch.follow(&last, SubscriptionId(4)).expect("it continues");
    tokio::time::advance(2 * IDLE_LIMIT).await;
    subscriptions.sweep();
    watch.unfollow(&first, SubscriptionId(1));
    tokio::time::advance(IDLE_LIMIT).await;
    subscriptions.sweep();
    assert_eq!(subscriptions.running.len(), 1, "somebody follows");

    watch.unfollow(&last, SubscriptionId(4));
    tokio::time::advance(Duration::from_secs(599)).await;
    subscriptions.sweep();
    let tasks = subscriptions.running.iter().next().expect("it is kept").tasks.clone();
    assert!(tasks.iter().all(|task| !task.is_finished()));
    tokio::time::advance(Duration::from_secs(1)).await;
    subscriptions.sweep();
    assert_eq!((subscriptions.running.len(), hub.metrics.shared_watches.get()), (0, 0));
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert!(tasks.iter().all(AbortHandle::is_finished), "no read of the API server is made for it");
}

#[tokio::test(start_paused = true)]
async fn housekeeping_closes_unfollowed_watches() {
    let hub = hub(&scripted(&Arc::default()));
    let watch = hub.subscriptions.open(&node(), &subscribe(SubscriptionId(1))).await.expect("allowed");
    let session = session(&hub);
    watch.follow(&session, SubscriptionId(1)).expect("it continues");
    tokio::spawn(keep_house(Arc::clone(&hub)));
    tokio::time::sleep(IDLE_LIMIT).await;
    watch.unfollow(&session, SubscriptionId(1));
    tokio::time::sleep(Duration::from_secs(599)).await;
    assert_eq!(hub.subscriptions.running.len(), 1);
    tokio::time::sleep(Duration::from_secs(12)).await;
    assert_eq!(hub.subscriptions.running.len(), 0);
}

/// One node invents selectors. It only takes its own slots, and the watches that it no longer follows give way.
#[tokio::test(start_paused = true)]
async fn throwaway_selectors_use_up_only_the_watches_of_their_node() {
    let rights = Arc::new(Rights::default());
    let hub = hub(&scripted(&rights));
    let select = |number: usize| Subscribe {
        label_selector: format!("throw!=away-{number}"),
        ..subscribe(SubscriptionId(1))
    };
    for number in 0..2 * SHARED_WATCHES_MAX {
        hub.subscriptions.open(&node(), &select(number)).await.expect("an older one gives way");
        assert!(hub.subscriptions.running.len() <= NODE_WATCHES_MAX);
    }
    let Admission::Admitted(handle) = hub.registry.admit(&node(), &mem::pair(node()).0.peer().clone()) else {
        panic!("the hub is full");
    };
    for number in 0..NODE_WATCHES_MAX {
        let watch = hub.subscriptions.open(&node(), &select(number)).await.expect("room");
        let subscription = SubscriptionId(u32::try_from(number).expect("few") + 1);
        watch.follow(&handle, subscription).expect("it continues");
    }
    let refused = hub.subscriptions.open(&node(), &select(9_999)).await.expect_err("all are followed");
    assert_eq!(refused.code, 429, "{refused:?}");
    let other = NodeId::parse("other").expect("valid");
    hub.subscriptions.open(&other, &select(9_999)).await.expect("another node has slots of its own");
}

/// Subscriptions that are begun and ended leave no work behind.
#[tokio::test(start_paused = true)]
async fn cancelled_subscription_causes_no_work() {
    let rights = Arc::new(Rights::default());
    let hub = hub(&scripted(&rights));
    let mut edge = Edge::connect(&hub);
    for _ in 0..100 {
        let subscription = edge.follow();
        assert_eq!(edge.listen(SOON).await, Some((subscription, None)), "it is followed");
        edge.session.unsubscribe(subscription);
    }
    let asked = rights.questions();
    assert_eq!(edge.listen(2 * REVIEW_INTERVAL).await, None);
    assert_eq!(rights.questions(), asked, "no review is made for an ended subscription");
}

/// Requests beyond a node's share of memory are refused, and those that fit are not.
#[tokio::test(start_paused = true)]
async fn requests_beyond_the_node_share_are_refused() {
    use tombolo_proto::frame::{ApiRequest, ReplyBody, RequestBody};

    let rights = Arc::new(Rights::default());
    let hub = hub(&scripted(&rights));
    let mut edge = Edge::connect(&hub);
    let body = bytes::Bytes::from(vec![b'x'; 3 * 512 * 1024]);
    for _ in 0..6 {
        // The API server never answers this.
        let request = ApiRequest {
            body: body.clone(),
            ..ApiRequest::new("POST", "/api/v1/namespaces/d/configmaps?watch=false")
        };
        let now = edge.clock.now();
        let request = RequestBody::Api(request);
        edge.session.request(now, Duration::from_secs(60), request, None).expect("room");
    }
    let mut codes = Vec::new();
    let deadline = Instant::now() + Duration::from_secs(30);
    while codes.len() < 4 && Instant::now() < deadline {
        let now = edge.clock.now();
        pump(&mut edge.link, |lane| edge.session.poll_transmit(now, lane)).expect("the link holds");
        let Ok(event) = tokio::time::timeout_at(deadline, edge.link.next()).await else { break };
        if let LinkEvent::Frame(lane, frame) = event {
            edge.session.handle_frame(now, lane, frame, &NothingHeld).expect("a good frame");
        }
        while let Some(event) = edge.session.poll_event() {
            if let EdgeEvent::Reply(reply) = event
                && let ReplyBody::Api(reply) = reply.body
            {
                codes.push(reply.code);
            }
        }
    }
    assert_eq!(codes, [429; 4], "two of them fit the share");
    let refusals = &hub.metrics.budget_refusals;
    assert_eq!((refusals.get("request", "node"), refusals.get("request", "all")), (4, 0));
}
