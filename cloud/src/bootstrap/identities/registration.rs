//! The creation of a Node, marked in the record before the API is asked for it.
//!
//! A Node can be deleted between its creation and the recording of its UID. A running cloudcore sees that. After a
//! crash the mark says that there may have been a Node: if there is none now, it counts as deleted, and the certificate
//! is denied.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use tombolo_proto::NodeId;

use super::{Denied, Entry, Identities, IdentityError};

/// Interval for retrying registrations whose outcome could not be recorded.
const SETTLE_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum number of times a Node is read before its record is changed. A repetition means that another replica has
/// registered it meanwhile.
const ATTEMPTS: usize = 4;

/// How many of them are settled concurrently.
const SETTLED_AT_ONCE: usize = 8;

/// Registrations of one name by this process: those in progress, and whether the outcome of an earlier one is still
/// unrecorded.
#[derive(Debug, Default)]
pub(super) struct Pending {
    running: usize,
    open: bool,
    /// UID of the created Node, if known.
    uid: Option<String>,
}

impl Pending {
    /// Whether none is in progress, and an outcome is still unrecorded.
    fn is_over(&self) -> bool {
        self.running == 0 && self.open
    }
}

/// A registration in progress. If it is dropped without an outcome, [`Identities::settle`] retries it.
#[must_use]
#[derive(Debug)]
pub(crate) struct Registration {
    identities: Arc<Identities>,
    node: NodeId,
    /// The record has the mark, or may have it.
    marked: bool,
    /// The outcome is recorded.
    ended: bool,
    /// UID of the present Node, if known.
    uid: Option<String>,
}

impl Registration {
    fn new(identities: &Arc<Identities>, node: &NodeId) -> Self {
        identities.pending.lock().entry(node.clone()).or_default().running += 1;
        let identities = Arc::clone(identities);
        Self { identities, node: node.clone(), marked: false, ended: false, uid: None }
    }

    /// Records the outcome: the UID of the created Node, or otherwise of the Node that exists now.
    pub(crate) async fn end(mut self, uid: Option<String>) {
        if !self.marked {
            return;
        }
        self.uid = uid;
        if let Err(error) = self.try_to_end().await {
            tracing::warn!(node = %self.node, %error, "cannot record the outcome of a registration yet; trying again");
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

/// Why a Node must not be created now.
enum RegistrationRefusal {
    Denied(Denied),
    /// Another process has marked that it is creating the Node.
    Elsewhere,
    /// The known state of the Node is older than the record.
    Outdated,
}

impl Identities {
    /// Marks that a Node is about to be created for a name. A name without a record needs no mark, nor does a name
    /// whose Node exists. In the latter case the record is bound to the Node now, unless it already is.
    ///
    /// # Errors
    /// [`IdentityError`] when that cannot be recorded, or the last attempt has created no Node. The Node must then not
    /// be created.
    pub(crate) async fn begin_registration(
        self: &Arc<Self>,
        node: &NodeId,
    ) -> Result<Result<Registration, Denied>, IdentityError> {
        let mut registration = Registration::new(self, node);
        let (entry, uid) = self.memory(node);
        let bound = entry.and_then(|entry| entry.uid).filter(|_| self.shards.is_known());
        if bound.is_some() && uid == Some(bound) {
            // An agent that restarts.
            return Ok(Ok(registration));
        }
        for _ in 0..ATTEMPTS {
            // The Node is read after this, and its state may be older than any later record.
            let known = self.shards.get(node);
            let state = self.nodes.state(node).await?;
            match (state.uid(), self.pauses.left(node)) {
                (Some(_), _) => self.pauses.over(node),
                (None, Some(left)) => return Err(IdentityError::Paused(left)),
                (None, None) => {}
            }
            let mut marked = false;
            // If this is cancelled during the write, the write may still have been made.
            registration.marked = state.uid().is_none();
            let begun = self
                .change(node, |entry| {
                    marked = false;
                    match self.begin(node, entry, state.uid()) {
                        // Another replica has registered it meanwhile.
                        Err(_) if entry != known.as_ref() => Err(RegistrationRefusal::Outdated),
                        Err(refused) => Err(refused),
                        Ok(begun) => {
                            marked = begun.as_ref().is_some_and(|entry| entry.registering.is_some());
                            Ok(begun)
                        }
                    }
                })
                .await;
            // A failed write may also have been made.
            registration.marked = marked;
            match begun? {
                Ok(()) => return Ok(Ok(registration)),
                Err(RegistrationRefusal::Denied(why)) => return Ok(Err(why)),
                Err(RegistrationRefusal::Elsewhere) => return Err(IdentityError::Elsewhere),
                Err(RegistrationRefusal::Outdated) => {}
            }
        }
        Err(IdentityError::Busy)
    }

    /// The record of a name whose Node is about to be created, or exists with this UID.
    fn begin(
        &self,
        node: &NodeId,
        entry: Option<&Entry>,
        uid: Option<&str>,
    ) -> Result<Option<Entry>, RegistrationRefusal> {
        let Some(entry) = entry.map(|entry| self.deletions.applied(node, entry)) else { return Ok(None) };
        match (&entry.uid, uid) {
            _ if entry.revoked => Err(RegistrationRefusal::Denied(Denied::Revoked)),
            (Some(own), Some(uid)) if own == uid => Ok(None),
            (Some(_), _) => Err(RegistrationRefusal::Denied(Denied::Deleted)),
            (None, Some(uid)) => Ok(Some(entry.bound(uid))),
            (None, None) => match &entry.registering {
                // The other process's mark is the only trace of a Node that may have existed.
                Some(other) if *other != self.process => Err(RegistrationRefusal::Elsewhere),
                _ => Ok(Some(Entry { registering: Some(self.process.clone()), ..entry.into_owned() })),
            },
        }
    }

    /// UID of the created Node; if unknown, that of the Node that exists now.
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

    /// Removes the mark, or binds the record to the Node. False when the mark stays for other registrations in
    /// progress, apart from the caller's `own` ones.
    async fn end_registration(
        &self,
        node: &NodeId,
        uid: Option<&str>,
        own: usize,
    ) -> Result<bool, IdentityError> {
        let mut ended = true;
        let done = self.change(node, |entry| {
            // Without the mark the name was joined anew since, or its Node is recorded already.
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

    /// Retries registrations whose outcome could not be recorded. There are at most as many as names with records.
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
                tracing::debug!(%node, %error, "cannot record the outcome of a registration yet; trying again");
            }
        }
    }
}

/// Retries registrations whose outcome could not be recorded. Never returns.
pub(crate) async fn keep_settled(identities: Arc<Identities>) {
    loop {
        tokio::time::sleep(SETTLE_INTERVAL).await;
        identities.settle().await;
    }
}
