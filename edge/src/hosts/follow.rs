//! What has changed of that which decides about names.

use std::collections::BTreeSet;
use std::sync::Arc;

use tombolo_apicore::history::Change;
use tombolo_apicore::store::Store;
use tombolo_grid::GridName;

use super::names::Part;
use crate::follow::{Following, News};

/// What must be computed anew.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Affected {
    /// All names, from objects that are read again.
    Everything,
    /// The names of these grids.
    Grids(BTreeSet<GridName>),
}

impl Affected {
    /// Nothing is.
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

/// What has become of a part.
pub(super) enum Happened {
    /// From now on its changes are told; what was before is to be read.
    Begun,
    /// These objects have changed.
    Changed(Part, Vec<Arc<Change>>),
}

/// Follows everything that decides.
pub(super) struct Follower(Following);

impl Follower {
    pub(super) fn new(store: Arc<dyn Store>) -> Self {
        Self(Following::new(store, Part::ALL.map(Part::resource)).without_lists())
    }

    /// Waits for a change. Cancel-safe.
    pub(super) async fn changed(&mut self) -> Happened {
        match self.0.next().await {
            News::All(..) => Happened::Begun,
            News::Changed(index, changes) => Happened::Changed(Part::ALL[index], changes),
        }
    }
}
