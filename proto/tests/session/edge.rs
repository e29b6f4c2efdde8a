//! An edge store as a map: the rows on disk, and the pending writes.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use tombolo_proto::frame::Change;
use tombolo_proto::session::EdgeView;
use tombolo_proto::{
    CloudRevision, Epoch, HeldState, InventoryEntry, Lane, Moment, ObjectKey, ObjectVersion, Seq, StoreId,
    SubscriptionId,
};

use super::cloud::AREAS;

/// One key on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Row {
    Present { version: ObjectVersion, body: String },
    Absent,
    Unreadable,
}

/// One subscription on disk.
#[derive(Debug, Clone, Default)]
pub struct Area {
    pub rows: BTreeMap<ObjectKey, Row>,
    /// Objects whose version belongs to another history than the store's.
    pub foreign: BTreeSet<ObjectKey>,
    /// Objects that the edge holds although the cloud reported that it cannot read them.
    pub kept: BTreeSet<ObjectKey>,
    pub epoch: Option<Epoch>,
    /// The last session that compared this area reported that it is caught up.
    pub caught_up: bool,
}

/// A delivery that is not on disk yet.
#[derive(Debug)]
pub struct Pending {
    pub due: Moment,
    pub lane: Lane,
    pub seq: Seq,
    pub area: usize,
    pub change: Change,
}

/// The edge's side of the world.
#[derive(Debug)]
pub struct Store {
    pub id: StoreId,
    pub areas: [Area; AREAS],
    pub trim_version: u32,
    /// The epoch of the newest welcome.
    pub history: Option<Epoch>,
    /// The writes of the only writer, in order of arrival.
    pub pending: VecDeque<Pending>,
    pub disk_full: bool,
    /// The area of each subscription of the present connection.
    pub subscriptions: BTreeMap<SubscriptionId, usize>,
}

impl Store {
    pub fn new(id: u8) -> Self {
        Self {
            id: StoreId([id; 16]),
            areas: std::array::from_fn(|_| Area::default()),
            trim_version: 0,
            history: None,
            pending: VecDeque::new(),
            disk_full: false,
            subscriptions: BTreeMap::new(),
        }
    }

    /// The cloud follows this epoch from now on.
    pub fn welcome(&mut self, epoch: &Epoch) {
        if self.history.as_ref() != Some(epoch) {
            self.history = Some(epoch.clone());
            for area in &mut self.areas {
                area.foreign = area.rows.keys().cloned().collect();
            }
        }
    }

    /// Writes one change to disk. False when it adopts a version for content that the edge does not hold.
    pub fn apply(&mut self, area: usize, change: &Change) -> bool {
        let Area { rows, foreign, kept, .. } = &mut self.areas[area];
        let was_foreign = foreign.remove(change.key());
        kept.remove(change.key());
        match change {
            Change::Upsert(object) => {
                let body = String::from_utf8(object.body.to_vec()).expect("JSON");
                rows.insert(object.key.clone(), Row::Present { version: object.version.clone(), body });
            }
            Change::Delete { key, .. } => {
                rows.remove(key);
            }
            Change::Absent { key } => {
                rows.insert(key.clone(), Row::Absent);
            }
            Change::Unreadable { key } => match rows.get_mut(key) {
                Some(Row::Present { version, .. }) => {
                    kept.insert(key.clone());
                    if was_foreign {
                        version.revision = CloudRevision(0);
                    }
                }
                _ => {
                    rows.insert(key.clone(), Row::Unreadable);
                }
            },
            Change::Adopt { key, version } => match rows.get_mut(key) {
                Some(Row::Present { version: held, .. })
                    if held.uid == version.uid && held.hash == version.hash =>
                {
                    *held = version.clone();
                }
                _ => {
                    if was_foreign {
                        foreign.insert(key.clone());
                    }
                    return false;
                }
            },
        }
        true
    }

    pub fn entries(&self, area: usize) -> Vec<InventoryEntry> {
        let entry = |(key, row): (&ObjectKey, &Row)| InventoryEntry {
            key: key.clone(),
            held: match row {
                Row::Present { version, .. } => HeldState::Present(version.clone()),
                Row::Absent => HeldState::Absent,
                Row::Unreadable => HeldState::Unreadable,
            },
        };
        self.areas[area].rows.iter().map(entry).collect()
    }
}

impl EdgeView for Store {
    fn inventory(&self, subscription: SubscriptionId) -> Vec<InventoryEntry> {
        self.entries(
            *self.subscriptions.get(&subscription).expect("only followed subscriptions are requested"),
        )
    }
}
