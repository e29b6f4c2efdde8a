//! The objects that uniform names depend on, and what their changes affect.

use std::collections::BTreeSet;
use std::sync::Arc;

use tombolo_apicore::history::Change;
use tombolo_grid::GridName;
use tombolo_proto::object::Resource;

/// The kinds that uniform names depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NameInputKind {
    Grids,
    Nodes,
    Services,
    Slices,
}

impl NameInputKind {
    pub(super) const ALL: [Self; 4] = [Self::Grids, Self::Nodes, Self::Services, Self::Slices];

    pub(super) fn resource(self) -> Resource {
        match self {
            Self::Grids => Resource::new("superedge.io", "v1", "statefulsetgrids"),
            Self::Nodes => Resource::new("", "v1", "nodes"),
            Self::Services => Resource::new("", "v1", "services"),
            Self::Slices => Resource::new("discovery.k8s.io", "v1", "endpointslices"),
        }
    }
}

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
