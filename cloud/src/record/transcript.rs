//! One transcript being written.

use std::collections::HashMap;
use std::io;
use std::path::Path;

use serde_json::{Value, json};
use tokio::fs::{File, OpenOptions};
use tokio::io::{AsyncWriteExt as _, BufWriter};
use tombolo_proto::ObjectKey;
use tombolo_proto::session::kubeedge::kind_name;
use tombolo_replay::{Event, Frame, Key, Line, TOMBOLO, Verb};
use tombolo_runtime::files;

use super::{NodeProtocol, RecordedNode};

/// Maximum size of a transcript in bytes; the recording of the node ends there.
const TRANSCRIPT_LEN_MAX: usize = 16 * 1024 * 1024;

/// Maximum number of existing objects that a transcript tracks; the recording of the node ends beyond that.
const OBJECTS_MAX: usize = 20_000;

/// The transcript of one node.
pub(super) struct Recording {
    file: BufWriter<File>,
    len: usize,
    /// The objects that the transcript shows as existing: identity and last version.
    shown: HashMap<Key, Value>,
}

impl Recording {
    pub(super) async fn open(folder: &Path, who: &RecordedNode) -> io::Result<Self> {
        let (end, dialect, transport) = match who.way {
            NodeProtocol::KubeEdge => ("jsonl".to_owned(), "kubeedge", "websocket".to_owned()),
            NodeProtocol::Tombolo(transport) => {
                (format!("{TOMBOLO}-{transport}.jsonl"), TOMBOLO, transport.to_string())
            }
        };
        let path = folder.join(format!("{}.{end}", who.node));
        let recorded = format!("tombolo {}", env!("CARGO_PKG_VERSION"));
        let header = json!({"recorded_from": recorded, "dialect": dialect, "transport": transport, "node": who.node.as_str()});
        let header = format!("{header}\n");
        files::replace(&path, header.as_bytes(), files::PRIVATE)?;
        let file = BufWriter::new(OpenOptions::new().append(true).open(&path).await?);
        Ok(Self { file, len: header.len(), shown: HashMap::new() })
    }

    /// Writes a line and flushes it to the file, because the process may end without flushing buffers.
    pub(super) async fn write(&mut self, line: &Line) -> io::Result<()> {
        let mut text = line.to_json().to_string();
        text.push('\n');
        self.len += text.len();
        if self.len > TRANSCRIPT_LEN_MAX {
            return Err(io::Error::other("the transcript has reached 16 MiB"));
        }
        self.file.write_all(text.as_bytes()).await?;
        self.flush().await
    }

    pub(super) async fn flush(&mut self) -> io::Result<()> {
        self.file.flush().await
    }

    async fn api(&mut self, at_us: u64, verb: Verb, object: Value) -> io::Result<()> {
        self.write(&Line { number: 0, at_us, conn: None, event: Event::Api(verb, object) }).await
    }

    /// Records that the API has this version of an object.
    pub(super) async fn exists(&mut self, at_us: u64, object: Value) -> io::Result<()> {
        let key = Key::of_object(&object);
        if has_ended(&object) {
            return match self.shown.remove(&key) {
                Some(_) => self.api(at_us, Verb::Delete, object).await,
                None => Ok(()),
            };
        }
        let verb = match self.shown.get(&key) {
            None => Verb::Create,
            Some(known) if text(known, "uid") != text(&object, "uid") => {
                let known = known.clone();
                self.api(at_us, Verb::Delete, known).await?;
                Verb::Create
            }
            // A lagging cache repeats what was shown, or shows something older.
            Some(known) if revision(&object) <= revision(known) => return Ok(()),
            Some(_) => Verb::Update,
        };
        if self.shown.len() >= OBJECTS_MAX && !self.shown.contains_key(&key) {
            return Err(io::Error::other(format!("the transcript has reached {OBJECTS_MAX} objects")));
        }
        self.shown.insert(key, identity(&object));
        self.api(at_us, verb, object).await
    }

    /// Records that the object does not exist in the API, or not for this node.
    pub(super) async fn gone(&mut self, at_us: u64, key: &ObjectKey) -> io::Result<()> {
        let named = |shown: &Key| shown.name == key.name() && shown.namespace == key.namespace();
        let kind = kind_name(key.resource(), None).map(|kind| kind.to_ascii_lowercase());
        let api_version = match &*key.resource().group {
            "" => key.resource().version.to_string(),
            group => format!("{group}/{}", key.resource().version),
        };
        // For kinds without a known name: the objects themselves name their kind, and a plural begins like its kind.
        let is_kind = |shown: &Key, object: &Value| match &kind {
            Some(kind) => shown.kind == *kind,
            None => {
                let stem = shown.kind.get(..shown.kind.len().saturating_sub(1)).unwrap_or_default();
                object["apiVersion"] == *api_version && key.resource().name.starts_with(stem)
            }
        };
        let found = self.shown.iter().find(|(shown, object)| named(shown) && is_kind(shown, object));
        let Some(known) = found.map(|(shown, _)| shown.clone()) else { return Ok(()) };
        match self.shown.remove(&known) {
            Some(object) => self.api(at_us, Verb::Delete, object).await,
            None => Ok(()),
        }
    }

    /// Records the objects with which the API server answered a request of the node.
    pub(super) async fn answered(&mut self, at_us: u64, frame: &Frame) -> io::Result<()> {
        if frame.parent().is_empty() {
            return Ok(());
        }
        for mut object in frame.objects() {
            // Some objects are created on the fly and not stored.
            let is_kept = object["metadata"]["resourceVersion"].as_str().is_some_and(|text| !text.is_empty());
            if !is_kept || object["kind"] == "TokenRequest" || object["kind"].is_null() {
                continue;
            }
            if let Some(metadata) = object["metadata"].as_object_mut() {
                metadata.remove("managedFields");
            }
            self.exists(at_us, object).await?;
        }
        Ok(())
    }
}

/// Whether this is the final state of an object, which a deletion returns.
fn has_ended(object: &Value) -> bool {
    let metadata = &object["metadata"];
    let kept = metadata["finalizers"].as_array().is_some_and(|list| !list.is_empty());
    metadata["deletionTimestamp"].is_string() && metadata["deletionGracePeriodSeconds"] == 0 && !kept
}

/// An object reduced to its identity.
fn identity(object: &Value) -> Value {
    let mut metadata = json!({});
    for member in ["name", "namespace", "uid", "resourceVersion"] {
        if let Some(value) = object["metadata"].get(member) {
            metadata[member] = value.clone();
        }
    }
    json!({"apiVersion": object["apiVersion"], "kind": object["kind"], "metadata": metadata})
}

fn text<'a>(object: &'a Value, member: &str) -> &'a str {
    object["metadata"][member].as_str().unwrap_or_default()
}

/// Versions are numbers (guaranteed by Kubernetes from 1.35 on).
fn revision(object: &Value) -> u64 {
    text(object, "resourceVersion").parse().unwrap_or_default()
}
