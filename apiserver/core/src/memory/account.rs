//! Accounts for the growth of objects by user: some users have a share of the store each, and the last part of the
//! store is reserved for the others.
//!
//! A user who makes an object grow is charged for exactly that growth. When an object shrinks, the charge is returned:
//! first to the user who shrinks it, then to those without a share, then to those who were charged last. So a user who
//! changes only its own part of an object is always charged for exactly that part, whatever others do to the same
//! object.

use std::collections::HashMap;
use std::sync::Arc;

use tombolo_proto::object::ObjectKey;

/// Users who each have a share of the store, for example the nodes of a cluster.
#[derive(Debug, Clone, Copy)]
pub struct WriterShares {
    /// Prefix of their user names.
    pub prefix: &'static str,
    /// Bytes by which one user may have made existing objects grow. Counting begins with the process: the writers of
    /// older objects are unknown.
    pub share: u64,
    /// Total bytes of all objects beyond which none of these users can make an object grow.
    pub all: u64,
}

/// Bytes that a user is charged per object in addition to the growth, for the memory of the record. So this memory is
/// bounded by the shares.
pub(super) const PART_OVERHEAD: u64 = 64;

/// The users who made an existing object grow, and by how much, in order of their first charge. The remaining bytes
/// belong to users without a share.
pub(super) type Parts = Vec<(Arc<str>, u64)>;

/// The charges of all users with a share.
#[derive(Debug, Default)]
pub(super) struct Account {
    parts: HashMap<ObjectKey, Parts>,
    /// The sum per user over all objects, with [`PART_OVERHEAD`] for each part.
    totals: HashMap<Arc<str>, u64>,
}

impl Account {
    /// Bytes charged to a user.
    pub(super) fn total(&self, writer: &str) -> u64 {
        self.totals.get(writer).copied().unwrap_or(0)
    }

    /// Total charge of a user after making an object grow by this many bytes.
    pub(super) fn total_with(&self, key: &ObjectKey, grows: u64, writer: &str) -> u64 {
        let has_part = self.parts.get(key).is_some_and(|parts| parts.iter().any(|(own, _)| **own == *writer));
        let overhead = if has_part { 0 } else { PART_OVERHEAD };
        self.total(writer).saturating_add(grows).saturating_add(overhead)
    }

    /// Records that an object changed from `before` to `after` bytes; the writer is set if it has a share. Returns the
    /// old parts for [`Self::put_back`].
    pub(super) fn change(
        &mut self,
        key: &ObjectKey,
        before: u64,
        after: u64,
        writer: Option<&Arc<str>>,
    ) -> Parts {
        let old = self.parts.get(key).cloned().unwrap_or_default();
        if after == before || (old.is_empty() && writer.is_none()) {
            return old;
        }
        let parts = match after {
            0 => Parts::new(),
            _ if after > before => grown(&old, after - before, writer),
            _ => shrunk(&old, before, before - after, writer),
        };
        self.set(key, parts);
        old
    }

    /// Undoes the last change of an object.
    pub(super) fn put_back(&mut self, key: &ObjectKey, parts: Parts) {
        self.set(key, parts);
    }

    fn set(&mut self, key: &ObjectKey, parts: Parts) {
        for (writer, bytes) in &parts {
            let total = self.totals.entry(Arc::clone(writer)).or_default();
            *total = total.saturating_add(*bytes).saturating_add(PART_OVERHEAD);
        }
        let old = match parts.is_empty() {
            true => self.parts.remove(key),
            false => self.parts.insert(key.clone(), parts),
        };
        for (writer, bytes) in old.unwrap_or_default() {
            if let Some(total) = self.totals.get_mut(&writer) {
                *total = total.saturating_sub(bytes).saturating_sub(PART_OVERHEAD);
                if *total == 0 {
                    self.totals.remove(&writer);
                }
            }
        }
    }
}

fn grown(old: &Parts, more: u64, writer: Option<&Arc<str>>) -> Parts {
    let mut parts = old.clone();
    let Some(writer) = writer else { return parts };
    match parts.iter_mut().find(|(own, _)| own == writer) {
        Some((_, bytes)) => *bytes = bytes.saturating_add(more),
        None => parts.push((Arc::clone(writer), more)),
    }
    parts
}

fn shrunk(old: &Parts, before: u64, less: u64, writer: Option<&Arc<str>>) -> Parts {
    let (mut parts, mut less) = (old.clone(), less);
    let paid = parts.iter().fold(0_u64, |paid, (_, bytes)| paid.saturating_add(*bytes));
    let mut give_back = |bytes: &mut u64| {
        let back = less.min(*bytes);
        *bytes -= back;
        less -= back;
    };
    if let Some((_, own)) = parts.iter_mut().find(|(own, _)| Some(own) == writer) {
        give_back(own);
    }
    let mut of_others = before.saturating_sub(paid);
    give_back(&mut of_others);
    parts.iter_mut().rev().for_each(|(_, bytes)| give_back(bytes));
    parts.retain(|(_, bytes)| *bytes > 0);
    parts
}

#[cfg(test)]
mod tests;
