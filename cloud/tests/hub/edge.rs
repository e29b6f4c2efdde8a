//! A minimal edge: the protocol session over a link in memory, with a map as its store.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::time::Instant;
use tombolo_link::{Clock, Link, LinkEvent, pump};
use tombolo_proto::frame::{
    ApiReply, ApiRequest, Change, Goodbye, Inventory, ReplyBody, RequestBody, Subscribe,
};
use tombolo_proto::message::{
    Content, Group, Message, MessageId, ObjectPath, Operation, ResourceType, Route, Source,
};
use tombolo_proto::session::{EdgeConfig, EdgeEvent, EdgeSession, EdgeView};
use tombolo_proto::{
    CloudRevision, Epoch, HeldState, InventoryEntry, NodeId, ObjectKey, Resource, StoreId, SubscriptionId,
};

/// How long a test waits for anything. It is longer than the 30 s after which cloudcore gives up a call, because an API
/// server that has just started may leave a call hanging.
const DEADLINE: Duration = Duration::from_secs(60);

pub(crate) const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";

/// What the edge holds under one key.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub(crate) held: HeldState,
    pub(crate) body: Value,
    pub(crate) dependencies: Vec<String>,
}

/// The state that an edge keeps between connections.
#[derive(Default)]
pub(crate) struct Store {
    pub(crate) rows: BTreeMap<(u32, String), (ObjectKey, Row)>,
    pub(crate) epoch: Option<Epoch>,
    trim_version: u32,
    pub(crate) attestation: Bytes,
}

impl EdgeView for Store {
    fn inventory(&self, subscription: SubscriptionId) -> Vec<InventoryEntry> {
        let rows = self.rows.iter().filter(|((id, _), _)| *id == subscription.0);
        rows.map(|(_, (key, row))| InventoryEntry { key: key.clone(), held: row.held.clone() }).collect()
    }
}

/// One connected edge.
pub(crate) struct Edge {
    pub(crate) store: Store,
    pub(crate) caught_up: Vec<SubscriptionId>,
    pub(crate) goodbye: Option<Goodbye>,
    pub(crate) lease: Option<u16>,
    pub(crate) closed: Option<(u16, String)>,
    /// Keys that were delivered in this connection, in order.
    pub(crate) delivered: Vec<String>,
    replies: Vec<ReplyBody>,
    session: EdgeSession,
    link: Link,
    clock: Clock,
    node: NodeId,
}

impl Edge {
    /// `process` identifies the process of the edge; 0 means that the edge does not report it.
    pub(crate) fn new(node: &str, link: Link, store: Store, process: u64) -> Self {
        let node = NodeId::parse(node).unwrap();
        let mut config = EdgeConfig::new(node.clone(), StoreId([7; 16]));
        config.instance = process;
        config.epoch = store.epoch.clone();
        config.trim_version = store.trim_version;
        config.attestation = store.attestation.clone();
        let clock = Clock::start();
        let session = EdgeSession::new(config, clock.now(), &store);
        Self {
            store,
            caught_up: Vec::new(),
            goodbye: None,
            lease: None,
            closed: None,
            delivered: Vec::new(),
            replies: Vec::new(),
            session,
            link,
            clock,
            node,
        }
    }

    /// Drives the session until the condition holds.
    pub(crate) async fn until(&mut self, what: &str, holds: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + DEADLINE;
        while !holds(self) {
            assert!(
                self.step(deadline).await,
                "{}: {what} did not arrive; delivered: {:?}; caught up: {:?}; held: {:?}; goodbye: {:?}",
                self.node,
                self.delivered,
                self.caught_up,
                self.names(),
                self.goodbye
            );
        }
    }

    async fn step(&mut self, deadline: Instant) -> bool {
        let session = &mut self.session;
        let now = self.clock.now();
        let _ = pump(&mut self.link, |lane| session.poll_transmit(now, lane));
        let timer = self.session.next_timeout().map_or(deadline, |at| self.clock.instant(at).min(deadline));
        tokio::select! {
            event = self.link.next() => match event {
                LinkEvent::Frame(lane, frame) => {
                    let _ = self.session.handle_frame(self.clock.now(), lane, frame, &self.store);
                }
                LinkEvent::Writable => {}
                LinkEvent::Closed(_) if self.goodbye.is_some() => return false,
                LinkEvent::Closed(error) => panic!("{}: link closed without a goodbye: {error}", self.node),
            },
            () = tokio::time::sleep_until(timer) => {
                if Instant::now() >= deadline {
                    return false;
                }
                self.session.handle_timeout(self.clock.now());
            }
        }
        while let Some(event) = self.session.poll_event() {
            self.handle(event);
        }
        true
    }

    fn handle(&mut self, event: EdgeEvent) {
        match event {
            EdgeEvent::Welcomed { trim_version, .. } => self.store.trim_version = trim_version,
            EdgeEvent::Deliver { lane, seq, subscription, change } => {
                self.delivered.push(change.key().to_string());
                self.apply(subscription, change);
                self.session.committed(lane, seq);
            }
            EdgeEvent::CaughtUp { subscription, epoch, revision } => {
                assert!(revision >= CloudRevision(0));
                self.store.epoch = Some(epoch);
                self.caught_up.push(subscription);
            }
            EdgeEvent::Attested(attestation) => self.store.attestation = attestation,
            EdgeEvent::Reply(reply) => self.replies.push(reply.body),
            EdgeEvent::RequestTimedOut(id) => panic!("no answer to {id:?}"),
            EdgeEvent::LeaseRenewed { code, .. } => self.lease = Some(code),
            EdgeEvent::SubscriptionClosed { code, reason, .. } => self.closed = Some((code, reason)),
            EdgeEvent::RoundTrip(_) => {}
            EdgeEvent::Closed(goodbye) => self.goodbye = Some(goodbye),
        }
    }

    fn apply(&mut self, subscription: SubscriptionId, change: Change) {
        let at = (subscription.0, change.key().to_string());
        match change {
            Change::Upsert(object) => {
                let row = Row {
                    held: HeldState::Present(object.version.clone()),
                    body: serde_json::from_slice(&object.body).unwrap(),
                    dependencies: object.dependencies.iter().map(ToString::to_string).collect(),
                };
                self.store.rows.insert(at, (object.key.clone(), row));
            }
            Change::Delete { .. } => {
                self.store.rows.remove(&at);
            }
            Change::Absent { key } => {
                let row = Row { held: HeldState::Absent, body: Value::Null, dependencies: Vec::new() };
                self.store.rows.insert(at, (key, row));
            }
            Change::Unreadable { key } => {
                let row = Row { held: HeldState::Unreadable, body: Value::Null, dependencies: Vec::new() };
                self.store.rows.entry(at).or_insert((key, row));
            }
            Change::Adopt { version, .. } => {
                self.store.rows.get_mut(&at).unwrap().1.held = HeldState::Present(version);
            }
        }
    }

    /// Names of all held objects of the pushed set, including known absences.
    pub(crate) fn names(&self) -> Vec<&str> {
        self.store
            .rows
            .keys()
            .filter(|(subscription, _)| *subscription == 0)
            .map(|(_, name)| name.as_str())
            .collect()
    }

    pub(crate) fn row(&self, subscription: u32, name: &str) -> Option<&Row> {
        self.store.rows.get(&(subscription, name.to_owned())).map(|(_, row)| row)
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.row(0, name).is_some_and(|row| matches!(row.held, HeldState::Present(_)))
    }

    /// Calls the Kubernetes API through the cloud.
    pub(crate) async fn api(
        &mut self,
        method: &str,
        path: &str,
        content_type: &str,
        body: &Value,
    ) -> ApiReply {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let request = ApiRequest {
            content_type: content_type.to_owned(),
            body: body.into(),
            ..ApiRequest::new(method, path)
        };
        match self.ask(RequestBody::Api(request)).await {
            ReplyBody::Api(reply) => reply,
            ReplyBody::Message(message) => panic!("a message answers an API call: {message:?}"),
        }
    }

    /// Sends one of KubeEdge's messages and waits for its answer.
    pub(crate) async fn message(
        &mut self,
        operation: Operation,
        path: ObjectPath,
        content: &Value,
    ) -> Message {
        let route = Route::new(Source::Edged, Group::Meta, operation, path.into());
        let id = MessageId::from_random_bytes([9; 16]);
        let message = Message::new(id.clone(), 1, route, Content::from_value(content).unwrap());
        match self.ask(RequestBody::Message(Box::new(message))).await {
            ReplyBody::Message(reply) => {
                assert_eq!(reply.header.parent, Some(id));
                *reply
            }
            ReplyBody::Api(reply) => panic!("an API reply answers a message: {}", reply.code),
        }
    }

    async fn ask(&mut self, body: RequestBody) -> ReplyBody {
        let before = self.replies.len();
        self.session.request(self.clock.now(), DEADLINE, body, None).unwrap();
        self.until("an answer", |edge| edge.replies.len() > before).await;
        self.replies.pop().unwrap()
    }

    pub(crate) async fn create_lease(&mut self) {
        let name = self.node.to_string();
        let lease =
            json!({"metadata": {"name": name}, "spec": {"holderIdentity": name, "leaseDurationSeconds": 40}});
        let created = self.api("POST", LEASES, "application/json", &lease).await;
        assert_eq!(created.code, 201, "{}", String::from_utf8_lossy(&created.body));
    }

    pub(crate) fn renew_lease(&mut self, micros: i64) {
        self.lease = None;
        self.session.renew_lease(micros);
    }

    pub(crate) fn subscribe(&mut self, resource: Resource) -> SubscriptionId {
        let subscription = self.session.next_subscription();
        let subscribe = Subscribe {
            subscription,
            resource,
            namespace: String::new(),
            label_selector: String::new(),
            field_selector: String::new(),
            caller_token: None,
            epoch: None,
            inventory: Inventory::Full(Vec::new()),
        };
        self.session.subscribe(subscribe).unwrap();
        subscription
    }

    /// Registers the Node as an agent does, and returns the cloud's answer.
    pub(crate) async fn register(&mut self) -> Message {
        let name = self.node.to_string();
        let node = json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": name, "labels": {
                "kubernetes.io/hostname": name, "node-role.kubernetes.io/edge": "",
                "node-restriction.kubernetes.io/team": "other"}}
        });
        self.message(Operation::Insert, ObjectPath::new("", ResourceType::Node, &name), &node).await
    }
}
