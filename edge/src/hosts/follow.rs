//! Follows the objects that uniform names depend on.

use std::collections::BTreeSet;
use std::sync::Arc;

use tombolo_apicore::history::Change;
use tombolo_apicore::store::Store;
use tombolo_grid::GridName;

use super::names::NameInputKind;
use crate::follow::{Following, News};

/// The names that must be computed again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Affected {
    /// All names, after reading all objects again.
    Everything,
    /// The names of these grids.
    Grids(BTreeSet<GridName>),
}

impl Affected {
    /// No names.
    pub(super) fn nothing() -> Self {
        Self::Grids(BTreeSet::new())
    }

    pub(super) fn join(&mut self, other: Self) {
        match (&mut *self, other) {
            (Self::Grids(own), Self::Grids(others)) => own.extend(others),
            _ => *self = Self::Everything,
        }
    }
}

/// An event of a part.
pub(super) enum Happened {
    /// Changes are reported from now on; the existing objects must be read.
    Begun,
    /// These objects have changed.
    Changed(NameInputKind, Vec<Arc<Change>>),
}

/// Follows all parts.
pub(super) struct Follower(Following);

impl Follower {
    pub(super) fn new(store: Arc<dyn Store>) -> Self {
        Self(Following::new(store, NameInputKind::ALL.map(NameInputKind::resource)).without_lists())
    }

    /// Waits for a change. Cancel-safe.
    pub(super) async fn changed(&mut self) -> Happened {
        match self.0.next().await {
            News::All(..) => Happened::Begun,
            News::Changed(index, changes) => Happened::Changed(NameInputKind::ALL[index], changes),
        }
    }
}
