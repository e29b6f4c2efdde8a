//! Keys that wait after a failure: for a moment, or for another version than the one that failed. The cloud sessions of
//! both dialects park their keys so.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::ids::Moment;
use crate::limits::{PARK_DELAY_MAX, PARK_DELAY_MIN};
use crate::object::ObjectKey;

/// A version that failed and its back-off. `V` is what tells versions of a key apart.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Park<V> {
    /// The version that failed; none for deletions and absences.
    version: Option<V>,
    /// That version is not sent before this; never when none.
    until: Option<Moment>,
    /// The wait that ends at `until`.
    delay: Duration,
}

impl<V: PartialEq> Park<V> {
    /// A version that failed at `now`. The wait is twice the one of the failure before, if there was one.
    pub(super) fn failed(version: Option<V>, now: Moment, former: Option<&Self>) -> Self {
        let former = former.map_or(Duration::ZERO, |park| park.delay);
        let delay = (former * 2).clamp(PARK_DELAY_MIN, PARK_DELAY_MAX);
        Self { version, until: Some(now + delay), delay }
    }

    /// A version that can never be sent.
    pub(super) fn never(version: V) -> Self {
        Self { version: Some(version), until: None, delay: Duration::ZERO }
    }

    /// Whether this version is the one that failed.
    pub(super) fn is_of(&self, version: &V) -> bool {
        self.version.as_ref() == Some(version)
    }

    /// The same version again, too early.
    pub(super) fn holds_back(&self, version: Option<&V>, now: Moment) -> bool {
        self.version.as_ref() == version && self.until.is_none_or(|until| now < until)
    }

    /// When the version may be sent again; never when none.
    pub(super) fn until(&self) -> Option<Moment> {
        self.until
    }

    /// The wait that ends then.
    pub(super) fn delay(&self) -> Duration {
        self.delay
    }
}

/// Bytes of a back-off and its timer: a piece of memory of its own, and a place in a tree that is half full.
const PARKED_BYTES: usize = 192;

/// Keys to look at again at a moment. An entry whose slot has moved on is stale and does nothing.
#[derive(Debug, Default)]
pub(super) struct Timers(BTreeSet<(Moment, ObjectKey)>);

impl Timers {
    pub(super) fn set(&mut self, until: Moment, key: ObjectKey) {
        self.0.insert((until, key));
    }

    /// Takes a key's back-off and its timer away, so that there is one timer a key, however often it fails.
    pub(super) fn end<V>(
        &mut self,
        key: &ObjectKey,
        park: &mut Option<Box<Park<V>>>,
    ) -> Option<Box<Park<V>>> {
        let park = park.take()?;
        if let Some(until) = park.until {
            self.0.remove(&(until, key.clone()));
        }
        Some(park)
    }

    /// Bytes that the timers take, each with the back-off that it ends.
    pub(super) fn memory(&self) -> usize {
        self.0.len().saturating_mul(PARKED_BYTES)
    }

    /// When the next key is due.
    pub(super) fn deadline(&self) -> Option<Moment> {
        self.0.first().map(|(until, _)| *until)
    }

    /// A key whose time has come.
    pub(super) fn pop_due(&mut self, now: Moment) -> Option<ObjectKey> {
        self.deadline().filter(|until| *until <= now)?;
        self.0.pop_first().map(|(_, key)| key)
    }
}

#[cfg(test)]
impl Timers {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
