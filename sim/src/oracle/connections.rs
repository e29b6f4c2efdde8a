//! The connections of nodes, and the deliveries that are under way on each.

use std::collections::{BTreeMap, BTreeSet};

use crate::observation::{Seen, SeenDelivery, SeenFrame, Selection};

/// A delivery of which the edge has not said yet that it is on disk.
#[derive(Debug, Clone)]
pub(super) struct UnderWay {
    /// Length of its frame in bytes.
    pub(super) bytes: usize,
    /// The delivery.
    pub(super) delivery: SeenDelivery,
}

/// A subscription of a local client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Subscription {
    /// What it selects.
    pub(super) selection: Selection,
    /// Token of the client; `None` for the node itself.
    pub(super) token: Option<String>,
}

/// One connection.
#[derive(Debug)]
pub(super) struct Connection {
    /// The node.
    pub(super) node: String,
    /// The machine on which its agent runs.
    pub(super) machine: String,
    /// The replica.
    pub(super) replica: u32,
    /// Deliveries under way, by lane and position.
    pub(super) under_way: BTreeMap<(u8, u64), UnderWay>,
    /// Subscriptions, also those that have ended: what was sent before may still arrive.
    pub(super) subscriptions: BTreeMap<u32, Subscription>,
    /// Requests that wait for an answer, with the token of their client.
    pub(super) requests: BTreeMap<u64, Option<String>>,
}

/// What the edge said about deliveries in one frame.
#[derive(Debug, Default)]
pub(super) struct Answered {
    /// On disk, in the order of their positions; each with its lane.
    pub(super) stored: Vec<UnderWay>,
    /// Refused.
    pub(super) refused: Vec<UnderWay>,
}

/// All connections, and for each node the epoch in which it was last caught up.
#[derive(Debug, Default)]
pub(super) struct Connections {
    all: BTreeMap<u64, Connection>,
    epochs: BTreeMap<String, String>,
    /// Nodes that have not been caught up since a backup was restored, with the epoch before.
    between: BTreeMap<String, String>,
    nodes: BTreeSet<String>,
    /// Those that live at both ends.
    living: BTreeSet<u64>,
}

impl Connections {
    /// Follows an observation. Returns what an edge said about deliveries.
    pub(super) fn observe(&mut self, seen: &Seen) -> Answered {
        match seen {
            Seen::Connected { connection, node, machine, replica } => {
                self.connected(*connection, (node, machine), *replica);
            }
            Seen::Closed { connection, .. } => {
                self.living.remove(connection);
            }
            Seen::Restored { .. } => {
                for node in &self.nodes {
                    let epoch = self.epochs.get(node).cloned().unwrap_or_default();
                    self.between.entry(node.clone()).or_insert(epoch);
                }
            }
            Seen::Sent { connection, up: true, frame, .. } => return self.edge_sent(*connection, frame),
            Seen::Sent { connection, up: false, lane, bytes, frame } => {
                self.cloud_sent(*connection, (*lane, *bytes), frame);
            }
            _ => {}
        }
        Answered::default()
    }

    fn connected(&mut self, connection: u64, (node, machine): (&str, &str), replica: u32) {
        self.nodes.insert(node.to_owned());
        self.living.insert(connection);
        let (node, machine) = (node.to_owned(), machine.to_owned());
        let (under_way, subscriptions, requests) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        self.all
            .insert(connection, Connection { node, machine, replica, under_way, subscriptions, requests });
    }

    fn cloud_sent(&mut self, number: u64, (lane, bytes): (u8, usize), frame: &SeenFrame) {
        let Some(connection) = self.all.get_mut(&number) else { return };
        match frame {
            SeenFrame::Deliver(delivery) => {
                let under_way = UnderWay { bytes, delivery: delivery.clone() };
                connection.under_way.insert((lane, delivery.seq), under_way);
            }
            SeenFrame::CaughtUp { subscription: 0, epoch } => {
                let node = connection.node.clone();
                if self.between.get(&node).is_some_and(|before| before != epoch) {
                    self.between.remove(&node);
                }
                self.epochs.insert(node, epoch.clone());
            }
            _ => {}
        }
    }

    fn edge_sent(&mut self, number: u64, frame: &SeenFrame) -> Answered {
        let mut answered = Answered::default();
        let Some(connection) = self.all.get_mut(&number) else { return answered };
        match frame {
            SeenFrame::Ack { lanes } => {
                for (lane, up_to) in lanes {
                    let positions: Vec<_> = connection
                        .under_way
                        .range((*lane, 0)..=(*lane, *up_to))
                        .map(|(key, _)| *key)
                        .collect();
                    let stored = positions.iter().filter_map(|key| connection.under_way.remove(key));
                    answered.stored.extend(stored);
                }
            }
            SeenFrame::Refuse { lane, seq } => {
                answered.refused.extend(connection.under_way.remove(&(*lane, *seq)));
            }
            SeenFrame::Subscribe { subscription, selection, token } => {
                let opened = Subscription { selection: selection.clone(), token: token.clone() };
                connection.subscriptions.insert(*subscription, opened);
            }
            SeenFrame::Request { id, token, .. } => {
                connection.requests.insert(*id, token.clone());
            }
            _ => {}
        }
        answered
    }

    /// A connection, also one that has ended.
    #[must_use]
    pub(super) fn get(&self, connection: u64) -> Option<&Connection> {
        self.all.get(&connection)
    }

    /// Whether a node is connected.
    #[must_use]
    pub(super) fn is_connected(&self, node: &str) -> bool {
        self.living
            .iter()
            .any(|number| self.all.get(number).is_some_and(|connection| connection.node == node))
    }

    /// Whether a backup was restored and the node has not been caught up with the new history yet.
    #[must_use]
    pub(super) fn is_between_histories(&self, node: &str) -> bool {
        self.between.contains_key(node)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{deliver, down, gone, id, up};
    use super::*;
    use crate::observation::HistoryPosition;

    #[test]
    fn an_acknowledgement_covers_its_lane_up_to_its_position() {
        let mut connections = Connections::default();
        connections.observe(&Seen::Connected {
            connection: 1,
            node: "n".to_owned(),
            machine: "n".to_owned(),
            replica: 0,
        });
        for seq in 1..=3 {
            connections.observe(&down(1, deliver(seq, &id("pods/d/p"), gone())));
        }
        connections.observe(&up(1, SeenFrame::Refuse { lane: 1, seq: 2 }));
        let answered = connections.observe(&up(1, SeenFrame::Ack { lanes: vec![(0, 9), (1, 2)] }));
        assert_eq!(answered.stored.iter().map(|one| one.delivery.seq).collect::<Vec<_>>(), [1]);
        assert_eq!(connections.get(1).unwrap().under_way.len(), 1);
    }

    #[test]
    fn after_a_restore_a_node_is_between_histories_until_it_is_caught_up_with_the_new_one() {
        let mut connections = Connections::default();
        let caught_up =
            |epoch: &str| down(1, SeenFrame::CaughtUp { subscription: 0, epoch: epoch.to_owned() });
        connections.observe(&Seen::Connected {
            connection: 1,
            node: "n".to_owned(),
            machine: "n".to_owned(),
            replica: 0,
        });
        connections.observe(&caught_up("c/0"));
        connections.observe(&Seen::Restored { position: HistoryPosition { history: 1, revision: 3 } });
        connections.observe(&caught_up("c/0"));
        assert!(connections.is_between_histories("n"), "the cloud has not noticed yet");
        connections.observe(&caught_up("c/1"));
        assert!(!connections.is_between_histories("n"));
    }
}
