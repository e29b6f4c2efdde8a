//! A KubeEdge edge (docs/reference/kubeedge.md#the-edges-store): every message in a task of its own, one store without
//! versions, acknowledgements after storing, and a process that crashes when it dereferences a missing object.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use serde_json::Value;
use tombolo_proto::message::{Content, Group, Message, MessageId, Operation, ResourcePath, Route, Source};
use tombolo_proto::{Moment, kubeedge};

const NODE: &str = "null/node/edge1";

/// The store's entry for a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    pub uid: String,
    pub revision: u64,
}

#[derive(Debug)]
struct Task {
    at: Moment,
    message: Message,
}

/// A KubeEdge edge.
#[derive(Debug, Default)]
pub struct KubeEdge {
    /// Rows of the store, by path.
    pub rows: BTreeMap<String, Row>,
    /// Deliveries that have not reached MetaManager's single task yet.
    arriving: Vec<Task>,
    /// Messages that wait for this task.
    queue: VecDeque<Message>,
    /// The task is busy until then.
    pub stalled_until: Moment,
    /// Replies that have not reached their requester yet.
    replies: Vec<Task>,
    /// Requests that wait for their reply, by id: operation and path.
    waiting: BTreeMap<String, (Operation, String)>,
    /// Documents to the cloud, with their times.
    pub up: VecDeque<Bytes>,
    ids: u64,
    /// Deliveries of these paths are answered with `error`.
    pub failing: Option<String>,
    /// The kubelet has registered its node: it sent the request to the cloud and found the node in the store
    /// (docs/reference/kubeedge.md#start-of-a-node).
    pub registered: bool,
    /// Number of answers received, by operation.
    pub answered: BTreeMap<String, u64>,
}

impl KubeEdge {
    fn say(&mut self, message: &Message) {
        self.up.push_back(kubeedge::encode(message));
    }

    fn fresh_id(&mut self) -> MessageId {
        self.ids += 1;
        MessageId::parse(&format!("edge-{}", self.ids)).expect("printable")
    }

    pub fn keepalive(&mut self) {
        let resource = ResourcePath::parse_wire("node").expect("a path");
        let route = Route::new(Source::WebSocket, Group::Resource, Operation::Keepalive, resource);
        let message = Message::new(self.fresh_id(), 1, route, Content::ping());
        self.say(&message);
    }

    /// Registers the node, unless this process has done so.
    pub fn register(&mut self) {
        if !self.registered {
            let content = Content::from_json(&Bytes::from_static(b"{}")).expect("JSON");
            self.ask(Operation::Insert, NODE, content);
        }
    }

    /// Sends a request as the kubelet does.
    pub fn ask(&mut self, operation: Operation, path: &str, content: Content) {
        let resource = ResourcePath::parse_wire(path).expect(path);
        let id = self.fresh_id();
        let route = Route::new(Source::Edged, Group::Meta, operation.clone(), resource);
        self.waiting.insert(id.to_string(), (operation, path.to_owned()));
        let message = Message::new(id, 1, route, content);
        self.say(&message);
    }

    /// A document has arrived; its task runs after `jitter`.
    pub fn receive(&mut self, now: Moment, document: &Bytes, jitter: Duration) {
        let message = kubeedge::decode(document).expect("a message");
        assert_eq!(message.route.group, Group::Resource, "rule 3");
        let task = Task { at: now + jitter, message };
        if task.message.header.parent.is_some() {
            self.replies.push(task);
        } else {
            self.arriving.push(task);
        }
    }

    /// The time of the next event.
    pub fn next_event(&self, now: Moment) -> Option<Moment> {
        let tasks = self.arriving.iter().chain(&self.replies).map(|task| task.at);
        let queued = (!self.queue.is_empty()).then(|| self.stalled_until.max(now));
        tasks.chain(queued).min()
    }

    /// Does everything that is due; returns the rows that were written.
    pub fn step(&mut self, now: Moment) -> Vec<String> {
        let mut written = Vec::new();
        while let Some(index) = due(&self.replies, now) {
            let task = self.replies.swap_remove(index);
            written.extend(self.take_reply(&task.message));
        }
        while let Some(index) = due(&self.arriving, now) {
            let task = self.arriving.swap_remove(index);
            self.queue.push_back(task.message);
        }
        while now >= self.stalled_until
            && let Some(message) = self.queue.pop_front()
        {
            written.extend(self.process(&message));
        }
        written
    }

    /// MetaManager stores a message without comparing versions, then acknowledges it
    /// (docs/reference/kubeedge.md#store-operations).
    fn process(&mut self, message: &Message) -> Option<String> {
        let path = message.route.resource.to_wire();
        if self.failing.as_ref() == Some(&path) {
            let id = self.fresh_id();
            self.say(&message.error_reply(id, 1, "the database is locked"));
            return None;
        }
        assert!(matches!(message.route.source, Source::EdgeController | Source::DynamicController), "rule 5");
        let value: Value = message.content.read().expect("an object");
        let mut written = None;
        match message.route.operation {
            Operation::Insert | Operation::Update => {
                let row = row(&value);
                assert_eq!(message.header.resource_version, row.revision.to_string());
                assert!(value["kind"].is_string(), "MetaServer needs the kind");
                self.rows.insert(path.clone(), row);
                written = Some(path);
            }
            Operation::Delete => {
                let uid = value["metadata"]["uid"].as_str().unwrap_or_default();
                let matches = |row: &Row| !path.contains("/pod/") || row.uid.contains(uid);
                if self.rows.get(&path).is_some_and(matches) {
                    self.rows.remove(&path);
                }
            }
            ref other => panic!("a delivery with operation {other}"),
        }
        let id = self.fresh_id();
        self.say(&message.ack(id, 1));
        written
    }

    /// The requester reads the reply and stores its content (docs/reference/kubeedge.md#remote-calls).
    fn take_reply(&mut self, reply: &Message) -> Option<String> {
        let parent = reply.header.parent.as_ref().expect("a reply").to_string();
        // A reply without a waiting request is dropped with a warning.
        let (operation, path) = self.waiting.remove(&parent)?;
        *self.answered.entry(reply.route.operation.to_string()).or_default() += 1;
        let value: Value = reply.content.read().unwrap_or(Value::Null);
        let wrapped = value.get("Object").is_some() && value.get("Err").is_some();
        let object = if wrapped { &value["Object"] } else { &value };
        if wrapped && is_empty_error(&value["Err"]) {
            assert!(object.is_object(), "a KubeEdge edge dereferences it: {path}");
        }
        let failed = wrapped && !is_empty_error(&value["Err"]);
        let asked_remotely = operation != Operation::Patch;
        let mut written = None;
        if reply.route.operation == Operation::Response && !failed && object.is_object() {
            let target = path.replace("/podpatch/", "/pod/").replace("/nodepatch/", "/node/");
            if !target.contains("/lease/") {
                self.rows.insert(target.clone(), row(object));
                written = Some(target);
            }
        }
        if path == NODE && (!failed || self.rows.contains_key(NODE)) {
            self.registered = true;
        }
        if asked_remotely {
            let id = self.fresh_id();
            self.say(&reply.ack(id, 1));
        }
        written
    }

    /// The connection is lost: sent documents are lost, received ones are still processed.
    pub fn disconnected(&mut self) {
        self.up.clear();
        self.waiting.clear();
        self.replies.clear();
    }

    /// The process crashes: everything outside the store is lost.
    pub fn killed(&mut self) {
        self.disconnected();
        self.registered = false;
        self.arriving.clear();
        self.queue.clear();
        self.stalled_until = Moment::default();
    }
}

fn is_empty_error(err: &Value) -> bool {
    let status = &err["ErrStatus"];
    err.is_null() || status["reason"].as_str().is_none_or(str::is_empty)
}

/// The row for any content: an error that was stored as an object would be detected here.
fn row(value: &Value) -> Row {
    let metadata = &value["metadata"];
    if metadata["uid"].is_null() && metadata["name"].is_string() && value["spec"].is_null() {
        // An empty object that replaces an object that does not exist.
        return Row { uid: String::new(), revision: 0 };
    }
    let text =
        |name: &str| metadata[name].as_str().unwrap_or_else(|| panic!("stored without {name}: {value}"));
    Row { uid: text("uid").to_owned(), revision: text("resourceVersion").parse().expect("a number") }
}

fn due(tasks: &[Task], now: Moment) -> Option<usize> {
    let first = tasks.iter().enumerate().min_by_key(|(_, task)| task.at)?;
    (first.1.at <= now).then_some(first.0)
}
