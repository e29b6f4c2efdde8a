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

/// Duration of the lease, in seconds (the kubelet's).
const LEASE_SECONDS: u32 = 40;

/// Media type of plain merge patches.
const MERGE: &str = "application/merge-patch+json";

/// Delays between attempts to register.
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

/// Registers and reports in each session, until the agent stops.
async fn sessions(presence: &mut Presence<'_>, rng: &mut StdRng) {
    let mut state = presence.upstream.hub.state();
    while let Ok(online) = state.wait_for(crate::hub::HubState::online).await.map(|state| state.sessions) {
        let same = |state: &crate::hub::HubState| state.online() && state.sessions == online;
        let mut observer = presence.upstream.hub.state();
        tokio::select! {
            () = presence.present(rng) => {}
            // A new session may be with another cloudcore: start again.
            _ = observer.wait_for(|state| !same(state)) => {}
        }
    }
}

/// Why an attempt to register failed.
enum NotRegistered {
    /// The session ended. The next one starts again.
    SessionOver,
    /// A kubelet has registered the node, although the store does not have its Node object yet.
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

/// Keeps the node's registration, lease and status up to date at the cloud.
struct Presence<'a> {
    upstream: &'a Upstream,
    facts: &'a NodeFacts,
    fault: Fault,
    /// Whether the labels of the Node object were corrected since the agent started.
    labelled: bool,
}

impl Presence<'_> {
    /// Registers in a session, then renews lease and status until it is dropped.
    ///
    /// If the store has the Node, it is assumed to exist, and so is its Lease. So a fleet that reconnects reads
    /// neither. The first status and the first renewal, which are sent anyway, detect a deletion.
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

    /// Retries until the Node object exists, which it does if it is `held`, and the Lease of a new Node. Returns the
    /// UID if it is known.
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
                // The caller drops this attempt when it notices the end.
                Err(NotRegistered::SessionOver) => std::future::pending().await,
                // This attempt is also dropped when the store has the Node object.
                Err(NotRegistered::Kubelets) => {
                    debug!(node = %self.upstream.node, "a kubelet has registered this node");
                    tokio::time::sleep(backoff.next_delay(rng)).await;
                }
                Err(NotRegistered::Because(why)) => {
                    let delay = backoff.next_delay(rng);
                    if self.fault.failed(&why) {
                        warn!(%why, retry_in = ?delay, "cannot register the node; retrying");
                    } else {
                        debug!(%why, retry_in = ?delay, "still cannot register the node; retrying");
                    }
                    tokio::time::sleep(delay).await;
                }
            }
        }
    }

    /// Creates the Node object and its Lease, or finds the existing Node. Returns its UID if the answer has one.
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

    /// Handles an existing Node object. Returns its UID. Once after a start it corrects the default labels, as the
    /// kubelet does. Operators may have set everything else.
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

/// The Node object from the store, or from the cloud if the store does not have it yet.
async fn present_node(upstream: &Upstream) -> Result<Value, NotRegistered> {
    if let Some(node) = upstream.held_node() {
        return Ok(node);
    }
    let path = format!("/api/v1/nodes/{}", upstream.node);
    let reply = upstream.hub.api(call("GET", path, "", ""), CALL_TIMEOUT, None).await?;
    let node = serde_json::from_slice(&reply.body).ok().filter(|_| reply.code == 200);
    node.ok_or_else(|| format!("the Node object exists, but reading it returned {}", reply.code).into())
}

/// Sets labels of the Node object. Returns false if that must be retried.
async fn relabel(upstream: &Upstream, labels: &Map<String, Value>) -> bool {
    let patch = json!({"metadata": {"labels": labels}}).to_string();
    let request = call("PATCH", format!("/api/v1/nodes/{}", upstream.node), MERGE, &patch);
    match upstream.hub.api(request, CALL_TIMEOUT, None).await {
        Ok(reply) if reply.code == 200 => {
            info!(node = %upstream.node, ?labels, "the node's labels are corrected");
            true
        }
        Ok(reply) => {
            let answer = String::from_utf8_lossy(&reply.body).into_owned();
            warn!(code = reply.code, %answer, "cannot correct the node's labels");
            reply.code < 500
        }
        Err(error) => {
            debug!(%error, "cannot correct the node's labels");
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
        Ok(reply) if matches!(reply.code, 200..=299 | 409) => debug!(code = reply.code, "the lease exists"),
        Ok(reply) => {
            let answer = String::from_utf8_lossy(&reply.body).into_owned();
            warn!(code = reply.code, %answer, "cannot create the node's lease");
        }
        Err(error) if error.is_end_of_session() => {}
        Err(error) => warn!(%error, "cannot create the node's lease"),
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
        warn!(%error, "cannot add the node's status to the outbox");
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
