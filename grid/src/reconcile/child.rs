//! A grid's children as they are in the cluster.

use serde_json::Value;

use crate::labels::GRID_SELECTOR;

/// An object of the children's kind in the grid's namespace.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Child<'a>(pub &'a Value);

/// Owner of a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner<'a> {
    /// No controller owns it.
    Nobody,
    /// The controller with this UID, of this kind and name.
    Controller {
        /// `uid` of the owner reference.
        uid: &'a str,
        /// `kind` and `name`, for messages.
        named: (&'a str, &'a str),
    },
}

impl<'a> Child<'a> {
    fn metadata(self, field: &str) -> &'a str {
        #[cfg(test)]
        reads::count();
        self.0["metadata"][field].as_str().unwrap_or_default()
    }

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'a str {
        self.metadata("name")
    }

    /// Its UID.
    #[must_use]
    pub fn uid(self) -> &'a str {
        self.metadata("uid")
    }

    /// Its resource version.
    #[must_use]
    pub fn resource_version(self) -> &'a str {
        self.metadata("resourceVersion")
    }

    /// Whether it has a deletion timestamp.
    #[must_use]
    pub fn is_deleting(self) -> bool {
        !self.metadata("deletionTimestamp").is_empty()
    }

    /// Whether it carries the label of a grid's children.
    #[must_use]
    pub fn is_labelled_for(self, grid: &str) -> bool {
        self.0["metadata"]["labels"][GRID_SELECTOR] == grid
    }

    /// The controller that owns it.
    #[must_use]
    pub fn owner(self) -> Owner<'a> {
        let references = self.0["metadata"]["ownerReferences"].as_array().map_or(&[][..], Vec::as_slice);
        let Some(owner) = references.iter().find(|owner| owner["controller"] == true) else {
            return Owner::Nobody;
        };
        let text = |field: &str| owner[field].as_str().unwrap_or_default();
        Owner::Controller { uid: text("uid"), named: (text("kind"), text("name")) }
    }

    /// Whether the grid with this UID controls it.
    #[must_use]
    pub fn is_owned_by(self, uid: &str) -> bool {
        matches!(self.owner(), Owner::Controller { uid: owner, .. } if owner == uid)
    }
}

/// Counts how often children were read, so that tests can measure the cost of a plan.
#[cfg(test)]
pub(super) mod reads {
    use std::cell::Cell;

    thread_local!(static READS: Cell<usize> = const { Cell::new(0) });

    pub(super) fn count() {
        READS.with(|reads| reads.set(reads.get() + 1));
    }

    /// The count since the last call on this thread.
    pub(in crate::reconcile) fn take() -> usize {
        READS.with(Cell::take)
    }
}
