//! Positions in the history of a store.

use std::fmt;

/// A position in one store's history, which clients see as `metadata.resourceVersion`. There is one counter for all
/// resources, so that clients may compare revisions as numbers. Revisions of different stores are never compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Revision(pub u64);

impl Revision {
    /// The revision after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
