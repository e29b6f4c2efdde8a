//! How much one edge may follow, counted in keys. The cloud sessions of both dialects keep to it.
//!
//! What has gone takes memory until the edge knows it, but is followed no longer: all that a node follows may be replaced at
//! once. So there is room for as many keys again, and when there are more keys than may be followed, those are dropped that
//! nobody needs, and those that are wanted are counted.

/// Keys that may come between two counts: each looks at all of them.
const COUNT_AFTER: usize = 1024;

/// Room for `MAX` objects that may be followed.
#[derive(Debug, Default)]
pub(super) struct Room<const MAX: usize> {
    /// Keys that may come before they are counted again.
    left: usize,
}

impl<const MAX: usize> Room<MAX> {
    /// Keys at most: as many have gone as may be followed, and a few were not counted yet.
    const KEYS_MAX: usize = 2 * MAX + COUNT_AFTER;

    /// One more key has come, and there are so many: whether they must be counted.
    pub(super) fn grown(&mut self, keys: usize) -> bool {
        self.left = self.left.saturating_sub(1);
        keys > MAX && (self.left == 0 || keys > Self::KEYS_MAX)
    }

    /// Of so many keys, all of them needed, so many are followed. False when that is too much.
    pub(super) fn counted(&mut self, followed: usize, keys: usize) -> bool {
        self.left = MAX.saturating_sub(followed).max(COUNT_AFTER);
        followed <= MAX && keys <= MAX.saturating_mul(2)
    }
}
