//! Tombstones of pods that were deleted while reads were running, so that an older answer does not bring them back.

use std::collections::{BTreeSet, HashSet, VecDeque};

use tombolo_proto::Uid;

/// Maximum number of tombstones. Beyond it the answers of running reads are discarded, and the reads are repeated.
const GRAVES_MAX: usize = 16_384;

/// A running read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReadToken(u64);

/// Tombstones, and the reads that still need them.
#[derive(Debug, Default)]
pub(super) struct Graves {
    newest: u64,
    under_way: BTreeSet<ReadToken>,
    /// Oldest first, each with the newest read at the time of deletion: later reads see the deletion themselves.
    dug: VecDeque<(ReadToken, Uid)>,
    uids: HashSet<Uid>,
    /// Reads up to this one have missed deletions that are already forgotten.
    void: Option<ReadToken>,
}

impl Graves {
    pub(super) fn begin(&mut self) -> ReadToken {
        self.newest += 1;
        let token = ReadToken(self.newest);
        self.under_way.insert(token);
        token
    }

    /// Records that a read has ended; returns whether its answer can be used. Tombstones that no running read needs are
    /// dropped only at the next call, so that this answer is still checked against all of them.
    pub(super) fn end(&mut self, token: ReadToken) -> bool {
        let usable = self.void.is_none_or(|void| void < token);
        let oldest = self.under_way.first().copied().unwrap_or(token);
        while self.dug.front().is_some_and(|(newest, _)| *newest < oldest)
            && let Some((_, uid)) = self.dug.pop_front()
        {
            self.uids.remove(&uid);
        }
        self.under_way.remove(&token);
        usable
    }

    pub(super) fn dig(&mut self, uid: &Uid) {
        if self.under_way.is_empty() || !self.uids.insert(uid.clone()) {
            return;
        }
        if self.dug.len() >= GRAVES_MAX {
            self.void = Some(ReadToken(self.newest));
            self.dug.clear();
            self.uids.clear();
            return;
        }
        self.dug.push_back((ReadToken(self.newest), uid.clone()));
    }

    /// The newest read, if any is running; `None` when no answer is pending.
    pub(super) fn newest(&self) -> Option<ReadToken> {
        (!self.under_way.is_empty()).then_some(ReadToken(self.newest))
    }

    pub(super) fn has(&self, uid: &Uid) -> bool {
        self.uids.contains(uid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uid(number: usize) -> Uid {
        Uid::parse(&format!("u{number}")).expect("valid")
    }

    #[test]
    fn deletions_are_remembered_for_the_reads_that_may_not_have_seen_them_and_no_longer() {
        let mut graves = Graves::default();
        graves.dig(&uid(0));
        assert!(!graves.has(&uid(0)), "nobody reads");
        let first = graves.begin();
        graves.dig(&uid(1));
        // One read is always running, as happens where some objects cannot be read.
        let mut last = first;
        for number in 2..100_000 {
            let next = graves.begin();
            graves.dig(&uid(number));
            assert!(graves.end(last), "few deletions within one read");
            assert!(graves.has(&uid(number)) && graves.has(&uid(number - 1)), "it may show both");
            assert!(graves.dug.len() < 8 && graves.uids.len() == graves.dug.len());
            last = next;
        }
    }

    #[test]
    fn beyond_the_bound_the_reads_under_way_count_for_nothing() {
        let mut graves = Graves::default();
        let slow = graves.begin();
        (0..=GRAVES_MAX).for_each(|number| graves.dig(&uid(number)));
        assert!(graves.dug.len() <= GRAVES_MAX && graves.uids.len() <= GRAVES_MAX);
        let fresh = graves.begin();
        assert!(!graves.end(slow), "it may show a pod of which nothing is remembered");
        assert!(graves.end(fresh));
    }
}
