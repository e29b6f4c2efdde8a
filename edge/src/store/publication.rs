//! What a commit changes for readers.

use std::sync::Arc;

use tombolo_apicore::history::ChangeKind;
use tombolo_apicore::store::Stored;
use tombolo_proto::ids::SubscriptionId;

/// A change and the subscriptions in which clients see it.
#[derive(Debug)]
pub(super) struct Publication {
    /// The kind of the change in each subscription.
    pub(super) views: Vec<(u32, ChangeKind)>,
    /// The new version; for a deletion, the last state under the deletion's revision.
    pub(super) object: Arc<Stored>,
    /// The version that clients saw before.
    pub(super) previous: Option<Arc<Stored>>,
}

impl Publication {
    pub(super) fn versions(&self) -> impl Iterator<Item = &Arc<Stored>> {
        self.previous.iter().chain([&self.object])
    }
}

/// News for readers after a commit.
#[derive(Debug, Default)]
pub(super) struct Published {
    pub(super) changes: Vec<Publication>,
    /// Subscriptions that are gone.
    pub(super) closed: Vec<SubscriptionId>,
    /// Whether the set of waiting reports changed.
    pub(super) reports: bool,
}
