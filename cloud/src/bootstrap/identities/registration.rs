//! The creation of a Node, marked in the record before the API is asked for it.
//!
//! Between a Node's creation and the record of its UID the Node can be deleted. While cloudcore runs it sees that; after a crash the
//! mark says that there may have been a Node. Without one it counts as deleted, and the certificate opens nothing.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use tombolo_proto::NodeId;

use super::{Denied, Entry, Identities, IdentityError};

/// How often registrations are looked at again whose end could not be recorded.
const SETTLE_INTERVAL: Duration = Duration::from_secs(1);

/// Looks at a Node before its record, at most: each further one means that another replica has registered it meanwhile.
const ATTEMPTS: usize = 4;

/// How many of them at a time.
const SETTLED_AT_ONCE: usize = 8;

/// Registrations of one name here: those that are under way, and whether the end of an earlier one is still to be recorded.
#[derive(Debug, Default)]
pub(super) struct Pending {
    running: usize,
    open: bool,
    /// Of the Node that was made, where that is known.
    uid: Option<String>,
}

impl Pending {
    /// Whether nothing is under way, and an end is still to be recorded.
    fn is_over(&self) -> bool {
        self.running == 0 && self.open
    }
}

/// A registration that is under way. Dropped without an end, it is looked at again by [`Identities::settle`].
#[must_use]
#[derive(Debug)]
pub(crate) struct Registration {
    identities: Arc<Identities>,
    node: NodeId,
    /// The record has the mark, or may have it.
    marked: bool,
    /// What came of it is recorded.
    ended: bool,
    /// Of the Node that there is now, where that is known.
    uid: Option<String>,
}

impl Registration {
    fn new(identities: &Arc<Identities>, node: &NodeId) -> Self {
        identities.pending.lock().entry(node.clone()).or_default().running += 1;
        let identities = Arc::clone(identities);
        Self { identities, node: node.clone(), marked: false, ended: false, uid: None }
    }

    /// Records what came of it: the UID of the Node that was made, or else whatever Node there is now.
    pub(crate) async fn end(mut self, uid: Option<String>) {
        if !self.marked {
            return;
        }
        self.uid = uid;
        if let Err(error) = self.try_to_end().await {
            tracing::warn!(node = %self.node, %error, "what came of a registration cannot be recorded yet");
        }
    }

    async fn try_to_end(&mut self) -> Result<(), IdentityError> {
        let identities = Arc::clone(&self.identities);
        self.uid = identities.made(&self.node, self.uid.take()).await?;
        self.ended = identities.end_registration(&self.node, self.uid.as_deref(), 1).await?;
        Ok(())
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if self.marked && self.uid.is_none() {
            self.identities.pauses.failed(&self.node);
        }
        let mut pending = self.identities.pending.lock();
        let Some(own) = pending.get_mut(&self.node) else { return };
        own.running = own.running.saturating_sub(1);
        if self.marked && !self.ended {
            own.open = true;
            own.uid = self.uid.take().or(own.uid.take());
        }
        if own.running == 0 && !own.open {
            pending.remove(&self.node);
        }
    }
}

/// Why a Node is not to be created now.
enum Refused {
    Denied(Denied),
    /// Another process has marked that it creates it.
    Elsewhere,
    /// What is known of the Node is older than the record.
    Outdated,
}

impl Identities {
    /// Marks that a Node is about to be created for a name. There is nothing to mark for a name without a record, nor for
    /// one whose Node is there: that is recorded now, if it is not yet.
    ///
    /// # Errors
    /// [`IdentityError`] when that cannot be recorded, or the last try has made no Node: then the Node must not be created.
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
        for _ in 0..ATTEMPTS {
            // What is known of the Node is asked for after this, and may be older than any later record.
            let known = self.shelf.get(node);
            let state = self.nodes.state(node).await?;
            match (state.uid(), self.pauses.left(node)) {
                (Some(_), _) => self.pauses.over(node),
                (None, Some(left)) => return Err(IdentityError::Paused(left)),
                (None, None) => {}
            }
            let mut marked = false;
            // Given up in the middle of the write, it may have been made all the same.
            registration.marked = state.uid().is_none();
            let begun = self
                .change(node, |entry| {
                    marked = false;
                    match self.begin(node, entry, state.uid()) {
                        // Another replica has registered it meanwhile.
                        Err(_) if entry != known.as_ref() => Err(Refused::Outdated),
                        Err(refused) => Err(refused),
                        Ok(begun) => {
                            marked = begun.as_ref().is_some_and(|entry| entry.registering.is_some());
                            Ok(begun)
                        }
                    }
                })
                .await;
            // So may one that has failed.
            registration.marked = marked;
            match begun? {
                Ok(()) => return Ok(Ok(registration)),
                Err(Refused::Denied(why)) => return Ok(Err(why)),
                Err(Refused::Elsewhere) => return Err(IdentityError::Elsewhere),
                Err(Refused::Outdated) => {}
            }
        }
        Err(IdentityError::Busy)
    }

    /// The record of a name whose Node is about to be created, or is there with this UID.
    fn begin(
        &self,
        node: &NodeId,
        entry: Option<&Entry>,
        uid: Option<&str>,
    ) -> Result<Option<Entry>, Refused> {
        let Some(entry) = entry.map(|entry| self.deletions.applied(node, entry)) else { return Ok(None) };
        match (&entry.uid, uid) {
            _ if entry.revoked => Err(Refused::Denied(Denied::Revoked)),
            (Some(own), Some(uid)) if own == uid => Ok(None),
            (Some(_), _) => Err(Refused::Denied(Denied::Deleted)),
            (None, Some(uid)) => Ok(Some(entry.bound(uid))),
            (None, None) => match &entry.registering {
                // Its mark is the only thing that says that there may have been a Node.
                Some(other) if *other != self.process => Err(Refused::Elsewhere),
                _ => Ok(Some(Entry { registering: Some(self.process.clone()), ..entry.into_owned() })),
            },
        }
    }

    /// UID of the Node that was made, where it is not known that of whatever Node there is now.
    async fn made(&self, node: &NodeId, uid: Option<String>) -> Result<Option<String>, IdentityError> {
        let uid = match uid {
            Some(uid) => Some(uid),
            None => self.nodes.state(node).await?.uid().map(str::to_owned),
        };
        if uid.is_some() {
            self.pauses.over(node);
        }
        Ok(uid)
    }

    /// Takes the mark away, or binds the record to the Node. False when the mark stays for others that are under way
    /// beside the caller's `own` ones.
    async fn end_registration(
        &self,
        node: &NodeId,
        uid: Option<&str>,
        own: usize,
    ) -> Result<bool, IdentityError> {
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
        let open: Vec<(NodeId, Option<String>)> = self
            .pending
            .lock()
            .iter()
            .filter(|(_, pending)| pending.is_over())
            .map(|(node, pending)| (node.clone(), pending.uid.clone()))
            .collect();
        let looks = open.into_iter().map(|(node, uid)| self.settle_one(node, uid));
        futures::stream::iter(looks).buffer_unordered(SETTLED_AT_ONCE).collect::<()>().await;
    }

    async fn settle_one(&self, node: NodeId, uid: Option<String>) {
        let end = async {
            let uid = self.made(&node, uid).await?;
            self.end_registration(&node, uid.as_deref(), 0).await
        };
        match end.await {
            Ok(true) => {
                let mut pending = self.pending.lock();
                if pending.get(&node).is_some_and(Pending::is_over) {
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

/// Looks again at registrations whose end could not be recorded, for ever.
pub(crate) async fn keep_settled(identities: Arc<Identities>) {
    loop {
        tokio::time::sleep(SETTLE_INTERVAL).await;
        identities.settle().await;
    }
}
