//! Which reads of the API run, which are queued, and which wait after a failure. Pure: the caller runs them.
//!
//! Nodes take turns, and none may hold more than its share of the slots, so that the references of one node do not
//! block the others. A read that failed waits without a slot, and may be dropped meanwhile.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use tokio::time::Instant;
use tombolo_proto::object::ObjectVersion;
use tombolo_proto::{NodeId, ObjectKey};
use tombolo_runtime::doubled;

/// Maximum number of concurrent reads of the API.
pub(super) const READS_MAX: usize = 16;

/// Maximum number of concurrent reads of one node.
pub(super) const NODE_READS_MAX: usize = 4;

/// Wait after a first failure; it doubles up to [`RETRY_MAX`].
const RETRY_MIN: Duration = Duration::from_millis(200);

/// Longest wait after a failure.
const RETRY_MAX: Duration = Duration::from_secs(300);

/// Number of failed reads from which on reads that are no longer needed are searched and dropped.
const SWEEP_MIN: usize = 1024;

/// One read of the API.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Read {
    /// An object, with the version expected in the cache if the answer is that it does not exist.
    Object(ObjectKey, Option<ObjectVersion>),
    /// The pods that are bound to a node.
    Pods(NodeId),
    /// Whether objects that a session considers deleted are deleted, by the number of the request.
    Proof(u64),
}

#[derive(Debug)]
struct ReadState {
    node: NodeId,
    failures: u32,
    running: bool,
    /// Requested again after it began: its result may be older than that request.
    again: bool,
    /// Its position among the reads that wait after a failure.
    later: Option<(Instant, u64)>,
}

impl ReadState {
    fn of(node: &NodeId) -> Self {
        Self { node: node.clone(), failures: 0, running: false, again: false, later: None }
    }
}

/// The wanted reads. Bounded by the number of references: each read is known once.
#[derive(Debug, Default)]
pub(super) struct Reads {
    known: HashMap<Read, ReadState>,
    /// The queued reads of each node.
    lanes: HashMap<NodeId, VecDeque<Read>>,
    /// Nodes with queued reads, in the order of their turns.
    turns: VecDeque<NodeId>,
    running: HashMap<NodeId, usize>,
    taken: usize,
    later: BTreeMap<(Instant, u64), Read>,
    serial: u64,
    sweep_at: usize,
}

impl Reads {
    /// Requests a read on behalf of a node. A read that waits after a failure is queued now, because it was requested
    /// again. A running read is repeated when it has ended.
    pub(super) fn add(&mut self, node: &NodeId, read: Read) {
        match self.known.get_mut(&read) {
            None => {
                self.known.insert(read.clone(), ReadState::of(node));
                self.line_up(node.clone(), read);
            }
            Some(known) if known.running => known.again = true,
            Some(known) => {
                if let Some(due) = known.later.take() {
                    let node = known.node.clone();
                    self.later.remove(&due);
                    self.line_up(node, read);
                }
            }
        }
    }

    /// The next read to run, of the node whose turn it is; `None` while no slot is free. Reads that are no longer
    /// needed are dropped.
    pub(super) fn next(&mut self, needed: impl Fn(&Read) -> bool) -> Option<Read> {
        for _ in 0..self.turns.len() {
            if self.taken >= READS_MAX {
                return None;
            }
            let node = self.turns.pop_front()?;
            let busy = self.running.get(&node).is_some_and(|count| *count >= NODE_READS_MAX);
            let lane = self.lanes.get_mut(&node)?;
            let mut found = None;
            while !busy && found.is_none() {
                let Some(read) = lane.pop_front() else { break };
                if needed(&read) {
                    found = Some(read);
                } else {
                    self.known.remove(&read);
                }
            }
            if lane.is_empty() {
                self.lanes.remove(&node);
            } else {
                self.turns.push_back(node.clone());
            }
            if let Some(read) = found {
                if let Some(known) = self.known.get_mut(&read) {
                    known.running = true;
                }
                *self.running.entry(node).or_default() += 1;
                self.taken += 1;
                return Some(read);
            }
        }
        None
    }

    /// Whether an answered read was requested again while it ran. If so, it is queued again and the answer is dropped.
    pub(super) fn repeats(&mut self, read: &Read) -> bool {
        let Some(known) = self.known.get_mut(read).filter(|known| known.again) else { return false };
        (known.running, known.again) = (false, false);
        let node = known.node.clone();
        self.leave(&node);
        self.line_up(node, read.clone());
        true
    }

    /// Records that a read has its answer.
    pub(super) fn ended(&mut self, read: &Read) {
        if let Some(known) = self.known.remove(read) {
            self.leave(&known.node);
        }
    }

    /// Records that a read has failed. It waits twice as long as the last time. Returns how often it has failed.
    pub(super) fn failed(&mut self, read: Read, now: Instant, needed: impl Fn(&Read) -> bool) -> u32 {
        let Some(node) = self.known.get(&read).map(|known| known.node.clone()) else { return 0 };
        let failures = self.wait(read, now);
        self.leave(&node);
        if self.later.len() >= self.sweep_at.max(SWEEP_MIN) {
            self.sweep(needed);
            self.sweep_at = self.later.len().saturating_mul(2);
        }
        failures
    }

    /// Requests a read that has just failed as a part of another one. A read that is already known keeps its schedule.
    pub(super) fn add_failed(&mut self, node: &NodeId, read: Read, now: Instant) {
        if !self.known.contains_key(&read) {
            self.known.insert(read.clone(), ReadState::of(node));
            self.wait(read, now);
        }
    }

    fn wait(&mut self, read: Read, now: Instant) -> u32 {
        let Some(known) = self.known.get_mut(&read) else { return 0 };
        known.failures = known.failures.saturating_add(1);
        (known.running, known.again) = (false, false);
        self.serial += 1;
        let due = (now + doubled(RETRY_MIN, known.failures, RETRY_MAX), self.serial);
        known.later = Some(due);
        let failures = known.failures;
        self.later.insert(due, read);
        failures
    }

    /// When the next waiting read is due.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.later.first_key_value().map(|((due, _), _)| *due)
    }

    /// Queues the reads that are due.
    pub(super) fn wake(&mut self, now: Instant) {
        while let Some(entry) = self.later.first_entry().filter(|entry| entry.key().0 <= now) {
            let read = entry.remove();
            if let Some(known) = self.known.get_mut(&read) {
                known.later = None;
                let node = known.node.clone();
                self.line_up(node, read);
            }
        }
    }

    fn sweep(&mut self, needed: impl Fn(&Read) -> bool) {
        let known = &mut self.known;
        self.later.retain(|_, read| {
            let keep = needed(read);
            if !keep {
                known.remove(read);
            }
            keep
        });
    }

    fn line_up(&mut self, node: NodeId, read: Read) {
        let lane = self.lanes.entry(node.clone()).or_default();
        if lane.is_empty() {
            self.turns.push_back(node);
        }
        lane.push_back(read);
    }

    fn leave(&mut self, node: &NodeId) {
        self.taken = self.taken.saturating_sub(1);
        if let Some(count) = self.running.get_mut(node) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.running.remove(node);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kube::resources;

    fn node(name: &str) -> NodeId {
        NodeId::parse(name).expect("valid")
    }

    fn read(name: &str) -> Read {
        Read::Object(ObjectKey::new(resources::secrets(), "d", name), None)
    }

    fn running(reads: &mut Reads) -> Vec<Read> {
        std::iter::from_fn(|| reads.next(|_| true)).collect()
    }

    #[test]
    fn node_with_many_references_does_not_starve_others() {
        let mut reads = Reads::default();
        (0..4096).for_each(|number| reads.add(&node("hog"), read(&format!("s{number}"))));
        reads.add(&node("a"), read("a"));
        reads.add(&node("b"), Read::Pods(node("b")));
        let first = running(&mut reads);
        assert_eq!(first.len(), NODE_READS_MAX + 2, "one node does not occupy all slots");
        assert!(first[..3].contains(&read("a")) && first[..3].contains(&Read::Pods(node("b"))), "turns");
        for number in 0..40 {
            reads.add(&node(&format!("n{number}")), read(&format!("n{number}")));
        }
        assert_eq!(running(&mut reads).len(), READS_MAX - first.len(), "all slots are occupied");
        first.iter().for_each(|read| reads.ended(read));
        assert_eq!(running(&mut reads).len(), first.len());
    }

    #[test]
    fn failed_read_backs_off_without_holding_a_slot() {
        let (mut reads, mut now) = (Reads::default(), Instant::now());
        for number in 0..100 {
            reads.add(&node(&format!("n{}", number % 20)), read(&format!("s{number}")));
        }
        let mut failed = 0;
        while let Some(read) = reads.next(|_| true) {
            failed += 1;
            assert_eq!(reads.failed(read, now, |_| true), 1);
        }
        assert_eq!((failed, reads.taken, reads.running.len()), (100, 0, 0));
        reads.add(&node("other"), read("good"));
        assert_eq!(running(&mut reads), [read("good")], "a hundred failures delay no other read");
        reads.ended(&read("good"));
        let mut waits = Vec::new();
        for _ in 0..14 {
            let due = reads.deadline().expect("they wait");
            waits.push(due - now);
            now = due;
            reads.wake(now);
            while let Some(read) = reads.next(|_| true) {
                reads.failed(read, now, |_| true);
            }
        }
        assert_eq!((waits[0], waits[1], waits[13]), (RETRY_MIN, RETRY_MIN * 2, RETRY_MAX));
        assert!(waits.is_sorted());
    }

    #[test]
    fn read_ends_with_its_need_and_restarts_with_a_new_one() {
        let (mut reads, now) = (Reads::default(), Instant::now());
        for number in 0..SWEEP_MIN {
            reads.add(&node("a"), read(&format!("s{number}")));
            let one = reads.next(|_| true).expect("a place");
            reads.failed(one, now, |read| *read == self::read("s1"));
        }
        assert_eq!((reads.later.len(), reads.known.len()), (1, 1), "objects without users are forgotten");
        assert!(reads.next(|_| true).is_none(), "it waits");
        reads.add(&node("b"), read("s1"));
        assert_eq!(reads.next(|_| true), Some(read("s1")), "somebody needs it now");
        assert_eq!(reads.failed(read("s1"), now, |_| true), 2, "and it is the one that has failed before");
        reads.wake(now + RETRY_MAX);
        assert!(reads.next(|_| false).is_none());
        assert!(reads.known.is_empty() && reads.lanes.is_empty() && reads.turns.is_empty());
    }

    #[test]
    fn read_requested_while_running_is_repeated() {
        let mut reads = Reads::default();
        reads.add(&node("a"), read("s"));
        reads.add(&node("a"), read("s"));
        assert_eq!(running(&mut reads), [read("s")]);
        assert!(!reads.repeats(&read("s")), "it was wanted before it began");
        for _ in 0..2 {
            reads.add(&node("b"), read("s"));
        }
        assert_eq!(running(&mut reads), [], "one at a time");
        assert!(reads.repeats(&read("s")), "for what it brings may be older");
        assert_eq!(running(&mut reads), [read("s")]);
        assert!(!reads.repeats(&read("s")));
        reads.ended(&read("s"));
        assert!(reads.known.is_empty() && reads.running.is_empty() && reads.taken == 0);
    }
}
