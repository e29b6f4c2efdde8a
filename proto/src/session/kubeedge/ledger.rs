//! Everything that a node was ever given: the only record of a KubeEdge edge's store that outlives a connection
//! (docs/decisions/0004-kubeedge-dialect.md).
//!
//! The ledger is a superset of what the edge holds. A key is stored before its object is first sent, and removed after
//! its deletion was acknowledged, so that a crash at any point leaves no object on an edge that would never be
//! deleted. Versions are stored lazily and only avoid repeated deliveries; a version is withdrawn before anything is
//! sent that may invalidate it.

use thiserror::Error;

use crate::ids::{CloudRevision, Epoch, Uid};
use crate::limits::KUBEEDGE_FOLLOWED_MAX;
use crate::object::{KeyMap, ObjectKey};

/// Most keys of one ledger: they fit one Kubernetes object with room to spare. A further object waits until another
/// one is deleted. Followed objects leave room for the node's own set: the difference to [`KUBEEDGE_FOLLOWED_MAX`].
pub const LEDGER_MAX: usize = 8192;

/// Most bytes that the keys of one ledger take: they fit one Kubernetes object without compression.
pub const LEDGER_BYTES_MAX: usize = 960 * 1024;

/// The part of these bytes that is reserved for the node's own set.
const OWN_BYTES: usize = 288 * 1024;

/// Bytes of an entry besides its namespace and name: UID and version, and the text common to all entries, compressed.
const ENTRY_LEN: usize = 48;

/// Which share of the ledger a new key counts against.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Share {
    /// An object that the node needs.
    Own,
    /// An object that it follows.
    Followed,
}

/// One key that the edge may hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LedgerEntry {
    /// Kind of the object: a deletion must name it even when the object was deleted long ago.
    pub kind: Box<str>,
    /// The only incarnation that the edge may hold; none when there may be several.
    pub uid: Option<Uid>,
    /// A version, in the ledger's epoch, that the edge certainly holds unless it holds a newer one. None when that is
    /// not certain.
    pub revision: Option<CloudRevision>,
}

/// A watch of the edge's MetaServer that outlives the connection: KubeEdge edges do not request it again
/// (docs/reference/kubeedge.md#watches-that-outlive-a-connection).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Watch {
    /// The application's id.
    pub id: Box<str>,
    /// The application's key.
    pub key: Box<str>,
    /// The application's options, as JSON.
    pub option: Box<[u8]>,
}

/// Everything that one node may hold. Pure state: the owner decides how it is stored.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ledger {
    /// History that the revisions belong to; none when there are none.
    pub epoch: Option<Epoch>,
    /// Watches to open again after a reconnect, at most [`crate::limits::SUBSCRIPTIONS_MAX`].
    pub watches: Vec<Watch>,
    entries: KeyMap<LedgerEntry>,
    /// Bytes that the keys take.
    bytes: usize,
}

/// The ledger has [`LEDGER_MAX`] keys, or their names are too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the node's delivery ledger is full: the node refers to too many objects")]
pub struct LedgerFull;

impl Ledger {
    /// A ledger without keys.
    #[must_use]
    pub fn new(epoch: Option<Epoch>, watches: Vec<Watch>) -> Self {
        Self { epoch, watches, entries: KeyMap::default(), bytes: 0 }
    }

    /// Whether the ledger names the key, or has room for it. Stored keys always have room, however many there are.
    #[must_use]
    pub fn has_room(&self, key: &ObjectKey, share: Share) -> bool {
        let (keys, bytes) = match share {
            Share::Own => (LEDGER_MAX, LEDGER_BYTES_MAX),
            Share::Followed => (KUBEEDGE_FOLLOWED_MAX, LEDGER_BYTES_MAX - OWN_BYTES),
        };
        let fits = || self.entries.len() < keys && self.bytes.saturating_add(cost(key)) <= bytes;
        self.entries.contains_key(key) || fits()
    }

    /// Adds a key or replaces its entry. Before adding a new key, call [`Self::has_room`].
    ///
    /// # Errors
    /// [`LedgerFull`] when the key is new and there is no room.
    pub fn insert(&mut self, key: ObjectKey, entry: LedgerEntry) -> Result<(), LedgerFull> {
        if self.entries.len() >= LEDGER_MAX && !self.entries.contains_key(&key) {
            return Err(LedgerFull);
        }
        let len = cost(&key);
        if self.entries.insert(key, entry).is_none() {
            self.bytes = self.bytes.saturating_add(len);
        }
        Ok(())
    }

    /// Removes a key.
    pub fn remove(&mut self, key: &ObjectKey) -> Option<LedgerEntry> {
        let removed = self.entries.remove(key)?;
        self.bytes = self.bytes.saturating_sub(cost(key));
        Some(removed)
    }

    /// The entry of a key.
    #[must_use]
    pub fn get(&self, key: &ObjectKey) -> Option<&LedgerEntry> {
        self.entries.get(key)
    }

    /// Records what the edge has acknowledged under a key; false when that changes nothing.
    pub(super) fn note(&mut self, key: &ObjectKey, uid: &Uid, revision: CloudRevision) -> bool {
        let Some(entry) = self.entries.get_mut(key) else { return false };
        let same = entry.uid.as_ref() == Some(uid);
        if !same {
            entry.uid = Some(uid.clone());
        }
        entry.revision.replace(revision) != Some(revision) || !same
    }

    /// Withdraws a version; false when that changes nothing.
    pub(super) fn forget_revision(&mut self, key: &ObjectKey) -> bool {
        self.entries.get_mut(key).is_some_and(|entry| entry.revision.take().is_some())
    }

    pub(super) fn forget_revisions(&mut self) {
        self.entries.values_mut().for_each(|entry| entry.revision = None);
    }

    /// All keys, in order.
    pub fn entries(&self) -> impl Iterator<Item = (&ObjectKey, &LedgerEntry)> {
        let mut entries: Vec<_> = self.entries.iter().collect();
        entries.sort_unstable_by_key(|(key, _)| *key);
        entries.into_iter()
    }

    /// Number of keys.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether the ledger has no keys.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

fn cost(key: &ObjectKey) -> usize {
    key.text_len().saturating_add(ENTRY_LEN)
}

/// A whole state of the ledger to store.
#[derive(Debug, Clone, PartialEq)]
pub struct LedgerWrite {
    /// Identifies the write in the owner's answer.
    pub number: u64,
    /// What to store.
    pub ledger: Ledger,
}
