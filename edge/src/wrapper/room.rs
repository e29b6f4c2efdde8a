//! Bounds how much of the cluster one node shows. The users of a namespace determine how many bytes its Services and
//! endpoints have, and each node has a copy of all of them, from which the DNS server's index is built as well. If they
//! exceed the bound, the largest namespaces are left out.

use std::collections::{BTreeMap, BTreeSet};

use tombolo_apicore::memory::OBJECT_OVERHEAD;
use tombolo_apicore::store::Stored;

/// Bytes of shown namespaced objects, at most, including the overhead of each. 20,000 Services with one slice each of
/// the usual size fit.
pub(super) const SHOWN_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Decides which namespaces are left out.
#[derive(Debug)]
pub(super) struct Room {
    max: usize,
    shown: Weights,
    left_out: BTreeSet<String>,
}

/// Bytes by namespace, without cluster-scoped objects, which only administrators and nodes write.
#[derive(Debug, Clone, Default)]
pub(super) struct Weights {
    bytes: BTreeMap<String, usize>,
    sum: usize,
}

impl Weights {
    /// Changes the weight of an object; it is 0 before an addition and after a removal.
    fn change(&mut self, namespace: &str, before: usize, after: usize) {
        if namespace.is_empty() || before == after {
            return;
        }
        let bytes = self.bytes.entry(namespace.to_owned()).or_default();
        *bytes = bytes.saturating_sub(before) + after;
        self.sum = self.sum.saturating_sub(before) + after;
        if *bytes == 0 {
            self.bytes.remove(namespace);
        }
    }

    /// Adds an object.
    pub(super) fn add(&mut self, object: &Stored) {
        self.change(object.key.namespace(), 0, weight(object));
    }

    /// Total bytes.
    pub(super) fn sum(&self) -> usize {
        self.sum
    }

    /// The largest namespaces, which must be left out so that the others fit, and the bytes of the others.
    fn beyond(mut self, max: usize) -> (BTreeSet<String>, usize) {
        let mut largest: Vec<(usize, String)> =
            self.bytes.into_iter().map(|(namespace, bytes)| (bytes, namespace)).collect();
        largest.sort_unstable();
        let mut beyond = BTreeSet::new();
        while self.sum > max
            && let Some((bytes, namespace)) = largest.pop()
        {
            self.sum -= bytes;
            beyond.insert(namespace);
        }
        (beyond, self.sum)
    }
}

/// The weight of an object.
pub(super) fn weight(object: &Stored) -> usize {
    object.body_len() + usize::try_from(OBJECT_OVERHEAD).unwrap_or_default()
}

impl Room {
    /// Room for `max` bytes.
    pub(super) fn new(max: usize) -> Self {
        Self { max, shown: Weights::default(), left_out: BTreeSet::new() }
    }

    /// Changes the weight of a shown object.
    pub(super) fn change(&mut self, namespace: &str, before: usize, after: usize) {
        self.shown.change(namespace, before, after);
    }

    /// Bytes that may be shown beside `others`.
    pub(super) fn beside(&self, others: usize) -> usize {
        self.max.saturating_sub(others)
    }

    /// Bytes that are shown.
    pub(super) fn shown(&self) -> usize {
        self.shown.sum
    }

    /// Whether a namespace is left out.
    pub(super) fn is_left_out(&self, namespace: &str) -> bool {
        self.left_out.contains(namespace)
    }

    /// How many namespaces are left out.
    pub(super) fn left_out(&self) -> usize {
        self.left_out.len()
    }

    /// Leaves out namespaces if more is shown than allowed. Returns those that are left out from now on.
    pub(super) fn make_room(&mut self) -> BTreeSet<String> {
        if self.shown.sum <= self.max {
            return BTreeSet::new();
        }
        self.exclude(self.shown.clone())
    }

    /// Leaves out the largest namespaces so that the others fit. Returns those that were not left out before.
    pub(super) fn exclude(&mut self, all: Weights) -> BTreeSet<String> {
        let (beyond, _) = all.beyond(self.max);
        let new = beyond.difference(&self.left_out).cloned().collect();
        self.left_out.extend(beyond);
        new
    }

    /// Decides again, given the weights of all namespaces. Returns those that are left out from now on, and whether
    /// some are no longer left out. A namespace returns only if an eighth of the room remains free: shown objects
    /// differ in size from their sources, and namespaces should not come and go all the time.
    pub(super) fn judge(&mut self, all: Weights) -> (BTreeSet<String>, bool) {
        let (mut beyond, others) = all.beyond(self.max);
        if others > self.max - self.max / 8 {
            beyond.extend(self.left_out.iter().cloned());
        }
        let returns = !self.left_out.is_subset(&beyond);
        let before = std::mem::replace(&mut self.left_out, beyond);
        (self.left_out.difference(&before).cloned().collect(), returns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weights(all: &[(&str, usize)]) -> Weights {
        let mut weights = Weights::default();
        for (namespace, bytes) in all {
            weights.change(namespace, 0, *bytes);
        }
        weights
    }

    fn names(set: &BTreeSet<String>) -> Vec<&str> {
        set.iter().map(String::as_str).collect()
    }

    #[test]
    fn largest_namespaces_are_left_out_until_the_others_fit() {
        let all = [("a", 10), ("b", 50), ("c", 40), ("", 1_000)];
        for (max, beyond) in
            [(100, &[][..]), (99, &["b"]), (50, &["b"]), (49, &["b", "c"]), (0, &["a", "b", "c"])]
        {
            assert_eq!(names(&weights(&all).beyond(max).0), beyond, "{max}");
        }
        let mut room = Room::new(99);
        for (namespace, bytes) in all {
            room.change(namespace, 0, bytes);
        }
        assert_eq!(names(&room.make_room()), ["b"]);
        assert!(room.is_left_out("b") && !room.is_left_out("a") && !room.is_left_out(""));
        room.change("b", 50, 0);
        assert_eq!((names(&room.make_room()), room.shown()), (vec![], 50));
        assert_eq!(room.judge(weights(&all)), (BTreeSet::new(), false), "b has as much as before");
        assert_eq!(
            room.judge(weights(&[("a", 10), ("b", 50), ("c", 30)])),
            (BTreeSet::new(), false),
            "nearly fits"
        );
        let (new, returns) = room.judge(weights(&[("a", 10), ("b", 50), ("c", 60)]));
        assert_eq!((names(&new), returns), (vec!["c"], true), "b is shown again, and c is left out");
        assert_eq!((room.judge(weights(&[("a", 10)])), room.left_out()), ((BTreeSet::new(), true), 0));
    }
}
