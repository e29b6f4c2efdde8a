//! The node's registration, lease and status.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures::future::BoxFuture;
use jiff::Timestamp;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Map, Value, json};
use tokio::time::MissedTickBehavior;
use tombolo_proto::frame::{ApiReply, ApiRequest};
use tombolo_proto::message::{
    Content, Group, Message, MessageId, ObjectPath, Operation, Outcome, ResourceType, Route, Source,
};
use tombolo_runtime::{Backoff, BackoffConfig};
use tracing::{debug, info, warn};

use super::status::{NodeFacts, node_object, node_status, stale_labels};
use super::{CALL_TIMEOUT, Upstream, is_temporary};
use crate::fault::Fault;
use crate::hub::CallError;
use crate::paths::LEASE_NAMESPACE;
use crate::store::{Call, Report, ReportKind};
use tombolo_apicore::schema::format::micros;

/// Duration of the lease, in seconds (the kubelet's).
const LEASE_SECONDS: u32 = 40;

/// Media type of plain merge patches.
const MERGE: &str = "application/merge-patch+json";

/// Delays between attempts to register, and to correct the labels.
const RETRY: BackoffConfig =
    BackoffConfig { first: Duration::from_millis(500), max: Duration::from_secs(30), factor: 2.0 };

pub(super) async fn run(upstream: Arc<Upstream>) {
    let mut rng = StdRng::seed_from_u64(upstream.seed.wrapping_add(1));
    let facts = NodeFacts::gather(&upstream);
    let mut presence = Presence {
        upstream: &upstream,
        facts: &facts,
        fault: Fault::default(),
        stale: Map::new(),
        labelled: false,
    };
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

/// Keeps the node's registration, labels, lease and status up to date at the cloud.
struct Presence<'a> {
    upstream: &'a Upstream,
    facts: &'a NodeFacts,
    fault: Fault,
    /// The default labels that the Node object lacked when it was found.
    stale: Map<String, Value>,
    /// Whether the labels of the Node object were found correct, or corrected, since the agent started.
    labelled: bool,
}

impl<'a> Presence<'a> {
    /// Registers in a session, then renews lease and status until it is dropped.
    ///
    /// If the store has the Node, it is assumed to exist, and so is its Lease. So a fleet that reconnects reads
    /// neither. The first status and the first renewal, which are sent anyway, detect a deletion.
    async fn present(&mut self, rng: &mut StdRng) {
        let upstream = self.upstream;
        let mut state = upstream.hub.state();
        let mut answered = state.borrow_and_update().lease;
        let mut uid = self.registered(upstream.held_node(), rng).await;
        let mut labels = self.correction(rng);
        let mut lease = interval(upstream.settings.lease_interval_millis);
        let mut status = interval(upstream.settings.status_interval_millis);
        loop {
            tokio::select! {
                _ = lease.tick() => upstream.hub.renew_lease(now_micros()).await,
                _ = status.tick() => report_status(upstream, self.facts).await,
                () = &mut labels => {
                    self.labelled = true;
                    labels = self.correction(rng);
                }
                () = upstream.node_gone.notified() => {
                    uid = self.registered(None, rng).await;
                    labels = self.correction(rng);
                }
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
                Some(held) => self.found(held),
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
        let path = ObjectPath::new("", ResourceType::Node, upstream.node.as_str());
        let route = Route::new(Source::Edged, Group::Meta, Operation::Insert, path.into());
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
            Outcome::Failed(status) if status.code == 409 => self.found(&present_node(upstream).await?),
            Outcome::Failed(status) => {
                Err(NotRegistered::Because(format!("{}: {}", status.code, status.message)))
            }
        }
    }

    /// Handles an existing Node object. Returns its UID.
    fn found(&mut self, node: &Value) -> Result<Option<String>, NotRegistered> {
        if self.upstream.is_left_to_kubelet(node) {
            return Err(NotRegistered::Kubelets);
        }
        if !self.labelled {
            self.stale = stale_labels(&self.wanted(), node);
            self.labelled = self.stale.is_empty();
        }
        Ok(node["metadata"]["uid"].as_str().map(str::to_owned))
    }

    /// Corrects the default labels once after a start, as the kubelet does. Operators may have set everything else.
    /// Never ends if there is nothing to correct.
    fn correction(&self, rng: &mut StdRng) -> BoxFuture<'a, ()> {
        if self.labelled {
            return Box::pin(std::future::pending());
        }
        Box::pin(relabel(self.upstream, self.stale.clone(), StdRng::seed_from_u64(rng.random())))
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

/// Sets labels of the Node object. Retries until the cloud has set or refused them.
async fn relabel(upstream: &Upstream, labels: Map<String, Value>, mut rng: StdRng) {
    let patch = json!({"metadata": {"labels": labels}}).to_string();
    let (mut backoff, mut fault) = (Backoff::new(RETRY), Fault::default());
    loop {
        let request = call("PATCH", format!("/api/v1/nodes/{}", upstream.node), MERGE, &patch);
        let why = match upstream.hub.api(request, CALL_TIMEOUT, None).await {
            Ok(reply) if reply.code == 200 => {
                return info!(node = %upstream.node, ?labels, "the node's labels are corrected");
            }
            Ok(reply) if !is_temporary(reply.code) => {
                return warn!(answer = %text(&reply), "the cloud refuses to correct the node's labels");
            }
            Ok(reply) => text(&reply),
            // The caller drops this attempt when it notices the end.
            Err(error) if error.is_end_of_session() => std::future::pending().await,
            Err(error) => error.to_string(),
        };
        let delay = backoff.next_delay(&mut rng);
        if fault.failed(&why) {
            warn!(%why, retry_in = ?delay, "cannot correct the node's labels; retrying");
        } else {
            debug!(%why, retry_in = ?delay, "still cannot correct the node's labels; retrying");
        }
        tokio::time::sleep(delay).await;
    }
}

/// An answer for the log.
fn text(reply: &ApiReply) -> String {
    format!("{}: {}", reply.code, String::from_utf8_lossy(&reply.body))
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
    let key = upstream.node_key();
    // Without a UID: it is the status of this machine, whichever Node object has its name.
    let call = Call::patch_status(&key, None, json!({"status": status}));
    let report = Report { kind: ReportKind::Status, key, call, status: None, base: None };
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

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;
    use tokio::time::Instant;
    use tombolo_link::Transport;
    use tombolo_proto::frame::{ReplyBody, RequestBody};

    use super::super::tests::{adopt, upstream};
    use super::*;
    use crate::hub::{Command, HubHandle};

    /// Lease renewals until a cloud is not asked any more: far more time than the retries need.
    const RENEWALS: usize = 30;

    /// A cloud that answers the first two attempts to set labels with a code. Returns the labels, and when they came.
    async fn cloud(mut inbox: mpsc::Receiver<Command>, code: u16) -> Vec<(Instant, Value)> {
        let (mut sent, mut renewals) = (Vec::new(), 0);
        while renewals < RENEWALS {
            match inbox.recv().await.unwrap() {
                Command::RenewLease(_) => renewals += 1,
                Command::Request { body: RequestBody::Api(call), reply, .. } => {
                    assert_eq!((&*call.method, &*call.path_and_query), ("PATCH", "/api/v1/nodes/edge-a"));
                    let patch: Value = serde_json::from_slice(&call.body).unwrap();
                    sent.push((Instant::now(), patch["metadata"]["labels"].clone()));
                    let code = if sent.len() <= 2 { code } else { 200 };
                    let (content_type, body) = Default::default();
                    reply.send(Ok(ReplyBody::Api(ApiReply { code, content_type, body })));
                }
                Command::Request { body: RequestBody::Message(message), .. } => panic!("{message:?}"),
            }
        }
        sent
    }

    #[tokio::test(start_paused = true)]
    async fn labels_that_the_cloud_cannot_set_now_are_set_in_the_same_session() {
        for (code, attempts) in [(401, 3), (408, 3), (429, 3), (503, 3), (200, 1), (403, 1), (422, 1)] {
            let (hub, inbox, state) = HubHandle::new();
            state.send_modify(|state| state.transport = Some(Transport::WebSocket));
            let upstream = Upstream { hub, ..upstream(true) };
            adopt(&upstream).await;
            let sent = tokio::select! {
                () = run(Arc::new(upstream)) => panic!("the agent has stopped"),
                sent = cloud(inbox, code) => sent,
            };
            assert_eq!(sent.len(), attempts, "{code}");
            assert!(sent.iter().all(|(_, labels)| labels["kubernetes.io/hostname"] == "edge-a"), "{sent:?}");
            let pause = |pair: &[(Instant, Value)]| pair[1].0 - pair[0].0;
            assert!(sent.windows(2).all(|pair| pause(pair) >= RETRY.first / 2), "{sent:?}");
        }
    }
}
