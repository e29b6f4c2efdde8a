//! The node's registration, lease and status.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jiff::Timestamp;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Map, Value, json};
use tokio::time::MissedTickBehavior;
use tombolo_apicore::backend::PatchType;
use tombolo_proto::frame::ApiRequest;
use tombolo_proto::message::{
    Content, Group, LocalPath, Message, MessageId, ObjectPath, Operation, Outcome, ResourcePath,
    ResourceType, Route, Source,
};
use tombolo_runtime::{Backoff, BackoffConfig};
use tracing::{debug, info, warn};

use super::status::{NodeFacts, node_object, node_status, stale_labels};
use super::{CALL_TIMEOUT, Upstream};
use crate::fault::Fault;
use crate::hub::CallError;
use crate::paths::LEASE_NAMESPACE;
use crate::store::{Call, Report, ReportKind};
use tombolo_apicore::schema::format::micros;

/// How long a renewal is good for, in seconds (the kubelet's).
const LEASE_SECONDS: u32 = 40;

/// Media type of plain merge patches.
const MERGE: &str = "application/merge-patch+json";

/// Waits between attempts to register.
const RETRY: BackoffConfig =
    BackoffConfig { first: Duration::from_millis(500), max: Duration::from_secs(30), factor: 2.0 };

pub(super) async fn run(upstream: Arc<Upstream>) {
    let mut rng = StdRng::seed_from_u64(upstream.seed.wrapping_add(1));
    let facts = NodeFacts::gather(&upstream);
    let mut presence =
        Presence { upstream: &upstream, facts: &facts, fault: Fault::default(), labelled: false };
    loop {
        upstream.own_turn().await;
        tokio::select! {
            () = sessions(&mut presence, &mut rng) => return,
            () = upstream.kubelets_turn() => {}
        }
    }
}

/// Session by session, until the agent ends.
async fn sessions(presence: &mut Presence<'_>, rng: &mut StdRng) {
    let mut state = presence.upstream.hub.state();
    while let Ok(online) = state.wait_for(crate::hub::HubState::online).await.map(|state| state.sessions) {
        let same = |state: &crate::hub::HubState| state.online() && state.sessions == online;
        let mut observer = presence.upstream.hub.state();
        tokio::select! {
            () = presence.present(rng) => {}
            // Another session may be with another cloudcore: begin again.
            _ = observer.wait_for(|state| !same(state)) => {}
        }
    }
}

/// Why an attempt to register did not succeed.
enum NotRegistered {
    /// The session ended, or a drain did: another one begins again.
    SessionOver,
    /// A kubelet has: the agent is not to speak for the node, though the store does not say so yet.
    Kubelets,
    Because(String),
}

impl From<CallError> for NotRegistered {
    fn from(error: CallError) -> Self {
        if error.is_end_of_session() { Self::SessionOver } else { Self::Because(error.to_string()) }
    }
}

impl From<String> for NotRegistered {
    fn from(why: String) -> Self {
        Self::Because(why)
    }
}

/// The node as the cloud sees it.
struct Presence<'a> {
    upstream: &'a Upstream,
    facts: &'a NodeFacts,
    fault: Fault,
    /// The labels of the Node object were put right since the agent started.
    labelled: bool,
}

impl Presence<'_> {
    /// One session: registers, then keeps lease and status fresh until it is dropped.
    ///
    /// What the store has of the Node is believed, and the Lease that came with it: a fleet that comes back asks for neither. The
    /// first status and the first renewal, which are told anyway, find out what has been deleted meanwhile.
    async fn present(&mut self, rng: &mut StdRng) {
        let upstream = self.upstream;
        let mut state = upstream.hub.state();
        let mut answered = state.borrow_and_update().lease;
        let mut uid = self.registered(upstream.held_node(), rng).await;
        let mut lease = interval(upstream.settings.lease_interval_millis);
        let mut status = interval(upstream.settings.status_interval_millis);
        loop {
            tokio::select! {
                _ = lease.tick() => upstream.hub.renew_lease(now_micros()).await,
                _ = status.tick() => report_status(upstream, self.facts).await,
                () = upstream.node_gone.notified() => uid = self.registered(None, rng).await,
                changed = state.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    let answer = state.borrow_and_update().lease;
                    if answer != answered && matches!(answer, Some((_, 404))) {
                        create_lease(upstream, uid.as_deref()).await;
                        upstream.hub.renew_lease(now_micros()).await;
                    }
                    answered = answer;
                }
            }
        }
    }

    /// Tries until the Node object is there, which it is when it is `held`, and its Lease where the Node is new; gives the UID when
    /// that is known.
    async fn registered(&mut self, held: Option<Value>, rng: &mut StdRng) -> Option<String> {
        let mut backoff = Backoff::new(RETRY);
        loop {
            let registered = match &held {
                Some(held) => self.found(held).await,
                None => self.register(rng).await,
            };
            match registered {
                Ok(uid) => {
                    if let Some(time) = self.fault.over() {
                        info!(node = %self.upstream.node, after = ?time, "the node is registered again");
                    }
                    return uid;
                }
                // The caller drops this attempt as soon as it sees the end too.
                Err(NotRegistered::SessionOver) => std::future::pending().await,
                // Dropped too, as soon as the node's copy is here.
                Err(NotRegistered::Kubelets) => {
                    debug!(node = %self.upstream.node, "a kubelet has registered this node");
                    tokio::time::sleep(backoff.next_delay(rng)).await;
                }
                Err(NotRegistered::Because(why)) => {
                    let delay = backoff.next_delay(rng);
                    if self.fault.failed(&why) {
                        warn!(%why, retry_in = ?delay, "the node could not be registered");
                    } else {
                        debug!(%why, retry_in = ?delay, "the node could still not be registered");
                    }
                    tokio::time::sleep(delay).await;
                }
            }
        }
    }

    /// Creates the Node object and its Lease, or finds that the Node is there. Gives its UID when the answer tells it.
    async fn register(&mut self, rng: &mut StdRng) -> Result<Option<String>, NotRegistered> {
        let upstream = self.upstream;
        let object = self.wanted();
        let path = LocalPath::Object(ObjectPath::new("", ResourceType::Node, upstream.node.as_str()));
        let resource = ResourcePath { node: None, local: path };
        let route = Route::new(Source::Edged, Group::Meta, Operation::Insert, resource);
        let content = Content::from_value(&object).map_err(|error| error.to_string())?;
        let id = MessageId::from_random_bytes(rng.random());
        let message = Message::new(id, now_micros() / 1000, route, content);
        let reply = upstream.hub.message(message, CALL_TIMEOUT).await?;
        if reply.route.operation == Operation::Error {
            return Err(NotRegistered::Because(reply.content.as_text().unwrap_or_default().into_owned()));
        }
        match Outcome::read(&reply.content).map_err(|error| error.to_string())? {
            Outcome::Done(object) => {
                info!(node = %upstream.node, "the node is registered");
                self.labelled = true;
                let object: Value = object.read().map_err(|error| error.to_string())?;
                let uid = object["metadata"]["uid"].as_str();
                create_lease(upstream, uid).await;
                Ok(uid.map(str::to_owned))
            }
            Outcome::Failed(status) if status.code == 409 => self.found(&present_node(upstream).await?).await,
            Outcome::Failed(status) => {
                Err(NotRegistered::Because(format!("{}: {}", status.code, status.message)))
            }
        }
    }

    /// The Node object was there before: its UID. Once after a start its default labels are put right, as the
    /// kubelet does; all else in it may be an operator's will.
    async fn found(&mut self, node: &Value) -> Result<Option<String>, NotRegistered> {
        if self.upstream.is_left_to_kubelet(node) {
            return Err(NotRegistered::Kubelets);
        }
        if !self.labelled {
            let stale = stale_labels(&self.wanted(), node);
            self.labelled = stale.is_empty() || relabel(self.upstream, &stale).await;
        }
        Ok(node["metadata"]["uid"].as_str().map(str::to_owned))
    }

    /// The Node object to create.
    fn wanted(&self) -> Value {
        node_object(self.facts, self.upstream.simulate_pods, Timestamp::now())
    }
}

/// The Node object as the store holds it, or, where its copy has not come yet, as the cloud tells it.
async fn present_node(upstream: &Upstream) -> Result<Value, NotRegistered> {
    if let Some(node) = upstream.held_node() {
        return Ok(node);
    }
    let path = format!("/api/v1/nodes/{}", upstream.node);
    let reply = upstream.hub.api(call("GET", path, "", ""), CALL_TIMEOUT, None).await?;
    let node = serde_json::from_slice(&reply.body).ok().filter(|_| reply.code == 200);
    node.ok_or_else(|| format!("the node is there, but its read is answered with {}", reply.code).into())
}

/// Sets labels of the Node object; false when that must be tried again.
async fn relabel(upstream: &Upstream, labels: &Map<String, Value>) -> bool {
    let patch = json!({"metadata": {"labels": labels}}).to_string();
    let request = call("PATCH", format!("/api/v1/nodes/{}", upstream.node), MERGE, &patch);
    match upstream.hub.api(request, CALL_TIMEOUT, None).await {
        Ok(reply) if reply.code == 200 => {
            info!(node = %upstream.node, ?labels, "labels of the node are put right");
            true
        }
        Ok(reply) => {
            let answer = String::from_utf8_lossy(&reply.body).into_owned();
            warn!(code = reply.code, %answer, "labels of the node could not be put right");
            reply.code < 500
        }
        Err(error) => {
            debug!(%error, "labels of the node could not be put right");
            false
        }
    }
}

fn interval(millis: u64) -> tokio::time::Interval {
    let mut interval = tokio::time::interval(Duration::from_millis(millis));
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    interval
}

async fn create_lease(upstream: &Upstream, uid: Option<&str>) {
    let mut metadata = json!({"name": upstream.node.as_str(), "namespace": LEASE_NAMESPACE});
    if let Some(uid) = uid {
        metadata["ownerReferences"] =
            json!([{"apiVersion": "v1", "kind": "Node", "name": upstream.node.as_str(), "uid": uid}]);
    }
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": metadata,
        "spec": {
            "holderIdentity": upstream.node.as_str(),
            "leaseDurationSeconds": LEASE_SECONDS,
            "renewTime": micros(Timestamp::now()),
        },
    });
    let path = format!("/apis/coordination.k8s.io/v1/namespaces/{LEASE_NAMESPACE}/leases");
    let request = call("POST", path, "application/json", &lease.to_string());
    match upstream.hub.api(request, CALL_TIMEOUT, None).await {
        Ok(reply) if matches!(reply.code, 200..=299 | 409) => debug!(code = reply.code, "the lease is there"),
        Ok(reply) => {
            let answer = String::from_utf8_lossy(&reply.body).into_owned();
            warn!(code = reply.code, %answer, "the node's lease could not be created");
        }
        Err(error) if error.is_end_of_session() => {}
        Err(error) => warn!(%error, "the node's lease could not be created"),
    }
}

async fn report_status(upstream: &Upstream, facts: &NodeFacts) {
    let held = upstream.held_node();
    let status = node_status(facts, upstream.simulate_pods, held.as_ref(), Timestamp::now());
    let call = Call {
        method: "PATCH".to_owned(),
        path_and_query: format!("/api/v1/nodes/{}/status", upstream.node),
        content_type: PatchType::Strategic.media_type().to_owned(),
        body: json!({"status": status}).to_string(),
    };
    let report =
        Report { kind: ReportKind::Status, key: upstream.node_key(), call, status: None, base: None };
    if let Err(error) = upstream.store.report(report).await {
        warn!(%error, "the node's status could not be put into the outbox");
    }
}

fn call(method: &str, path: String, content_type: &str, body: &str) -> ApiRequest {
    ApiRequest {
        content_type: content_type.to_owned(),
        body: body.to_owned().into(),
        ..ApiRequest::new(method, path)
    }
}

fn now_micros() -> i64 {
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(elapsed.as_micros()).unwrap_or(i64::MAX)
}
