//! Limits of a store beyond single objects: total bytes, and values that only one object may have.
//!
//! Changes are checked one after the other when they are planned, so that two concurrent writes cannot both pass.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use serde::Deserialize;
use tombolo_proto::object::{ObjectKey, Resource};

use super::account::{Account, Parts, WriterShares};
use crate::history::Change;
use crate::store::{StoreError, Stored};

/// Cost of an object in addition to its text and its name: its entries in the tables and its row on disk.
pub const OBJECT_OVERHEAD: u64 = 256;

/// Maximum growth of an object by deletion marks when the store is full.
pub const DELETION_MARK_MAX: u64 = 4 * 1024;

/// Objects that are being deleted may grow by this fraction of the limit beyond it, because finishing a deletion often
/// begins with a change of the object. The same holds for the share of a user, which is exceeded by no more than that
/// fraction for deletion marks as well.
const DELETION_RESERVE: u64 = 16;

/// Values that only one object of a store may have, for example addresses.
pub trait Claims: Send + Sync + 'static {
    /// The values of an object. Called for every stored version, so it must be fast for kinds without such values.
    fn of(&self, object: &Stored) -> Vec<String>;
}

/// Limits for all objects of a store together.
#[derive(Clone)]
pub struct Rules {
    /// Maximum number of bytes of all objects. Beyond it nothing grows, but deletions continue.
    pub len_max: u64,
    /// The limits of single resources.
    pub shares: HashMap<Resource, u64>,
    /// Users who each have a share.
    pub writers: Option<WriterShares>,
    /// Values that only one object may have.
    pub claims: Option<Arc<dyn Claims>>,
    /// Whether current objects stay uncompressed, and only replaced versions are compressed.
    pub uncompressed: bool,
}

impl Default for Rules {
    fn default() -> Self {
        Self { len_max: u64::MAX, shares: HashMap::new(), writers: None, claims: None, uncompressed: false }
    }
}

impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rules")
            .field("len_max", &self.len_max)
            .field("shares", &self.shares)
            .field("writers", &self.writers)
            .field("uncompressed", &self.uncompressed)
            .finish_non_exhaustive()
    }
}

impl Rules {
    /// The user, if it has a share.
    pub(super) fn writer(&self, user: &str) -> Option<Arc<str>> {
        self.writers.filter(|writers| user.starts_with(writers.prefix)).map(|_| user.into())
    }
}

/// Counts the objects of a store.
pub(super) struct Ledger {
    rules: Arc<Rules>,
    len: u64,
    /// Only of resources with their own limit.
    lens: HashMap<Resource, u64>,
    /// The objects that have each value. There may be several in a store that is older than the rule.
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

    /// Bytes charged to a user.
    #[cfg(test)]
    pub(super) fn total(&self, writer: &str) -> u64 {
        self.account.total(writer)
    }

    /// Checks that a version may replace another one, or none. The writer is set if it has a share.
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

    /// Checks that growth fits into the share of a user, extended by the fraction `1 / reserve`.
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

    /// Counts one version instead of another. The writer is set if it has a share. Returns the old charges.
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

    /// Undoes a change: the last one that was counted and not undone yet.
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

/// Excludes the digits of the revision, which increase on their own: writing the same object again is not growth.
fn cost(object: &Stored) -> u64 {
    let digits = object.revision.0.checked_ilog10().unwrap_or(0);
    let named = object.key.namespace().len() + object.key.name().len();
    (object.body_len() as u64).saturating_sub(u64::from(digits)) + named as u64 + OBJECT_OVERHEAD
}

/// Called under the lock of the store, with objects of any size.
fn is_deleting(object: Option<&Stored>) -> bool {
    #[derive(Deserialize)]
    struct LedgerBody {
        metadata: Metadata,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Metadata {
        deletion_timestamp: Option<String>,
    }
    let body = object.and_then(|object| serde_json::from_slice::<LedgerBody>(&object.body()).ok());
    body.is_some_and(|body| body.metadata.deletion_timestamp.is_some())
}
