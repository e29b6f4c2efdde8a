//! Memory budget for peers: the bytes that all peers together may make this process hold, and a share for each peer.
//!
//! Counts do not bound memory: 256 answers can be a few bytes or gigabytes. Code that keeps bytes for a peer first
//! takes them from the peer's [`Share`], and refuses the peer if not enough are left. Dropping the [`Held`] gives the
//! bytes back, so no return path can forget to.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes of each share that do not count against the whole budget. A peer can still send small requests and get answers
/// when other peers have used up the budget.
pub const OWN_BYTES: usize = 32 * 1024;

/// A budget of bytes for all peers together. Clones are the same budget.
#[derive(Debug, Clone)]
pub struct Budget(Arc<Whole>);

#[derive(Debug)]
struct Whole {
    max: usize,
    used: AtomicUsize,
}

impl Budget {
    /// A budget of `max` bytes.
    #[must_use]
    pub fn new(max: usize) -> Self {
        Self(Arc::new(Whole { max, used: AtomicUsize::new(0) }))
    }

    /// A share for one peer: at most `max` bytes.
    #[must_use]
    pub fn share(&self, max: usize) -> Share {
        Share(Arc::new(ShareInner { within: Within::Whole(self.clone()), max, used: Mutex::new(0) }))
    }

    /// Bytes taken from the budget, without the [`OWN_BYTES`] of each share.
    #[must_use]
    pub fn used(&self) -> usize {
        self.0.used.load(Ordering::Relaxed)
    }

    fn take(&self, bytes: usize) -> bool {
        let taken = self.0.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            used.checked_add(bytes).filter(|sum| *sum <= self.0.max)
        });
        taken.is_ok()
    }

    fn give(&self, bytes: usize) {
        self.0.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// The bytes that one peer may make this process hold. Clones are the same share.
#[derive(Debug, Clone)]
pub struct Share(Arc<ShareInner>);

#[derive(Debug)]
struct ShareInner {
    within: Within,
    max: usize,
    used: Mutex<usize>,
}

/// What a share is a part of.
#[derive(Debug)]
enum Within {
    Whole(Budget),
    Share(Share),
}

impl Share {
    /// Takes bytes; `None` if the share or the whole budget has too few left.
    #[must_use]
    pub fn take(&self, bytes: usize) -> Option<Held> {
        let mut held = self.nothing();
        held.set(bytes).then_some(held)
    }

    /// A [`Held`] of no bytes yet; see [`Held::set`].
    #[must_use]
    pub fn nothing(&self) -> Held {
        Held { share: self.clone(), bytes: 0 }
    }

    /// A share for one purpose of the same peer: at most `max` bytes, which also count against this share.
    #[must_use]
    pub fn part(&self, max: usize) -> Self {
        Self(Arc::new(ShareInner { within: Within::Share(self.clone()), max, used: Mutex::new(0) }))
    }

    /// Bytes taken from this share.
    #[must_use]
    pub fn used(&self) -> usize {
        *self.lock()
    }

    /// Maximum number of bytes of this share.
    #[must_use]
    pub fn max(&self) -> usize {
        self.0.max
    }

    /// Bytes left until this share, or one that contains it, is used up. If fewer bytes than this are refused, the
    /// whole budget is used up.
    #[must_use]
    pub fn room(&self) -> usize {
        let own = self.0.max.saturating_sub(self.used());
        match &self.0.within {
            Within::Share(share) => own.min(share.room()),
            Within::Whole(_) => own,
        }
    }

    fn lock(&self) -> MutexGuard<'_, usize> {
        // A single number cannot be left half-changed.
        self.0.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces `before` bytes by `after`. Returns false and changes nothing if there is no room.
    fn change(&self, before: usize, after: usize) -> bool {
        let mut used = self.lock();
        let sum = used.saturating_sub(before).saturating_add(after);
        let fits = after <= before || sum <= self.0.max;
        let changed = match &self.0.within {
            Within::Share(share) if fits => share.change(before, after),
            Within::Whole(whole) if fits => {
                let (old, new) = (used.saturating_sub(OWN_BYTES), sum.saturating_sub(OWN_BYTES));
                whole.give(old.saturating_sub(new));
                whole.take(new.saturating_sub(old))
            }
            Within::Share(_) | Within::Whole(_) => false,
        };
        if changed {
            *used = sum;
        }
        changed
    }
}

/// Bytes taken from a share, given back when this is dropped.
#[derive(Debug)]
pub struct Held {
    share: Share,
    bytes: usize,
}

impl Held {
    /// Sets the number of bytes held. Lowering it always works; returns false and changes nothing if there is no room
    /// for more.
    #[must_use]
    pub fn set(&mut self, bytes: usize) -> bool {
        if bytes == self.bytes {
            return true;
        }
        let changed = self.share.change(self.bytes, bytes);
        if changed {
            self.bytes = bytes;
        }
        changed
    }

    /// Holds this many more bytes. Returns false and changes nothing if there is no room.
    #[must_use]
    pub fn grow(&mut self, bytes: usize) -> bool {
        self.set(self.bytes.saturating_add(bytes))
    }

    /// Bytes held.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // Holding less never fails.
        let _ = self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: usize = 1024;

    #[test]
    fn peer_cannot_exceed_its_share() {
        let budget = Budget::new(1000 * KIB);
        let share = budget.share(100 * KIB);
        let first = share.take(60 * KIB).expect("room");
        assert!(share.take(50 * KIB).is_none());
        let mut second = share.take(40 * KIB).expect("exactly");
        assert!(!second.grow(1), "the share is used up");
        assert_eq!((second.bytes(), share.used(), share.room()), (40 * KIB, 100 * KIB, 0));
        drop(first);
        assert!(second.grow(60 * KIB));
        drop(second);
        assert_eq!((share.used(), budget.used()), (0, 0));
    }

    #[test]
    fn free_part_of_each_share_remains_when_the_total_is_used_up() {
        let budget = Budget::new(200 * KIB);
        let greedy: Vec<_> = (0..4).map(|_| budget.share(80 * KIB + OWN_BYTES)).collect();
        let held: Vec<_> = greedy.iter().filter_map(|share| share.take(80 * KIB + OWN_BYTES)).collect();
        assert_eq!(held.len(), 2, "the third would go beyond the whole");
        let modest = budget.share(80 * KIB);
        let small = modest.take(OWN_BYTES).expect("its own");
        assert!(modest.take(40 * KIB).is_some(), "40 KiB of the whole are left");
        let _rest = greedy[2].take(40 * KIB + OWN_BYTES).expect("the rest");
        assert!(modest.take(1).is_none());
        assert_eq!(modest.room(), 80 * KIB - OWN_BYTES, "its share is not what it has come to the end of");
        drop(held);
        assert!(modest.take(1).is_some());
        drop(small);
        assert_eq!(budget.used(), 40 * KIB);
    }

    #[test]
    fn parts_of_a_share_are_bounded_each_and_together() {
        let budget = Budget::new(1000 * KIB);
        let share = budget.share(100 * KIB);
        let (one, other) = (share.part(60 * KIB), share.part(80 * KIB));
        let mut first = one.take(60 * KIB).expect("room in both");
        assert!(!first.grow(1), "its part is used up");
        assert!(other.take(41 * KIB).is_none(), "the share is used up");
        assert_eq!((one.room(), other.room(), share.room()), (0, 40 * KIB, 40 * KIB));
        let second = other.take(40 * KIB).expect("what the share has left");
        assert_eq!((share.used(), other.used(), budget.used()), (100 * KIB, 40 * KIB, 100 * KIB - OWN_BYTES));
        drop((first, second, one, other));
        assert_eq!((share.used(), budget.used()), (0, 0));
    }

    #[test]
    fn holding_less_never_fails() {
        let budget = Budget::new(100 * KIB);
        let share = budget.share(200 * KIB);
        let mut held = share.take(OWN_BYTES + 100 * KIB).expect("all of it");
        assert!(!held.set(OWN_BYTES + 100 * KIB + 1));
        assert!(held.set(OWN_BYTES + 10 * KIB));
        assert_eq!(budget.used(), 10 * KIB);
        assert!(held.set(5));
        assert_eq!((budget.used(), share.used()), (0, 5));
    }
}
