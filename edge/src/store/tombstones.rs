//! Objects that the cloud reported as deleted, so that a reply in transit does not bring them back. Replies and
//! deliveries use separate lanes, and nothing would delete the object again.

use std::collections::VecDeque;

use tombolo_proto::object::ObjectVersion;

/// Maximum number of objects that are remembered. A reply is in transit for seconds only.
const GONE_MAX: usize = 1024;

/// The last deleted objects, with the era of each. It need not outlive the process, because replies do not either.
#[derive(Debug, Default)]
pub(super) struct Tombstones(VecDeque<(u32, ObjectVersion)>);

impl Tombstones {
    /// Records the deletion of a version in the cloud's history of this era.
    pub(super) fn note(&mut self, era: u32, version: ObjectVersion) {
        if self.0.len() >= GONE_MAX {
            self.0.pop_front();
        }
        self.0.push_back((era, version));
    }

    /// Whether the object was deleted at this revision or later.
    pub(super) fn includes(&self, era: u32, object: &ObjectVersion) -> bool {
        self.0
            .iter()
            .any(|(of, gone)| *of == era && gone.uid == object.uid && gone.revision >= object.revision)
    }
}
