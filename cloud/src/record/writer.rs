//! The task that writes transcripts.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::mpsc;
use tombolo_replay::{Event, Frame, Line, render};

use super::transcript::Recording;
use super::{RecordedMessage, RecordedNode, Seen, WriterInput, read};

/// Maximum number of transcripts; nodes that connect later are not recorded.
const TRANSCRIPTS_MAX: usize = 1000;

pub(super) struct Writer {
    pub(super) folder: PathBuf,
    /// `None` for recordings that have ended.
    pub(super) transcripts: HashMap<RecordedNode, Option<Recording>>,
    /// Secrets are replaced by hashes that only this process can compute.
    pub(super) key: RandomState,
    /// Bytes that wait to be written.
    pub(super) waiting: Arc<AtomicUsize>,
}

impl Writer {
    pub(super) async fn run(mut self, mut input: mpsc::Receiver<WriterInput>) {
        while let Some(input) = input.recv().await {
            let (who, written) = match input {
                WriterInput::Message { who, conn, at_us, up, message, weight } => {
                    self.waiting.fetch_sub(weight, Ordering::Relaxed);
                    let written = self.record_message(&who, conn, at_us, up, message).await;
                    (who, written)
                }
                WriterInput::Seen { who, at_us, seen, weight } => {
                    self.waiting.fetch_sub(weight, Ordering::Relaxed);
                    let written = self.seen(&who, at_us, seen).await;
                    (who, written)
                }
                WriterInput::Lost { who } => {
                    (who, Err(io::Error::other("the disk is too slow to record messages")))
                }
                WriterInput::Finish(done) => {
                    self.finish().await;
                    // The requester may have stopped waiting.
                    let _ = done.send(());
                    return;
                }
            };
            if let Err(problem) = written {
                self.give_up(&who, &problem);
            }
        }
    }

    async fn finish(&mut self) {
        for recording in self.transcripts.values_mut().flatten() {
            if let Err(problem) = recording.flush().await {
                tracing::warn!(%problem, "a recording is incomplete");
            }
        }
    }

    fn give_up(&mut self, who: &RecordedNode, problem: &io::Error) {
        if let Some(Some(_)) = self.transcripts.insert(who.clone(), None) {
            tracing::warn!(node = %who.node, %problem, "the recording of this node ends here");
        }
    }

    /// The transcript of a node. `None` when it has ended, or when there are too many.
    async fn transcript(&mut self, who: &RecordedNode) -> io::Result<Option<&mut Recording>> {
        if !self.transcripts.contains_key(who) {
            let room = self.transcripts.len() < TRANSCRIPTS_MAX;
            let recording = if room { Some(Recording::open(&self.folder, who).await?) } else { None };
            self.transcripts.insert(who.clone(), recording);
        }
        Ok(self.transcripts.get_mut(who).and_then(Option::as_mut))
    }

    async fn record_message(
        &mut self,
        who: &RecordedNode,
        conn: u64,
        at_us: u64,
        up: bool,
        message: RecordedMessage,
    ) -> io::Result<()> {
        let key = self.key.clone();
        let Some(recording) = self.transcript(who).await? else { return Ok(()) };
        let mut frame = match message {
            // Text that is not JSON is not a message and cannot be replayed.
            RecordedMessage::Document(document) => match read::tree(&document)? {
                Some(json) => Frame::new(json),
                None => return Ok(()),
            },
            RecordedMessage::Frame(lane, frame) => {
                read::body(&frame)?;
                let frame = render(conn, lane, &frame);
                read::texts(frame.as_json())?;
                frame
            }
        };
        tombolo_replay::redact(&mut frame, &mask(&key));
        if !up {
            recording.answered(at_us, &frame).await?;
        }
        let event = if up { Event::Up(frame) } else { Event::Down(frame) };
        recording.write(&Line { number: 0, at_us, conn: Some(conn), event }).await
    }

    async fn seen(&mut self, who: &RecordedNode, at_us: u64, seen: Seen) -> io::Result<()> {
        let key = self.key.clone();
        let Some(recording) = self.transcript(who).await? else { return Ok(()) };
        match seen {
            Seen::Gone(key) => recording.gone(at_us, &key).await,
            Seen::Present(object) => {
                let Some(content) = object.with_revision() else { return Ok(()) };
                let Some(mut json) = read::tree(content.as_json())? else { return Ok(()) };
                tombolo_replay::redact_object(&mut json, &mask(&key));
                recording.exists(at_us, json).await
            }
        }
    }
}

/// The replacement for a secret. Equal secrets have equal masks.
fn mask(key: &RandomState) -> impl Fn(&str) -> String + '_ {
    move |secret: &str| format!("redacted-{:016x}", key.hash_one(secret))
}
