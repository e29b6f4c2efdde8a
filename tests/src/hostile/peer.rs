//! The hub under attack, and peers that send what no honest peer sends.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bytes::Bytes;
use kube::api::{DynamicObject, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::json;
use tombolo_cloud::bootstrap::NewToken;
use tombolo_edge::identity::{EnrollOptions, Identity, enroll};
use tombolo_link::client::{Choice, Target, connect};
use tombolo_link::{Link, LinkEvent};
use tombolo_proto::frame::{Frame, Goodbye, Hello, Inventory};
use tombolo_proto::{Lane, NodeId, StoreId};
use tombolo_testkit::{fresh, wait_for_value};
use tombolo_tests::world::{DEADLINE, World};

use super::ports::{ApiPort, PATIENCE};

/// The name of the hostile node.
pub(crate) const HOSTILE: &str = "hostile";

/// The name of the hostile node whose peers are made of the bare libraries. Each name has one certificate.
pub(crate) const HOSTILE_BARE: &str = "hostile-bare";

/// What an attack knows about the hub.
pub(crate) struct Hub {
    /// Ports: WebSocket, QUIC, join.
    pub(crate) ports: [u16; 3],
    pub(crate) admin: u16,
    pub(crate) api: ApiPort,
    pub(crate) token: String,
    pub(crate) identity: Identity,
    /// The certificate of the other hostile node, for peers made of the bare libraries.
    pub(crate) bare: rustls::ClientConfig,
    newcomer: Identity,
    /// Ids of the processes of cloudcore and of the embedded API server.
    pub(super) processes: Vec<u32>,
    /// An administrator's client of the embedded API server, if it is in use.
    pub(super) embedded: Option<kube::Client>,
}

impl Hub {
    /// Creates the nodes and their leases.
    pub(crate) async fn prepare(world: &World, nodes: u32) -> Result<Self> {
        let client = world.client().await?;
        let names =
            (0..nodes).map(super::honest::name).chain([HOSTILE, HOSTILE_BARE, NEWCOMER].map(str::to_owned));
        let create = |group: &str, kind: &str| {
            let kind = GroupVersionKind::gvk(group, "v1", kind);
            kube::Api::<DynamicObject>::all_with(client.clone(), &ApiResource::from_gvk(&kind))
        };
        let node_api = create("", "Node");
        let leases = ApiResource::from_gvk(&GroupVersionKind::gvk("coordination.k8s.io", "v1", "Lease"));
        let lease_api =
            kube::Api::<DynamicObject>::namespaced_with(client.clone(), "kube-node-lease", &leases);
        for name in names {
            let node: DynamicObject = serde_json::from_value(json!({
                "apiVersion": "v1", "kind": "Node", "metadata": {"name": name}
            }))?;
            node_api.create(&PostParams::default(), &node).await?;
            let lease: DynamicObject = serde_json::from_value(json!({
                "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name},
                "spec": {"holderIdentity": name, "leaseDurationSeconds": 40}
            }))?;
            lease_api.create(&PostParams::default(), &lease).await?;
        }
        // For every honest node, and for the nodes that join here.
        let token = NewToken { names: Vec::new(), uses: nodes + 8, life: DEADLINE * 10, replace: true };
        let token = wait_for_value("a join token", DEADLINE, || world.new_token(&token)).await;
        let join = world.join_address();
        Ok(Self {
            ports: world.hub_ports(),
            admin: world.admin_address().rsplit_once(':').context("no port")?.1.parse()?,
            api: ApiPort::prepare(&world.kubeconfig(), &client).await?,
            identity: identity(&join, &NodeId::parse(HOSTILE)?, &token).await?,
            bare: tombolo_tests::raw::joined(world, HOSTILE_BARE).await?,
            newcomer: identity(&join, &NodeId::parse(NEWCOMER)?, &token).await?,
            token,
            processes: world.cloud_id().into_iter().chain(world.server_id()).collect(),
            embedded: world.plane.is_none().then_some(client),
        })
    }

    fn target(&self, choice: Choice) -> Target {
        let [websocket_port, quic_port, _] = self.ports;
        Target { host: "127.0.0.1".to_owned(), websocket_port, quic_port, choice }
    }

    /// Connects as the hostile node and waits for the welcome: an attack by a node that the hub does not know would not
    /// count.
    pub(crate) async fn connect(&self, inventory: Inventory) -> Result<Link> {
        let mut link = connect(self.target(Choice::WebSocket), self.identity.client_tls()?).await?;
        link.send(Lane::Control, hello(&NodeId::parse(HOSTILE)?, inventory))?;
        tokio::time::timeout(Duration::from_secs(30), welcomed(&mut link)).await.context("no welcome")??;
        Ok(link)
    }

    /// How long an honest node takes to connect; at most [`PATIENCE`].
    pub(super) async fn newcomer(&self, choice: Choice) -> Duration {
        let begin = Instant::now();
        let coming = async {
            loop {
                let tls = self.newcomer.client_tls()?;
                let Ok(mut link) = connect(self.target(choice), tls).await else {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                };
                greet(&mut link, &NodeId::parse(NEWCOMER)?)?;
                if welcomed(&mut link).await.is_ok() {
                    return Ok::<_, anyhow::Error>(());
                }
            }
        };
        // A timeout shows in the measured time.
        let _ = tokio::time::timeout(PATIENCE, coming).await;
        begin.elapsed()
    }
}

const NEWCOMER: &str = "newcomer";

async fn welcomed(link: &mut Link) -> Result<()> {
    loop {
        match link.next().await {
            LinkEvent::Frame(_, Frame::Welcome(_)) => return Ok(()),
            LinkEvent::Frame(_, Frame::Goodbye(goodbye)) => anyhow::bail!("not welcome: {}", goodbye.message),
            LinkEvent::Closed(error) => return Err(error.into()),
            _ => {}
        }
    }
}

/// The result of an attack.
pub(crate) struct Took {
    /// What was done, and with which errors it was refused.
    pub(crate) text: String,
    /// Why the attack does not count.
    pub(crate) missing: Option<String>,
}

impl Took {
    /// The attack took place.
    pub(crate) fn place(text: String) -> Self {
        Self { text, missing: None }
    }

    /// The attack did not take place.
    pub(crate) fn none(why: String) -> Self {
        Self { text: String::new(), missing: Some(why) }
    }

    /// The attack counts only if this happened at least so many times.
    pub(crate) fn least(mut self, what: &str, count: u64, least: u64) -> Self {
        self.text = format!("{count} × {what}; {}", self.text);
        if count < least {
            self.missing.get_or_insert(format!("{count} × {what}, and {least} is the least"));
        }
        self
    }
}

/// Gets a node's certificate.
pub(crate) async fn identity(join: &str, node: &NodeId, token: &str) -> Result<Identity> {
    let options = EnrollOptions { endpoint: join.to_owned(), node: node.clone(), token: token.to_owned() };
    Ok(enroll(&options).await?)
}

/// A hello frame.
pub(crate) fn hello(node: &NodeId, inventory: Inventory) -> Frame {
    Frame::Hello(Hello {
        versions: (1, 1),
        node: node.clone(),
        store: StoreId(u128::from(fresh()).to_be_bytes()),
        epoch: None,
        trim_version: 0,
        features: 0,
        inventory,
        agent: "hostile".to_owned(),
        instance: fresh(),
        attestation: Bytes::new(),
    })
}

/// Sends the hello of a node that holds nothing.
pub(crate) fn greet(link: &mut Link, node: &NodeId) -> Result<()> {
    Ok(link.send(Lane::Control, hello(node, Inventory::Full(Vec::new())))?)
}

/// Counts the hub's frames by kind.
#[derive(Default)]
pub(crate) struct Heard {
    pub(crate) counts: std::collections::BTreeMap<String, u64>,
    pub(crate) ended: Option<String>,
}

impl Heard {
    pub(crate) fn count(&mut self, what: impl Into<String>) {
        *self.counts.entry(what.into()).or_default() += 1;
    }

    /// Adds the frames of another session.
    pub(crate) fn add(&mut self, other: Self) {
        for (what, count) in other.counts {
            *self.counts.entry(what).or_default() += count;
        }
        if let Some(end) = other.ended {
            self.count(format!("session ended: {end}"));
        }
    }

    pub(crate) fn text(&self) -> String {
        let counts = self.counts.iter().map(|(what, count)| format!("{count} × {what}"));
        counts
            .chain(self.ended.iter().map(|end| format!("session ended: {end}")))
            .collect::<Vec<_>>()
            .join("; ")
    }

    /// How many frames were received whose name begins with this text.
    pub(crate) fn times(&self, what: &str) -> u64 {
        self.counts.iter().filter(|(name, _)| name.starts_with(what)).map(|(_, count)| count).sum()
    }

    /// Counts answers, and the end of the session: the hub has processed the requests.
    pub(crate) fn reactions(&self) -> u64 {
        self.times("answer") + self.times("session ended") + u64::from(self.ended.is_some())
    }

    /// Records a frame; true for one that ends the session.
    pub(crate) fn take(&mut self, event: &LinkEvent) -> bool {
        match event {
            LinkEvent::Frame(_, Frame::Reply(reply)) => {
                let code = match &reply.body {
                    tombolo_proto::frame::ReplyBody::Api(api) => api.code,
                    tombolo_proto::frame::ReplyBody::Message(_) => 200,
                };
                self.count(format!("answer {code}"));
            }
            LinkEvent::Frame(_, Frame::SubscriptionClosed { code, .. }) => {
                self.count(format!("subscription {code}"));
            }
            LinkEvent::Frame(_, Frame::CaughtUp { .. }) => self.count("caught up"),
            LinkEvent::Frame(_, Frame::Goodbye(Goodbye { message, .. })) => {
                self.ended = Some(message.clone());
            }
            LinkEvent::Closed(error) => {
                self.ended.get_or_insert(error.to_string());
                return true;
            }
            _ => {}
        }
        false
    }
}
