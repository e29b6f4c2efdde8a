//! Chooses the source of a local client's read: the pushed set, a selection that this node follows, or the cloud.

use std::sync::Arc;

use futures::future::BoxFuture;
use tombolo_apicore::auth::Attributes;
use tombolo_apicore::sources::{Read, Sources};
use tombolo_apicore::status::ApiError;
use tombolo_apicore::store::Store as ServedStore;
use tombolo_proto::ids::NodeId;
use tombolo_proto::object::{ObjectKey, Resource};
use tombolo_proto::references;

use super::account_reads::AccountReads;
use super::callers::caller_token;
use super::copies::{copy, refused};
use super::single_reads::SingleReads;
use crate::store::{Selection, Store, is_pushed};
use crate::subscriptions::Subscriptions;

/// Chooses the source of reads.
pub(super) struct Reads {
    node: NodeId,
    store: Store,
    subscriptions: Subscriptions,
    accounts: AccountReads,
    single_reads: SingleReads,
}

impl Reads {
    pub(super) fn new(node: NodeId, accounts: AccountReads) -> Self {
        let (store, subscriptions) = (accounts.store.clone(), accounts.subscriptions.clone());
        let single_reads = SingleReads::new(store.clone(), subscriptions.clone(), accounts.hub.clone());
        Self { node, store, subscriptions, accounts, single_reads }
    }

    async fn choose(&self, read: Read<'_>) -> Result<Arc<dyn ServedStore>, ApiError> {
        let (resource, about) = (&read.kind.storage, read.attributes);
        if let Some(token) = caller_token(about, read.authorization) {
            return self.accounts.choose(read, token).await;
        }
        let wide = Selection { namespace: about.namespace.clone(), ..Selection::all(resource.clone()) };
        if about.verb == "get" {
            return self.choose_for_one(read, &wide).await;
        }
        if is_pushed(resource) && self.is_own(resource, about) {
            return Ok(Arc::new(self.store.clone()));
        }
        copy(&self.subscriptions, wide, read, None)
            .await
            .map(|subscribed| Arc::new(subscribed) as Arc<dyn ServedStore>)
            .map_err(|error| refused(error, about))
    }

    /// The source of one object: the pushed set if it can tell, a selection that is up to date, or else the cloud.
    async fn choose_for_one(
        &self,
        read: Read<'_>,
        wide: &Selection,
    ) -> Result<Arc<dyn ServedStore>, ApiError> {
        let (resource, about) = (&read.kind.storage, read.attributes);
        let key = ObjectKey::new(resource.clone(), &about.namespace, &about.name);
        if is_pushed(resource) && self.is_own(resource, about) {
            let delivered = self.store.is_delivered(&key);
            let delivered = delivered.map_err(|error| ApiError::unavailable(error.to_string()))?;
            // All pods of this node are here, so a missing one does not exist. Neither does an object with an invalid
            // name.
            if delivered || &*resource.name == "pods" || references::is_never_there(&key) {
                return Ok(Arc::new(self.store.clone()));
            }
        }
        match self.subscriptions.live(wide) {
            Some(subscribed) => Ok(Arc::new(subscribed)),
            None => self.single_reads.ask(read, wide, &key).await,
        }
    }

    /// Whether the pushed set contains everything that is requested. It contains only one Node, that of this node.
    fn is_own(&self, resource: &Resource, about: &Attributes) -> bool {
        &*resource.name != "nodes" || about.name == self.node.as_str()
    }
}

impl Sources for Reads {
    fn source<'a>(&'a self, read: Read<'a>) -> BoxFuture<'a, Result<Arc<dyn ServedStore>, ApiError>> {
        Box::pin(self.choose(read))
    }
}
