//! What a run showed of its API and of the order of deliveries, whatever the transcript says.

use std::collections::{HashMap, HashSet, VecDeque};

use serde_json::Value;

use super::index::Version;
use super::version;
use crate::frame::{Frame, Key};
use crate::soundness::{Positions, is_turned};
use crate::value::agree;

/// How many changes of the API a cloud may not have learned of yet.
const LATEST_MAX: usize = 8;

/// The place where an edge keeps a delivered object: connection, group and path.
type Place = (u64, String, String);

/// Bounded by the run.
#[derive(Default)]
pub(super) struct Observed {
    /// States of objects as the API of the run had them.
    states: HashMap<Version, Value>,
    /// Uids of all objects that the API of the run had.
    uids: HashSet<String>,
    /// The newest state of each object.
    newest: HashMap<Key, Value>,
    /// Objects of the latest changes.
    latest: VecDeque<Key>,
    /// How often each message arrived, by its id.
    copies: HashMap<String, usize>,
    /// The newest version that was delivered to each place.
    delivered: HashMap<Place, u64>,
    /// The newest version of each object that the cloud has shown to a node.
    shown: HashMap<(String, Key), Version>,
    /// Answers to reports of edges, by connection and object.
    reports: HashMap<(u64, Key), usize>,
    positions: Positions,
}

impl Observed {
    /// The API of the run has this state.
    pub(super) fn state(&mut self, object: &Value) {
        let (key, version) = (Key::of_object(object), version(object));
        let is_newest = self.newest.get(&key).is_none_or(|known| number(known) <= number(object));
        if is_newest {
            self.newest.insert(key, object.clone());
        }
        self.uids.insert(version.0.clone());
        self.states.insert(version, object.clone());
    }

    /// The newest known state of an object.
    pub(super) fn newest(&self, key: &Key) -> Option<&Value> {
        self.newest.get(key)
    }

    pub(super) fn had(&self, uid: &str) -> bool {
        self.uids.contains(uid)
    }

    /// An object was changed.
    pub(super) fn changed(&mut self, key: Key) {
        if self.latest.len() == LATEST_MAX {
            self.latest.pop_front();
        }
        self.latest.push_back(key);
    }

    /// Whether one of the latest changes was about such an object.
    pub(super) fn is_latest(&self, wanted: impl Fn(&Key) -> bool) -> bool {
        self.latest.iter().any(wanted)
    }

    /// Counts a message, and returns how often it has arrived.
    pub(super) fn count(&mut self, id: &str) -> usize {
        let copies = self.copies.entry(id.to_owned()).or_default();
        *copies += 1;
        *copies
    }

    /// What is wrong with the position of a delivery among those of its lane, or of its object.
    pub(super) fn order(&mut self, conn: u64, frame: &Frame) -> Option<String> {
        if let Some(problem) = self.positions.gap(frame) {
            return Some(problem);
        }
        let came = number(frame.content())?;
        let place = (conn, frame.group().to_owned(), frame.usual_resource());
        let newest = self.delivered.entry(place).or_default();
        if came < *newest {
            return Some(format!("version {came} arrives after version {newest} of the same object"));
        }
        *newest = came;
        None
    }

    /// Whether the API of the run had a newer version of the object.
    pub(super) fn is_overtaken(&self, version: &Version) -> bool {
        self.states.keys().any(|known| known.0 == version.0 && is_older(version, known))
    }

    /// The edge got an answer to a report about this object.
    pub(super) fn reported(&mut self, conn: u64, key: Key) {
        *self.reports.entry((conn, key)).or_default() += 1;
    }

    /// How many answers to reports about this object the edge has got on a connection.
    pub(super) fn reports(&self, conn: u64, key: Key) -> usize {
        self.reports.get(&(conn, key)).copied().unwrap_or_default()
    }

    /// Whether the API of the run had other content at this version of an object.
    pub(super) fn contradicts(&self, object: &Value) -> bool {
        let Some(known) = self.states.get(&version(object)).filter(|_| object["kind"] != "Scale") else {
            return false;
        };
        let is_same_kind = known["kind"].is_null() || known["kind"] == object["kind"];
        is_same_kind && !is_turned(object, known) && !agree(known, object)
    }

    /// The cloud shows a version of an object to a node.
    pub(super) fn show(&mut self, node: &str, key: Key, shown: Version) {
        let known = self.shown.entry((node.to_owned(), key)).or_insert_with(|| shown.clone());
        if known.0 != shown.0 || is_older(known, &shown) {
            *known = shown;
        }
    }

    /// The newest version of an object that the cloud has shown to a node.
    pub(super) fn shown(&self, node: &str, key: &Key) -> Option<&Version> {
        self.shown.get(&(node.to_owned(), key.clone()))
    }
}

/// Whether the first of two versions of an object is older.
pub(super) fn is_older(one: &Version, other: &Version) -> bool {
    let [one, other] = [one, other].map(|version| version.1.parse::<u64>().ok());
    one < other
}

/// The version of an object as a number, as Kubernetes compares versions from 1.35 on.
pub(super) fn number(object: &Value) -> Option<u64> {
    object["metadata"]["resourceVersion"].as_str()?.parse().ok()
}
