//! TaintNodesByCondition: no pod is scheduled to a new Node before it reports that it is ready. The plugin is active
//! only while a kube-controller-manager runs, because only that removes the taint.

use serde_json::{Value, json};
use tombolo_apicore::admission::{AdmissionRequest, Operation};

use crate::objects::{items, list_member, member, text};

/// Taint of a Node that is not ready.
const NOT_READY: &str = "node.kubernetes.io/not-ready";

/// Effect of taints that keep new pods away and let existing pods stay.
const NO_SCHEDULE: &str = "NoSchedule";

/// Taints a new Node.
pub(super) fn complete(request: &mut AdmissionRequest<'_>) {
    let asked = request.attributes;
    let is_node = asked.group.is_empty() && asked.resource == "nodes" && asked.subresource.is_empty();
    if let (true, Operation::Create, Some(node)) = (is_node, request.operation, request.object.as_deref_mut())
    {
        taint(node);
    }
}

fn taint(node: &mut Value) {
    let is_there = |taint: &Value| text(taint, "/key") == NOT_READY && text(taint, "/effect") == NO_SCHEDULE;
    if !items(node, "/spec/taints").iter().any(is_there) {
        list_member(member(node, "spec"), "taints").push(json!({"key": NOT_READY, "effect": NO_SCHEDULE}));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_node_is_tainted_once() {
        let mut node = json!({"spec": {"taints": [{"key": NOT_READY, "effect": "NoExecute"}]}});
        for _ in 0..2 {
            taint(&mut node);
        }
        assert_eq!(items(&node, "/spec/taints").len(), 2);
    }
}
