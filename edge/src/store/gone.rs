//! What the cloud has told to be gone, so that a reply which was under way meanwhile does not bring it back: replies and
//! deliveries travel in lanes of their own, and nothing would ever take the object away again.

use std::collections::VecDeque;

use tombolo_proto::object::ObjectVersion;

/// Objects that are remembered, at most. A reply is under way for seconds.
const GONE_MAX: usize = 1024;

/// See the module. It need not outlive the process: nor do replies.
#[derive(Debug, Default)]
pub(super) struct Gone(VecDeque<(u32, ObjectVersion)>);

impl Gone {
    /// This version went, in the cloud's history of this era.
    pub(super) fn note(&mut self, era: u32, version: ObjectVersion) {
        if self.0.len() >= GONE_MAX {
            self.0.pop_front();
        }
        self.0.push_back((era, version));
    }

    /// Whether the object has gone at this revision of it or later.
    pub(super) fn includes(&self, era: u32, object: &ObjectVersion) -> bool {
        self.0
            .iter()
            .any(|(of, gone)| *of == era && gone.uid == object.uid && gone.revision >= object.revision)
    }
}
