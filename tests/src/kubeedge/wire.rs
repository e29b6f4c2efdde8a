//! Messages as JSON, built from docs/reference/kubeedge.md#messages.

use serde_json::{Value, json};
use tombolo_testkit::fresh;

/// A message that is not an answer.
pub(super) fn message(source: &str, group: &str, operation: &str, resource: &str, content: &Value) -> Value {
    json!({
        "header": {"msg_id": id(), "timestamp": jiff::Timestamp::now().as_millisecond()},
        "route": {"source": source, "group": group, "operation": operation, "resource": resource},
        "content": content
    })
}

/// A field of the route; empty if it is missing.
pub(super) fn route<'a>(message: &'a Value, field: &str) -> &'a str {
    message["route"][field].as_str().unwrap_or_default()
}

/// The type in a resource: its second segment (docs/reference/kubeedge.md#resource-paths).
pub(super) fn kind(resource: &str) -> &str {
    resource.split('/').nth(1).unwrap_or_default()
}

/// The acknowledgement of a message (docs/reference/kubeedge.md#acknowledgements).
pub(super) fn acknowledgement(message: &Value) -> Value {
    let [source, group, resource] = ["source", "group", "resource"].map(|field| route(message, field));
    let mut ack = self::message(source, group, "response", resource, &json!("OK"));
    ack["header"]["parent_msg_id"] = message["header"]["msg_id"].clone();
    ack
}

fn id() -> String {
    format!("00000000-0000-4000-8000-{:012x}", fresh())
}
