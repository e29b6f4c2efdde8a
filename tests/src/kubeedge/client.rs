//! The bridge between edged and the meta manager: how a request of the kubelet is handled
//! (docs/reference/kubeedge.md#the-edges-store).

use std::sync::Arc;

use anyhow::{Result, ensure};
use serde_json::Value;

use super::bus::Bus;
use super::wire::{acknowledgement, kind, message};

/// Sends requests of edged.
#[derive(Clone)]
pub(super) struct Client {
    pub(super) bus: Arc<Bus>,
    /// Name of the node.
    pub(super) node: String,
}

impl Client {
    pub(super) fn new(bus: Arc<Bus>, node: String) -> Self {
        Self { bus, node }
    }

    /// Row of the node's Node.
    pub(super) fn node_row(&self) -> String {
        format!("null/node/{}", self.node)
    }

    /// Sends a request, processes the answer as the edge does, and returns the complete answer.
    pub(super) async fn ask(&self, operation: &str, resource: &str, content: Value) -> Result<Value> {
        let request = message("edged", "meta", operation, resource, &content);
        if operation == "patch" {
            let mut store = self.bus.store.lock();
            store.put(resource, &content);
            *store.reported.entry(resource.to_owned()).or_default() += 1;
        }
        ensure!(self.bus.store.lock().connected, "connection lost");
        let reply = self.bus.exchange(request).await?;
        match operation {
            "patch" => self.bus.store.lock().take_patched(&self.node, resource, &reply["content"]),
            // Only forwarded.
            "delete" => {}
            _ => {
                self.bus.store.lock().take_reply(&reply);
                self.bus.send_up(acknowledgement(&reply)).await?;
            }
        }
        self.check_dereferenced(operation, resource, &reply);
        Ok(reply)
    }

    /// A KubeEdge edge crashes on an empty wrapper where it dereferences the object
    /// (docs/reference/kubeedge.md#outcomes).
    fn check_dereferenced(&self, operation: &str, resource: &str, reply: &Value) {
        let dereferenced = matches!(
            (operation, kind(resource)),
            ("insert", "node" | "pod") | ("patch", "nodepatch" | "podpatch")
        );
        if dereferenced && failure(reply).is_none() && !reply["content"]["Object"].is_object() {
            self.bus.store.lock().harm(format!("a KubeEdge edge crashes on {reply}"));
        }
    }
}

/// The error of a wrapper as a KubeEdge edge decodes it: an error without a status is ignored
/// (docs/reference/kubeedge.md#errors-without-a-status).
pub(super) fn failure(reply: &Value) -> Option<&Value> {
    reply.pointer("/content/Err/ErrStatus").filter(|status| status["status"] == "Failure")
}

/// The object of a wrapper.
///
/// # Errors
/// When the wrapper holds an error, or no object.
pub fn done(reply: &Value) -> Result<Value> {
    let content = &reply["content"];
    ensure!(content["Err"].is_null(), "{}", content["Err"]);
    ensure!(content["Object"].is_object(), "no object: {reply}");
    Ok(content["Object"].clone())
}
