//! When the faults have ended and the system has had its time, it is quiet: only leases, pings, attestations, and what
//! a node reports of itself from time to time. In the API nothing is written but that and the record of the epoch.

use std::collections::BTreeSet;

use crate::observation::{Observation, Seen, SeenFrame};
use crate::oracle::{OracleContext, RuleJudge, Violation};

const RULE: &str = "quiet";

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Quiet {
    /// Requests in which nodes report about themselves: their answers are lawful.
    heartbeats: BTreeSet<(u64, u64)>,
}

impl RuleJudge for Quiet {
    fn observe(&mut self, context: &OracleContext, observation: &Observation, found: &mut Vec<Violation>) {
        let at = observation.at;
        match &observation.seen {
            Seen::Sent { connection: number, frame, .. } => {
                let Some(connection) = context.connections.get(*number) else { return };
                let node = &connection.node;
                let is_lawful = match frame {
                    SeenFrame::Keepalive => true,
                    SeenFrame::Request { id, what, .. } => {
                        let is_own = is_heartbeat(node, what);
                        if is_own {
                            self.heartbeats.insert((*number, *id));
                        }
                        is_own
                    }
                    SeenFrame::Reply { id, .. } => self.heartbeats.remove(&(*number, *id)),
                    SeenFrame::Document { operation, resource, .. } => {
                        operation == "keepalive" || is_heartbeat(node, resource)
                    }
                    _ => false,
                };
                if !is_lawful && context.is_settled(at) && context.nodes.contains(node) {
                    found.push(Violation {
                        rule: RULE,
                        at,
                        node: node.clone(),
                        object: None,
                        seen: format!("connection {number} carries {frame:?}"),
                        expected: "leases, pings and heartbeats alone".to_owned(),
                    });
                }
            }
            Seen::Wrote(write) if context.is_settled(at) => {
                let object = &write.object;
                let is_lawful = object.resource.starts_with("leases.")
                    || object.name == "tombolo-epoch"
                    || (object.resource == "nodes" && write.caller == format!("system:node:{}", object.name));
                if !is_lawful {
                    found.push(Violation {
                        rule: RULE,
                        at,
                        node: String::new(),
                        object: Some(object.clone()),
                        seen: format!("{} writes it", write.caller),
                        expected: "no writes but leases, heartbeats and the record of the epoch".to_owned(),
                    });
                }
            }
            _ => {}
        }
    }
}

/// Whether a request is about the node itself: its status or its lease.
fn is_heartbeat(node: &str, what: &str) -> bool {
    let about = ["/nodes/", "/node/", "/nodestatus/", "/leases/", "/lease/", "/nodelease/"];
    let path = what.split(['?', ' ']).find(|part| part.contains('/')).unwrap_or_default();
    let path = path.strip_suffix("/status").unwrap_or(path);
    path.strip_suffix(node).is_some_and(|kind| about.iter().any(|ending| kind.ends_with(ending)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::oracle::testing::{Bench, ack, down, up};

    fn settled() -> Bench<Quiet> {
        let mut bench = Bench::new();
        bench.fine(ack(1));
        bench.fine(Seen::FaultsEnded);
        bench.fine(ack(2));
        bench.pass(1000);
        bench
    }

    #[test]
    fn traffic_after_the_end_is_found() {
        let mut bench = settled();
        bench.fine(up(1, SeenFrame::Keepalive));
        bench.wrong(ack(3));
        bench.wrong(up(1, SeenFrame::Hello { inventory: None }));
        bench.wrong(down(1, SeenFrame::Goodbye { reason: 3 }));
    }

    #[test]
    fn a_node_reports_of_itself_and_is_answered() {
        let mut bench = settled();
        let request = |id, what: &str| up(1, SeenFrame::Request { id, what: what.to_owned(), token: None });
        let reply = |id| down(1, SeenFrame::Reply { id, code: 200, objects: Vec::new() });
        bench.fine(request(1, "PATCH /api/v1/nodes/n/status?fieldManager=x"));
        bench.fine(reply(1));
        bench.wrong(reply(1));
        bench.fine(request(2, "PUT /apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n"));
        bench.wrong(request(3, "GET /api/v1/namespaces/d/pods/n"));
        bench.wrong(request(4, "PATCH /api/v1/nodes/other-n/status"));
    }

    #[test]
    fn writes_after_the_end_are_found() {
        let mut bench = settled();
        bench.api.put("nodes//n", "system:node:n", json!({}));
        bench.api.put("leases.coordination.k8s.io/kube-node-lease/n", "cloudcore", json!({}));
        bench.api.put("configmaps/tombolo/tombolo-epoch", "cloudcore", json!({}));
        bench.fine(Seen::Finished);
        bench.api.put("pods/d/p", "system:node:n", json!({}));
        bench.wrong(Seen::Finished);
    }
}
