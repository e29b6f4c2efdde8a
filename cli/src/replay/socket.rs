//! A connection of the replayed edge, in the dialect of its transcript.

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tombolo_edge::identity::Identity;
use tombolo_link::client::{Connector, Target, connect_documents};
use tombolo_link::{DocumentEvent, DocumentLink, Link, LinkEvent};
use tombolo_proto::session::kubeedge::Outgoing;
use tombolo_proto::{Frame as Wire, Lane, NodeId};
use tombolo_replay::{Frame, render};
use tombolo_runtime::time::unix_millis;

/// Maximum number of received frames that wait for the run; after that the cloud is slowed down.
const HEARD_MAX: usize = 4096;

/// Maximum number of frames that wait for the socket.
const SAYING_MAX: usize = 4096;

/// What a connection received: a frame, or `None` when it ended.
pub(super) type Heard = (u64, Option<Frame>);

/// What the run sends.
#[derive(Debug)]
pub(super) enum Saying {
    /// A message of dialect `kubeedge`.
    Document(Value),
    /// A frame of dialect `tombolo`.
    Frame(Lane, Box<Wire>),
}

/// One connection. Dropping it cuts it without a goodbye, as a killed edge does.
pub(super) struct Socket {
    saying: mpsc::Sender<Saying>,
    task: JoinHandle<()>,
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The channel for received frames.
pub(super) struct ReceivedFrames {
    /// Each connection has a clone.
    pub(super) sender: mpsc::Sender<Heard>,
    pub(super) heard: mpsc::Receiver<Heard>,
}

impl Default for ReceivedFrames {
    fn default() -> Self {
        let (sender, heard) = mpsc::channel(HEARD_MAX);
        Self { sender, heard }
    }
}

impl Socket {
    /// Connects as a KubeEdge edge.
    pub(super) async fn documents(
        target: &Target,
        node: &NodeId,
        identity: &Identity,
        conn: u64,
        received: mpsc::Sender<Heard>,
    ) -> Result<Self> {
        let link = connect_documents(target, node, &identity.client_tls()?).await?;
        let (saying, says) = mpsc::channel(SAYING_MAX);
        let task = tokio::spawn(async move {
            let ended = carry_documents(link, says, conn, &received).await;
            finish(ended, conn, &received).await;
        });
        Ok(Self { saying, task })
    }

    /// Connects as a Tombolo edge.
    pub(super) async fn frames(
        target: &Target,
        identity: &Identity,
        conn: u64,
        received: mpsc::Sender<Heard>,
    ) -> Result<Self> {
        let link = Connector::new(target.clone(), identity.client_tls()?).connect().await?;
        let (saying, says) = mpsc::channel(SAYING_MAX);
        let task = tokio::spawn(async move {
            let ended = carry_frames(link, says, conn, &received).await;
            finish(ended, conn, &received).await;
        });
        Ok(Self { saying, task })
    }

    /// Sends, and waits for room in the queue.
    pub(super) async fn say(&self, saying: Saying) -> Result<()> {
        // The end of a connection is reported through the channel of received frames.
        let _ = self.saying.send(saying).await;
        Ok(())
    }

    /// Sends a response to something received; does not wait.
    pub(super) fn try_say(&self, saying: Saying) -> Result<()> {
        match self.saying.try_send(saying) {
            Err(mpsc::error::TrySendError::Full(_)) => bail!("the cloud does not read what the edge sends"),
            _ => Ok(()),
        }
    }
}

/// The acknowledgement of a message, in the form of KubeEdge edges (docs/reference/kubeedge.md#acknowledgements).
pub(super) fn acknowledgement(frame: &Frame) -> Value {
    json!({
        "header": {"msg_id": new_id(), "parent_msg_id": frame.id(), "timestamp": unix_millis()},
        "route": {"source": frame.source(), "group": frame.group(), "operation": "response", "resource": frame.resource()},
        "content": "OK",
    })
}

/// A new message id.
pub(super) fn new_id() -> String {
    uuid::Uuid::new_v4().to_string()
}

async fn finish(ended: Result<()>, conn: u64, received: &mpsc::Sender<Heard>) {
    if let Err(error) = ended {
        tracing::debug!(conn, error = %format!("{error:#}"), "the connection has ended");
    }
    // Fails only after the run is over.
    let _ = received.send((conn, None)).await;
}

async fn carry_documents(
    mut link: DocumentLink,
    mut says: mpsc::Receiver<Saying>,
    conn: u64,
    received: &mpsc::Sender<Heard>,
) -> Result<()> {
    let mut sent = 0;
    loop {
        let room = link.can_send();
        tokio::select! {
            saying = says.recv(), if room => match saying {
                Some(Saying::Document(json)) => {
                    sent += 1;
                    // Recorded plain text is not a message: it is sent as it is.
                    let text = json.as_str().map_or_else(|| json.to_string(), str::to_owned);
                    link.send(Outgoing::document(sent, text))?;
                }
                Some(Saying::Frame(..)) => bail!("a frame on a connection that carries documents"),
                None => return Ok(()),
            },
            event = link.next() => match event {
                DocumentEvent::Document(bytes) => {
                    let json = serde_json::from_slice(&bytes).context("a document is not JSON")?;
                    if received.send((conn, Some(Frame::new(json)))).await.is_err() {
                        return Ok(());
                    }
                }
                DocumentEvent::Heard | DocumentEvent::Transmitted(_) => {}
                DocumentEvent::Closed(error) => return Err(error.into()),
            }
        }
    }
}

async fn carry_frames(
    mut link: Link,
    mut says: mpsc::Receiver<Saying>,
    conn: u64,
    received: &mpsc::Sender<Heard>,
) -> Result<()> {
    let mut waiting: Option<(Lane, Box<Wire>)> = None;
    loop {
        if let Some((lane, frame)) = waiting.take_if(|(lane, _)| link.can_send(*lane)) {
            link.send(lane, *frame)?;
        }
        tokio::select! {
            saying = says.recv(), if waiting.is_none() => match saying {
                Some(Saying::Frame(lane, frame)) => waiting = Some((lane, frame)),
                Some(Saying::Document(_)) => bail!("a document on a connection that carries frames"),
                None => return Ok(()),
            },
            event = link.next() => match event {
                LinkEvent::Frame(lane, frame) => {
                    if received.send((conn, Some(render(conn, lane, &frame)))).await.is_err() {
                        return Ok(());
                    }
                }
                LinkEvent::Writable => {}
                LinkEvent::Closed(error) => return Err(error.into()),
            }
        }
    }
}
