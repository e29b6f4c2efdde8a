//! Tombstones of pods that were deleted while reads were running, so that an older answer does not bring them back.

use std::collections::{BTreeSet, HashSet, VecDeque};

use tombolo_proto::Uid;

/// Maximum number of tombstones. Beyond it the answers of running reads are discarded, and the reads are repeated.
const TOMBSTONES_MAX: usize = 16_384;

/// A running read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReadToken(u64);

/// Tombstones, and the reads that still need them.
#[derive(Debug, Default)]
pub(super) struct Tombstones {
    newest: u64,
    under_way: BTreeSet<ReadToken>,
    /// Oldest first, each with the newest read at the time of deletion: later reads see the deletion themselves.
    entries: VecDeque<(ReadToken, Uid)>,
    uids: HashSet<Uid>,
    /// Reads up to this one have missed deletions that are already forgotten.
    void: Option<ReadToken>,
}

impl Tombstones {
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
        while self.entries.front().is_some_and(|(newest, _)| *newest < oldest)
            && let Some((_, uid)) = self.entries.pop_front()
        {
            self.uids.remove(&uid);
        }
        self.under_way.remove(&token);
        usable
    }

    pub(super) fn add(&mut self, uid: &Uid) {
        if self.under_way.is_empty() || !self.uids.insert(uid.clone()) {
            return;
        }
        if self.entries.len() >= TOMBSTONES_MAX {
            self.void = Some(ReadToken(self.newest));
            self.entries.clear();
            self.uids.clear();
            return;
        }
        self.entries.push_back((ReadToken(self.newest), uid.clone()));
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
    fn tombstones_last_as_long_as_reads_that_may_have_missed_the_deletion() {
        let mut tombstones = Tombstones::default();
        tombstones.add(&uid(0));
        assert!(!tombstones.has(&uid(0)), "nobody reads");
        let first = tombstones.begin();
        tombstones.add(&uid(1));
        // One read is always running, as happens where some objects cannot be read.
        let mut last = first;
        for number in 2..100_000 {
            let next = tombstones.begin();
            tombstones.add(&uid(number));
            assert!(tombstones.end(last), "few deletions within one read");
            assert!(tombstones.has(&uid(number)) && tombstones.has(&uid(number - 1)), "it may show both");
            assert!(tombstones.entries.len() < 8 && tombstones.uids.len() == tombstones.entries.len());
            last = next;
        }
    }

    #[test]
    fn overflowing_tombstones_invalidate_running_reads() {
        let mut tombstones = Tombstones::default();
        let slow = tombstones.begin();
        (0..=TOMBSTONES_MAX).for_each(|number| tombstones.add(&uid(number)));
        assert!(tombstones.entries.len() <= TOMBSTONES_MAX && tombstones.uids.len() <= TOMBSTONES_MAX);
        let fresh = tombstones.begin();
        assert!(!tombstones.end(slow), "it may contain a pod without a tombstone");
        assert!(tombstones.end(fresh));
    }
}
