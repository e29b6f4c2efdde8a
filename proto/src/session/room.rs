//! How much one edge may follow, counted in keys. The cloud sessions of both dialects keep to it.
//!
//! What has gone takes memory until the edge knows it, but is followed no longer: all that a node follows may be replaced at
//! once. So there is room for as many keys again, and when there are more keys than may be followed, those are dropped that
//! nobody needs, and those that are wanted are counted.

/// Keys that may come between two counts: each looks at all of them.
const COUNT_AFTER: usize = 1024;

/// See the module.
#[derive(Debug)]
pub(super) struct Room {
    /// Objects that may be followed.
    max: usize,
    /// Keys that may come before they are counted again.
    left: usize,
}

impl Room {
    /// Room for so many objects.
    pub(super) fn new(max: usize) -> Self {
        Self { max, left: 0 }
    }

    /// Objects that may be followed.
    pub(super) fn max(&self) -> usize {
        self.max
    }

    /// Whether so many keys are too many to be sure without a count.
    pub(super) fn is_tight(&self, keys: usize) -> bool {
        keys > self.max
    }

    /// One more key has come, and there are so many: whether they must be counted.
    pub(super) fn grown(&mut self, keys: usize) -> bool {
        self.left = self.left.saturating_sub(1);
        self.is_tight(keys) && (self.left == 0 || keys > keys_max(self.max))
    }

    /// Of so many keys, all of them needed, so many are followed. False when that is too much.
    pub(super) fn counted(&mut self, followed: usize, keys: usize) -> bool {
        self.left = self.max.saturating_sub(followed).max(COUNT_AFTER);
        followed <= self.max && keys <= self.max.saturating_mul(2)
    }
}

/// Keys at most of an edge that may follow so many objects: as many have gone, and a few were not counted yet.
const fn keys_max(max: usize) -> usize {
    2 * max + COUNT_AFTER
}
