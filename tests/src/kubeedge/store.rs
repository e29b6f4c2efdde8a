//! The rows that a KubeEdge edge keeps, and how it processes messages (docs/reference/kubeedge.md#the-edges-store).

use std::collections::BTreeMap;

use serde_json::Value;
use tokio::time::Instant;

use super::wire::{kind, route};

/// One message that changed the store or attempted to.
#[derive(Debug, Clone, PartialEq)]
pub struct Delivery {
    /// `insert`, `update`, `delete`.
    pub operation: String,
    /// Path on the wire.
    pub resource: String,
    /// The whole message.
    pub message: Value,
}

/// The rows of a KubeEdge edge.
#[derive(Debug, Default)]
pub struct Store {
    rows: BTreeMap<String, Value>,
    /// Pushed messages, in the order of processing.
    pub delivered: Vec<Delivery>,
    /// How often the kubelet has compared its node with the row since its process last started.
    pub compared: u64,
    /// Reports of the node and of pods, by path.
    pub reported: BTreeMap<String, u64>,
    /// Whether the edge believes that its connection is open.
    pub connected: bool,
    /// Why the last connection ended.
    pub ended: Option<String>,
    /// Connections so far.
    pub connections: u64,
    /// When the newest connection was established.
    pub since: Option<Instant>,
    /// Messages of the edge that were lost because their connection was dead. The process does not know this.
    pub lost: Vec<Value>,
    /// Messages that the queue behind the socket dropped.
    pub dropped: u64,
    /// Requests that were not answered in time although the connection was alive.
    pub unanswered: Vec<String>,
    /// Events that would have harmed a KubeEdge edge.
    pub harms: Vec<String>,
}

impl Store {
    /// The object at a path.
    #[must_use]
    pub fn row(&self, path: &str) -> Option<&Value> {
        self.rows.get(path)
    }

    /// Whether there is an object at a path.
    #[must_use]
    pub fn has(&self, path: &str) -> bool {
        self.rows.contains_key(path)
    }

    /// Paths of all rows.
    #[must_use]
    pub fn paths(&self) -> Vec<&str> {
        self.rows.keys().map(String::as_str).collect()
    }

    /// All rows of a type, with their paths.
    pub fn of_kind<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = (&'a str, &'a Value)> {
        let rows = self.rows.iter().map(|(path, row)| (path.as_str(), row));
        rows.filter(move |(path, _)| self::kind(path) == kind)
    }

    /// Deletes everything, as on an edge with a new database.
    pub fn wipe(&mut self) {
        self.rows.clear();
    }

    /// Rows and connection, for the message of a failed test.
    #[must_use]
    pub fn describe(&self) -> (Vec<&str>, bool, Option<&str>) {
        (self.paths(), self.connected, self.ended.as_deref())
    }

    pub(super) fn connect(&mut self) {
        self.connected = true;
        self.connections += 1;
        self.since = Some(Instant::now());
    }

    /// Whether the message with this id was lost.
    pub(super) fn has_lost(&self, id: &str) -> bool {
        self.lost.iter().any(|message| message["header"]["msg_id"] == id)
    }

    /// Records an event that would have harmed a KubeEdge edge.
    pub(super) fn harm(&mut self, what: String) {
        self.harms.push(what);
    }

    /// Processes a pushed message. False when it is not acknowledged.
    pub(super) fn take(&mut self, message: &Value) -> bool {
        let (operation, path) = (route(message, "operation"), route(message, "resource"));
        match operation {
            "insert" => self.put(path, &message["content"]),
            // Only these sources are known (docs/reference/kubeedge.md#accepted-sources). Messages of others are stored
            // and not acknowledged.
            "update" => {
                self.put(path, &message["content"]);
                let source = route(message, "source");
                let known = ["edgecontroller", "dynamiccontroller", "devicecontroller", "policycontroller"];
                if !known.contains(&source) {
                    self.harm(format!("an update of an unknown source: {message}"));
                    return false;
                }
            }
            "delete" => self.remove(path, &message["content"]),
            _ => {
                self.harm(format!("an operation that the edge does not know: {message}"));
                return false;
            }
        }
        let (operation, resource) = (operation.to_owned(), path.to_owned());
        self.delivered.push(Delivery { operation, resource, message: message.clone() });
        true
    }

    /// Stores the answer to a remote call, including errors (docs/reference/kubeedge.md#remote-calls).
    pub(super) fn take_reply(&mut self, reply: &Value) {
        let (content, path) = (&reply["content"], route(reply, "resource"));
        let wrapped = content.get("Object").is_some() && content.get("Err").is_some();
        if *content == "OK" || route(reply, "operation") != "response" {
            return;
        }
        if !wrapped {
            self.put(&row_of(path, content), content);
        } else if content["Err"].is_null() {
            self.put(path, &content["Object"]);
        }
    }

    /// The client library stores patched objects at the object's own path, which it derives from the kind
    /// (docs/reference/kubeedge.md#patches).
    pub(super) fn take_patched(&mut self, node: &str, path: &str, content: &Value) {
        if content.pointer("/Err/ErrStatus").is_some() || !content["Object"].is_object() {
            return;
        }
        let (path, named) = match kind(path) {
            "nodepatch" => (format!("null/node/{node}"), "Node"),
            _ => (path.replacen("/podpatch/", "/pod/", 1), "Pod"),
        };
        let mut object = content["Object"].clone();
        object["kind"] = named.into();
        object["apiVersion"] = "v1".into();
        self.put(&path, &object);
    }

    pub(super) fn put(&mut self, path: &str, content: &Value) {
        self.rows.insert(path.to_owned(), content.clone());
    }

    /// Removes a pod only if the deletion refers to this incarnation (docs/reference/kubeedge.md#store-operations).
    fn remove(&mut self, path: &str, content: &Value) {
        let uid = content.pointer("/metadata/uid").and_then(Value::as_str).unwrap_or_default();
        let is_pod = kind(path) == "pod";
        if !is_pod || self.rows.get(path).is_some_and(|row| row.to_string().contains(uid)) {
            self.rows.remove(path);
            if is_pod {
                self.rows.remove(&path.replacen("/pod/", "/podpatch/", 1));
            }
        }
    }
}

/// The row of a reply's object: its path, except for tokens, whose key is computed from the reply
/// (docs/reference/kubeedge.md#rows).
fn row_of(path: &str, content: &Value) -> String {
    if kind(path) == "serviceaccounttoken" { format!("{path}/{}", content["spec"]) } else { path.to_owned() }
}
