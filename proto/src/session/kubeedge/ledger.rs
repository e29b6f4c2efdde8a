//! What a node was ever given: the only memory of a stock edge's store that outlives a connection
//! (docs/decisions/0004-kubeedge-dialect.md).
//!
//! The ledger is a superset of what the edge holds. A key is stored before its object is first sent, and taken out after
//! its deletion was acknowledged, so that a crash at any point leaves no object on an edge that nobody will ever delete.
//! Versions are stored lazily and only spare repeats; one is taken back before anything leaves that may undo it.

use thiserror::Error;

use crate::ids::{CloudRevision, Epoch, Uid};
use crate::object::{KeyMap, ObjectKey};

/// Keys of one ledger, at most: what fits one Kubernetes object with room to spare. An object beyond it waits until another
/// one has gone.
pub const LEDGER_MAX: usize = 8192;

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
}

/// The ledger has [`LEDGER_MAX`] keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the node's delivery ledger is full ({LEDGER_MAX} keys): the node refers to too many objects")]
pub struct LedgerFull;

impl Ledger {
    /// A ledger without keys.
    #[must_use]
    pub fn new(epoch: Option<Epoch>, watches: Vec<Watch>) -> Self {
        Self { epoch, watches, entries: KeyMap::default() }
    }

    /// Adds a key or replaces what is known of it.
    ///
    /// # Errors
    /// [`LedgerFull`] when the key is new and there is no room.
    pub fn insert(&mut self, key: ObjectKey, entry: LedgerEntry) -> Result<(), LedgerFull> {
        if self.entries.len() >= LEDGER_MAX && !self.entries.contains_key(&key) {
            return Err(LedgerFull);
        }
        self.entries.insert(key, entry);
        Ok(())
    }

    /// Takes a key out.
    pub fn remove(&mut self, key: &ObjectKey) -> Option<LedgerEntry> {
        self.entries.remove(key)
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

/// A state of the ledger to store, whole.
#[derive(Debug, Clone, PartialEq)]
pub struct LedgerWrite {
    /// Names the write in the owner's answer.
    pub number: u64,
    /// What to store.
    pub ledger: Ledger,
}
