//! Nodes whose identity two machines use, as cloudcore has said in events.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Event;
use kube::Api;
use kube::api::ListParams;
use tombolo_cloud::CONTESTED_REASON;

use super::Report;
use super::api::Reached;

/// Names of nodes in one line, at most.
const NAMED_MAX: usize = 5;

/// Looks for events of the last time that the API server keeps, an hour by default.
pub(super) async fn examine(api: &Reached, report: &mut Report) {
    let events: Api<Event> = Api::namespaced(api.client.clone(), "default");
    let selection = ListParams::default().fields(&format!("reason={CONTESTED_REASON}"));
    match events.list(&selection).await {
        Ok(events) => judge(&events.items, report),
        Err(error) => {
            report.warn(CHECK, format!("events cannot be read: {error}"), "Ask as an administrator");
        }
    }
}

const CHECK: &str = "identities of nodes";

fn judge(events: &[Event], report: &mut Report) {
    let nodes: BTreeSet<&str> =
        events.iter().filter_map(|event| event.involved_object.name.as_deref()).collect();
    if nodes.is_empty() {
        return report.ok(CHECK, "none was seen on two machines lately");
    }
    let named: Vec<&str> = nodes.iter().copied().take(NAMED_MAX).collect();
    let more = nodes.len().saturating_sub(named.len());
    let more = if more == 0 { String::new() } else { format!(" and {more} more") };
    report.fail(
        CHECK,
        format!("two machines use the identity of {}{more}", named.join(", ")),
        "Stop the copy, remove its data folder and join it under a name of its own",
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Level;

    #[test]
    fn nodes_that_exist_twice_are_named_once() {
        let event = |node: &str| {
            let mut event = Event::default();
            event.involved_object.name = Some(node.to_owned());
            event
        };
        let judged = |events: &[Event]| {
            let mut report = Report::new(|_| ());
            judge(events, &mut report);
            (report.findings()[0].level, report.findings()[0].text.clone())
        };
        assert_eq!(judged(&[]).0, Level::Ok);
        let (level, text) = judged(&[event("edge-b"), event("edge-a"), event("edge-b")]);
        assert_eq!(level, Level::Fail);
        assert!(text.ends_with("edge-a, edge-b"), "{text}");
    }
}
