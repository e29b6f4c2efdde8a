//! The creation of a Node, marked in the record before the API is asked for it.
//!
//! Between a Node's creation and the record of its UID the Node can be deleted. While cloudcore runs it sees that; after a crash the
//! mark says that there may have been a Node. Without one it counts as deleted, and the certificate opens nothing.

use std::sync::Arc;

use tombolo_proto::NodeId;

use super::{Denied, Entry, Identities, IdentityError};

/// Registrations of one name here: those that are under way, and whether the end of an earlier one is still to be recorded.
#[derive(Debug, Default)]
pub(super) struct Pending {
    running: usize,
    open: bool,
    /// Of the Node that was made, where that is known.
    uid: Option<String>,
}

/// A registration that is under way. Dropped without an end, it is looked at again by [`Identities::settle`].
#[must_use]
#[derive(Debug)]
pub(crate) struct Registration {
    identities: Arc<Identities>,
    node: NodeId,
    /// Nothing is to be recorded about it any more.
    ended: bool,
    uid: Option<String>,
}

impl Registration {
    fn new(identities: &Arc<Identities>, node: &NodeId) -> Self {
        identities.pending.lock().entry(node.clone()).or_default().running += 1;
        Self { identities: Arc::clone(identities), node: node.clone(), ended: true, uid: None }
    }

    /// Records what came of it: the UID of the Node that was made, or else whatever Node there is now.
    pub(crate) async fn end(mut self, uid: Option<&str>) {
        if self.ended {
            return;
        }
        self.uid = uid.map(str::to_owned);
        match self.identities.end_registration(&self.node, uid, 1).await {
            Ok(ended) => self.ended = ended,
            Err(error) => {
                tracing::warn!(node = %self.node, %error, "what came of a registration cannot be recorded yet");
            }
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut pending = self.identities.pending.lock();
        let Some(own) = pending.get_mut(&self.node) else { return };
        own.running = own.running.saturating_sub(1);
        if !self.ended {
            own.open = true;
            own.uid = self.uid.take().or(own.uid.take());
        }
        if own.running == 0 && !own.open {
            pending.remove(&self.node);
        }
    }
}

impl Identities {
    /// Marks that a Node is about to be created for a name. There is nothing to mark for a name without a record, nor for
    /// one whose Node is there.
    ///
    /// # Errors
    /// [`IdentityError`] when that cannot be recorded: then the Node must not be created.
    pub(crate) async fn begin_registration(
        self: &Arc<Self>,
        node: &NodeId,
    ) -> Result<Result<Registration, Denied>, IdentityError> {
        let mut registration = Registration::new(self, node);
        let (entry, uid) = self.memory(node);
        let bound = entry.and_then(|entry| entry.uid).filter(|_| self.shelf.is_known());
        if bound.is_some() && uid == Some(bound) {
            // An agent that starts again.
            return Ok(Ok(registration));
        }
        let state = self.nodes.state(node).await?;
        let mut marked = false;
        // Given up in the middle of the write, it may have been made all the same.
        registration.ended = false;
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
            .await;
        // So may one that has failed.
        registration.ended = !marked;
        Ok(begun?.map(|()| registration))
    }

    /// Takes the mark away, or binds the record to the Node. False when the mark stays for others that are under way
    /// beside the caller's `own` ones.
    async fn end_registration(
        &self,
        node: &NodeId,
        uid: Option<&str>,
        own: usize,
    ) -> Result<bool, IdentityError> {
        let found = match uid {
            Some(_) => None,
            None => self.nodes.state(node).await?.uid().map(str::to_owned),
        };
        let uid = uid.or(found.as_deref());
        let mut ended = true;
        let done = self.change(node, |entry| {
            // Without the mark somebody has joined under the name since, or the Node is recorded already.
            let marked = |entry: &&Entry| entry.registering.as_deref() == Some(self.process.as_str());
            let Some(entry) = entry.filter(marked) else { return Ok::<_, Denied>(None) };
            let Some(uid) = uid else {
                ended = self.pending.lock().get(node).is_none_or(|pending| pending.running <= own);
                return Ok(ended.then(|| Entry { registering: None, ..entry.clone() }));
            };
            Ok(Some(entry.bound(uid)))
        });
        done.await.map(|_| ended)
    }

    /// Looks again at registrations whose end could not be recorded. There are at most as many as names with records.
    pub(crate) async fn settle(&self) {
        let over = |pending: &Pending| pending.running == 0 && pending.open;
        let open: Vec<(NodeId, Option<String>)> = self
            .pending
            .lock()
            .iter()
            .filter(|(_, pending)| over(pending))
            .map(|(node, pending)| (node.clone(), pending.uid.clone()))
            .collect();
        for (node, uid) in open {
            match self.end_registration(&node, uid.as_deref(), 0).await {
                Ok(true) => {
                    let mut pending = self.pending.lock();
                    if pending.get(&node).is_some_and(over) {
                        pending.remove(&node);
                    }
                }
                Ok(false) => {}
                Err(error) => {
                    tracing::debug!(%node, %error, "what came of a registration cannot be recorded yet");
                }
            }
        }
    }
}
