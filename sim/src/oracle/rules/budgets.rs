//! Budgets hold: what a host says it uses, what the network shows of the windows of deliveries, and how often a node
//! connects. A session that achieves nothing lets the back-off grow, so a node connects a few times a minute, whatever
//! becomes of its sessions. Nodes in whose name somebody breaks the rules are not counted.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::observation::{FaultScope, Millis, Observation, Seen, SeenFrame};
use crate::oracle::{Context, Judge, Violation};

const RULE: &str = "budgets";

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Budgets {
    /// Times of the connections of each node in the last minute.
    connections: BTreeMap<String, VecDeque<Millis>>,
    hostile: BTreeSet<String>,
}

const MINUTE: Millis = 60_000;

impl Judge for Budgets {
    fn observe(&mut self, context: &Context, observation: &Observation, found: &mut Vec<Violation>) {
        let mut report = |node: &str, seen: String, expected: String| {
            let (at, node) = (observation.at, node.to_owned());
            found.push(Violation { rule: RULE, at, node, object: None, seen, expected });
        };
        match &observation.seen {
            Seen::Usage { host, budget, peer, used, limit } if used > limit => {
                report(peer, format!("{host} uses {used} of {budget}"), format!("at most {limit}"));
            }
            Seen::FaultBegan { scope: FaultScope::Hostile(node) } => {
                self.hostile.insert(node.clone());
            }
            Seen::Connected { node, .. } if !self.hostile.contains(node) => {
                let times = self.connections.entry(node.clone()).or_default();
                times.push_back(observation.at);
                times.retain(|time| time + MINUTE > observation.at);
                let most = context.limits.connections;
                if times.len() > most {
                    let seen = format!("{} connections in a minute", times.len());
                    times.clear();
                    report(node, seen, format!("at most {most}"));
                }
            }
            Seen::Sent { connection, up: false, lane, frame: SeenFrame::Deliver(_), .. } => {
                let Some(connection) = context.connections.get(*connection) else { return };
                let under_way = connection.under_way.range((*lane, 0)..=(*lane, u64::MAX));
                let (count, bytes) =
                    under_way.fold((0, 0), |(count, bytes), (_, one)| (count + 1, bytes + one.bytes));
                let limits = &context.limits;
                if count > limits.window_count || (bytes > limits.window_bytes && count > 1) {
                    let seen = format!("{count} deliveries of {bytes} bytes are under way in lane {lane}");
                    let expected = format!(
                        "at most {} of {} bytes, or one alone",
                        limits.window_count, limits.window_bytes
                    );
                    report(&connection.node, seen, expected);
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::SeenChange;
    use crate::oracle::testing::{Bench, ack, deliver, down, id};

    #[test]
    fn more_than_a_budget_is_found() {
        let usage = |used| Seen::Usage {
            host: "replica-0".to_owned(),
            budget: "session bytes".to_owned(),
            peer: "n".to_owned(),
            used,
            limit: 10,
        };
        let mut bench = Bench::<Budgets>::new();
        bench.fine(usage(10));
        assert_eq!(bench.wrong(usage(11)).node, "n");
    }

    #[test]
    fn a_node_that_connects_again_and_again_is_found() {
        let mut bench = Bench::<Budgets>::new();
        let connect =
            || Seen::Connected { connection: 9, node: "n".to_owned(), machine: "n".to_owned(), replica: 0 };
        let often = |bench: &mut Bench<Budgets>, pause| {
            let found = (0..60).map(|_| {
                bench.pass(pause);
                bench.see(connect()).len()
            });
            found.sum::<usize>()
        };
        assert_eq!(often(&mut bench, 2_500), 0);
        assert!(often(&mut bench, 300) > 0);
        bench.fine(Seen::FaultBegan { scope: FaultScope::Hostile("n".to_owned()) });
        assert_eq!(often(&mut bench, 300), 0);
    }

    #[test]
    fn a_window_is_bounded_in_number_and_in_bytes() {
        let mut bench = Bench::<Budgets>::new();
        let sent = |seq: u64, bytes: usize| match down(1, deliver(seq, &id("pods/d/p"), SeenChange::Delete)) {
            Seen::Sent { connection, up, lane, frame, .. } => {
                Seen::Sent { connection, up, lane, bytes, frame }
            }
            other => other,
        };
        for seq in 1..=64 {
            bench.fine(sent(seq, 10));
        }
        bench.wrong(sent(65, 10));
        bench.fine(ack(65));
        bench.fine(sent(66, 3 << 20));
        bench.wrong(sent(67, 1));
        bench.fine(ack(67));
        bench.fine(sent(68, 1 << 19));
        bench.fine(sent(69, 1 << 19));
    }
}
