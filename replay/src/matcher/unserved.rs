//! Answers to applications that request resources which the run's cluster does not serve.

use std::collections::HashSet;

use serde_json::Value;

use crate::frame::Frame;

/// The answer of the run as it would be if its cluster served the resource, provided that this is the only reason for
/// the refusal; `None` if nothing is refused for that reason. `undefined` are the resources that it does not serve.
pub(super) fn answer(undefined: &HashSet<String>, recorded: &Frame, live: &Frame) -> Option<Frame> {
    if undefined.is_empty() || recorded.operation() != "applicationResponse" {
        return None;
    }
    let mut served = live.clone();
    let content = &mut served.as_json_mut()["content"];
    if recorded.resource() == "watchapp/sync" {
        let known = recorded.content();
        let members = content.as_object_mut()?;
        let before = members.len();
        members.retain(|id, record| known.get(id).is_some() || !is_refused(undefined, record));
        return (members.len() != before).then_some(served);
    }
    if recorded.content()["Status"] != "Approved" || !is_refused(undefined, content) {
        return None;
    }
    for member in ["Status", "Reason", "Error", "RespBody"] {
        content[member] = recorded.content()[member].clone();
    }
    Some(served)
}

/// Whether a read record was refused because there is no such resource.
fn is_refused(undefined: &HashSet<String>, record: &Value) -> bool {
    let key = record["Key"].as_str().unwrap_or_default();
    let resource: Vec<&str> = key.trim_start_matches('/').splitn(4, '/').take(3).collect();
    matches!(record["Verb"].as_str(), Some("get" | "list" | "watch"))
        && undefined.contains(&resource.join("/"))
        && record["Status"] == "Rejected"
        && record.pointer("/Error/ErrStatus/code") == Some(&404.into())
}
