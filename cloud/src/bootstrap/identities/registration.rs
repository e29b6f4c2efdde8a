//! The creation of a Node, marked in the record before the API is asked for it.
//!
//! Between a Node's creation and the record of its UID the Node can be deleted. While cloudcore runs it sees that; after a crash the
//! mark says that there may have been a Node. Without one it counts as deleted, and the certificate opens nothing.

use std::sync::Arc;

use tombolo_proto::NodeId;

use super::{Denied, Entry, Identities, IdentityError};

/// A registration that is under way. Dropped without an end, it is looked at again by [`Identities::settle`].
#[must_use]
#[derive(Debug)]
pub(crate) struct Registration {
    /// None when it has ended, and where there is nothing to mark: a name without a record, or one whose Node is there.
    open: Option<(Arc<Identities>, NodeId)>,
    uid: Option<String>,
}

impl Registration {
    /// Records what came of it: the UID of the Node that was made, or else whatever Node there is now.
    pub(crate) async fn end(mut self, uid: Option<&str>) {
        let Some((identities, node)) = self.open.clone() else { return };
        self.uid = uid.map(str::to_owned);
        match identities.end_registration(&node, uid).await {
            Ok(()) => self.open = None,
            Err(error) => {
                tracing::warn!(%node, %error, "what came of a registration cannot be recorded yet");
            }
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if let Some((identities, node)) = self.open.take() {
            identities.unsettled.lock().insert(node, self.uid.take());
        }
    }
}

impl Identities {
    /// Marks that a Node is about to be created for a name.
    ///
    /// # Errors
    /// [`IdentityError`] when that cannot be recorded: then the Node must not be created.
    pub(crate) async fn begin_registration(
        self: &Arc<Self>,
        node: &NodeId,
    ) -> Result<Result<Registration, Denied>, IdentityError> {
        let (entry, uid) = self.memory(node);
        let bound = entry.and_then(|entry| entry.uid).filter(|_| self.shelf.is_known());
        if bound.is_some() && Some(bound) == uid {
            // An agent that starts again: its Node is there.
            return Ok(Ok(Registration { open: None, uid: None }));
        }
        let state = self.nodes.state(node).await?;
        let mut marked = false;
        let begun = self
            .change(node, |entry| {
                let Some(entry) = entry else { return Ok(None) };
                match (&entry.uid, state.uid()) {
                    _ if entry.revoked => Err(Denied::Revoked),
                    (Some(own), Some(uid)) if own == uid => Ok(None),
                    (Some(_), _) => Err(Denied::Deleted),
                    (None, _) => {
                        marked = true;
                        Ok(Some(Entry { registering: Some(self.process.clone()), ..entry.clone() }))
                    }
                }
            })
            .await?;
        let open = marked.then(|| (Arc::clone(self), node.clone()));
        Ok(begun.map(|()| Registration { open, uid: None }))
    }

    async fn end_registration(&self, node: &NodeId, uid: Option<&str>) -> Result<(), IdentityError> {
        let found = match uid {
            Some(_) => None,
            None => self.nodes.state(node).await?.uid().map(str::to_owned),
        };
        let uid = uid.or(found.as_deref());
        let ended = self.change(node, |entry| {
            let Some(entry) = entry else { return Ok::<_, Denied>(None) };
            // Without the mark somebody has joined under the name since, or the Node is recorded already.
            let own = entry.registering.as_deref() == Some(self.process.as_str());
            let ended = || uid.map_or(Entry { registering: None, ..entry.clone() }, |uid| entry.bound(uid));
            Ok(own.then(ended))
        });
        ended.await.map(|_| ())
    }

    /// Looks again at registrations whose end could not be recorded. There are at most as many as names with records.
    pub(crate) async fn settle(&self) {
        let unsettled = std::mem::take(&mut *self.unsettled.lock());
        for (node, uid) in unsettled {
            if let Err(error) = self.end_registration(&node, uid.as_deref()).await {
                tracing::debug!(%node, %error, "what came of a registration cannot be recorded yet");
                self.unsettled.lock().entry(node).or_insert(uid);
            }
        }
    }
}
