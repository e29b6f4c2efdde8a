//! A cloud in memory with a real `CloudSession`. It holds objects, answers requests, and can be unreachable.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use futures::future::BoxFuture;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;
use tombolo_apicore::backend::PatchType;
use tombolo_apicore::kinds::Kinds;
use tombolo_apicore::patch::strategic_merge_patch;
use tombolo_link::{Clock, Link, LinkError, LinkEvent, mem, pump};
use tombolo_proto::frame::{ApiReply, ApiRequest, Reply, ReplyBody, Request, RequestBody, Subscribe};
use tombolo_proto::ids::{CloudRevision, Epoch, NodeId, SubscriptionId, Uid};
use tombolo_proto::inventory::content_hash;
use tombolo_proto::message::{Content, MessageId, Outcome};
use tombolo_proto::object::{ObjectKey, ObjectVersion, Resource, SharedObject};
use tombolo_proto::session::{CloudConfig, CloudEvent, CloudSession, Lookup, NodeView};

use crate::hub::{Connection, Dial, SessionFailure};
use crate::identity::Identity;
use crate::store::is_pushed;
use crate::store::splice::TRIM_VERSION;

/// The cloud. Clones share its state.
#[derive(Clone)]
pub(super) struct FakeCloud {
    world: Arc<Mutex<World>>,
    news: watch::Sender<u64>,
}

struct World {
    objects: BTreeMap<ObjectKey, Arc<SharedObject>>,
    revision: u64,
    away: bool,
    /// Sessions of a lower generation end.
    generation: u64,
    calls: Vec<String>,
    leases: usize,
    /// The lease is deleted: renewals fail until it is created again.
    lease_gone: bool,
    /// Acknowledged deliveries, and subscriptions caught up.
    acknowledged: usize,
    caught_up: usize,
    /// The session ends after this many acknowledged deliveries, and no new one is accepted.
    cut_at: Option<usize>,
    /// Subscriptions that were opened, and resources for which they are refused.
    opened: Vec<Subscribe>,
    forbidden: Vec<String>,
    /// Tokens for which subscriptions are refused, and the code of the refusal.
    refused: BTreeMap<String, u16>,
    scripted: Scripted,
    /// Objects that pods refer to and the cloud cannot read.
    locked: BTreeSet<ObjectKey>,
}

impl World {
    fn refusal(&self, subscribe: &Subscribe) -> Option<u16> {
        if self.forbidden.iter().any(|name| **name == *subscribe.resource.name) {
            return Some(403);
        }
        // Permission for one object is independent of this.
        let token = subscribe.caller_token.as_ref().filter(|_| subscribe.field_selector.is_empty())?;
        self.refused.get(token).copied()
    }
}

/// The call that creates the node's lease.
pub(super) const LEASE_MADE: &str = "POST /apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";

/// Code of a script whose calls are never answered.
pub(super) const NO_ANSWER: u16 = 0;

/// Answers by method and path of calls, and by operation and resource of messages, computed from the body and the
/// caller's token.
type Scripted = BTreeMap<String, Arc<dyn Fn(&Value, Option<&str>) -> (u16, Value) + Send + Sync>>;

impl FakeCloud {
    pub(super) fn new() -> Self {
        let world = World {
            objects: BTreeMap::new(),
            revision: 100,
            away: false,
            generation: 0,
            calls: Vec::new(),
            leases: 0,
            lease_gone: false,
            acknowledged: 0,
            caught_up: 0,
            cut_at: None,
            opened: Vec::new(),
            forbidden: Vec::new(),
            refused: BTreeMap::new(),
            scripted: BTreeMap::new(),
            locked: BTreeSet::new(),
        };
        Self { world: Arc::new(Mutex::new(world)), news: watch::Sender::new(0) }
    }

    /// Stores an object under a new revision. Pods refer to the objects of `refers`.
    pub(super) fn put(&self, key: &ObjectKey, uid: &str, rest: &Value, refers: &[ObjectKey]) {
        let mut object =
            json!({"apiVersion": "v1", "kind": kind(key), "metadata": {"name": key.name(), "uid": uid}});
        if !key.namespace().is_empty() {
            object["metadata"]["namespace"] = key.namespace().into();
        }
        for (member, value) in rest.as_object().unwrap() {
            if member == "metadata" {
                object["metadata"].as_object_mut().unwrap().extend(value.as_object().unwrap().clone());
            } else {
                object[member] = value.clone();
            }
        }
        self.store(key, uid, &object, refers.to_vec());
        self.news.send_modify(|news| *news += 1);
    }

    fn store(&self, key: &ObjectKey, uid: &str, object: &Value, refers: Vec<ObjectKey>) -> u64 {
        let mut world = self.world.lock();
        world.revision += 1;
        let body = object.to_string();
        let version = ObjectVersion {
            uid: Uid::parse(uid).unwrap(),
            revision: CloudRevision(world.revision),
            hash: content_hash(body.as_bytes()),
        };
        let object = SharedObject::new(key.clone(), version, body.into(), refers);
        world.objects.insert(key.clone(), Arc::new(object));
        world.revision
    }

    /// Makes an object of the pushed set unreadable, or readable again.
    pub(super) fn lock(&self, key: &ObjectKey, locked: bool) {
        let mut world = self.world.lock();
        if locked {
            world.locked.insert(key.clone());
        } else {
            world.locked.remove(key);
        }
        drop(world);
        self.news.send_modify(|news| *news += 1);
    }

    pub(super) fn delete(&self, key: &ObjectKey) {
        let mut world = self.world.lock();
        world.revision += 1;
        world.objects.remove(key);
        drop(world);
        self.news.send_modify(|news| *news += 1);
    }

    /// Sets whether the cloud is away: all sessions end, and no new ones are accepted until it is back.
    pub(super) fn set_away(&self, away: bool) {
        let mut world = self.world.lock();
        world.away = away;
        world.generation += u64::from(away);
        drop(world);
        self.news.send_modify(|news| *news += 1);
    }

    /// Makes the cloud go away in the middle of its deliveries: after this many more acknowledgements.
    pub(super) fn cut_after(&self, deliveries: usize) {
        let mut world = self.world.lock();
        world.cut_at = Some(world.acknowledged + deliveries);
    }

    /// Whether it is unreachable.
    pub(super) fn is_away(&self) -> bool {
        self.world.lock().away
    }

    pub(super) fn object(&self, key: &ObjectKey) -> Option<Value> {
        let object = self.world.lock().objects.get(key).cloned()?;
        Some(serde_json::from_slice(&object.body).unwrap())
    }

    /// An object with its revision, as the API server answers.
    pub(super) fn answer(&self, key: &ObjectKey) -> Option<Value> {
        let held = self.world.lock().objects.get(key).cloned()?;
        let mut object: Value = serde_json::from_slice(&held.body).unwrap();
        object["metadata"]["resourceVersion"] = held.version.revision.0.to_string().into();
        Some(object)
    }

    /// Refuses subscriptions of a resource from now on, also those that are open.
    pub(super) fn forbid(&self, resource: &str, forbidden: bool) {
        let mut world = self.world.lock();
        world.forbidden.retain(|other| other != resource);
        if forbidden {
            world.forbidden.push(resource.to_owned());
        }
        drop(world);
        self.news.send_modify(|news| *news += 1);
    }

    /// Refuses subscriptions of whole resources in the name of a token from now on, also those that are open.
    pub(super) fn refuse(&self, token: &str, code: u16) {
        self.world.lock().refused.insert(token.to_owned(), code);
        self.news.send_modify(|news| *news += 1);
    }

    /// Answers calls of `METHOD path`, and messages of `Operation resource`, in this way from now on.
    pub(super) fn script(
        &self,
        call: &str,
        answer: impl Fn(&Value, Option<&str>) -> (u16, Value) + Send + Sync + 'static,
    ) {
        self.world.lock().scripted.insert(call.to_owned(), Arc::new(answer));
    }

    /// Subscriptions of a resource that were opened.
    pub(super) fn opened(&self, resource: &str) -> usize {
        self.world.lock().opened.iter().filter(|subscribe| &*subscribe.resource.name == resource).count()
    }

    /// `METHOD path` of every request.
    pub(super) fn calls(&self) -> Vec<String> {
        self.world.lock().calls.clone()
    }

    pub(super) fn leases(&self) -> usize {
        self.world.lock().leases
    }

    /// Deletes the lease.
    pub(super) fn lose_lease(&self) {
        self.world.lock().lease_gone = true;
    }

    /// Acknowledged deliveries, and how often a session was caught up.
    pub(super) fn progress(&self) -> (usize, usize) {
        let world = self.world.lock();
        (world.acknowledged, world.caught_up)
    }

    async fn serve(self, mut link: Link, node: NodeId) {
        let clock = Clock::start();
        let millis = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis();
        let epoch = Epoch { cluster: Uid::parse("cluster").unwrap(), generation: 1 };
        let config = CloudConfig::new(node, epoch, TRIM_VERSION, u64::try_from(millis).unwrap());
        let mut session = CloudSession::new(config, clock.now());
        let mut news = self.news.subscribe();
        let generation = self.world.lock().generation;
        let mut offered: Vec<ObjectKey> = Vec::new();
        let mut view = SessionView { cloud: self.clone(), subscriptions: BTreeMap::new() };
        loop {
            while let Some(event) = session.poll_event() {
                self.event(&mut session, &mut view, event);
            }
            if pump(&mut link, |lane| session.poll_transmit(clock.now(), lane, &view)).is_err()
                || session.is_closed()
                || self.world.lock().generation != generation
            {
                return;
            }
            let timeout = session.next_timeout().map(|moment| clock.instant(moment));
            tokio::select! {
                event = link.next() => match event {
                    LinkEvent::Frame(lane, frame) => {
                        session.handle_frame(clock.now(), lane, frame, &view).unwrap();
                    }
                    LinkEvent::Writable => {}
                    LinkEvent::Closed(_) => return,
                },
                () = async { match timeout {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                } } => session.handle_timeout(clock.now()),
                _ = news.changed() => {
                    offered.extend(self.world.lock().objects.keys().cloned());
                    offered.sort();
                    offered.dedup();
                    for key in &offered {
                        view.subscriptions_of(key).into_iter().for_each(|subscription| session.offer(subscription, key.clone(), &view));
                    }
                    let world = self.world.lock();
                    view.subscriptions.retain(|subscription, subscribe| {
                        let refused = world.refusal(subscribe);
                        if let Some(code) = refused {
                            session.close_subscription(*subscription, code, "not any more");
                        }
                        refused.is_none()
                    });
                }
            }
        }
    }

    fn event(&self, session: &mut CloudSession, view: &mut SessionView, event: CloudEvent) {
        match event {
            CloudEvent::Subscribe(subscribe) => {
                let subscription = subscribe.subscription;
                let mut world = self.world.lock();
                if let Some(code) = world.refusal(&subscribe) {
                    drop(world);
                    return session.close_subscription(subscription, code, "this caller may not");
                }
                world.opened.push(subscribe.clone());
                drop(world);
                view.subscriptions.insert(subscription, subscribe);
                session.open_subscription(subscription, view);
            }
            CloudEvent::Unsubscribe { subscription } | CloudEvent::Ended { subscription, .. } => {
                drop(view.subscriptions.remove(&subscription));
            }
            CloudEvent::LeaseRenew { renew_time_micros } => {
                let mut world = self.world.lock();
                let code = if world.lease_gone { 404 } else { 200 };
                world.leases += usize::from(!world.lease_gone);
                session.lease_renewed(renew_time_micros, code);
            }
            CloudEvent::Request(request) => {
                if let Some(reply) = self.reply(request) {
                    session.reply(reply);
                }
            }
            CloudEvent::Acked { .. } => {
                let mut world = self.world.lock();
                world.acknowledged += 1;
                if world.cut_at == Some(world.acknowledged) {
                    world.away = true;
                    world.generation += 1;
                }
            }
            CloudEvent::CaughtUp { .. } => self.world.lock().caught_up += 1,
            _ => {}
        }
    }

    fn reply(&self, request: Request) -> Option<Reply> {
        let body = match request.body {
            RequestBody::Message(message) => {
                let text = format!("{:?} {}", message.route.operation, message.route.resource.to_wire());
                let mut object: Value = message.content.read().unwrap();
                object["metadata"]["uid"] = "node-uid".into();
                let (code, body) = self.scripted(&text, &object, None).unwrap_or((201, object));
                self.world.lock().calls.push(text);
                let outcome = match code {
                    200..=299 => Outcome::Done(Content::from_value(&body).unwrap()),
                    _ => Outcome::Failed(serde_json::from_value(body).unwrap()),
                };
                let id = MessageId::from_random_bytes([7; 16]);
                ReplyBody::Message(Box::new(message.reply(id, 0, outcome.to_content())))
            }
            RequestBody::Api(call) => {
                let made = format!("{} {}", call.method, call.path_and_query);
                let mut world = self.world.lock();
                world.lease_gone &= made != LEASE_MADE;
                world.calls.push(made);
                drop(world);
                let (code, body) = self.api(&call, request.caller_token.as_deref());
                if code == NO_ANSWER {
                    return None;
                }
                ReplyBody::Api(ApiReply {
                    code,
                    content_type: "application/json".to_owned(),
                    body: body.to_string().into(),
                })
            }
        };
        Some(Reply { id: request.id, body })
    }

    fn scripted(&self, call: &str, body: &Value, token: Option<&str>) -> Option<(u16, Value)> {
        let answer = self.world.lock().scripted.get(call).cloned()?;
        Some(answer(body, token))
    }

    fn api(&self, call: &ApiRequest, token: Option<&str>) -> (u16, Value) {
        let body = serde_json::from_slice(&call.body).unwrap_or_default();
        let scripted = self.scripted(&format!("{} {}", call.method, call.path_and_query), &body, token);
        if let Some(scripted) = scripted {
            return scripted;
        }
        let path = call.path_and_query.split('?').next().unwrap_or_default();
        let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
        let resource = |group: &str, name: &str| Resource::new(group, "v1", name);
        let key = match parts.as_slice() {
            ["api", "v1", "namespaces", namespace, kind, name, ..] => {
                ObjectKey::new(resource("", kind), namespace, name)
            }
            ["apis", group, "v1", "namespaces", namespace, kind, name, ..] => {
                ObjectKey::new(resource(group, kind), namespace, name)
            }
            ["api", "v1", kind, name, ..] if call.method == "GET" => {
                ObjectKey::new(resource("", kind), "", name)
            }
            ["api", "v1", "namespaces", namespace, "events"] => {
                let event: Value = serde_json::from_slice(&call.body).unwrap();
                let name = event["metadata"]["name"].as_str().unwrap();
                let key = ObjectKey::new(resource("", "events"), namespace, name);
                self.put(&key, &format!("cloud-{name}"), &event, &[]);
                return (201, self.answer(&key).unwrap());
            }
            _ => return (if call.method == "POST" { 201 } else { 200 }, json!({})),
        };
        let Some(mut object) = self.object(&key) else {
            return (404, json!({"kind": "Status", "code": 404, "reason": "NotFound"}));
        };
        if call.method == "GET" {
            return (200, self.answer(&key).unwrap());
        }
        if call.method == "DELETE" {
            self.delete(&key);
            return (200, object);
        }
        let patch: Value = serde_json::from_slice(&call.body).unwrap();
        if call.content_type == PatchType::Strategic.media_type() {
            object = patched(&key, &object, &patch);
        } else {
            json_patch::merge(&mut object, &patch);
        }
        let uid = object["metadata"]["uid"].as_str().unwrap().to_owned();
        let refers = self.world.lock().objects[&key].dependencies.clone();
        let revision = self.store(&key, &uid, &object, refers);
        object["metadata"]["resourceVersion"] = revision.to_string().into();
        (200, object)
    }
}

/// The cloud as one session sees it.
struct SessionView {
    cloud: FakeCloud,
    subscriptions: BTreeMap<SubscriptionId, Subscribe>,
}

impl SessionView {
    fn selects(&self, subscription: SubscriptionId, key: &ObjectKey) -> bool {
        match self.subscriptions.get(&subscription) {
            Some(subscribe) => {
                let everywhere = subscribe.namespace.is_empty();
                subscribe.resource == *key.resource()
                    && (everywhere || subscribe.namespace == key.namespace())
            }
            None => {
                subscription == SubscriptionId::NODE && is_pushed(key.resource()) && key.name() != "another"
            }
        }
    }

    fn subscriptions_of(&self, key: &ObjectKey) -> Vec<SubscriptionId> {
        let all = self.subscriptions.keys().copied().chain([SubscriptionId::NODE]);
        // Deleted objects are offered too: the session looks up their state.
        all.filter(|subscription| self.selects(*subscription, key)).collect()
    }
}

impl NodeView for SessionView {
    fn wanted(&self, subscription: SubscriptionId) -> Vec<ObjectKey> {
        let world = self.cloud.world.lock();
        let locked = world.locked.iter().filter(|_| subscription == SubscriptionId::NODE);
        let keys = world.objects.keys().chain(locked.filter(|key| !world.objects.contains_key(*key)));
        keys.filter(|key| self.selects(subscription, key)).cloned().collect()
    }

    fn lookup(&self, subscription: SubscriptionId, key: &ObjectKey) -> Lookup {
        if subscription == SubscriptionId::NODE && self.cloud.world.lock().locked.contains(key) {
            return Lookup::Unreadable(403);
        }
        match self.cloud.world.lock().objects.get(key).filter(|_| self.selects(subscription, key)) {
            Some(object) => Lookup::Present(Arc::clone(object)),
            None => Lookup::Unwanted(None),
        }
    }

    fn revision(&self, _: SubscriptionId) -> CloudRevision {
        CloudRevision(self.cloud.world.lock().revision)
    }
}

/// Connects to a [`FakeCloud`].
pub(super) struct FakeDialer {
    pub(super) cloud: FakeCloud,
    pub(super) node: NodeId,
}

impl Dial for FakeDialer {
    fn dial<'a>(&'a mut self, _: &'a Identity) -> BoxFuture<'a, Result<Connection, SessionFailure>> {
        let link = if self.cloud.world.lock().away {
            Err(LinkError::Cut.into())
        } else {
            let (cloud, edge, _) = mem::pair(self.node.clone());
            tokio::spawn(self.cloud.clone().serve(cloud, self.node.clone()));
            Ok(Connection::Tombolo(Box::new(edge)))
        };
        Box::pin(std::future::ready(link))
    }
}

/// The object after a strategic merge patch.
pub(super) fn patched(key: &ObjectKey, object: &Value, patch: &Value) -> Value {
    let kinds = Kinds::builtin();
    strategic_merge_patch(kinds.get(key.resource()).unwrap().schema(), object, patch).unwrap()
}

fn kind(key: &ObjectKey) -> &'static str {
    match &*key.resource().name {
        "pods" => "Pod",
        "configmaps" => "ConfigMap",
        "secrets" => "Secret",
        "services" => "Service",
        "leases" => "Lease",
        "events" => "Event",
        _ => "Node",
    }
}
