//! When the faults have ended and the system has had its time, it is quiet: only leases, pings, attestations, and what
//! a node reports of itself and asks about local clients from time to time. In the API nothing is written but that and the record of the epoch.

use std::collections::{BTreeMap, BTreeSet};

use crate::observation::{FaultScope, Millis, Observation, Seen, SeenFrame};
use crate::oracle::{Context, Judge, Violation};

const RULE: &str = "quiet";

/// Names of events about nodes of which two machines have the identity.
const CONTESTED: &str = "identity-used-twice-";

/// Users of nodes.
const NODES: &str = "system:node:";

/// An agent reports in the place of a kubelet when it was silent for five minutes (docs/edge-node.md).
const TAKEOVER: Millis = 340_000;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Quiet {
    /// When a kubelet of a node last reported. Some time later its agent reports in its place, about itself and its pods.
    reported: BTreeMap<String, Millis>,
    /// Requests in which nodes report about themselves: their answers are lawful.
    heartbeats: BTreeSet<(u64, u64)>,
    /// Two machines had the identity of a node at some time.
    was_contested: bool,
}

impl Judge for Quiet {
    fn observe(&mut self, context: &Context, observation: &Observation, found: &mut Vec<Violation>) {
        let at = observation.at;
        match &observation.seen {
            Seen::ReportAccepted { node, .. } => {
                self.reported.insert(node.clone(), at);
            }
            Seen::Sent { connection: number, frame, .. } => {
                let Some(connection) = context.connections.get(*number) else { return };
                let node = &connection.node;
                let is_lawful = match frame {
                    SeenFrame::Keepalive | SeenFrame::Ack { .. } => true,
                    // Those who follow a Node see its heartbeats.
                    SeenFrame::Deliver(delivery) => delivery.object.resource == "nodes",
                    SeenFrame::Request { id, what, .. } => {
                        let is_lawful = is_heartbeat(node, what) || is_review(what);
                        if is_lawful {
                            self.heartbeats.insert((*number, *id));
                        }
                        is_lawful
                    }
                    SeenFrame::Reply { id, .. } => self.heartbeats.remove(&(*number, *id)),
                    SeenFrame::Document { operation, resource, .. } => {
                        operation == "keepalive" || is_heartbeat(node, resource)
                    }
                    _ => false,
                };
                let is_lawful = is_lawful || self.is_takeover(node, frame, at);
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
            Seen::FaultBegan { scope: FaultScope::Identity(_) } => self.was_contested = true,
            Seen::Wrote(write) if context.is_settled(at) => {
                let object = &write.object;
                let is_lawful = object.resource.starts_with("leases.")
                    || object.name == "tombolo-epoch"
                    // The renewal of its lease tells a node that it was used twice, at its next session.
                    || (self.was_contested && object.name.starts_with(CONTESTED))
                    || write.caller.strip_prefix(NODES).is_some_and(|node| self.takes_over(node, at))
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

    fn is_satisfied(&self, context: &Context) -> bool {
        let mut nodes = context.nodes.iter().filter(|node| context.node_may_connect(node));
        nodes.all(|node| context.connections.is_connected(node))
    }
}

impl Quiet {
    /// Whether the agent may begin to report at this time.
    fn takes_over(&self, node: &str, at: Millis) -> bool {
        self.reported.get(node).is_some_and(|last| at < last + TAKEOVER)
    }

    /// Whether a frame is part of a report about a pod or the Node, or of what follows from it for any node.
    fn is_takeover(&self, node: &str, frame: &SeenFrame, at: Millis) -> bool {
        let anybody = || self.reported.keys().any(|node| self.takes_over(node, at));
        match frame {
            SeenFrame::Request { what, .. } => {
                self.takes_over(node, at) && (what.contains("/pods/") || what.contains("/nodes/"))
            }
            SeenFrame::Reply { .. } => self.takes_over(node, at),
            SeenFrame::Deliver(delivery) => match &*delivery.object.resource {
                "nodes" => self.takes_over(&delivery.object.name, at),
                "pods" => self.takes_over(node, at),
                _ => false,
            },
            SeenFrame::Ack { .. } => anybody(),
            _ => false,
        }
    }
}

/// Whether a request asks for the rights or the keys of local clients' tokens, which are asked for again and again.
fn is_review(what: &str) -> bool {
    let reviews = ["/subjectaccessreviews", "/tokenreviews", "/openid-configuration", "/openid/v1/jwks"];
    reviews.iter().any(|ending| what.ends_with(ending))
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
    use crate::oracle::testing::{Bench, ack, deliver, down, gone, id, up};

    #[test]
    fn a_node_that_is_not_connected_is_waited_for() {
        let mut bench = Bench::<Quiet>::new();
        assert!(bench.is_satisfied());
        bench.fine(Seen::Closed { connection: 1, why: String::new() });
        assert!(!bench.is_satisfied());
    }

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
        let of = |object: &str| down(1, deliver(7, &id(object), gone()));
        bench.fine(of("nodes//n"));
        bench.fine(ack(7));
        bench.wrong(of("secrets/d/s"));
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
        bench.fine(request(5, "POST /apis/authorization.k8s.io/v1/subjectaccessreviews"));
        bench.wrong(request(3, "GET /api/v1/namespaces/d/pods/n"));
        bench.wrong(request(4, "PATCH /api/v1/nodes/other-n/status"));
    }

    #[test]
    fn an_agent_reports_in_the_place_of_a_kubelet_that_is_gone() {
        let mut bench = settled();
        let request = |id| {
            up(
                1,
                SeenFrame::Request {
                    id,
                    what: "PATCH /api/v1/namespaces/d/pods/p/status".to_owned(),
                    token: None,
                },
            )
        };
        bench.wrong(request(1));
        let (node, marker) = ("n".to_owned(), "r1".to_owned());
        bench.fine(Seen::ReportAccepted { node, object: id("pods/d/p"), uid: String::new(), marker });
        bench.fine(request(2));
        bench.api.put("pods/d/p", "system:node:n", json!({}));
        bench.fine(request(3));
        bench.pass(TAKEOVER);
        bench.wrong(request(4));
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

    #[test]
    fn an_identity_that_was_used_twice_is_told_later() {
        let event = "events/default/identity-used-twice-x";
        for was_contested in [false, true] {
            let mut bench = settled();
            if was_contested {
                bench.fine(Seen::FaultBegan { scope: FaultScope::Identity("n".to_owned()) });
            }
            bench.api.put(event, "cloudcore", json!({}));
            assert_eq!(bench.see(Seen::Finished).is_empty(), was_contested);
        }
    }
}
