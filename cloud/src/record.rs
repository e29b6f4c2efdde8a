//! Records the traffic between nodes and this cloudcore, and what the Kubernetes API showed meanwhile, as transcripts
//! for `tombolo replay`.
//!
//! The API state is recorded as this cloudcore has it: objects in its caches when a session looks them up, and objects
//! in the API server's answers. Secrets and tokens are replaced by hashes before anything is written.

mod read;
mod transcript;
mod writer;

use std::collections::HashMap;
use std::hash::RandomState;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tombolo_link::{Direction, DocumentTap, Tap, Transport};
use tombolo_proto::frame::{Hello, Welcome, features};
use tombolo_proto::object::SharedObject;
use tombolo_proto::session::Lookup;
use tombolo_proto::{Frame, Lane, NodeId, ObjectKey, SubscriptionId, codec};
use tombolo_runtime::{Tasks, files};
use writer::Writer;

/// Maximum number of entries that wait to be written. When it is exceeded, the recording of the node ends, because a
/// transcript with a gap cannot be replayed.
const WAITING_MAX: usize = 8192;

/// Maximum number of bytes of messages and frames that wait to be written, with the same consequence.
const WAITING_LEN_MAX: usize = 64 * 1024 * 1024;

/// Assumed size of one waiting entry besides its bytes.
const WEIGHT: usize = 512;

/// How long cloudcore's shutdown waits for its recordings.
const FINISH_LIMIT: Duration = Duration::from_secs(10);

/// The protocol that a node uses. A transcript has one dialect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum NodeProtocol {
    KubeEdge,
    Tombolo(Transport),
}

/// The node and protocol of a recording.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct RecordedNode {
    node: NodeId,
    way: NodeProtocol,
}

/// One recorded message.
#[derive(Debug)]
enum RecordedMessage {
    Document(Bytes),
    Frame(Lane, Box<Frame>),
}

/// State of an object in the API.
#[derive(Debug)]
enum Seen {
    Present(Arc<SharedObject>),
    Gone(ObjectKey),
}

/// Input of the writer.
#[derive(Debug)]
enum WriterInput {
    Message {
        who: Arc<RecordedNode>,
        conn: u64,
        at_us: u64,
        up: bool,
        message: RecordedMessage,
        weight: usize,
    },
    Seen {
        who: Arc<RecordedNode>,
        at_us: u64,
        seen: Seen,
        weight: usize,
    },
    /// An entry was lost.
    Lost {
        who: Arc<RecordedNode>,
    },
    /// No more entries follow: write everything out, and report when that is done.
    Finish(oneshot::Sender<()>),
}

/// Records nodes into a folder. There is one transcript for each node and dialect, with all its connections.
#[derive(Debug)]
pub struct Recorder {
    sender: mpsc::Sender<WriterInput>,
    /// Bytes that wait to be written.
    waiting: Arc<AtomicUsize>,
    start: Instant,
    connections: AtomicU64,
}

impl Recorder {
    /// Starts recording into `folder`, which is created if necessary and accessible to this user only.
    ///
    /// # Errors
    /// When the folder cannot be created.
    pub fn start(folder: &Path, tasks: &Tasks) -> io::Result<Arc<Self>> {
        files::private_folder(folder)?;
        let (sender, input) = mpsc::channel(WAITING_MAX);
        let waiting = Arc::<AtomicUsize>::default();
        let writer = Writer {
            folder: folder.to_owned(),
            transcripts: HashMap::new(),
            key: RandomState::new(),
            waiting: Arc::clone(&waiting),
        };
        tasks.spawn_isolated("recorder", writer.run(input));
        Ok(Arc::new(Self { sender, waiting, start: Instant::now(), connections: AtomicU64::new(0) }))
    }

    /// Completes all transcripts. Later traffic is not recorded.
    pub(crate) async fn finish(&self) {
        let (done, finished) = oneshot::channel();
        let finish = async {
            if self.sender.send(WriterInput::Finish(done)).await.is_ok() {
                // If the writer has ended, that is as good as its answer.
                let _ = finished.await;
            }
        };
        if tokio::time::timeout(FINISH_LIMIT, finish).await.is_err() {
            tracing::warn!("recordings are incomplete: the disk is too slow");
        }
    }

    /// The recorder of a KubeEdge edge's connection.
    pub(crate) fn kubeedge(self: &Arc<Self>, node: &NodeId) -> Arc<Connection> {
        self.connection(node, NodeProtocol::KubeEdge)
    }

    /// The recorder of a connection of a Tombolo edge.
    pub(crate) fn own(self: &Arc<Self>, node: &NodeId, transport: Transport) -> Arc<Connection> {
        self.connection(node, NodeProtocol::Tombolo(transport))
    }

    fn connection(self: &Arc<Self>, node: &NodeId, way: NodeProtocol) -> Arc<Connection> {
        let number = self.connections.fetch_add(1, Ordering::Relaxed) + 1;
        let who = Arc::new(RecordedNode { node: node.clone(), way });
        Arc::new(Connection { recorder: Arc::clone(self), who, number })
    }
}

/// Records one connection.
#[derive(Debug)]
pub(crate) struct Connection {
    recorder: Arc<Recorder>,
    who: Arc<RecordedNode>,
    number: u64,
}

impl Connection {
    fn at_us(&self) -> u64 {
        u64::try_from(self.recorder.start.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    fn record_message(&self, direction: Direction, message: RecordedMessage, weight: usize) {
        let (who, conn, at_us) = (Arc::clone(&self.who), self.number, self.at_us());
        let up = direction == Direction::In;
        self.send(WriterInput::Message { who, conn, at_us, up, message, weight }, weight);
    }

    /// Records what the caches had when the session looked up a key. That an object is not needed on the node says
    /// nothing about the API, except where every existing object would be needed: a node's own objects, and those that
    /// a subscription selects.
    pub(crate) fn looked_up(&self, subscription: SubscriptionId, key: &ObjectKey, found: &Lookup) {
        let is_whole =
            subscription != SubscriptionId::NODE || matches!(&*key.resource().name, "pods" | "nodes");
        let (seen, weight) = match found {
            Lookup::Present(object) => (Seen::Present(Arc::clone(object)), WEIGHT + object.body.len()),
            Lookup::Absent => (Seen::Gone(key.clone()), WEIGHT),
            Lookup::Unwanted(_) if is_whole => (Seen::Gone(key.clone()), WEIGHT),
            Lookup::Unwanted(_) | Lookup::Unreadable(_) | Lookup::Pending => return,
        };
        let (who, at_us) = (Arc::clone(&self.who), self.at_us());
        self.send(WriterInput::Seen { who, at_us, seen, weight }, weight);
    }

    fn send(&self, input: WriterInput, weight: usize) {
        let Recorder { sender, waiting, .. } = &*self.recorder;
        let before = waiting.fetch_add(weight, Ordering::Relaxed);
        if before > WAITING_LEN_MAX || sender.try_send(input).is_err() {
            waiting.fetch_sub(weight, Ordering::Relaxed);
            // If there is no room for this entry either, a later one will report the loss.
            let _ = sender.try_send(WriterInput::Lost { who: Arc::clone(&self.who) });
        }
    }
}

impl DocumentTap for Connection {
    fn document(&self, direction: Direction, document: &Bytes) {
        self.record_message(direction, RecordedMessage::Document(document.clone()), WEIGHT + document.len());
    }
}

impl Tap for Connection {
    fn frame(&self, _: Instant, direction: Direction, lane: Lane, frame: &Frame) {
        if let Some(frame) = recorded(frame) {
            let weight = WEIGHT + codec::encoded_len(&frame);
            self.record_message(direction, RecordedMessage::Frame(lane, Box::new(frame)), weight);
        }
    }
}

/// A frame without attestations, which belong to one cluster and are meaningless when a transcript is replayed.
fn recorded(frame: &Frame) -> Option<Frame> {
    match frame {
        Frame::Attestation { .. } => None,
        Frame::Hello(hello) => {
            let features = hello.features & !features::ATTESTATION;
            Some(Frame::Hello(Hello { features, attestation: Bytes::new(), ..hello.clone() }))
        }
        Frame::Welcome(welcome) => {
            let features = welcome.features & !features::ATTESTATION;
            Some(Frame::Welcome(Welcome { features, ..welcome.clone() }))
        }
        other => Some(other.clone()),
    }
}

#[cfg(test)]
mod tests;
