//! Bounds how much one edge may follow, counted in keys. The cloud sessions of both dialects use it.
//!
//! A deleted object takes memory until the edge knows about it, but no longer counts as followed: all objects that a
//! node follows may be replaced at once. So there is room for the same number of keys again. When there are more keys
//! than may be followed, unneeded keys are dropped and the wanted ones are counted.

/// Keys that may be added between two counts: each count visits all of them.
const COUNT_AFTER: usize = 1024;

/// Room for `MAX` objects that may be followed.
#[derive(Debug, Default)]
pub(super) struct FollowedCapacity<const MAX: usize> {
    /// Keys that may be added before they are counted again.
    left: usize,
}

impl<const MAX: usize> FollowedCapacity<MAX> {
    /// Most keys: followed objects, as many deleted ones, and a few that were not counted yet.
    const KEYS_MAX: usize = 2 * MAX + COUNT_AFTER;

    /// One more key was added, and there are now `keys`. Returns whether they must be counted.
    pub(super) fn grown(&mut self, keys: usize) -> bool {
        self.left = self.left.saturating_sub(1);
        keys > MAX && (self.left == 0 || keys > Self::KEYS_MAX)
    }

    /// Takes the result of a count: of `keys` keys, all of them needed, `followed` are followed. False when that is
    /// too many.
    pub(super) fn counted(&mut self, followed: usize, keys: usize) -> bool {
        self.left = MAX.saturating_sub(followed).max(COUNT_AFTER);
        followed <= MAX && keys <= MAX.saturating_mul(2)
    }
}
