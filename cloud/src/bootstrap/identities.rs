//! Which certificates are in force (docs/decisions/0011-certificates-in-force.md).
//!
//! The authority's signature says who somebody was when it was made. Whether that still counts is recorded by name:
//! the serial numbers and keys of the certificates in force, and the UID of the Node that registered with them. The records are Secrets of
//! cloudcore's namespace, so every replica follows the same ones; each decision comes from memory, and one that would
//! refuse or change anything is made again from what the API says at that moment.

mod deleted;
mod entry;
mod follow;
mod pauses;
mod questions;
mod registration;
mod renewals;
mod revocation;
mod shelf;

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
use entry::Verdict;
use pauses::Pauses;
use questions::{Memory, Questions};
use registration::Pending;
use shelf::Shelf;

/// How the names of the Secrets begin; a dash and a number follow.
pub const SECRET_PREFIX: &str = "tombolo-identities";

/// Secrets that share the records. A Role names each of them: `deploy/cloudcore` has them all.
pub const SHARDS: usize = 4;

/// Bytes of records in one Secret; the API takes a megabyte. Some 2,300 names with two certificates each.
pub(super) const SHARD_LEN_MAX: usize = 900 * 1024;

/// Bytes up to which KubeEdge's shared token lets another name in. The rest is for tokens of this cloud, whose uses are counted,
/// and for renewals: whoever has the shared token joins under as many names as he likes.
pub(super) const SHARED_LEN_MAX: usize = SHARD_LEN_MAX / 4 * 3;

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
    /// There is no room for another name that joins by the shared token.
    #[error(
        "secret {name} has no room for another node that joins by the shared token: make a token for its name \
         (`tombolo token create --node NAME`), or delete Nodes that are gone"
    )]
    FullForShared {
        /// Which one.
        name: String,
    },
    /// Too many questions are under way, or the records have not been read yet.
    #[error("which certificates are in force is not known yet")]
    Busy,
    /// Another cloudcore has marked that it creates the name's Node.
    #[error("another cloudcore is registering this node: try again")]
    Elsewhere,
    /// The name's last try to register has made no Node.
    #[error("the last try to register has made no Node: try again in {0:.0?}")]
    Paused(Duration),
    /// The name has renewed its certificate several times a short while ago.
    #[error("this node has renewed its certificate again and again: the next time is in {0:.0?}")]
    TooOften(Duration),
}

/// A join as it was recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Joined {
    recorded: Entry,
    /// What was recorded before.
    former: Option<Entry>,
}

/// A join that could not be recorded.
#[derive(Debug)]
pub(crate) struct Unrecorded {
    pub(crate) error: IdentityError,
    /// What may be recorded all the same.
    pub(crate) joined: Option<Joined>,
}

impl<E: Into<IdentityError>> From<E> for Unrecorded {
    fn from(error: E) -> Self {
        Self { error: error.into(), joined: None }
    }
}

/// The records of one cluster. Cheap to share.
pub struct Identities {
    store: Arc<dyn SecretStore>,
    nodes: Arc<dyn NodeLookup>,
    clock: WallClock,
    grace: u64,
    shelf: Shelf,
    /// The cluster's Nodes; none before their first list.
    known_nodes: RwLock<Option<HashMap<NodeId, NodeFacts>>>,
    questions: Questions,
    /// Tells this process's marks of registrations from those of others.
    process: String,
    /// Registrations that are under way, or whose end is still to be recorded.
    pending: Mutex<HashMap<NodeId, Pending>>,
    pauses: Pauses,
    deletions: Deletions,
    /// Join tokens, as the watch of our Secrets tells.
    tokens: AtomicUsize,
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
        Ok(Self {
            store,
            nodes,
            clock,
            grace,
            shelf,
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

    /// What is in memory about a name.
    fn memory(&self, node: &NodeId) -> Memory {
        (self.shelf.get(node), self.known_uid(node))
    }

    /// UID of the Node that has a name, as the watch of Nodes tells; none before their first list.
    fn known_uid(&self, node: &NodeId) -> Option<Option<String>> {
        self.known_nodes.read().as_ref().map(|nodes| nodes.get(node).map(|facts| facts.uid.clone()))
    }

    fn judge(
        &self,
        node: &NodeId,
        entry: Option<&Entry>,
        uid: Option<&str>,
        certificate: &PeerCertificate,
    ) -> Verdict {
        let entry = entry.map(|entry| self.deletions.applied(node, entry));
        entry::judge(entry.as_deref(), uid, certificate, self.now(), &self.process)
    }

    /// What memory says about a certificate; none when nothing can be said without the API.
    fn known(&self, node: &NodeId, certificate: &PeerCertificate) -> Option<Verdict> {
        let (entry, uid) = self.memory(node);
        let uid = uid.filter(|_| self.shelf.is_known())?;
        Some(self.judge(node, entry.as_ref(), uid.as_deref(), certificate))
    }

    /// Whether what is in memory says that a certificate is in force.
    pub(crate) fn is_known_good(&self, node: &NodeId, certificate: &PeerCertificate) -> bool {
        self.known(node, certificate) == Some(Verdict::InForce)
    }

    /// Which Nodes there are, as a list of them would tell.
    #[cfg(test)]
    pub(crate) fn know_nodes(&self, uids: HashMap<NodeId, String>) {
        let nodes = uids.into_iter().map(|(node, uid)| (node, NodeFacts { uid, created: 0 }));
        *self.known_nodes.write() = Some(nodes.collect());
    }

    /// Versions of the records, as a list of them would begin.
    #[cfg(test)]
    pub(crate) fn versions(&self) -> [u64; SHARDS] {
        self.shelf.versions()
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
        self.check_anew(node, certificate).await
    }

    /// As [`Self::check`], where memory alone does not say yes. It may say no: what was refused a moment ago still is, unless
    /// something about the name has changed.
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

    /// As [`Self::check`], of a certificate that counts only while there is a Node: without one it is [`Denied::Unregistered`].
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
        // Who had to wait may find the answer here.
        let refusal = self.questions.refusal(node, certificate, &self.memory(node));
        if let Some(why) = refusal.filter(|why| registered || *why != Denied::Unregistered) {
            return Ok(Err(why));
        }
        let _place = self.questions.place()?;
        let uid = self.known_uid(node);
        match self.judge_anew(node, certificate, registered).await? {
            Ok(()) => Ok(Ok(())),
            Err((why, entry)) => {
                // What it rests on, not what is known by now.
                self.questions.refused(node, certificate, why, (entry, uid));
                Ok(Err(why))
            }
        }
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
        Ok(self.judge_anew(node, certificate, false).await?.map_err(|(why, _)| why))
    }

    /// The same; with `registered` of a certificate that counts only while there is a Node. A refusal comes with the record that
    /// it rests on.
    async fn judge_anew(
        &self,
        node: &NodeId,
        certificate: &PeerCertificate,
        registered: bool,
    ) -> Result<Result<(), (Denied, Option<Entry>)>, IdentityError> {
        let state = self.nodes.state(node).await;
        let refreshed = self.shelf.refresh(&*self.store, node).await;
        // Nothing that could still be said gives back what is known to be revoked, and whoever it was taken from may keep the API busy.
        if state.is_err() || refreshed.is_err() {
            let entry = self.shelf.get(node);
            if entry.as_ref().is_some_and(|entry| entry.revoked) {
                return Ok(Err((Denied::Revoked, entry)));
            }
        }
        let (entry, state) = (refreshed?, state?);
        match self.judge(node, entry.as_ref(), state.uid(), certificate) {
            Verdict::Denied(why) => return Ok(Err((why, entry))),
            _ if registered && state.uid().is_none() => return Ok(Err((Denied::Unregistered, entry))),
            Verdict::InForce => return Ok(Ok(())),
            Verdict::Record(_) => {}
        }
        let mut refused = None;
        let change = |entry: Option<&Entry>| match self.judge(node, entry, state.uid(), certificate) {
            Verdict::InForce => Ok(None),
            Verdict::Record(entry) => Ok(Some(entry)),
            Verdict::Denied(why) => {
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

    /// Records a join: from now on this is the only certificate of the name. Only one that may `replace` takes a name that
    /// somebody has, and what counts is who has it now: whoever joins chooses how long the request takes.
    ///
    /// # Errors
    /// [`Unrecorded`]: then the certificate must not be given away, and what may be recorded is to be taken back.
    pub(crate) async fn joined(
        &self,
        node: &NodeId,
        certificate: &PeerCertificate,
        replace: bool,
    ) -> Result<Result<Joined, Taken>, Unrecorded> {
        self.record_join(node, certificate, replace, SHARD_LEN_MAX).await
    }

    /// Records a join by KubeEdge's shared token, which replaces nobody and has a share of the records.
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
        // A Node that comes after this look has a record that differs from this one: each is marked before its Node is made.
        let before = self.shelf.refresh(&*self.store, node).await?;
        let state = self.nodes.state(node).await?;
        let mut joined: Option<Joined> = None;
        let own = Key::from(certificate);
        let recorded = self.change_within(room, node, |entry| {
            // A write of ours whose answer was lost on its way.
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
            // With the end of a Node that could not be recorded yet: it must not come back when the join is taken back.
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
            // What is recorded already is so by this join.
            (Ok(Ok(())), None) => Err(IdentityError::Busy.into()),
        }
    }

    /// Takes a join back whose certificate nobody has: what was recorded before it counts again. False when the record is
    /// another one by now.
    ///
    /// # Errors
    /// [`IdentityError`] when that cannot be recorded.
    pub(crate) async fn not_joined(&self, node: &NodeId, joined: Joined) -> Result<bool, IdentityError> {
        let Joined { recorded, former } = joined;
        // Without keys it is over, and goes.
        let former = former.unwrap_or_default();
        let taken_back = self.change(node, |entry| match entry {
            Some(entry) if *entry == recorded => Ok(Some(former.clone())),
            _ => Err(()),
        });
        Ok(taken_back.await?.is_ok())
    }

    /// The Node that has a name, and where there is none why the name is not free for anybody who joins, by what the API says now.
    ///
    /// # Errors
    /// [`IdentityError`] when the API does not say.
    pub(crate) async fn who_has(&self, node: &NodeId) -> Result<(NodeState, Option<Taken>), IdentityError> {
        let _place = self.questions.place_to_join().await?;
        let state = self.nodes.state(node).await?;
        if state.uid().is_some() {
            return Ok((state, None));
        }
        let entry = self.shelf.refresh(&*self.store, node).await?;
        Ok((state, self.taken_now(node, entry.as_ref(), self.now())))
    }

    fn taken_now(&self, node: &NodeId, entry: Option<&Entry>, now: u64) -> Option<Taken> {
        entry.and_then(|entry| self.deletions.applied(node, entry).taken(now))
    }

    /// Shows operators how full the records and the join tokens are.
    pub(crate) fn measure(&self, metrics: &Metrics) {
        let gauge = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        let sizes = self.shelf.sizes();
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

    /// Changes the record of a name, as long as what makes its Secret larger leaves it within `room` bytes.
    async fn change_within<T: Send>(
        &self,
        room: usize,
        node: &NodeId,
        change: impl FnMut(Option<&Entry>) -> Result<Option<Entry>, T> + Send,
    ) -> Result<Result<(), T>, IdentityError> {
        let (now, grace) = (self.now(), self.grace);
        let over = move |entry: &Entry| entry.is_over(now, grace);
        let outcome = self.shelf.change(&*self.store, node, room, over, change).await?;
        self.changed.send_modify(|count| *count += 1);
        Ok(outcome)
    }
}
