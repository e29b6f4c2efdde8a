//! What a node was ever given: the only memory of a stock edge's store that outlives a connection
//! (docs/decisions/0004-kubeedge-dialect.md).
//!
//! The ledger is a superset of what the edge holds. A key is stored before its object is first sent, and taken out after
//! its deletion was acknowledged, so that a crash at any point leaves no object on an edge that nobody will ever delete.
//! Versions are stored lazily and only spare repeats; one is taken back before anything leaves that may undo it.

use thiserror::Error;

use crate::ids::{CloudRevision, Epoch, Uid};
use crate::limits::STOCK_FOLLOWED_MAX;
use crate::object::{KeyMap, ObjectKey};

/// Keys of one ledger, at most: what fits one Kubernetes object with room to spare. An object beyond it waits until another
/// one has gone. What the node follows leaves room for its own set: as much as is beyond [`STOCK_FOLLOWED_MAX`].
pub const LEDGER_MAX: usize = 8192;

/// Bytes that the keys of one ledger take, at most: no compression is needed for them to fit one Kubernetes object.
pub const LEDGER_BYTES_MAX: usize = 960 * 1024;

/// Of these, what is left to the node's own set.
const OWN_BYTES: usize = 288 * 1024;

/// What a key takes beside its namespace and name: UID and version, and the words that all entries have, compressed.
const ENTRY_LEN: usize = 48;

/// Whose a new key of the ledger is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Share {
    /// What the node needs.
    Own,
    /// What it follows.
    Followed,
}

/// One key that the edge may hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LedgerEntry {
    /// Kind of the object: a deletion must name it when the object is long gone.
    pub kind: Box<str>,
    /// The only incarnation that the edge may hold; none when there may be several.
    pub uid: Option<Uid>,
    /// A version that the edge certainly holds, if nothing newer: in the ledger's epoch. None when that is not certain.
    pub revision: Option<CloudRevision>,
}

/// A watch of the edge's MetaServer that outlives the connection: stock edges do not ask for it again
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

/// Everything that one node may hold. Pure state: how it is stored is the owner's.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ledger {
    /// History that the revisions belong to; none when there are none.
    pub epoch: Option<Epoch>,
    /// Watches to open again after a reconnect, at most [`crate::limits::SUBSCRIPTIONS_MAX`].
    pub watches: Vec<Watch>,
    entries: KeyMap<LedgerEntry>,
    /// What the keys take.
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

    /// Whether the ledger names the key, or may name it. What is stored already counts, however much it is.
    #[must_use]
    pub fn has_room(&self, key: &ObjectKey, share: Share) -> bool {
        let (keys, bytes) = match share {
            Share::Own => (LEDGER_MAX, LEDGER_BYTES_MAX),
            Share::Followed => (STOCK_FOLLOWED_MAX, LEDGER_BYTES_MAX - OWN_BYTES),
        };
        let fits = || self.entries.len() < keys && self.bytes.saturating_add(cost(key)) <= bytes;
        self.entries.contains_key(key) || fits()
    }

    /// Adds a key or replaces what is known of it. Whoever adds a new one asks [`Self::has_room`] first.
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

    /// Takes a key out.
    pub fn remove(&mut self, key: &ObjectKey) -> Option<LedgerEntry> {
        let removed = self.entries.remove(key)?;
        self.bytes = self.bytes.saturating_sub(cost(key));
        Some(removed)
    }

    /// What is known of a key.
    #[must_use]
    pub fn get(&self, key: &ObjectKey) -> Option<&LedgerEntry> {
        self.entries.get(key)
    }

    /// Notes what the edge has acknowledged under a key; false when that changes nothing.
    pub(super) fn note(&mut self, key: &ObjectKey, uid: &Uid, revision: CloudRevision) -> bool {
        let Some(entry) = self.entries.get_mut(key) else { return false };
        let same = entry.uid.as_ref() == Some(uid);
        if !same {
            entry.uid = Some(uid.clone());
        }
        entry.revision.replace(revision) != Some(revision) || !same
    }

    /// Takes a version back; false when that changes nothing.
    pub(super) fn forget_revision(&mut self, key: &ObjectKey) -> bool {
        self.entries.get_mut(key).is_some_and(|entry| entry.revision.take().is_some())
    }

    pub(super) fn forget_revisions(&mut self) {
        self.entries.values_mut().for_each(|entry| entry.revision = None);
    }

    /// All keys, in their order.
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

    /// Whether the node was given nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

fn cost(key: &ObjectKey) -> usize {
    key.text_len().saturating_add(ENTRY_LEN)
}

/// A state of the ledger to store, whole.
#[derive(Debug, Clone, PartialEq)]
pub struct LedgerWrite {
    /// Names the write in the owner's answer.
    pub number: u64,
    /// What to store.
    pub ledger: Ledger,
}
