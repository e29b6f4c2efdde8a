//! Records of which certificates are in force (docs/decisions/0011-certificates-in-force.md).
//!
//! The authority's signature proves whose certificate it was when it was signed. The records say by name whether it
//! still counts: the serial numbers and keys of the certificates in force, and the UID of the Node that registered with
//! them. The records are Secrets in cloudcore's namespace, so all replicas follow the same ones. Decisions are made
//! from memory, but a decision that would refuse or change anything is repeated with the present state of the API.

mod deleted;
mod entry;
mod follow;
mod pauses;
mod questions;
mod registration;
mod renewal_rate;
mod renewals;
mod revocation;
mod shards;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use parking_lot::{Mutex, RwLock};
use thiserror::Error;
use tokio::sync::watch;
use tombolo_link::identity::PeerCertificate;
use tombolo_proto::NodeId;

pub(crate) use deleted::keep_ended;
pub use entry::{Denied, Entry, Key, Taken};
pub(super) use follow::NodeFacts;
pub(crate) use follow::follow;
pub(crate) use registration::{Registration, keep_settled};
pub use revocation::revoke;

use super::WallClock;
use super::nodes::{NodeLookup, NodeLookupError, NodeState};
use super::secrets::{SecretError, SecretStore};
use crate::metrics::Metrics;
use deleted::Deletions;
use entry::CertificateStatus;
use pauses::Pauses;
use questions::{Memory, Questions};
use registration::Pending;
use shards::Shards;

/// Prefix of the names of the Secrets. A dash and a number follow.
pub const SECRET_PREFIX: &str = "tombolo-identities";

/// Number of Secrets with records. The Role must name each of them; `deploy/cloudcore` names them all.
pub const SHARDS: usize = 4;

/// Maximum bytes of records in one Secret; the API accepts a megabyte. This fits some 2,300 names with two certificates
/// each.
pub(super) const SHARD_LEN_MAX: usize = 900 * 1024;

/// Bytes up to which KubeEdge's shared token may add another name. The rest is reserved for tokens of this cloud, whose
/// uses are counted, and for renewals: the holder of the shared token can join under any number of names.
pub(super) const SHARED_LEN_MAX: usize = SHARD_LEN_MAX / 4 * 3;

/// Tolerance for different clocks: a Node created up to this long before a join may still be the Node of that join.
const CLOCK_SKEW_SECONDS: u64 = 60;

/// Why it is not known whether a certificate is in force.
#[derive(Debug, Error)]
pub enum IdentityError {
    /// The records could not be read or written.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// The Node could not be read.
    #[error(transparent)]
    Node(#[from] NodeLookupError),
    /// There is no room for another name.
    #[error("secret {name} has no room for another node: delete unused Nodes and remove their names from it")]
    Full {
        /// The Secret.
        name: String,
    },
    /// There is no room for another name that joins by the shared token.
    #[error(
        "secret {name} has no room for another node that joins by the shared token: create a token for its name \
         (`tombolo token create --node NAME`), or delete unused Nodes"
    )]
    FullForShared {
        /// The Secret.
        name: String,
    },
    /// Too many questions are in progress, or the records have not been read yet.
    #[error("it is not known yet which certificates are in force")]
    Busy,
    /// Another cloudcore has marked that it is creating the Node of this name.
    #[error("another cloudcore is registering this node: try again")]
    Elsewhere,
    /// The last attempt to register this name has created no Node.
    #[error("the last attempt to register created no Node: try again in {0:.0?}")]
    Paused(Duration),
    /// This name has recently renewed its certificate several times.
    #[error("this node has renewed its certificate too often: try again in {0:.0?}")]
    TooOften(Duration),
}

/// A recorded join.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Joined {
    recorded: Entry,
    /// The record before the join.
    former: Option<Entry>,
}

/// A join that could not be recorded.
#[derive(Debug)]
pub(crate) struct Unrecorded {
    pub(crate) error: IdentityError,
    /// The join, if it may have been recorded nevertheless.
    pub(crate) joined: Option<Joined>,
}

impl<E: Into<IdentityError>> From<E> for Unrecorded {
    fn from(error: E) -> Self {
        Self { error: error.into(), joined: None }
    }
}

/// The records of one cluster. It has many fields because records, Nodes, questions, registrations, pauses and
/// deletions change at different times and are locked separately.
pub struct Identities {
    store: Arc<dyn SecretStore>,
    nodes: Arc<dyn NodeLookup>,
    clock: WallClock,
    grace: u64,
    shards: Shards,
    /// The cluster's Nodes; none before their first list.
    known_nodes: RwLock<Option<HashMap<NodeId, NodeFacts>>>,
    questions: Questions,
    /// Identifies this process in its registration marks.
    process: String,
    /// Registrations that are in progress, or whose outcome is not recorded yet.
    pending: Mutex<HashMap<NodeId, Pending>>,
    pauses: Pauses,
    deletions: Deletions,
    /// Number of join tokens, from the watch of cloudcore's Secrets.
    tokens: AtomicUsize,
    changed: watch::Sender<u64>,
}

impl std::fmt::Debug for Identities {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identities").finish_non_exhaustive()
    }
}

impl Identities {
    /// Reads the records. `grace` is how long an expired certificate can still be used, in seconds.
    ///
    /// # Errors
    /// [`IdentityError`] when the records cannot be read or created.
    pub(crate) async fn open(
        store: Arc<dyn SecretStore>,
        nodes: Arc<dyn NodeLookup>,
        clock: WallClock,
        grace: u64,
    ) -> Result<Self, IdentityError> {
        let shards = Shards::default();
        shards.open(&*store).await?;
        Ok(Self {
            store,
            nodes,
            clock,
            grace,
            shards,
            known_nodes: RwLock::default(),
            questions: Questions::default(),
            process: uuid::Uuid::new_v4().to_string(),
            pending: Mutex::default(),
            pauses: Pauses::default(),
            deletions: Deletions::default(),
            tokens: AtomicUsize::new(0),
            changed: watch::Sender::new(0),
        })
    }

    fn now(&self) -> u64 {
        (self.clock)().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
    }

    /// The present state of a name in memory.
    fn memory(&self, node: &NodeId) -> Memory {
        (self.shards.get(node), self.known_uid(node))
    }

    /// UID of the Node of this name, from the watch of Nodes; none before their first list.
    fn known_uid(&self, node: &NodeId) -> Option<Option<String>> {
        self.known_nodes.read().as_ref().map(|nodes| nodes.get(node).map(|facts| facts.uid.clone()))
    }

    fn judge(
        &self,
        node: &NodeId,
        entry: Option<&Entry>,
        uid: Option<&str>,
        certificate: &PeerCertificate,
    ) -> CertificateStatus {
        let entry = entry.map(|entry| self.deletions.applied(node, entry));
        entry::judge(entry.as_deref(), uid, certificate, self.now(), &self.process)
    }

    /// The verdict about a certificate from memory; none when the API must be asked.
    fn known(&self, node: &NodeId, certificate: &PeerCertificate) -> Option<CertificateStatus> {
        let (entry, uid) = self.memory(node);
        let uid = uid.filter(|_| self.shards.is_known())?;
        Some(self.judge(node, entry.as_ref(), uid.as_deref(), certificate))
    }

    /// Whether a certificate is in force according to memory.
    pub(crate) fn is_known_good(&self, node: &NodeId, certificate: &PeerCertificate) -> bool {
        self.known(node, certificate) == Some(CertificateStatus::InForce)
    }

    /// Sets the known Nodes, as a list of them would.
    #[cfg(test)]
    pub(crate) fn know_nodes(&self, uids: HashMap<NodeId, String>) {
        let nodes = uids.into_iter().map(|(node, uid)| (node, NodeFacts { uid, created: 0 }));
        *self.known_nodes.write() = Some(nodes.collect());
    }

    /// The versions of the records, as at the beginning of a list of them.
    #[cfg(test)]
    pub(crate) fn versions(&self) -> [u64; SHARDS] {
        self.shards.versions()
    }

    /// Notifies of changes that may have taken a certificate out of force.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Whether a certificate that is valid by itself is in force: from memory if that says yes, otherwise from the API.
    /// If the check must change the record, it does so before it returns.
    ///
    /// # Errors
    /// [`IdentityError`] when that cannot be decided now.
    pub(crate) async fn check(
        &self,
        node: &NodeId,
        certificate: &PeerCertificate,
    ) -> Result<Result<(), Denied>, IdentityError> {
        if self.is_known_good(node, certificate) {
            return Ok(Ok(()));
        }
        self.check_anew(node, certificate).await
    }

    /// As [`Self::check`], for a certificate that memory alone does not confirm. A recent refusal is repeated from
    /// memory, unless something about the name has changed.
    ///
    /// # Errors
    /// As [`Self::check`].
    pub(crate) async fn check_anew(
        &self,
        node: &NodeId,
        certificate: &PeerCertificate,
    ) -> Result<Result<(), Denied>, IdentityError> {
        self.question(node, certificate, false).await
    }

    /// As [`Self::check`], for a certificate that only counts while its Node exists. Without a Node it is
    /// [`Denied::Unregistered`].
    ///
    /// # Errors
    /// As [`Self::check`].
    pub(crate) async fn check_registered(
        &self,
        node: &NodeId,
        certificate: &PeerCertificate,
    ) -> Result<Result<(), Denied>, IdentityError> {
        let has_node = self.known_uid(node).flatten().is_some();
        if has_node && self.is_known_good(node, certificate) {
            return Ok(Ok(()));
        }
        self.question(node, certificate, true).await
    }

    async fn question(
        &self,
        node: &NodeId,
        certificate: &PeerCertificate,
        registered: bool,
    ) -> Result<Result<(), Denied>, IdentityError> {
        let turn = self.questions.turn(node)?;
        let _asking = turn.begin().await;
        // A caller that had to wait may find the answer here.
        let refusal = self.questions.refusal(node, certificate, &self.memory(node));
        if let Some(why) = refusal.filter(|why| registered || *why != Denied::Unregistered) {
            return Ok(Err(why));
        }
        let _permit = self.questions.permit()?;
        let uid = self.known_uid(node);
        match self.judge_anew(node, certificate, registered).await? {
            Ok(()) => Ok(Ok(())),
            Err((why, entry)) => {
                // Stores the state that the refusal is based on, not the present one.
                self.questions.refused(node, certificate, why, (entry, uid));
                Ok(Err(why))
            }
        }
    }

    /// As [`Self::check`], but always from the API.
    ///
    /// # Errors
    /// As [`Self::check`].
    pub(crate) async fn ask(
        &self,
        node: &NodeId,
        certificate: &PeerCertificate,
    ) -> Result<Result<(), Denied>, IdentityError> {
        Ok(self.judge_anew(node, certificate, false).await?.map_err(|(why, _)| why))
    }

    /// The same. With `registered`, the certificate only counts while its Node exists. A refusal comes with the record
    /// that it is based on.
    async fn judge_anew(
        &self,
        node: &NodeId,
        certificate: &PeerCertificate,
        registered: bool,
    ) -> Result<Result<(), (Denied, Option<Entry>)>, IdentityError> {
        let state = self.nodes.state(node).await;
        let refreshed = self.shards.refresh(&*self.store, node).await;
        // A name that is known to be revoked stays revoked even if the API fails, because the one whose certificate was
        // revoked may be the one who keeps the API busy.
        if state.is_err() || refreshed.is_err() {
            let entry = self.shards.get(node);
            if entry.as_ref().is_some_and(|entry| entry.revoked) {
                return Ok(Err((Denied::Revoked, entry)));
            }
        }
        let (entry, state) = (refreshed?, state?);
        match self.judge(node, entry.as_ref(), state.uid(), certificate) {
            CertificateStatus::Denied(why) => return Ok(Err((why, entry))),
            _ if registered && state.uid().is_none() => return Ok(Err((Denied::Unregistered, entry))),
            CertificateStatus::InForce => return Ok(Ok(())),
            CertificateStatus::Record(_) => {}
        }
        let mut refused = None;
        let change = |entry: Option<&Entry>| match self.judge(node, entry, state.uid(), certificate) {
            CertificateStatus::InForce => Ok(None),
            CertificateStatus::Record(entry) => Ok(Some(entry)),
            CertificateStatus::Denied(why) => {
                refused = entry.cloned();
                Err(why)
            }
        };
        let outcome = self.change(node, change).await?.map_err(|why| (why, refused));
        if outcome.is_ok() {
            tracing::debug!(%node, "certificate bound to its Node");
        }
        Ok(outcome)
    }

    /// Records a join. From now on this is the only certificate of the name. Only a join with `replace` may take a name
    /// that is in use, as of the time of this call, because the joining client controls how long its request takes.
    ///
    /// # Errors
    /// [`Unrecorded`]: the certificate must then not be handed out, and a possible record must be taken back.
    pub(crate) async fn joined(
        &self,
        node: &NodeId,
        certificate: &PeerCertificate,
        replace: bool,
    ) -> Result<Result<Joined, Taken>, Unrecorded> {
        self.record_join(node, certificate, replace, SHARD_LEN_MAX).await
    }

    /// Records a join with KubeEdge's shared token, which replaces no node and may use only part of the records.
    ///
    /// # Errors
    /// As [`Self::joined`].
    pub(crate) async fn joined_by_all(
        &self,
        node: &NodeId,
        certificate: &PeerCertificate,
    ) -> Result<Result<Joined, Taken>, Unrecorded> {
        self.record_join(node, certificate, false, SHARED_LEN_MAX).await
    }

    async fn record_join(
        &self,
        node: &NodeId,
        certificate: &PeerCertificate,
        replace: bool,
        room: usize,
    ) -> Result<Result<Joined, Taken>, Unrecorded> {
        let now = self.now();
        // If a Node is created after this look, the record differs from `before`: each name is marked before its Node
        // is created.
        let before = self.shards.refresh(&*self.store, node).await?;
        let state = self.nodes.state(node).await?;
        let mut joined: Option<Joined> = None;
        let own = Key::from(certificate);
        let recorded = self.change_within(room, node, |entry| {
            // This is our own write, whose answer was lost.
            if let (Some(joined), Some(entry)) =
                (&mut joined, entry.filter(|entry| entry.keys.contains(&own)))
            {
                joined.recorded = entry.clone();
                return Ok(None);
            }
            match self.taken_now(node, entry, now) {
                _ if replace => {}
                Some(taken) => return Err(taken),
                None if state.uid().is_some() || entry != before.as_ref() => return Err(Taken::Registered),
                None => {}
            }
            let recorded = Entry::joined(certificate, state.uid(), now).after(entry);
            // Includes the deletion of a Node that could not be recorded yet, so that it stays deleted when the join is
            // taken back.
            let former = entry.map(|entry| self.deletions.applied(node, entry).into_owned());
            joined = Some(Joined { recorded: recorded.clone(), former });
            Ok(Some(recorded))
        });
        let outcome = recorded.await.map_err(|error| match error {
            IdentityError::Full { name } if room == SHARED_LEN_MAX => IdentityError::FullForShared { name },
            error => error,
        });
        match (outcome, joined) {
            (Err(error), joined) => Err(Unrecorded { error, joined }),
            (Ok(Err(taken)), _) => Ok(Err(taken)),
            (Ok(Ok(())), Some(joined)) => {
                self.deletions.forget(node);
                Ok(Ok(joined))
            }
            // A record that already exists was written by this join.
            (Ok(Ok(())), None) => Err(IdentityError::Busy.into()),
        }
    }

    /// Takes back a join whose certificate was not received. The previous record counts again. False when the record
    /// has changed since the join.
    ///
    /// # Errors
    /// [`IdentityError`] when that cannot be recorded.
    pub(crate) async fn not_joined(&self, node: &NodeId, joined: Joined) -> Result<bool, IdentityError> {
        let Joined { recorded, former } = joined;
        // A record without keys is over and is removed.
        let former = former.unwrap_or_default();
        let taken_back = self.change(node, |entry| match entry {
            Some(entry) if *entry == recorded => Ok(Some(former.clone())),
            _ => Err(()),
        });
        Ok(taken_back.await?.is_ok())
    }

    /// The Node of a name, from the present state of the API. Without a Node, also the reason why the name is not free
    /// for an ordinary join, if there is one.
    ///
    /// # Errors
    /// [`IdentityError`] when the API does not answer.
    pub(crate) async fn who_has(&self, node: &NodeId) -> Result<(NodeState, Option<Taken>), IdentityError> {
        let _permit = self.questions.place_to_join().await?;
        let state = self.nodes.state(node).await?;
        if state.uid().is_some() {
            return Ok((state, None));
        }
        let entry = self.shards.refresh(&*self.store, node).await?;
        Ok((state, self.taken_now(node, entry.as_ref(), self.now())))
    }

    fn taken_now(&self, node: &NodeId, entry: Option<&Entry>, now: u64) -> Option<Taken> {
        entry.and_then(|entry| self.deletions.applied(node, entry).taken(now))
    }

    /// Reports how full the records and the join tokens are.
    pub(crate) fn measure(&self, metrics: &Metrics) {
        let gauge = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        let sizes = self.shards.sizes();
        let fullest = sizes.iter().map(|(len, _)| *len).max().unwrap_or(0);
        metrics.certificate_record_bytes.set(gauge(fullest));
        metrics.certificate_records.set(gauge(sizes.iter().map(|(_, names)| names).sum()));
        metrics.join_tokens.set(gauge(self.tokens.load(Ordering::Relaxed)));
    }

    async fn change<T: Send>(
        &self,
        node: &NodeId,
        change: impl FnMut(Option<&Entry>) -> Result<Option<Entry>, T> + Send,
    ) -> Result<Result<(), T>, IdentityError> {
        self.change_within(SHARD_LEN_MAX, node, change).await
    }

    /// Changes the record of a name. A change that makes the Secret larger must leave it within `room` bytes.
    async fn change_within<T: Send>(
        &self,
        room: usize,
        node: &NodeId,
        change: impl FnMut(Option<&Entry>) -> Result<Option<Entry>, T> + Send,
    ) -> Result<Result<(), T>, IdentityError> {
        let (now, grace) = (self.now(), self.grace);
        let over = move |entry: &Entry| entry.is_over(now, grace);
        let outcome = self.shards.change(&*self.store, node, room, over, change).await?;
        self.changed.send_modify(|count| *count += 1);
        Ok(outcome)
    }
}
