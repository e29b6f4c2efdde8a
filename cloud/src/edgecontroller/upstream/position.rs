//! What was known when a report was received.

use tombolo_proto::{CloudRevision, ObjectKey};

use crate::edgecontroller::written::{Known, Order};

/// What was known when a request that writes a status was received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Position {
    /// The object, and what was known of it. `None` if the content names the objects.
    pub(super) about: Option<(ObjectKey, Known)>,
    /// The newest revision known of any object. Anything newer was written since.
    pub(super) seen: CloudRevision,
    /// Its position among the reports that this replica has received.
    pub(super) order: Order,
}

impl Position {
    pub(super) fn order(&self) -> Order {
        self.order
    }

    pub(super) fn known(&self, key: &ObjectKey) -> Known {
        self.about.as_ref().filter(|(about, _)| about == key).map_or(Known::default(), |(_, known)| *known)
    }
}
