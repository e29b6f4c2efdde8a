//! Nodes whose identity two machines use, as cloudcore reports in events.

use std::collections::BTreeSet;

use tombolo_cloud::kube::RawObject;
use tombolo_cloud::{CONTESTED_REASON, Kube};

use super::Report;
use super::api::Reached;
use crate::cluster::list;

/// Maximum number of node names in one line.
const NAMED_MAX: usize = 5;

/// Looks for recent events; the API server keeps them for an hour by default.
pub(super) async fn examine(api: &Reached, report: &mut Report) {
    let path = format!("/api/v1/namespaces/default/events?fieldSelector=reason={CONTESTED_REASON}");
    let mut nodes = BTreeSet::new();
    // Unreadable events are ignored.
    let each =
        |event: RawObject| nodes.extend(event.value()["involvedObject"]["name"].as_str().map(str::to_owned));
    match list(&Kube::from(api.client.clone()), &path, each).await {
        Ok(()) => judge(&nodes, report),
        Err(error) => {
            report.warn(CHECK, format!("cannot read events: {error}"), "Run as an administrator");
        }
    }
}

const CHECK: &str = "node identities";

fn judge(nodes: &BTreeSet<String>, report: &mut Report) {
    if nodes.is_empty() {
        return report.ok(CHECK, "no recent event reports an identity that two machines use");
    }
    let named: Vec<&str> = nodes.iter().map(String::as_str).take(NAMED_MAX).collect();
    let more = nodes.len().saturating_sub(named.len());
    let more = if more == 0 { String::new() } else { format!(" and {more} more") };
    report.fail(
        CHECK,
        format!("two machines use the identity of {}{more}", named.join(", ")),
        "Stop the copy, delete its data folder and join it under its own name",
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Level;

    #[test]
    fn duplicate_nodes_are_named_once() {
        let judged = |nodes: &[&str]| {
            let mut report = Report::new(|_| ());
            judge(&nodes.iter().map(|node| (*node).to_owned()).collect(), &mut report);
            (report.findings()[0].level, report.findings()[0].text.clone())
        };
        assert_eq!(judged(&[]).0, Level::Ok);
        let (level, text) = judged(&["edge-b", "edge-a", "edge-b"]);
        assert_eq!(level, Level::Fail);
        assert!(text.ends_with("edge-a, edge-b"), "{text}");
    }
}
