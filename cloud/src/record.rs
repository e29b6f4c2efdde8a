//! Recording what nodes and this cloudcore say, as transcripts that `tombolo replay` plays.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::fs::{File, OpenOptions};
use tokio::io::AsyncWriteExt as _;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tombolo_link::{Direction, DocumentTap};
use tombolo_proto::NodeId;
use tombolo_replay::{Event, Frame, Line, Transcript, redact, with_api_lines};
use tombolo_runtime::{Tasks, files};

/// Messages that wait to be written. One that finds no room ends the recording of its node: a transcript with a gap
/// replays nothing.
const WAITING_MAX: usize = 8192;

/// Largest transcript, in bytes; the recording of a node ends there.
const TRANSCRIPT_LEN_MAX: usize = 16 * 1024 * 1024;

/// Nodes that are recorded; later ones are not.
const NODES_MAX: usize = 1000;

/// How long the end of cloudcore waits for its recordings.
const FINISH_LIMIT: Duration = Duration::from_secs(10);

/// What the writer is told.
enum Told {
    Said {
        node: NodeId,
        conn: u64,
        at_us: u64,
        up: bool,
        document: Bytes,
    },
    /// A message was lost.
    Lost {
        node: NodeId,
    },
    /// A connection is over.
    Ended {
        node: NodeId,
    },
    /// Nothing more comes: complete every transcript, and tell when that is done.
    Finish(oneshot::Sender<()>),
}

/// Records nodes into a folder: one transcript a node, all its connections in it.
#[derive(Debug)]
pub struct Recorder {
    sender: mpsc::Sender<Told>,
    start: Instant,
    connections: AtomicU64,
}

impl Recorder {
    /// Begins to record into `folder`, which is made if need be and is for this user alone.
    ///
    /// # Errors
    /// When the folder cannot be made.
    pub fn start(folder: &Path, tasks: &Tasks) -> io::Result<Arc<Self>> {
        files::private_folder(folder)?;
        let (sender, told) = mpsc::channel(WAITING_MAX);
        let writer = Writer { folder: folder.to_owned(), nodes: HashMap::new(), key: RandomState::new() };
        tasks.spawn_isolated("recorder", writer.run(told));
        Ok(Arc::new(Self { sender, start: Instant::now(), connections: AtomicU64::new(0) }))
    }

    /// Completes every transcript. What is said later is not recorded any more.
    pub(crate) async fn finish(&self) {
        let (done, finished) = oneshot::channel();
        let finish = async {
            if self.sender.send(Told::Finish(done)).await.is_ok() {
                // The writer's end is as good as its answer.
                let _ = finished.await;
            }
        };
        if tokio::time::timeout(FINISH_LIMIT, finish).await.is_err() {
            tracing::warn!("recordings are not complete: the disk takes too long");
        }
    }

    /// The recorder of one connection.
    pub(crate) fn connection(self: &Arc<Self>, node: &NodeId) -> Arc<Connection> {
        let number = self.connections.fetch_add(1, Ordering::Relaxed) + 1;
        Arc::new(Connection { recorder: Arc::clone(self), node: node.clone(), number })
    }
}

/// Records one connection until it is dropped.
pub(crate) struct Connection {
    recorder: Arc<Recorder>,
    node: NodeId,
    number: u64,
}

impl DocumentTap for Connection {
    fn document(&self, direction: Direction, document: &Bytes) {
        let at_us = u64::try_from(self.recorder.start.elapsed().as_micros()).unwrap_or(u64::MAX);
        let up = direction == Direction::In;
        let node = self.node.clone();
        let said = Told::Said { node, conn: self.number, at_us, up, document: document.clone() };
        if self.recorder.sender.try_send(said).is_err() {
            // If this finds no room either, the next message will tell.
            let _ = self.recorder.sender.try_send(Told::Lost { node: self.node.clone() });
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let _ = self.recorder.sender.try_send(Told::Ended { node: self.node.clone() });
    }
}

/// The transcript of one node.
struct Recording {
    path: PathBuf,
    file: File,
    len: usize,
}

struct Writer {
    folder: PathBuf,
    /// None for nodes whose recording has ended.
    nodes: HashMap<NodeId, Option<Recording>>,
    /// Secrets are replaced by hashes that nobody else can repeat.
    key: RandomState,
}

impl Writer {
    async fn run(mut self, mut told: mpsc::Receiver<Told>) {
        while let Some(told) = told.recv().await {
            match told {
                Told::Said { node, conn, at_us, up, document } => {
                    if let Err(problem) = self.write(&node, conn, at_us, up, &document).await {
                        self.give_up(&node, &problem.to_string());
                    }
                }
                Told::Lost { node } => self.give_up(&node, "messages come faster than the disk takes them"),
                Told::Ended { node } => self.end_of(&node).await,
                Told::Finish(done) => {
                    for node in self.nodes.keys().cloned().collect::<Vec<_>>() {
                        self.end_of(&node).await;
                    }
                    // Who asked may have given up waiting.
                    let _ = done.send(());
                    return;
                }
            }
        }
    }

    async fn end_of(&mut self, node: &NodeId) {
        if let Err(problem) = self.complete(node).await {
            self.give_up(node, &problem.to_string());
        }
    }

    fn give_up(&mut self, node: &NodeId, problem: &str) {
        if let Some(Some(_)) = self.nodes.insert(node.clone(), None) {
            tracing::warn!(%node, problem, "the recording of this node ends here");
        }
    }

    async fn write(
        &mut self,
        node: &NodeId,
        conn: u64,
        at_us: u64,
        up: bool,
        document: &Bytes,
    ) -> io::Result<()> {
        if !self.nodes.contains_key(node) {
            let recording = if self.nodes.len() < NODES_MAX { Some(self.open(node).await?) } else { None };
            self.nodes.insert(node.clone(), recording);
        }
        let key = &self.key;
        let Some(Some(recording)) = self.nodes.get_mut(node) else { return Ok(()) };
        // What is no JSON is no message: nothing that could be played.
        let Ok(json) = serde_json::from_slice::<Value>(document) else { return Ok(()) };
        let mut frame = Frame::new(json);
        redact(&mut frame, &|secret| format!("redacted-{:016x}", key.hash_one(secret)));
        let event = if up { Event::Up(frame) } else { Event::Down(frame) };
        let mut line = Line { number: 0, at_us, conn: Some(conn), event }.to_json().to_string();
        line.push('\n');
        recording.len += line.len();
        if recording.len > TRANSCRIPT_LEN_MAX {
            return Err(io::Error::other("the transcript has reached 16 MiB"));
        }
        recording.file.write_all(line.as_bytes()).await?;
        recording.file.flush().await
    }

    async fn open(&self, node: &NodeId) -> io::Result<Recording> {
        let path = self.folder.join(format!("{node}.jsonl"));
        let recorded = format!("tombolo {}", env!("CARGO_PKG_VERSION"));
        let mut header =
            json!({"recorded_from": recorded, "dialect": "kubeedge JSON over WebSocket", "node": node.as_str()}).to_string();
        header.push('\n');
        files::replace(&path, header.as_bytes(), 0o600)?;
        let file = OpenOptions::new().append(true).open(&path).await?;
        Ok(Recording { path, file, len: header.len() })
    }

    /// Adds what the Kubernetes API saw, as far as the recorded messages prove it.
    async fn complete(&mut self, node: &NodeId) -> io::Result<()> {
        let Some(Some(recording)) = self.nodes.get_mut(node) else { return Ok(()) };
        let text = tokio::fs::read_to_string(&recording.path).await?;
        let mut transcript = Transcript::parse(&text).map_err(io::Error::other)?;
        transcript.lines.retain(|line| !matches!(line.event, Event::Api(..)));
        let text = with_api_lines(&transcript).to_text();
        files::replace(&recording.path, text.as_bytes(), 0o600)?;
        recording.len = text.len();
        recording.file = OpenOptions::new().append(true).open(&recording.path).await?;
        Ok(())
    }
}
