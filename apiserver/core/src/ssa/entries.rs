//! The entries of `metadata.managedFields`.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::Writer;
use super::set::Set;
use crate::schema::format;

/// Maximum number of managers of an object that are not appliers; older ones are combined.
const UPDATERS_MAX: usize = 10;

/// The manager of combined older writers.
const ANCIENT: &str = "ancient-changes";

/// How a manager writes. Appliers sort first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Operation {
    Apply,
    Update,
}

/// The identity of a manager.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ManagerIdentity {
    pub(super) manager: String,
    pub(super) operation: Operation,
    pub(super) subresource: String,
    /// Empty for appliers.
    pub(super) api_version: String,
}

/// The fields that one manager owns.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Entry {
    pub(super) set: Set,
    pub(super) time: Option<Timestamp>,
    pub(super) api_version: String,
}

/// All managers of an object.
#[derive(Debug, Clone, Default)]
pub(super) struct Managers(BTreeMap<ManagerIdentity, Entry>);

impl Managers {
    /// Parses `metadata.managedFields`; one malformed entry invalidates the whole list.
    pub(super) fn decode(value: &Value) -> Self {
        let mut managers = BTreeMap::new();
        for entry in value.as_array().into_iter().flatten() {
            let Some((identity, entry)) = decode(entry) else { return Self::default() };
            managers.insert(identity, entry);
        }
        Self(managers)
    }

    pub(super) fn encode(&self) -> Value {
        let mut list: Vec<(&ManagerIdentity, &Entry)> = self.0.iter().collect();
        list.sort_by_key(|(identity, entry)| {
            let seconds = entry.time.map(Timestamp::as_second);
            (identity.operation, seconds, &identity.manager, &entry.api_version, &identity.subresource)
        });
        Value::Array(list.into_iter().map(|(identity, entry)| encode(identity, entry)).collect())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn get(&self, identity: &ManagerIdentity) -> Option<&Entry> {
        self.0.get(identity)
    }

    pub(super) fn put(&mut self, identity: ManagerIdentity, entry: Entry) {
        self.0.insert(identity, entry);
    }

    pub(super) fn remove(&mut self, identity: &ManagerIdentity) -> Option<Entry> {
        self.0.remove(identity)
    }

    pub(super) fn identities(&self) -> impl Iterator<Item = &ManagerIdentity> {
        self.0.keys()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Entry> {
        self.0.values_mut()
    }

    /// Drops entries of versions of other groups: their fields cannot be found in this kind.
    pub(super) fn keep_group(&mut self, api_version: &str) {
        self.0.retain(|_, entry| group(&entry.api_version) == group(api_version));
    }

    /// Removes fields from a manager.
    pub(super) fn take(&mut self, identity: &ManagerIdentity, set: &Set) {
        if let Some(entry) = self.0.get_mut(identity) {
            entry.set = std::mem::take(&mut entry.set).difference(set);
        }
    }

    pub(super) fn drop_empty(&mut self) {
        self.0.retain(|_, entry| !entry.set.is_empty());
    }

    /// The fields that any manager owns.
    pub(super) fn union(&self) -> Set {
        self.0.values().fold(Set::default(), |union, entry| union.union(entry.set.clone()))
    }

    /// Whether both have the same ownership, apart from times.
    pub(super) fn same_but_times(&self, other: &Self) -> bool {
        self.0.len() == other.0.len()
            && self
                .0
                .iter()
                .zip(&other.0)
                .all(|((a, x), (b, y))| a == b && x.set == y.set && x.api_version == y.api_version)
    }

    /// Combines the oldest writers when there are too many.
    pub(super) fn cap(&mut self, writer: &Writer<'_>) {
        let mut updaters: Vec<(Option<Timestamp>, ManagerIdentity)> = self
            .0
            .iter()
            .filter(|(identity, _)| identity.operation == Operation::Update)
            .map(|(identity, entry)| (entry.time, identity.clone()))
            .collect();
        if updaters.len() <= UPDATERS_MAX {
            return;
        }
        updaters.sort();
        let bucket = ManagerIdentity {
            manager: ANCIENT.to_owned(),
            operation: Operation::Update,
            subresource: String::new(),
            api_version: writer.api_version.clone(),
        };
        // One more than the surplus is combined, because the bucket is a manager as well.
        let excess = updaters.len() - UPDATERS_MAX + usize::from(!self.0.contains_key(&bucket));
        let oldest =
            updaters.into_iter().map(|(_, identity)| identity).filter(|identity| *identity != bucket);
        for identity in oldest.take(excess) {
            let Some(old) = self.0.remove(&identity) else { continue };
            let slot = self.0.entry(bucket.clone()).or_insert_with(|| Entry {
                set: Set::default(),
                time: old.time,
                api_version: writer.api_version.clone(),
            });
            slot.set = std::mem::take(&mut slot.set).union(old.set);
            slot.time = slot.time.max(old.time);
        }
    }
}

/// The group of an `apiVersion`; empty for the core group.
pub(super) fn group(api_version: &str) -> &str {
    api_version.rsplit_once('/').map_or("", |(group, _)| group)
}

fn decode(value: &Value) -> Option<(ManagerIdentity, Entry)> {
    let text = |key: &str| value[key].as_str().unwrap_or_default().to_owned();
    let operation = match value["operation"].as_str()? {
        "Apply" => Operation::Apply,
        "Update" => Operation::Update,
        _ => return None,
    };
    if text("fieldsType") != "FieldsV1" {
        return None;
    }
    let set = Set::decode(&value["fieldsV1"])?;
    let api_version = text("apiVersion");
    let identity = ManagerIdentity {
        manager: text("manager"),
        operation,
        subresource: text("subresource"),
        api_version: match operation {
            Operation::Apply => String::new(),
            Operation::Update => api_version.clone(),
        },
    };
    let time = value["time"].as_str().and_then(|time| time.parse().ok());
    Some((identity, Entry { set, time, api_version }))
}

fn encode(identity: &ManagerIdentity, entry: &Entry) -> Value {
    let operation = match identity.operation {
        Operation::Apply => "Apply",
        Operation::Update => "Update",
    };
    let mut map = Map::new();
    map.insert("manager".into(), json!(identity.manager));
    map.insert("operation".into(), json!(operation));
    map.insert("apiVersion".into(), json!(entry.api_version));
    if let Some(time) = entry.time {
        map.insert("time".into(), json!(format::seconds(time)));
    }
    map.insert("fieldsType".into(), json!("FieldsV1"));
    map.insert("fieldsV1".into(), entry.set.encode());
    if !identity.subresource.is_empty() {
        map.insert("subresource".into(), json!(identity.subresource));
    }
    Value::Object(map)
}
