//! What a store keeps beyond single objects: how many bytes there are, and what only one object may have.
//!
//! Decided where changes are planned, one after the other, so that two writes at once cannot both pass.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use serde::Deserialize;
use tombolo_proto::object::{ObjectKey, Resource};

use super::account::{Account, Parts, WriterShares};
use crate::history::Change;
use crate::store::{StoreError, Stored};

/// What an object costs beside its text and its name: its place in the tables and its row.
pub const OBJECT_OVERHEAD: u64 = 256;

/// Bytes by which the mark of a deletion may let an object grow when the store is full.
pub const DELETION_MARK_MAX: u64 = 4 * 1024;

/// Above the limit of the whole, objects that are being deleted may grow by this part of it: what finishes a deletion
/// often says so in the object first. The same above the share of a user, which has no more than that part for marks of
/// deletions as well.
const DELETION_RESERVE: u64 = 16;

/// Values of which a store has each one once, for example addresses.
pub trait Claims: Send + Sync + 'static {
    /// What an object has. Asked for every version that is stored, so kinds that have nothing are told fast.
    fn of(&self, object: &Stored) -> Vec<String>;
}

/// Rules about all objects of a store together.
#[derive(Clone)]
pub struct Rules {
    /// Bytes of all objects, at most. Nothing grows beyond it; deletions go on.
    pub len_max: u64,
    /// The same for objects of one resource.
    pub shares: HashMap<Resource, u64>,
    /// Users who each have a share.
    pub writers: Option<WriterShares>,
    /// What only one object may have.
    pub claims: Option<Arc<dyn Claims>>,
    /// Whether what is current stays as it is, and only what it has replaced is packed.
    pub unpacked: bool,
}

impl Default for Rules {
    fn default() -> Self {
        Self { len_max: u64::MAX, shares: HashMap::new(), writers: None, claims: None, unpacked: false }
    }
}

impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rules")
            .field("len_max", &self.len_max)
            .field("shares", &self.shares)
            .field("writers", &self.writers)
            .field("unpacked", &self.unpacked)
            .finish_non_exhaustive()
    }
}

impl Rules {
    /// The user, if it is one who has a share.
    pub(super) fn writer(&self, user: &str) -> Option<Arc<str>> {
        self.writers.filter(|writers| user.starts_with(writers.prefix)).map(|_| user.into())
    }
}

/// The objects of a store, counted.
pub(super) struct Ledger {
    rules: Arc<Rules>,
    len: u64,
    /// Only of resources with a share.
    lens: HashMap<Resource, u64>,
    /// Who has what. Of a store that is older than the rule, several may.
    holders: HashMap<String, Vec<ObjectKey>>,
    account: Account,
}

impl Ledger {
    pub(super) fn new(rules: Arc<Rules>) -> Self {
        Self { rules, len: 0, lens: HashMap::new(), holders: HashMap::new(), account: Account::default() }
    }

    /// Bytes of all objects.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Bytes that a user pays for.
    #[cfg(test)]
    pub(super) fn total(&self, writer: &str) -> u64 {
        self.account.total(writer)
    }

    /// Whether a version may take the place of another one, or of none. The writer is one who has a share.
    ///
    /// # Errors
    /// [`StoreError::Full`], [`StoreError::OverShare`] or [`StoreError::Taken`].
    pub(super) fn check(
        &self,
        before: Option<&Stored>,
        after: &Stored,
        writer: Option<&Arc<str>>,
    ) -> Result<(), StoreError> {
        self.check_len(before, after, writer)?;
        let had = self.claims(before);
        let free = |claim: &String| had.contains(claim) || self.holders.get(claim).is_none_or(Vec::is_empty);
        match self.claims(Some(after)).into_iter().find(|claim| !free(claim)) {
            Some(claim) => Err(StoreError::Taken { key: after.key.clone(), claim }),
            None => Ok(()),
        }
    }

    fn check_len(
        &self,
        before: Option<&Stored>,
        after: &Stored,
        writer: Option<&Arc<str>>,
    ) -> Result<(), StoreError> {
        let grows = cost(after).saturating_sub(before.map_or(0, cost));
        if grows == 0 {
            return Ok(());
        }
        let Err(refusal) = self.check_growth(&after.key, grows, writer) else { return Ok(()) };
        if before.is_none() || grows > DELETION_MARK_MAX || !is_deleting(Some(after)) {
            return Err(refusal);
        }
        self.check_share(&after.key, grows, writer, DELETION_RESERVE)?;
        let reserve = self.rules.len_max.saturating_add(self.rules.len_max / DELETION_RESERVE);
        match is_deleting(before) && self.len.saturating_add(grows) > reserve {
            true => Err(refusal),
            false => Ok(()),
        }
    }

    fn check_growth(&self, key: &ObjectKey, grows: u64, writer: Option<&Arc<str>>) -> Result<(), StoreError> {
        let full = |len: u64, max: u64| match len.saturating_add(grows) > max {
            true => Err(StoreError::Full { key: key.clone(), len, max }),
            false => Ok(()),
        };
        if let Some(share) = self.rules.shares.get(key.resource()) {
            full(self.lens.get(key.resource()).copied().unwrap_or(0), *share)?;
        }
        full(self.len, self.rules.len_max)?;
        let (Some(shares), Some(writer)) = (self.rules.writers, writer) else { return Ok(()) };
        full(self.len, shares.all)?;
        self.check_share(key, grows, Some(writer), u64::MAX)
    }

    /// Whether a user has room for growth in its share and one of so many parts of it more.
    fn check_share(
        &self,
        key: &ObjectKey,
        grows: u64,
        writer: Option<&Arc<str>>,
        reserve: u64,
    ) -> Result<(), StoreError> {
        let (Some(shares), Some(writer)) = (self.rules.writers, writer) else { return Ok(()) };
        let max = shares.share.saturating_add(shares.share / reserve);
        if self.account.total_with(key, grows, writer) > max {
            let len = self.account.total(writer);
            return Err(StoreError::OverShare { key: key.clone(), writer: writer.to_string(), len, max });
        }
        Ok(())
    }

    /// Counts one version instead of another. The writer is one who has a share. Gives who paid before.
    pub(super) fn replace(
        &mut self,
        before: Option<&Stored>,
        after: Option<&Stored>,
        writer: Option<&Arc<str>>,
    ) -> Parts {
        let parts = match (after.or(before), self.rules.writers.is_some()) {
            (Some(object), true) => {
                let (was, is) = (before.map_or(0, cost), after.map_or(0, cost));
                self.account.change(&object.key, was, is, writer)
            }
            _ => Parts::new(),
        };
        self.count(before, after);
        parts
    }

    /// Takes a change back: the last one that was counted and is not taken back yet.
    pub(super) fn take_back(&mut self, change: &Change, parts: Parts) {
        self.count(change.stored(), change.previous.as_deref());
        if self.rules.writers.is_some() {
            self.account.put_back(&change.object.key, parts);
        }
    }

    fn count(&mut self, before: Option<&Stored>, after: Option<&Stored>) {
        if let Some(gone) = before {
            self.len = self.len.saturating_sub(cost(gone));
            if let Some(len) = self.lens.get_mut(gone.key.resource()) {
                *len = len.saturating_sub(cost(gone));
            }
            for claim in self.claims(Some(gone)) {
                if let Some(holders) = self.holders.get_mut(&claim) {
                    holders.retain(|holder| *holder != gone.key);
                    if holders.is_empty() {
                        self.holders.remove(&claim);
                    }
                }
            }
        }
        if let Some(new) = after {
            self.len = self.len.saturating_add(cost(new));
            if self.rules.shares.contains_key(new.key.resource()) {
                let len = self.lens.entry(new.key.resource().clone()).or_default();
                *len = len.saturating_add(cost(new));
            }
            for claim in self.claims(Some(new)) {
                self.holders.entry(claim).or_default().push(new.key.clone());
            }
        }
    }

    fn claims(&self, object: Option<&Stored>) -> Vec<String> {
        let (Some(rule), Some(object)) = (&self.rules.claims, object) else { return Vec::new() };
        let mut claims = rule.of(object);
        claims.sort_unstable();
        claims.dedup();
        claims
    }
}

/// Without its revision, whose digits become more by themselves: who writes the same again does not grow.
fn cost(object: &Stored) -> u64 {
    let digits = object.revision.0.checked_ilog10().unwrap_or(0);
    let named = object.key.namespace().len() + object.key.name().len();
    (object.body_len() as u64).saturating_sub(u64::from(digits)) + named as u64 + OBJECT_OVERHEAD
}

/// Asked under the lock of the store, about objects of any size.
fn is_deleting(object: Option<&Stored>) -> bool {
    #[derive(Deserialize)]
    struct Body {
        metadata: Metadata,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Metadata {
        deletion_timestamp: Option<String>,
    }
    let body = object.and_then(|object| serde_json::from_slice::<Body>(&object.body()).ok());
    body.is_some_and(|body| body.metadata.deletion_timestamp.is_some())
}
