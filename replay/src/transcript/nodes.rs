//! Finds the node of each connection whose lines do not name it.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{Event, Line};

/// Adds the connections whose frames name a node: by its own Node, reports about it, its lease, or the sender of an
/// application's request (docs/reference/kubeedge.md#resource-paths). `header` is the node of all other connections.
pub(super) fn infer(lines: &[Line], header: Option<&str>, nodes: &mut BTreeMap<u64, String>) {
    let mut inferred: BTreeMap<u64, &str> = BTreeMap::new();
    for line in lines {
        let (Some(conn), Event::Up(frame)) = (line.conn, &line.event) else { continue };
        if frame.is_tombolo() || nodes.contains_key(&conn) || inferred.contains_key(&conn) {
            continue;
        }
        let named = match frame.resource().split('/').collect::<Vec<_>>()[..] {
            [_, "node" | "nodepatch" | "nodestatus", name] => Some(name),
            ["kube-node-lease", "lease", name] => Some(name),
            _ => frame.content().get("Nodename").and_then(Value::as_str),
        };
        if let Some(name) = named.filter(|name| !name.is_empty()) {
            inferred.insert(conn, name);
        }
    }
    let others = inferred.into_iter().filter(|(_, name)| header != Some(*name));
    nodes.extend(others.map(|(conn, name)| (conn, name.to_owned())));
}
