//! What some users have made the objects of a store grow by: each has a share, and the last part of the store is others'.

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

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Account {
    /// Who has made an object grow last, and by how much the two of them who did.
    grown: HashMap<ObjectKey, (Arc<str>, u64)>,
    /// The same in all objects together.
    totals: HashMap<Arc<str>, u64>,
}

impl Account {
    /// Bytes by which a user has made objects grow.
    pub(super) fn total(&self, writer: &str) -> u64 {
        self.totals.get(writer).copied().unwrap_or(0)
    }

    /// An object that had `before` bytes has `after`; the writer is one of those who have shares.
    pub(super) fn change(&mut self, key: &ObjectKey, before: u64, after: u64, writer: Option<&Arc<str>>) {
        let (author, bytes) = match self.grown.remove(key) {
            Some((author, bytes)) => (Some(author), bytes),
            None => (None, 0),
        };
        if let Some(author) = &author {
            self.add(author, 0, bytes);
        }
        let author = if after > before { writer.cloned().or(author) } else { author };
        let grown = if writer.is_some() { after.saturating_sub(before) } else { 0 };
        let bytes = bytes.saturating_add(grown).saturating_sub(before.saturating_sub(after));
        if let (Some(author), true) = (author, after > 0 && bytes > 0) {
            self.add(&author, bytes, 0);
            self.grown.insert(key.clone(), (author, bytes));
        }
    }

    fn add(&mut self, writer: &Arc<str>, more: u64, less: u64) {
        let total = self.totals.entry(Arc::clone(writer)).or_default();
        *total = total.saturating_add(more).saturating_sub(less);
        if *total == 0 {
            self.totals.remove(writer);
        }
    }
}

#[cfg(test)]
mod tests {
    use tombolo_proto::object::Resource;

    use super::*;

    #[test]
    fn what_a_user_has_made_grow_is_counted_until_it_is_gone() {
        let mut account = Account::default();
        let (a, b): (Arc<str>, Arc<str>) = ("a".into(), "b".into());
        let key = |name: &str| ObjectKey::new(Resource::new("", "v1", "pods"), "d", name);
        account.change(&key("made"), 0, 100, Some(&a));
        account.change(&key("old"), 50, 80, Some(&a));
        account.change(&key("others"), 0, 1000, None);
        assert_eq!((account.total("a"), account.total("b")), (130, 0));
        account.change(&key("old"), 80, 500, None);
        assert_eq!(account.total("a"), 130, "what others add is theirs");
        account.change(&key("old"), 500, 490, None);
        account.change(&key("made"), 100, 100, Some(&b));
        assert_eq!(
            (account.total("a"), account.total("b")),
            (120, 0),
            "what goes is taken off, what stays is not"
        );
        account.change(&key("made"), 100, 150, Some(&b));
        assert_eq!(
            (account.total("a"), account.total("b")),
            (20, 150),
            "the last one who makes it grow has all"
        );
        for name in ["made", "old", "others"] {
            account.change(&key(name), 1000, 0, Some(&b));
        }
        assert!(account.grown.is_empty() && account.totals.is_empty(), "{account:?}");
    }
}
