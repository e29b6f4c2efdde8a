//! Follows the objects that uniform names depend on.

use std::sync::Arc;

use tombolo_apicore::store::Store;

use super::inputs::{Happened, NameInputKind};
use crate::follow::{Following, News};

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
