//! Turns a batch of mutations into changes.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tombolo_proto::object::ObjectKey;

use crate::history::{Change, ChangeKind};
use crate::raw;
use crate::store::{Expect, Mutation, Revision, StoreError, Stored, Write};

use super::account::Parts;
use super::{CommitResult, Ledger, MemoryStoreInner};

/// Changes of one batch, checked against the store and the earlier changes of the batch.
pub(super) struct Plan<'a> {
    shared: &'a MemoryStoreInner,
    ledger: &'a mut Ledger,
    next: Revision,
    overlay: HashMap<ObjectKey, Option<Arc<Stored>>>,
    pub(super) staged: Vec<Arc<Change>>,
    /// The charges before each change.
    pub(super) paid: Vec<Parts>,
}

impl<'a> Plan<'a> {
    pub(super) fn new(shared: &'a MemoryStoreInner, ledger: &'a mut Ledger) -> Self {
        let next = Revision(shared.revision.load(Ordering::Acquire)).next();
        Self { shared, ledger, next, overlay: HashMap::new(), staged: Vec::new(), paid: Vec::new() }
    }

    /// Adds a change; the writer is set if it has a share of the store.
    pub(super) fn add(&mut self, mutation: Mutation, writer: Option<&Arc<str>>) -> CommitResult {
        let Mutation { mut key, expected, write } = mutation;
        let previous = self.current(&key);
        check(&key, expected, previous.as_deref())?;
        if let Some(previous) = &previous {
            // Versions of an object share one key.
            key = previous.key.clone();
        }
        let refused = |reason| StoreError::Refused { key: key.clone(), reason };
        let (kind, object) = match (write, &previous) {
            (Write::Delete, None) => return Err(StoreError::NotFound { key }),
            (Write::Delete, Some(last)) => {
                let body = raw::with_revision(&last.body(), self.next).map_err(refused)?;
                (ChangeKind::Deleted, Stored::new(key.clone(), last.uid.clone(), self.next, body))
            }
            (Write::Put { uid, body }, _) => {
                let body = raw::with_revision(&body, self.next).map_err(refused)?;
                let kind = if previous.is_some() { ChangeKind::Modified } else { ChangeKind::Added };
                let same = previous.as_ref().filter(|previous| previous.uid == uid);
                let uid = same.map_or(uid, |previous| previous.uid.clone());
                (kind, Stored::new(key.clone(), uid, self.next, body))
            }
        };
        if kind != ChangeKind::Deleted {
            self.ledger.check(previous.as_deref(), &object, writer)?;
        }
        let after = (kind != ChangeKind::Deleted).then_some(&object);
        self.paid.push(self.ledger.replace(previous.as_deref(), after, writer));
        let object = Arc::new(object);
        self.next = self.next.next();
        self.overlay.insert(key, (kind != ChangeKind::Deleted).then(|| Arc::clone(&object)));
        self.staged.push(Arc::new(Change { kind, object: Arc::clone(&object), previous }));
        Ok(object)
    }

    fn current(&self, key: &ObjectKey) -> Option<Arc<Stored>> {
        match self.overlay.get(key) {
            Some(staged) => staged.clone(),
            None => {
                let state = self.shared.state.read();
                state.tables.get(key.resource()).and_then(|table| table.objects.get(key)).cloned()
            }
        }
    }
}

fn check(key: &ObjectKey, expected: Expect, found: Option<&Stored>) -> Result<(), StoreError> {
    match (expected, found) {
        (Expect::Absent, Some(_)) => Err(StoreError::AlreadyExists { key: key.clone() }),
        (Expect::Revision(_) | Expect::Present, None) => Err(StoreError::NotFound { key: key.clone() }),
        (Expect::Revision(expected), Some(found)) if found.revision != expected => {
            Err(StoreError::Conflict { key: key.clone(), expected, found: found.revision })
        }
        _ => Ok(()),
    }
}
