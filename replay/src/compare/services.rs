//! Addresses and ports of Services, which each cluster allocates itself.

use serde_json::Value;

use super::{Comparison, ComparisonResult};
use crate::identifiers::{Identifiers, Sort};
use crate::rules::Rule;

/// Members of a Service that its cluster allocates, in `spec` and in its ports.
const NUMBERS: [&str; 2] = ["nodePort", "healthCheckNodePort"];

impl Comparison<'_> {
    /// Compares what the cluster allocates to a Service; `None` for any other member, and where nothing is allocated.
    pub(super) fn allotted(
        &mut self,
        parent: &str,
        pointer: &str,
        name: &str,
        sides: (&Value, &Value),
    ) -> Option<ComparisonResult> {
        let (one, other) = (allotment(parent, name, sides.0)?, allotment(parent, name, sides.1)?);
        if one != other {
            self.rules.push(Rule::ClusterAdds);
        }
        Some(self.pair(Sort::Allotted, scope(name), &one, &other, pointer))
    }
}

/// Learns the allocations of a Service that was put into the API from the API's answer.
pub(super) fn learn(identifiers: &mut Identifiers, recorded: &Value, live: &Value) {
    let mut pair = |parent: &str, name: &str, recorded: &Value, live: &Value| {
        let of = |object: &Value| allotment(parent, name, &object[name]);
        if let (Some(one), Some(other)) = (of(recorded), of(live)) {
            // A contradiction is reported when a frame shows it.
            let _ = identifiers.pair(Sort::Allotted, scope(name), &one, &other);
        }
    };
    let (recorded, live) = (&recorded["spec"], &live["spec"]);
    for name in ["clusterIP", "clusterIPs", "healthCheckNodePort"] {
        pair("/spec", name, recorded, live);
    }
    let ports = |spec: &Value| spec["ports"].as_array().cloned().unwrap_or_default();
    for (one, other) in ports(recorded).iter().zip(&ports(live)) {
        pair("/spec/ports/0", "nodePort", one, other);
    }
}

fn scope(name: &str) -> &'static str {
    match name {
        _ if NUMBERS.contains(&name) => "port",
        // A list has its own text, even if it has one member.
        "clusterIPs" => "addresses",
        _ => "address",
    }
}

/// The address or port that the cluster allocated to a member of a Service.
fn allotment(parent: &str, name: &str, value: &Value) -> Option<String> {
    match name {
        "clusterIP" if parent.ends_with("/spec") => {
            value.as_str().filter(|text| !text.is_empty() && *text != "None").map(str::to_owned)
        }
        "clusterIPs" if parent.ends_with("/spec") => {
            let addresses: Vec<&str> = value.as_array()?.iter().filter_map(Value::as_str).collect();
            (addresses != ["None"]).then(|| addresses.join(","))
        }
        "nodePort" if parent.contains("/spec/ports/") => value.as_u64().map(|port| port.to_string()),
        "healthCheckNodePort" if parent.ends_with("/spec") => value.as_u64().map(|port| port.to_string()),
        _ => None,
    }
}
