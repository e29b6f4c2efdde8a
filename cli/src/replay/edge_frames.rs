//! Frames that the replayed edge sends: the recorded ones, adapted to this run, and responses to what it receives.

use std::collections::{HashMap, HashSet};

use anyhow::{Context, Result};
use serde_json::Value;
use tombolo_proto::frame::InventoryPart;
use tombolo_proto::limits::INVENTORY_PART_MAX;
use tombolo_proto::{Frame as Wire, Lane, NodeId, StoreId, SubscriptionId};
use tombolo_replay::{Frame, Holdings, wire};

use super::socket::{Saying, acknowledgement};

/// Sends for every node of a run.
#[derive(Default)]
pub(super) struct EdgeFrames {
    nodes: HashMap<u64, NodeId>,
    held: HashMap<NodeId, Holdings>,
    /// The store that a connection's hello named.
    stores: HashMap<u64, StoreId>,
    ended: HashSet<u64>,
}

impl EdgeFrames {
    pub(super) fn connected(&mut self, conn: u64, node: &NodeId) {
        self.nodes.insert(conn, node.clone());
    }

    /// The cloud closed a connection: it is not opened again.
    pub(super) fn ended(&mut self, conn: u64) {
        self.ended.insert(conn);
    }

    pub(super) fn has_ended(&self, conn: u64) -> bool {
        self.ended.contains(&conn)
    }

    /// Whether this frame needs another caller's token.
    pub(super) fn is_foreign(&self, frame: &Frame) -> bool {
        frame.as_json()["request"].get("caller_token").is_some()
    }

    /// A request as it is sent: its inventory lists what the edge received in this run.
    pub(super) fn saying(&mut self, conn: u64, request: Value) -> Result<Saying> {
        let frame = Frame::new(request);
        if !frame.is_tombolo() {
            return Ok(Saying::Document(frame.as_json().clone()));
        }
        let (lane, mut said) = wire(&frame).with_context(|| format!("{} is not a frame", frame.id()))?;
        if let Wire::Hello(hello) = &said {
            self.stores.insert(conn, hello.store);
        }
        let store = self.stores.get(&conn).copied();
        let held = self.holdings(conn)?;
        match &mut said {
            Wire::Hello(hello) => {
                hello.inventory =
                    held.inventory(hello.store, conn, SubscriptionId::NODE, hello.inventory.clone());
            }
            Wire::Subscribe(subscribe) => {
                let store = store.context("a subscription arrived before the hello")?;
                held.subscribe(conn, subscribe);
                subscribe.inventory =
                    held.inventory(store, conn, subscribe.subscription, subscribe.inventory.clone());
            }
            _ => {}
        }
        Ok(Saying::Frame(lane, Box::new(said)))
    }

    fn holdings(&mut self, conn: u64) -> Result<&mut Holdings> {
        let node = self.nodes.get(&conn).context("a connection without a node")?;
        Ok(self.held.entry(node.clone()).or_default())
    }

    /// The edge's responses to this frame.
    pub(super) fn answers(&mut self, conn: u64, frame: &Frame) -> Result<Vec<Saying>> {
        if !frame.is_tombolo() {
            return Ok(vec![Saying::Document(acknowledgement(frame))]);
        }
        let (lane, heard) = wire(frame).with_context(|| format!("{} is not a frame", frame.id()))?;
        let control = |frame| vec![Saying::Frame(Lane::Control, Box::new(frame))];
        let held = self.holdings(conn)?;
        Ok(match heard {
            Wire::Deliver(deliver) => {
                held.store(conn, &deliver);
                control(Wire::Ack { lanes: vec![(lane, deliver.seq)] })
            }
            Wire::Ping { id } => control(Wire::Pong { id }),
            Wire::InventoryRequest { subscription } => inventory(held, conn, subscription),
            _ => Vec::new(),
        })
    }
}

/// The whole inventory of a subscription, in parts.
fn inventory(held: &Holdings, conn: u64, subscription: SubscriptionId) -> Vec<Saying> {
    let entries = held.entries(conn, subscription);
    let mut parts: Vec<_> = entries.chunks(INVENTORY_PART_MAX).map(<[_]>::to_vec).collect();
    if parts.is_empty() {
        parts.push(Vec::new());
    }
    let count = parts.len();
    let say = |(index, entries)| {
        let part = InventoryPart { subscription, entries, last: index + 1 == count };
        Saying::Frame(Lane::Bulk, Box::new(Wire::InventoryPart(part)))
    };
    parts.into_iter().enumerate().map(say).collect()
}
