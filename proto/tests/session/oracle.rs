//! Invariants that must always hold (docs/consistency.md#the-promises). The oracle checks the truth, the disk and the
//! events; it shares no code and no state with the sessions.

use std::collections::{BTreeMap, BTreeSet};

use tombolo_proto::frame::Change;
use tombolo_proto::{ObjectKey, ObjectVersion, RequestId};

use super::cloud::{AREAS, Cloud, Truth, is_pod};
use super::edge::{Row, Store};

/// Remembers what was applied and requested.
#[derive(Debug, Default)]
pub struct Oracle {
    /// Newest (epoch generation, revision) that the disk ever had, per key.
    newest: BTreeMap<ObjectKey, (u64, u64)>,
    waiting: BTreeSet<RequestId>,
    /// Adoptions that the edge refused: the only reason to send equal content again.
    pub adoption_refused: BTreeSet<ObjectKey>,
    pub newest_lease: i64,
    pub coverage: Coverage,
    /// The edge is served by a replica that lagged when it took over.
    pub lagging: bool,
}

/// Counts of events: a schedule without events proves nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Coverage {
    pub upserts: u64,
    pub adoptions: u64,
    pub deletions: u64,
    pub absences: u64,
    pub unreadables: u64,
    /// Versions that the edge kept although they had become unreadable.
    pub kept: u64,
    pub refusals: u64,
    pub connections: u64,
    pub caught_up: u64,
    pub answers: u64,
    pub timeouts: u64,
    /// Deletions and absences that the API server has confirmed, and those that it has denied.
    pub confirmed: u64,
    pub denied: u64,
}

impl Coverage {
    pub fn add(self, other: Self) -> Self {
        Self {
            upserts: self.upserts + other.upserts,
            adoptions: self.adoptions + other.adoptions,
            deletions: self.deletions + other.deletions,
            absences: self.absences + other.absences,
            unreadables: self.unreadables + other.unreadables,
            kept: self.kept + other.kept,
            refusals: self.refusals + other.refusals,
            connections: self.connections + other.connections,
            caught_up: self.caught_up + other.caught_up,
            answers: self.answers + other.answers,
            timeouts: self.timeouts + other.timeouts,
            confirmed: self.confirmed + other.confirmed,
            denied: self.denied + other.denied,
        }
    }
}

impl Oracle {
    /// A store that lost everything starts from scratch.
    pub fn forget_store(&mut self) {
        self.newest.clear();
    }

    /// Called before a change is written.
    pub fn check_apply(&mut self, store: &Store, area: usize, change: &Change, generation: u64) {
        let held = store.areas[area].rows.get(change.key());
        let present = matches!(held, Some(Row::Present { .. })) && store.areas[area].epoch.is_some();
        match change {
            Change::Upsert(object) => {
                self.coverage.upserts += 1;
                self.check_forward(present, change.key(), &object.version, generation);
                if let Some(Row::Present { version, .. }) = held {
                    let equal = version.uid == object.version.uid && version.hash == object.version.hash;
                    let excused = self.adoption_refused.remove(change.key());
                    assert!(!equal || excused, "{} was sent again although the edge holds it", change.key());
                }
            }
            Change::Adopt { version, .. } => {
                self.coverage.adoptions += 1;
                self.check_forward(present, change.key(), version, generation);
                if let Some(Row::Present { version: held, .. }) = held {
                    // An object that was kept between two epochs may already have belonged to the present epoch.
                    let kept = store.areas[area].kept.contains(change.key());
                    assert!(kept || held != version, "the adoption of {} changes nothing", change.key());
                }
            }
            Change::Delete { .. } => {
                self.coverage.deletions += 1;
                assert!(held.is_some(), "{} was deleted although the edge does not hold it", change.key());
            }
            Change::Absent { .. } => {
                self.coverage.absences += 1;
                assert_ne!(held, Some(&Row::Absent), "{} was absent already", change.key());
            }
            Change::Unreadable { key } => {
                self.coverage.unreadables += 1;
                self.coverage.kept += u64::from(matches!(held, Some(Row::Present { .. })));
                assert_ne!(held, Some(&Row::Unreadable), "{key} was unreadable already");
                let excused = self.adoption_refused.contains(key);
                assert!(!present || excused, "the edge holds {key}, which must not become unreadable");
            }
        }
    }

    /// No needed object is deleted, however late a watch is. `began`: the serial number of the session.
    pub fn check_loss(cloud: &Cloud, store: &Store, area: usize, change: &Change, began: u64) {
        let key = change.key();
        let held = match store.areas[area].rows.get(key) {
            Some(Row::Present { version, .. }) => Some(version),
            Some(Row::Absent | Row::Unreadable) | None => None,
        };
        // An incarnation that has ended never returns.
        let lives = |version: &ObjectVersion| {
            cloud.truth.objects.get(key).is_some_and(|object| object.uid() == version.uid)
        };
        let held = held.filter(|version| lives(version));
        let needed = cloud.truth.wanted[area].get(key).filter(|_| cloud.kinds);
        let lost = match (change, needed) {
            (_, None) | (Change::Upsert(_) | Change::Adopt { .. } | Change::Unreadable { .. }, _) => false,
            (Change::Absent { .. }, Some(_)) => held.is_some(),
            // An object that the node's pods refer to, whether it exists or not: in the whole session there was always
            // a pod that refers to it.
            (Change::Delete { .. }, Some(since)) if area == 0 && !is_pod(key) => since.serial <= began,
            (Change::Delete { .. }, Some(_)) if area == 0 => held.is_some(),
            // The edge holds the object as it was last selected. Revisions of two epochs are not comparable.
            (Change::Delete { .. }, Some(since)) => {
                let comparable = store.areas[area].epoch.as_ref() == Some(&cloud.epoch());
                comparable && held.is_some_and(|version| version.revision.0 >= since.revision)
            }
        };
        assert!(!lost, "{key} is deleted at the edge, which needs it: {change:?}");
    }

    /// Guarantee 1: versions only move forward. Revisions of one epoch order all incarnations of a key as well. The
    /// exceptions are for a replica that lags: it can restore objects that the edge has deleted, because the edge does
    /// not remember them; and for objects that the edge holds while it is between two epochs.
    fn check_forward(&mut self, comparable: bool, key: &ObjectKey, version: &ObjectVersion, generation: u64) {
        let present = (generation, version.revision.0);
        let newest = self.newest.entry(key.clone()).or_insert(present);
        if self.lagging && !comparable {
            *newest = present;
        }
        assert!(
            present >= *newest,
            "{key} went back from {newest:?} to {present:?} (epoch generation, revision)"
        );
        *newest = present;
    }

    /// Guarantee 2: acknowledged changes are on disk, exactly.
    pub fn check_acked(store: &Store, area: usize, key: &ObjectKey, acked: Option<&ObjectVersion>) {
        let held = match store.areas[area].rows.get(key) {
            // The cloud need not know the position in the present history that the edge assigns to a kept object.
            Some(Row::Present { version, .. }) if store.areas[area].kept.contains(key) => {
                let same = |told: &ObjectVersion| told.uid == version.uid && told.hash == version.hash;
                assert!(acked.is_none_or(same), "{key} is kept, but something else is acknowledged");
                return;
            }
            Some(Row::Present { version, .. }) => Some(version),
            Some(Row::Absent | Row::Unreadable) | None => None,
        };
        assert_eq!(held, acked, "{key} is acknowledged, but the disk holds something else");
    }

    /// Only one version of a key is in flight at a time.
    pub fn check_arrival(store: &Store, area: usize, change: &Change) {
        let under_way = store.pending.iter().any(|p| p.area == area && p.change.key() == change.key());
        assert!(!under_way, "{} arrives while an earlier version waits for its commit", change.key());
    }

    pub fn asked(&mut self, id: RequestId) {
        assert!(self.waiting.insert(id), "request id {} was given twice", id.0);
    }

    /// An answer or a timeout: exactly one for each request.
    pub fn answered(&mut self, id: RequestId) {
        assert!(self.waiting.remove(&id), "request {} was answered twice or never sent", id.0);
    }

    pub fn session_over(&mut self) {
        self.waiting.clear();
    }

    pub fn open_requests(&self) -> usize {
        self.waiting.len()
    }

    pub fn lease(&mut self, micros: i64) {
        assert!(micros > self.newest_lease, "an older lease renewal came after a newer one");
        self.newest_lease = micros;
    }

    /// The reason why the edge does not hold exactly what it should; none if it does.
    pub fn difference(cloud: &Cloud, store: &Store, followed: &[bool; AREAS]) -> Option<String> {
        let areas = store.areas.iter().enumerate().filter(|(number, _)| followed[*number]);
        for (number, area) in areas {
            let wanted = wanted_rows(&cloud.truth, number, cloud.trim_version);
            for (key, row) in &wanted {
                let held = area.rows.get(key);
                let good = match cloud.unreadable.contains(key) {
                    // The version that the edge held while it was readable stays.
                    true => matches!(held, Some(Row::Unreadable | Row::Present { .. })),
                    false => held == Some(row),
                };
                if !good {
                    return Some(format!("{key}: wanted {row:?}, held {held:?}"));
                }
            }
            if let Some(key) = area.rows.keys().find(|key| !wanted.contains_key(key)) {
                return Some(format!("{key} is held, but not wanted"));
            }
            if !area.caught_up || area.epoch.as_ref() != Some(&cloud.epoch()) {
                return Some(format!("area {number} did not receive that it is caught up: {:?}", area.epoch));
            }
        }
        None
    }
}

/// The rows of an area that should be on disk.
pub fn wanted_rows(truth: &Truth, area: usize, trim_version: u32) -> BTreeMap<ObjectKey, Row> {
    let row = |key: &ObjectKey| match truth.objects.get(key) {
        None => Row::Absent,
        Some(object) => {
            let shared = object.shared(key, trim_version);
            Row::Present { version: shared.version.clone(), body: object.body(trim_version) }
        }
    };
    truth.wanted[area].keys().map(|key| (key.clone(), row(key))).collect()
}
