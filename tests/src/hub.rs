//! A hub without a cloud, driven by a test frame by frame, to send an edge what cloudcore never would.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::json;
use tombolo_link::server::{Arrival, Incoming, Limits, Listen, ServerConfig, bind};
use tombolo_link::tls::{Identity, ServerTls};
use tombolo_link::{Link, LinkEvent};
use tombolo_proto::frame::{Change, Deliver, Welcome};
use tombolo_proto::limits::{IDLE_TIMEOUT, PING_INTERVAL};
use tombolo_proto::{
    CloudRevision, ContentHash, Epoch, Frame, Lane, ObjectKey, ObjectVersion, Seq, SharedObject,
    SubscriptionId, Uid,
};
use tombolo_runtime::{Drain, Tasks, Trigger, drain};
use tombolo_testkit::{Child, free_port};

use crate::pki::Authority;
use crate::world::binary;

/// How long the hub waits for an edge.
const PATIENCE: Duration = Duration::from_secs(60);

/// The hub.
pub struct RawHub {
    /// Signs for the hub and for its nodes.
    pub authority: Authority,
    /// Port of its WebSocket listener.
    pub port: u16,
    incoming: Incoming,
    _tasks: Tasks,
    _running: (Trigger, Drain),
}

impl RawHub {
    /// Listens.
    ///
    /// # Errors
    /// When no port can be bound.
    pub async fn start() -> Result<Self> {
        let authority = Authority::new()?;
        let (chain, key) = authority.server()?;
        let identity = Identity::from_pem(chain.as_bytes(), key.as_bytes())?;
        let tls = ServerTls::new(identity, &[authority.der().clone()])?;
        let websocket = Listen { address: ([127, 0, 0, 1], 0).into(), setting: "test".to_owned() };
        let config = ServerConfig {
            websocket: Some(websocket),
            quic: None,
            kubeedge: false,
            limits: Limits::default(),
        };
        let bound = bind(&config, &tls).await?;
        let port = bound.websocket_addr().context("not bound")?.port();
        let (tasks, running) = (Tasks::new(), drain::channel(Duration::from_secs(1)));
        let incoming = bound.start(&tasks, &running.1);
        Ok(Self { authority, port, incoming, _tasks: tasks, _running: running })
    }

    /// Starts an agent of node `edge-a` that connects to this hub. With `plain`, its plain local API listens on this
    /// port.
    ///
    /// # Errors
    /// When it cannot be set up or started.
    pub fn agent(&self, folder: &Path, plain: Option<u16>) -> Result<Child> {
        self.authority.enlist("edge-a", folder)?;
        let hub = format!("127.0.0.1:{}", self.port);
        let local = |port: u16| format!("127.0.0.1:{port}");
        let config = json!({
            "nodeName": "edge-a",
            "dataDir": folder,
            "cloud": {"websocket": hub, "quic": hub, "transport": "websocket", "backOff": {"firstMillis": 50, "maxMillis": 1000}},
            "localApi": {"https": local(free_port()?), "http": plain.map(local)},
            "wrapper": {"address": null}, "dns": {"hostsPath": null},
            "admin": null,
            "node": {"register": false},
        });
        let settings = folder.join("edgecore.yaml");
        fs::write(&settings, config.to_string())?;
        Child::spawn("edgecore", folder, Command::new(binary("edgecore")?).arg("--config").arg(settings))
    }

    /// Waits for the next edge to connect, and reads its hello.
    ///
    /// # Errors
    /// When none connects in time.
    pub async fn edge(&mut self) -> Result<RawEdge> {
        let arrival = tokio::time::timeout(PATIENCE, self.incoming.next()).await?;
        let Some(Arrival::Tombolo(accepted)) = arrival else { bail!("no edge of dialect tombolo connected") };
        let mut edge = RawEdge { link: accepted.link };
        edge.until("a hello", |frame| matches!(frame, Frame::Hello(_)).then_some(())).await?;
        Ok(edge)
    }
}

/// An edge that is connected to a [`RawHub`].
pub struct RawEdge {
    link: Link,
}

impl RawEdge {
    /// Welcomes the edge, with this wall clock in milliseconds since the Unix epoch.
    ///
    /// # Errors
    /// When the link is gone.
    pub async fn welcome(&mut self, unix_millis: u64) -> Result<()> {
        let welcome = Welcome {
            version: 1,
            epoch: Epoch { cluster: Uid::parse("cluster")?, generation: 1 },
            features: 0,
            trim_version: 1,
            ping_interval: PING_INTERVAL,
            idle_timeout: IDLE_TIMEOUT,
            unix_millis,
            agent: "test".to_owned(),
        };
        self.say(Lane::Control, Frame::Welcome(welcome)).await
    }

    /// Delivers a body under a key, whatever the body contains.
    ///
    /// # Errors
    /// When the link is gone.
    pub async fn deliver(&mut self, lane: Lane, seq: u64, key: &ObjectKey, body: String) -> Result<()> {
        let version = ObjectVersion {
            uid: Uid::parse("u1")?,
            revision: CloudRevision(seq),
            hash: ContentHash(seq.into()),
        };
        let object = SharedObject::new(key.clone(), version, body.into(), Vec::new());
        let change = Change::Upsert(object.into());
        self.say(lane, Frame::Deliver(Deliver { seq: Seq(seq), subscription: SubscriptionId::NODE, change }))
            .await
    }

    /// Sends a frame.
    ///
    /// # Errors
    /// When the link is gone or full.
    pub async fn say(&mut self, lane: Lane, frame: Frame) -> Result<()> {
        self.link.send(lane, frame)?;
        Ok(self.link.flush().await?)
    }

    /// Waits for a matching frame and skips others.
    ///
    /// # Errors
    /// When it does not arrive, or the link ends.
    pub async fn until<T>(&mut self, what: &str, mut wanted: impl FnMut(&Frame) -> Option<T>) -> Result<T> {
        let listen = async {
            loop {
                match self.link.next().await {
                    LinkEvent::Frame(_, frame) => {
                        if let Some(found) = wanted(&frame) {
                            return Ok(found);
                        }
                    }
                    LinkEvent::Writable => {}
                    LinkEvent::Closed(error) => bail!("the link ended: {error}"),
                }
            }
        };
        tokio::time::timeout(PATIENCE, listen).await.with_context(|| format!("waited for {what}"))?
    }
}
