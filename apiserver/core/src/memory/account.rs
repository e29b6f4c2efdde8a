//! What some users have made the objects of a store grow by: each has a share, and the last part of the store is others'.
//!
//! Whoever makes an object grow pays for what came, and for no more of it. What goes is given back: first to whoever takes it
//! away, then to those who have no share, then to those who paid last. So who changes nothing but what is its own has always
//! paid for exactly that, whatever others do to the same objects.

use std::collections::HashMap;
use std::sync::Arc;

use tombolo_proto::object::ObjectKey;

/// Users who each have a share of the store, for example the nodes of a cluster.
#[derive(Debug, Clone, Copy)]
pub struct WriterShares {
    /// How their names begin.
    pub prefix: &'static str,
    /// Bytes by which one of them may have made objects grow that are there. Counted from the start of the process: of
    /// objects that are older nobody knows who has written them.
    pub share: u64,
    /// Bytes of all objects beyond which none of them makes anything grow.
    pub all: u64,
}

/// Bytes that a user pays beside what it has made an object grow by: what it costs to remember that. So this memory is
/// bounded by the shares.
pub(super) const PART_OVERHEAD: u64 = 64;

/// Who has made an object grow that is there, and by how much: those who came first are first. The rest of it is others'.
pub(super) type Parts = Vec<(Arc<str>, u64)>;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Account {
    parts: HashMap<ObjectKey, Parts>,
    /// The same in all objects together, with [`PART_OVERHEAD`] for each part.
    totals: HashMap<Arc<str>, u64>,
}

impl Account {
    /// Bytes that a user pays for.
    pub(super) fn total(&self, writer: &str) -> u64 {
        self.totals.get(writer).copied().unwrap_or(0)
    }

    /// What a user would pay who makes an object grow by so many bytes.
    pub(super) fn total_with(&self, key: &ObjectKey, grows: u64, writer: &str) -> u64 {
        let has_part = self.parts.get(key).is_some_and(|parts| parts.iter().any(|(own, _)| **own == *writer));
        let overhead = if has_part { 0 } else { PART_OVERHEAD };
        self.total(writer).saturating_add(grows).saturating_add(overhead)
    }

    /// An object that had `before` bytes has `after`; the writer is one of those who have shares. Gives what there was before,
    /// for [`Self::put_back`].
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

    /// The object's last change did not come about.
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
