//! The object versions that the watches showed last: evidence of whether the cloud's history went back.
//!
//! After a restore, revisions soon exceed those seen before, so the numbers alone prove nothing. An object that is read
//! again in an older version than the one seen is proof.

use std::collections::VecDeque;

use parking_lot::Mutex;
use tombolo_proto::{CloudRevision, ObjectKey, Uid};

/// Number of different objects remembered.
const REMEMBERED: usize = 32;

/// One version of one object, as a watch reported it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedVersion {
    /// The object.
    pub key: ObjectKey,
    /// The incarnation.
    pub uid: Uid,
    /// The version.
    pub revision: CloudRevision,
}

/// The newest observed versions, and those that were newest when a watch broke.
#[derive(Debug, Default)]
pub struct ObservedVersions(Mutex<ObservedVersionsInner>);

#[derive(Debug, Default)]
struct ObservedVersionsInner {
    recent: VecDeque<ObservedVersion>,
    suspects: Option<Vec<ObservedVersion>>,
}

impl ObservedVersions {
    pub(super) fn note(&self, observed: ObservedVersion) {
        let mut state = self.0.lock();
        if let Some(index) = state.recent.iter().position(|seen| seen.key == observed.key) {
            state.recent.remove(index);
        } else if state.recent.len() >= REMEMBERED {
            state.recent.pop_front();
        }
        state.recent.push_back(observed);
    }

    /// Records that a watch broke: events from now on may belong to another history.
    pub fn suspect(&self) {
        let mut state = self.0.lock();
        if state.suspects.is_none() {
            state.suspects = Some(state.recent.iter().cloned().collect());
        }
    }

    /// The observed versions to verify by reading again. `None` while no watch has broken.
    #[must_use]
    pub fn suspects(&self) -> Option<Vec<ObservedVersion>> {
        self.0.lock().suspects.clone()
    }

    /// Records that the suspects were verified.
    pub fn acquit(&self) {
        self.0.lock().suspects = None;
    }

    pub(super) fn clear(&self) {
        *self.0.lock() = ObservedVersionsInner::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kube::resources;

    fn observed(name: usize, revision: u64) -> ObservedVersion {
        ObservedVersion {
            key: ObjectKey::new(resources::configmaps(), "d", &name.to_string()),
            uid: Uid::parse("u").expect("valid"),
            revision: CloudRevision(revision),
        }
    }

    #[test]
    fn the_state_at_the_break_is_kept() {
        let observed_versions = ObservedVersions::default();
        assert_eq!(observed_versions.suspects(), None);
        for n in 0..40 {
            observed_versions.note(observed(n, n as u64));
        }
        observed_versions.note(observed(20, 99));
        observed_versions.suspect();
        observed_versions.note(observed(20, 100));
        observed_versions.suspect();
        let suspects = observed_versions.suspects().expect("a watch broke");
        assert_eq!(suspects.len(), REMEMBERED);
        assert_eq!(suspects.last(), Some(&observed(20, 99)));
        assert!(!suspects.contains(&observed(0, 0)), "the oldest went first");
        observed_versions.acquit();
        assert_eq!(observed_versions.suspects(), None);
    }
}
