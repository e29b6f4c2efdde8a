//! A hollow node that asks what an agent asks once it is connected, and holds nothing.

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
use tombolo_proto::{InventoryEntry, NodeId, Resource, ScopeId, StoreId};
use tombolo_runtime::time::unix_millis;

/// How long a question may take while a whole fleet asks.
const PATIENCE: Duration = Duration::from_secs(120);

/// A node that is not connected.
pub(crate) struct HollowNode {
    pub(crate) node: NodeId,
    pub(crate) identity: Identity,
    pub(crate) target: Target,
    /// It has been there before: an agent's store has its Node then, and makes neither that nor its Lease.
    pub(crate) returns: bool,
}

struct NothingHeld;

impl EdgeView for NothingHeld {
    fn inventory(&self, _scope: ScopeId) -> Vec<InventoryEntry> {
        Vec::new()
    }
}

/// A node that is connected until this is dropped.
pub(crate) struct Connected {
    node: NodeId,
    session: EdgeSession,
    link: Link,
    clock: Clock,
    /// Questions without an answer, selections that have not come, and whether the lease was renewed.
    awaited: (usize, usize, bool),
    /// The scope of all Nodes, until the first of them has come.
    nodes: Option<ScopeId>,
}

impl HollowNode {
    /// Dials.
    pub(crate) async fn connect(&self) -> Result<Link> {
        Ok(connect(self.target.clone(), self.identity.client_tls()?).await?)
    }

    /// Asks everything over a new connection, and waits until all of it is answered.
    pub(crate) async fn come(&mut self, link: Link) -> Result<Connected> {
        let clock = Clock::start();
        let config = EdgeConfig::new(self.node.clone(), StoreId(rand::random()));
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
            let scope = self.session.next_scope();
            if name == "nodes" {
                self.nodes = Some(scope);
            }
            self.session.subscribe(Subscribe {
                scope,
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

    /// Goes on until there is something to look at.
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
            EdgeEvent::Deliver { lane, seq, scope, .. } => {
                self.session.committed(lane, seq);
                // Every agent follows all Nodes, and is told of those that have changed while it was away. Thousands of hollow
                // nodes, which remember nothing, would be told of all of them: they have asked, and end it with the first.
                if self.nodes == Some(scope) {
                    self.session.unsubscribe(scope);
                    self.caught_up(scope);
                }
            }
            EdgeEvent::Reply(reply) => {
                self.awaited.0 = self.awaited.0.saturating_sub(1);
                match &reply.body {
                    // What is there already is as good, and at first the status may come before its Node.
                    ReplyBody::Api(reply) if matches!(reply.code, 200 | 201 | 404 | 409) => {}
                    ReplyBody::Api(reply) => {
                        bail!("an answer with code {}: {}", reply.code, String::from_utf8_lossy(&reply.body));
                    }
                    ReplyBody::Message(answer) => self.registered(answer)?,
                }
            }
            EdgeEvent::CaughtUp { scope, .. } if scope != ScopeId::NODE => self.caught_up(scope),
            // A cluster without the grids' definitions.
            EdgeEvent::SubscriptionClosed { code: 404, .. } => {
                self.awaited.1 = self.awaited.1.saturating_sub(1);
            }
            EdgeEvent::SubscriptionClosed { code, reason, .. } => bail!("subscription: {code}: {reason}"),
            EdgeEvent::LeaseRenewed { code, .. } => {
                // The lease may be made at the same time: an agent renews it again.
                match code {
                    404 => self.session.renew_lease(i64::try_from(unix_millis())?.saturating_mul(1000)),
                    _ => self.awaited.2 = true,
                }
            }
            EdgeEvent::RequestTimedOut(_) => bail!("a question has no answer"),
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
    /// A registration that had to wait too long is asked for again, as an agent does.
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

    /// What was selected has come, as far as it is wanted.
    fn caught_up(&mut self, scope: ScopeId) {
        if self.nodes == Some(scope) {
            self.nodes = None;
        }
        self.awaited.1 = self.awaited.1.saturating_sub(1);
    }
}

/// What an agent makes whose store has no Node: that, and its Lease.
fn made(node: &NodeId) -> Result<Vec<RequestBody>> {
    let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": node.as_str()},
        "spec": {"holderIdentity": node.as_str(), "leaseDurationSeconds": 40}
    });
    let lease = call("POST", leases, "application/json", "", lease.to_string());
    Ok(vec![RequestBody::Message(Box::new(registration(node)?)), lease])
}

/// The Node of an agent that has none.
fn registration(node: &NodeId) -> Result<Message> {
    let path = ObjectPath::new("", ResourceType::Node, node.as_str());
    let route = Route::new(Source::Edged, Group::Meta, Operation::Insert, path.into());
    let object = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node.as_str()}});
    let id = MessageId::from_random_bytes(rand::random());
    Ok(Message::new(id, i64::try_from(unix_millis())?, route, Content::from_value(&object)?))
}

/// What it asks in every session: it reports its status, and reads what is published.
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
