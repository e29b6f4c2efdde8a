//! A hollow node: it sends the requests that an agent sends once it is connected, and stores nothing.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::json;
use tokio::time::Instant;
use tombolo_edge::identity::Identity;
use tombolo_link::client::{Target, connect};
use tombolo_link::{Clock, Link, LinkEvent, pump};
use tombolo_proto::documents::{IN_EVERY_SESSION, WARM_SET};
use tombolo_proto::frame::{ApiRequest, Inventory, ReplyBody, RequestBody, Subscribe};
use tombolo_proto::message::{
    Content, Group, Message, MessageId, ObjectPath, Operation, Outcome, ResourceType, Route, Source,
    is_passing,
};
use tombolo_proto::session::{EdgeConfig, EdgeEvent, EdgeSession, EdgeView};
use tombolo_proto::{InventoryEntry, NodeId, Resource, StoreId, SubscriptionId};
use tombolo_runtime::time::unix_millis;
use tombolo_testkit::fresh;

/// How long a request may take while a whole fleet sends requests.
const PATIENCE: Duration = Duration::from_secs(120);

/// A node that is not connected.
pub(crate) struct HollowNode {
    pub(crate) node: NodeId,
    pub(crate) identity: Identity,
    pub(crate) target: Target,
    /// Whether it was connected before. An agent's store has its Node then, so it creates neither the Node nor its
    /// Lease.
    pub(crate) returns: bool,
}

struct NothingHeld;

impl EdgeView for NothingHeld {
    fn inventory(&self, _subscription: SubscriptionId) -> Vec<InventoryEntry> {
        Vec::new()
    }
}

/// A node that is connected until this is dropped.
pub(crate) struct Connected {
    node: NodeId,
    session: EdgeSession,
    link: Link,
    clock: Clock,
    /// Unanswered requests, selections that have not caught up, and whether the lease was renewed.
    awaited: (usize, usize, bool),
    /// The subscription of all Nodes, until the first Node has arrived.
    nodes: Option<SubscriptionId>,
}

impl HollowNode {
    /// Dials the hub.
    pub(crate) async fn connect(&self) -> Result<Link> {
        Ok(connect(self.target.clone(), self.identity.client_tls()?).await?)
    }

    /// Sends all requests over a new connection, and waits until all of them are answered.
    pub(crate) async fn come(&mut self, link: Link) -> Result<Connected> {
        let clock = Clock::start();
        let config = EdgeConfig::new(self.node.clone(), StoreId(u128::from(fresh()).to_be_bytes()));
        let session = EdgeSession::new(config, clock.now(), &NothingHeld);
        let node = self.node.clone();
        let mut connected = Connected { node, session, link, clock, awaited: (0, 0, false), nodes: None };
        connected.ask(self.returns).with_context(|| format!("{} asks", self.node))?;
        let end = Instant::now() + PATIENCE;
        while connected.awaited != (0, 0, true) {
            let step = tokio::time::timeout_at(end, connected.step()).await;
            step.with_context(|| format!("{}: {:?} are not answered", self.node, connected.awaited))??;
        }
        self.returns = true;
        Ok(connected)
    }
}

impl Connected {
    fn ask(&mut self, returns: bool) -> Result<()> {
        let made = if returns { Vec::new() } else { made(&self.node)? };
        for question in made.into_iter().chain(questions(&self.node)) {
            self.session.request(self.clock.now(), PATIENCE, question, None)?;
            self.awaited.0 += 1;
        }
        self.session.renew_lease(i64::try_from(unix_millis())?.saturating_mul(1000));
        for (group, version, name) in WARM_SET {
            let subscription = self.session.next_subscription();
            if name == "nodes" {
                self.nodes = Some(subscription);
            }
            self.session.subscribe(Subscribe {
                subscription,
                resource: Resource::new(group, version, name),
                namespace: String::new(),
                label_selector: String::new(),
                field_selector: String::new(),
                caller_token: None,
                epoch: None,
                inventory: Inventory::Full(Vec::new()),
            })?;
            self.awaited.1 += 1;
        }
        Ok(())
    }

    /// Runs until there is an event to process.
    pub(crate) async fn step(&mut self) -> Result<()> {
        let (session, now) = (&mut self.session, self.clock.now());
        pump(&mut self.link, |lane| session.poll_transmit(now, lane))?;
        let timer = self.session.next_timeout().map(|at| self.clock.instant(at));
        tokio::select! {
            event = self.link.next() => match event {
                LinkEvent::Frame(lane, frame) => {
                    self.session.handle_frame(self.clock.now(), lane, frame, &NothingHeld)?;
                }
                LinkEvent::Writable => {}
                LinkEvent::Closed(error) => return Err(error.into()),
            },
            () = tombolo_runtime::time::sleep_until(timer) => self.session.handle_timeout(self.clock.now()),
        }
        while let Some(event) = self.session.poll_event() {
            self.handle(event)?;
        }
        Ok(())
    }

    fn handle(&mut self, event: EdgeEvent) -> Result<()> {
        match event {
            EdgeEvent::Deliver { lane, seq, subscription, .. } => {
                self.session.committed(lane, seq);
                // Every agent follows all Nodes and receives those that have changed while it was away. Thousands of
                // hollow nodes, which store nothing, would receive all Nodes. They subscribe, and unsubscribe when the
                // first Node arrives.
                if self.nodes == Some(subscription) {
                    self.session.unsubscribe(subscription);
                    self.caught_up(subscription);
                }
            }
            EdgeEvent::Reply(reply) => {
                self.awaited.0 = self.awaited.0.saturating_sub(1);
                match &reply.body {
                    // An existing object is fine too, and at first the status may arrive before its Node.
                    ReplyBody::Api(reply) if matches!(reply.code, 200 | 201 | 404 | 409) => {}
                    ReplyBody::Api(reply) => {
                        bail!("the answer has code {}: {}", reply.code, String::from_utf8_lossy(&reply.body));
                    }
                    ReplyBody::Message(answer) => self.registered(answer)?,
                }
            }
            EdgeEvent::CaughtUp { subscription, .. } if subscription != SubscriptionId::NODE => {
                self.caught_up(subscription);
            }
            // A cluster without the definitions of the grids.
            EdgeEvent::SubscriptionClosed { code: 404, .. } => {
                self.awaited.1 = self.awaited.1.saturating_sub(1);
            }
            EdgeEvent::SubscriptionClosed { code, reason, .. } => bail!("subscription: {code}: {reason}"),
            EdgeEvent::LeaseRenewed { code, .. } => {
                // The lease may be created at the same time; an agent renews it again.
                match code {
                    404 => self.session.renew_lease(i64::try_from(unix_millis())?.saturating_mul(1000)),
                    _ => self.awaited.2 = true,
                }
            }
            EdgeEvent::RequestTimedOut(_) => bail!("a request was not answered"),
            EdgeEvent::Closed(goodbye) => bail!("{:?}: {}", goodbye.reason, goodbye.message),
            EdgeEvent::Welcomed { .. }
            | EdgeEvent::CaughtUp { .. }
            | EdgeEvent::Attested(_)
            | EdgeEvent::RoundTrip(_) => {}
        }
        Ok(())
    }
}

impl Connected {
    /// A registration that waited too long is retried, as an agent does.
    fn registered(&mut self, answer: &Message) -> Result<()> {
        match Outcome::read(&answer.content)? {
            Outcome::Failed(error) if is_passing(error.code) => {
                let again = RequestBody::Message(Box::new(registration(&self.node)?));
                self.session.request(self.clock.now(), PATIENCE, again, None)?;
                self.awaited.0 += 1;
            }
            Outcome::Failed(error) if error.code != 409 => bail!("not registered: {}", error.message),
            Outcome::Done(_) | Outcome::Failed(_) => {}
        }
        Ok(())
    }

    /// A selection has caught up, as far as this node needs it.
    fn caught_up(&mut self, subscription: SubscriptionId) {
        if self.nodes == Some(subscription) {
            self.nodes = None;
        }
        self.awaited.1 = self.awaited.1.saturating_sub(1);
    }
}

/// What an agent whose store has no Node creates: the Node and its Lease.
fn made(node: &NodeId) -> Result<Vec<RequestBody>> {
    let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": node.as_str()},
        "spec": {"holderIdentity": node.as_str(), "leaseDurationSeconds": 40}
    });
    let lease = call("POST", leases, "application/json", "", lease.to_string());
    Ok(vec![RequestBody::Message(Box::new(registration(node)?)), lease])
}

/// The Node that such an agent registers.
fn registration(node: &NodeId) -> Result<Message> {
    let path = ObjectPath::new("", ResourceType::Node, node.as_str());
    let route = Route::new(Source::Edged, Group::Meta, Operation::Insert, path.into());
    let object = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node.as_str()}});
    let id = MessageId::from_random_bytes(u128::from(fresh()).to_be_bytes());
    Ok(Message::new(id, i64::try_from(unix_millis())?, route, Content::from_value(&object)?))
}

/// The requests of every session: they report the node's status and read published documents.
fn questions(node: &NodeId) -> Vec<RequestBody> {
    let status = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    let mut all = vec![call(
        "PATCH",
        &format!("/api/v1/nodes/{node}/status"),
        "application/strategic-merge-patch+json",
        "",
        status.to_string(),
    )];
    all.extend(IN_EVERY_SESSION.map(|(path, form)| call("GET", path, "", form, String::new())));
    all
}

fn call(method: &str, path: &str, content_type: &str, accept: &str, body: String) -> RequestBody {
    RequestBody::Api(ApiRequest {
        content_type: content_type.to_owned(),
        accept: accept.to_owned(),
        body: body.into(),
        ..ApiRequest::new(method, path)
    })
}
