//! An edge that misbehaves: between a session and the recorded cloud.

use std::collections::{HashMap, HashSet};

use serde_json::{Value, json};

use super::forms::{add_one, with_id, without_owners};
use super::{ONE_IN, PeerFault, TIMES};
use crate::frame::{Ask, Frame};

/// Alters what sessions say at one site of a fault.
#[derive(Default)]
pub(crate) struct FaultyEdge {
    /// The fault and its site; `None` for an edge that behaves.
    fault: Option<(PeerFault, usize)>,
    /// Sites so far.
    sites: usize,
    /// Messages that wait for the next one of their connection.
    held: HashMap<u64, Frame>,
    /// The last message about each resource, by connection, operation and resource.
    last: HashMap<(u64, String, String), Frame>,
    /// Deliveries that arrived, by id.
    delivered: HashSet<String>,
    /// Those that were acknowledged too early.
    early: HashSet<String>,
}

impl FaultyEdge {
    pub(crate) fn new(fault: PeerFault, site: usize) -> Self {
        Self { fault: Some((fault, site)), ..Self::default() }
    }

    /// How many sites there were.
    pub(crate) fn sites(&self) -> usize {
        self.sites
    }

    fn fault(&self) -> Option<PeerFault> {
        self.fault.map(|(fault, _)| fault)
    }

    /// Counts a site. Returns whether it is the wanted one.
    fn is_turn(&mut self) -> bool {
        let turn = self.fault.is_some_and(|(_, site)| site == self.sites);
        self.sites += 1;
        turn
    }

    /// What the cloud gets when the session says this.
    pub(crate) fn says(&mut self, conn: u64, frame: Frame) -> Vec<Frame> {
        let Some(fault) = self.fault() else { return vec![frame] };
        if let Some(held) = self.held.remove(&conn) {
            return vec![frame, held];
        }
        let is_ack = frame.ask() == Ask::Ack;
        // A position that a Tombolo edge acknowledges includes all before it: one such frame says nothing of its own.
        let is_said = frame.ask() != Ask::Keepalive && !frame.is_frame("session", "ack");
        match fault {
            PeerFault::Drop if is_said => self.lose(frame),
            // Acknowledgements of different messages may come in any order.
            PeerFault::Swap if is_said && !is_ack && self.is_turn() => {
                self.held.insert(conn, frame);
                Vec::new()
            }
            PeerFault::TenTimes if is_said && self.is_turn() => vec![frame; TIMES],
            PeerFault::Older if is_said && !is_ack => self.older(conn, frame),
            PeerFault::Version => self.altered(frame, with_next_version),
            PeerFault::Owners => self.altered(frame, without_owners),
            PeerFault::WrongRead if frame.operation() == "part" => self.altered(frame, with_wrong_entry),
            PeerFault::EarlyAck if is_ack && self.early.contains(frame.parent()) => Vec::new(),
            PeerFault::NoAck if is_ack => {
                self.sites = 1;
                Vec::new()
            }
            _ => vec![frame],
        }
    }

    /// Whether the edge acknowledges this delivery before it is stored.
    pub(crate) fn is_early(&mut self, delivery: &Frame) -> bool {
        if self.fault() != Some(PeerFault::EarlyAck) || !delivery.is_push() || delivery.is_elsewhere() {
            return false;
        }
        // A copy is acknowledged at once: it is stored already.
        let early = self.delivered.insert(delivery.id().to_owned()) && self.is_turn();
        if early {
            self.early.insert(delivery.id().to_owned());
        }
        early
    }

    /// Site 0 loses one message in ten, each other site a single one.
    fn lose(&mut self, frame: Frame) -> Vec<Frame> {
        self.sites = self.sites.max(1);
        let lost = match self.fault {
            // The first of each ten: a transcript may have fewer.
            Some((_, 0)) => self.sites % ONE_IN == 1,
            Some((_, site)) => site == self.sites,
            None => false,
        };
        self.sites += 1;
        if lost { Vec::new() } else { vec![frame] }
    }

    /// The message, followed by an earlier one about the same resource.
    fn older(&mut self, conn: u64, frame: Frame) -> Vec<Frame> {
        let place = (conn, frame.operation().to_owned(), frame.resource().to_owned());
        let before = self.last.insert(place, frame.clone());
        let before = before.filter(|before| before.content() != frame.content());
        match before {
            Some(before) if self.is_turn() => {
                let again = with_id(&before, &format!("{}-again", before.id()));
                vec![frame, again]
            }
            _ => vec![frame],
        }
    }

    fn altered(&mut self, frame: Frame, alter: impl Fn(&mut Frame) -> bool) -> Vec<Frame> {
        let mut other = frame.clone();
        if alter(&mut other) && self.is_turn() { vec![other] } else { vec![frame] }
    }
}

/// The acknowledgement of a delivery, in the form of dialect `kubeedge`
/// (docs/reference/kubeedge.md#acknowledgements).
pub(crate) fn acknowledgement(delivery: &Frame) -> Frame {
    Frame::new(json!({
        "header": {"msg_id": format!("early-{}", delivery.id()), "parent_msg_id": delivery.id(), "timestamp": 0},
        "route": {"source": delivery.source(), "group": delivery.group(), "operation": "response", "resource": delivery.resource()},
        "content": "OK",
    }))
}

/// Adds one to every version in a message of an edge.
fn with_next_version(frame: &mut Frame) -> bool {
    let header = frame.as_json_mut().pointer_mut("/header/resourceversion").is_some_and(add_one);
    let content = frame.as_json_mut().get_mut("content").is_some_and(add_to_all);
    header || content
}

fn add_to_all(value: &mut Value) -> bool {
    match value {
        Value::Object(members) => members.iter_mut().fold(false, |altered, (name, value)| {
            let here = if name == "resourceVersion" { add_one(value) } else { add_to_all(value) };
            here || altered
        }),
        Value::Array(items) => items.iter_mut().fold(false, |altered, item| add_to_all(item) || altered),
        _ => false,
    }
}

/// Alters the first entry of an inventory.
fn with_wrong_entry(part: &mut Frame) -> bool {
    let entry = part.as_json_mut().pointer_mut("/content/entries/0/name");
    entry.map(|name| *name = "wrong".into()).is_some()
}
