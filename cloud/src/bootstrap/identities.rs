//! Which certificates are in force (docs/decisions/0011-certificates-in-force.md).
//!
//! The authority's signature says who somebody was when it was made. Whether that still counts is recorded by name:
//! the keys of the certificates in force, and the UID of the Node that registered with them. The records are Secrets of
//! cloudcore's namespace, so every replica follows the same ones; each decision comes from memory, and one that would
//! refuse or change anything is made again from what the API says at that moment.

mod entry;
mod follow;
mod shelf;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use parking_lot::RwLock;
use thiserror::Error;
use tokio::sync::{Semaphore, watch};
use tombolo_link::identity::PeerCertificate;
use tombolo_proto::NodeId;

pub use entry::{Denied, Entry, Key};
pub(crate) use follow::follow;

use super::WallClock;
use super::nodes::{NodeLookup, NodeLookupError, NodeState};
use super::secrets::{SecretError, SecretStore};
use entry::Verdict;
use shelf::Shelf;

/// How the names of the Secrets begin; a dash and a number follow.
pub const SECRET_PREFIX: &str = "tombolo-identities";

/// Secrets that share the records. A Role names each of them: `deploy/cloudcore` has them all.
pub const SHARDS: usize = 4;

/// Bytes of records in one Secret; the API takes a megabyte. Some 5,000 names.
const SHARD_LEN_MAX: usize = 900 * 1024;

/// Questions to the API about certificates at a time. Who comes beyond that is told to come back.
const QUESTIONS_MAX: usize = 64;

/// Why nothing is known about a certificate.
#[derive(Debug, Error)]
pub enum IdentityError {
    /// The records could not be read or written.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// The Node could not be read.
    #[error(transparent)]
    Node(#[from] NodeLookupError),
    /// There is no room for another name.
    #[error(
        "secret {name} has no room for another node: delete Nodes that are gone and take their names out of it"
    )]
    Full {
        /// Which one.
        name: String,
    },
    /// Too many questions are under way, or the records have not been read yet.
    #[error("which certificates are in force is not known yet")]
    Busy,
}

/// The records of one cluster. Cheap to share.
pub struct Identities {
    store: Arc<dyn SecretStore>,
    nodes: Arc<dyn NodeLookup>,
    clock: WallClock,
    grace: u64,
    shelf: Shelf,
    /// UIDs of the cluster's Nodes; none before their first list.
    uids: RwLock<Option<HashMap<NodeId, String>>>,
    questions: Semaphore,
    changed: watch::Sender<u64>,
}

impl std::fmt::Debug for Identities {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identities").finish_non_exhaustive()
    }
}

impl Identities {
    /// Reads the records; `grace` is how long an expired certificate is of use, in seconds.
    ///
    /// # Errors
    /// [`IdentityError`] when they cannot be read or made.
    pub(crate) async fn open(
        store: Arc<dyn SecretStore>,
        nodes: Arc<dyn NodeLookup>,
        clock: WallClock,
        grace: u64,
    ) -> Result<Self, IdentityError> {
        let shelf = Shelf::default();
        shelf.open(&*store).await?;
        let (questions, changed) = (Semaphore::new(QUESTIONS_MAX), watch::Sender::new(0));
        Ok(Self { store, nodes, clock, grace, shelf, uids: RwLock::default(), questions, changed })
    }

    fn now(&self) -> u64 {
        (self.clock)().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
    }

    /// What is in memory about a certificate; none when nothing can be said without the API.
    fn known(&self, node: &NodeId, certificate: &PeerCertificate) -> Option<Verdict> {
        let uids = self.uids.read();
        let uid = uids.as_ref()?.get(node).cloned();
        drop(uids);
        if !self.shelf.is_known() {
            return None;
        }
        Some(entry::judge(self.shelf.get(node).as_ref(), uid.as_deref(), certificate, self.now()))
    }

    /// Whether what is in memory says that a certificate is in force.
    pub(crate) fn is_known_good(&self, node: &NodeId, certificate: &PeerCertificate) -> bool {
        self.known(node, certificate) == Some(Verdict::InForce)
    }

    /// Which Nodes there are, as a list of them would tell.
    #[cfg(test)]
    pub(crate) fn know_nodes(&self, uids: HashMap<NodeId, String>) {
        *self.uids.write() = Some(uids);
    }

    /// Tells of changes that may have taken a certificate out of force.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Whether a certificate that is valid by itself is in force: from memory where that says yes, else from the API.
    /// What has to be recorded about it is recorded before the answer.
    ///
    /// # Errors
    /// [`IdentityError`] when that cannot be said now.
    pub(crate) async fn check(
        &self,
        node: &NodeId,
        certificate: &PeerCertificate,
    ) -> Result<Result<(), Denied>, IdentityError> {
        if self.is_known_good(node, certificate) {
            return Ok(Ok(()));
        }
        let _question = self.questions.try_acquire().map_err(|_| IdentityError::Busy)?;
        self.ask(node, certificate).await
    }

    /// As [`Self::check`], from the API whatever is in memory.
    ///
    /// # Errors
    /// As [`Self::check`].
    pub(crate) async fn ask(
        &self,
        node: &NodeId,
        certificate: &PeerCertificate,
    ) -> Result<Result<(), Denied>, IdentityError> {
        let state = self.nodes.state(node).await?;
        self.shelf.refresh(&*self.store, node).await?;
        let now = self.now();
        match entry::judge(self.shelf.get(node).as_ref(), state.uid(), certificate, now) {
            Verdict::InForce => return Ok(Ok(())),
            Verdict::Denied(why) => return Ok(Err(why)),
            Verdict::Record(_) => {}
        }
        let outcome = self
            .change(node, |entry| match entry::judge(entry, state.uid(), certificate, now) {
                Verdict::InForce => Ok(None),
                Verdict::Record(entry) => Ok(Some(entry)),
                Verdict::Denied(why) => Err(why),
            })
            .await?;
        if outcome.is_ok() && self.shelf.get(node).is_some_and(|entry| entry.keys.len() == 1) {
            tracing::debug!(%node, "certificate bound to its Node");
        }
        Ok(outcome)
    }

    /// Records a join: from now on this is the only certificate of the name.
    ///
    /// # Errors
    /// [`IdentityError`]: then the certificate must not be given away.
    pub(crate) async fn joined(
        &self,
        node: &NodeId,
        certificate: &PeerCertificate,
        state: &NodeState,
    ) -> Result<(), IdentityError> {
        let entry = Entry::joined(certificate, state.uid(), self.now());
        self.change(node, |_| Ok::<_, Denied>(Some(entry.clone()))).await.map(|_| ())
    }

    /// Records a renewal.
    ///
    /// # Errors
    /// [`IdentityError`]: then the certificate must not be given away.
    pub(crate) async fn renewed(
        &self,
        node: &NodeId,
        with: &PeerCertificate,
        new: &PeerCertificate,
    ) -> Result<Result<(), Denied>, IdentityError> {
        self.change(node, |entry| match entry {
            Some(entry) if entry.revoked => Err(Denied::Revoked),
            Some(entry) => Ok(Some(entry.clone().renewed(with, new))),
            None => Err(Denied::Unknown),
        })
        .await
    }

    /// Whether an operator has taken the name's certificates back, by what the API says now.
    ///
    /// # Errors
    /// [`IdentityError`] when the API does not say.
    pub(crate) async fn is_revoked(&self, node: &NodeId) -> Result<bool, IdentityError> {
        self.shelf.refresh(&*self.store, node).await?;
        Ok(self.shelf.get(node).is_some_and(|entry| entry.revoked))
    }

    /// Takes all certificates of a name back: no session opens with them, none is renewed, and those that are open end.
    ///
    /// # Errors
    /// [`IdentityError`] when the API does not take it.
    pub(crate) async fn revoke(&self, node: &NodeId) -> Result<(), IdentityError> {
        let revoked = |entry: Option<&Entry>| {
            let entry = Entry { revoked: true, ..entry.cloned().unwrap_or_default() };
            Ok::<_, Denied>(Some(entry))
        };
        self.change(node, revoked).await.map(|_| ())
    }

    async fn change(
        &self,
        node: &NodeId,
        change: impl FnMut(Option<&Entry>) -> Result<Option<Entry>, Denied> + Send,
    ) -> Result<Result<(), Denied>, IdentityError> {
        let (now, grace) = (self.now(), self.grace);
        let over = move |entry: &Entry| entry.is_over(now, grace);
        let outcome = self.shelf.change(&*self.store, node, over, change).await?;
        self.changed.send_modify(|count| *count += 1);
        Ok(outcome)
    }
}

/// Takes the certificates of a node back, as `tombolo revoke` does: every cloudcore of the cluster hears of it.
///
/// # Errors
/// [`IdentityError`] when the API does not take it.
pub async fn revoke(
    store: Arc<dyn SecretStore>,
    nodes: Arc<dyn NodeLookup>,
    node: &NodeId,
) -> Result<(), IdentityError> {
    let identities = Identities::open(store, nodes, Arc::new(std::time::SystemTime::now), 0).await?;
    identities.revoke(node).await
}
