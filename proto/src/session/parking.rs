//! Keys that wait after a failure: for some time, or for another version than the failed one. The cloud sessions of
//! both dialects use this.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::ids::Moment;
use crate::limits::{PARK_DELAY_MAX, PARK_DELAY_MIN};
use crate::object::ObjectKey;

/// A version that failed and its back-off. `V` distinguishes versions of a key.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Park<V> {
    /// The version that failed; none for deletions and absences.
    version: Option<V>,
    /// The version is not sent before this time; never when none.
    until: Option<Moment>,
    /// The length of the wait that ends at `until`.
    delay: Duration,
}

impl<V: PartialEq> Park<V> {
    /// A version that failed at `now`. The wait is twice the previous one, if there was one.
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

    /// Whether this is the same version again, too early.
    pub(super) fn holds_back(&self, version: Option<&V>, now: Moment) -> bool {
        self.version.as_ref() == version && self.until.is_none_or(|until| now < until)
    }

    /// When the version may be sent again; never when none.
    pub(super) fn until(&self) -> Option<Moment> {
        self.until
    }

    /// The length of the wait.
    pub(super) fn delay(&self) -> Duration {
        self.delay
    }
}

/// Bytes of a back-off and its timer: an allocation of its own, and an entry in a tree that is half full.
const PARKED_BYTES: usize = 192;

/// Keys to retry at a given time. An entry whose slot has changed state is stale and does nothing.
#[derive(Debug, Default)]
pub(super) struct Timers(BTreeSet<(Moment, ObjectKey)>);

impl Timers {
    pub(super) fn set(&mut self, until: Moment, key: ObjectKey) {
        self.0.insert((until, key));
    }

    /// Removes a key's back-off and its timer, so that there is one timer per key, however often it fails.
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

    /// A key whose time is due.
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
