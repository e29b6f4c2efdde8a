//! Which names a change concerns.

use std::collections::BTreeSet;
use std::sync::Arc;

use tombolo_apiserve::history::Change;
use tombolo_apiserve::store::{Store, Stored};
use tombolo_grid::endpoints::service_of;
use tombolo_grid::{Carrier, Metadata, ServiceName};

use super::names::Part;
use crate::follow::{Following, News};

/// What must be computed anew.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Affected {
    /// All names.
    Everything,
    /// The names that these Services govern.
    Services(BTreeSet<ServiceName>),
}

impl Affected {
    pub(super) fn join(&mut self, other: Self) {
        match (&mut *self, other) {
            (Self::Services(own), Self::Services(others)) => own.extend(others),
            _ => *self = Self::Everything,
        }
    }
}

/// Follows everything that decides.
pub(super) struct Follower(Following);

impl Follower {
    pub(super) fn new(store: Arc<dyn Store>) -> Self {
        Self(Following::new(store, Part::ALL.map(Part::resource)).without_lists())
    }

    /// Waits for a change. Cancel-safe.
    pub(super) async fn changed(&mut self) -> Affected {
        match self.0.next().await {
            News::All(..) => Affected::Everything,
            News::Changed(index, changes) => affected(Part::ALL[index], &changes),
        }
    }
}

fn affected(part: Part, changes: &[Arc<Change>]) -> Affected {
    let service_of_slice = |slice: &Stored| {
        let metadata = Metadata::of(&slice.body()).ok()?;
        service_of(Carrier::EndpointSlice, &metadata)
    };
    match part {
        Part::Grids | Part::Nodes => Affected::Everything,
        Part::Services => {
            let keys = changes.iter().map(|change| &change.object.key);
            Affected::Services(keys.map(|key| ServiceName::new(key.namespace(), key.name())).collect())
        }
        Part::Slices => {
            // A slice that changes its Service concerns the old one too.
            let versions = changes.iter().flat_map(|change| [Some(&change.object), change.previous.as_ref()]);
            Affected::Services(versions.flatten().filter_map(|slice| service_of_slice(slice)).collect())
        }
    }
}
