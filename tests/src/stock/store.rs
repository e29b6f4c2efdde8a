//! What a stock edge keeps, and what it makes of the messages that come (reference 9).

use std::collections::BTreeMap;

use serde_json::Value;

use super::acknowledgement;

/// One message that changed the store or tried to.
#[derive(Debug, Clone, PartialEq)]
pub struct Delivery {
    /// `insert`, `update`, `delete`.
    pub operation: String,
    /// Path on the wire.
    pub resource: String,
    /// The whole message.
    pub message: Value,
}

/// The rows of a stock edge.
#[derive(Debug, Default)]
pub struct Store {
    rows: BTreeMap<String, Value>,
    /// What was pushed, in the order in which it came.
    pub delivered: Vec<Delivery>,
    /// Whether the newest connection is open.
    pub connected: bool,
    /// Why the last connection ended, when it was no orderly end.
    pub ended: Option<String>,
}

impl Store {
    /// The object under a path.
    #[must_use]
    pub fn row(&self, path: &str) -> Option<&Value> {
        self.rows.get(path)
    }

    /// Whether there is one.
    #[must_use]
    pub fn has(&self, path: &str) -> bool {
        self.rows.contains_key(path)
    }

    /// Paths of all rows.
    #[must_use]
    pub fn paths(&self) -> Vec<&str> {
        self.rows.keys().map(String::as_str).collect()
    }

    /// Loses everything, as an edge with a new database has.
    pub fn wipe(&mut self) {
        self.rows.clear();
    }

    /// Rows and connection, for the message of a failed test.
    #[must_use]
    pub fn describe(&self) -> (Vec<&str>, bool, Option<&str>) {
        (self.paths(), self.connected, self.ended.as_deref())
    }

    /// Takes a message; the answer to it, when it is acknowledged.
    pub(super) fn take(&mut self, document: &Value) -> Option<Value> {
        let route = &document["route"];
        let text = |name: &str| route[name].as_str().unwrap_or_default();
        if document["header"]["parent_msg_id"].is_string() {
            return self.take_reply(document, text("operation"), text("resource"));
        }
        if !matches!(text("group"), "resource" | "func") {
            return None;
        }
        let (operation, path) = (text("operation"), text("resource"));
        match operation {
            "insert" => self.put(path, &document["content"]),
            // Only these sources are known (reference 9.4); anything else is not acknowledged.
            "update" if matches!(text("source"), "edgecontroller" | "dynamiccontroller") => {
                self.put(path, &document["content"]);
            }
            "delete" => self.remove(path, &document["content"]),
            _ => return None,
        }
        let (operation, resource) = (operation.to_owned(), path.to_owned());
        self.delivered.push(Delivery { operation, resource, message: document.clone() });
        Some(acknowledgement(document))
    }

    /// Stores what a reply carries, errors included (reference 9.5).
    fn take_reply(&mut self, document: &Value, operation: &str, path: &str) -> Option<Value> {
        let content = &document["content"];
        if operation == "applicationResponse" {
            return None;
        }
        let wrapped = content.get("Object").is_some() && content.get("Err").is_some();
        if operation == "response" && wrapped && content["Err"].is_null() {
            // The client library stores patched objects under the object's own path (reference 9.7).
            self.put(&path.replace("nodepatch/", "node/").replace("podpatch/", "pod/"), &content["Object"]);
        } else if operation == "response" && !wrapped && *content != "OK" {
            self.put(path, content);
        }
        Some(acknowledgement(document))
    }

    fn put(&mut self, path: &str, content: &Value) {
        self.rows.insert(path.to_owned(), content.clone());
    }

    /// A pod goes only when the deletion means this incarnation (reference 9.3).
    fn remove(&mut self, path: &str, content: &Value) {
        let uid = content.pointer("/metadata/uid").and_then(Value::as_str).unwrap_or_default();
        let is_pod = path.split('/').nth(1) == Some("pod");
        if !is_pod || self.rows.get(path).is_some_and(|row| row.to_string().contains(uid)) {
            self.rows.remove(path);
        }
    }
}
