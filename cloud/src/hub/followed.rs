//! A shared watch as one session follows it, and how certain the session may be about what the copy does not have.

use std::sync::{Arc, OnceLock};

use super::shared::SharedWatch;

/// A shared watch, and the first moment at which this session asked for confirmation.
#[derive(Debug)]
pub(super) struct Followed {
    pub(super) watch: Arc<SharedWatch>,
    /// Number of lists that had begun when the session first asked.
    since: OnceLock<u64>,
}

impl Followed {
    pub(super) fn new(watch: Arc<SharedWatch>) -> Self {
        Self { watch, since: OnceLock::new() }
    }

    /// Whether an object that the copy does not have is proven absent. It is once a list is complete that began after
    /// the session first asked this: by then the edge had named everything that it holds.
    pub(super) fn is_proven(&self) -> bool {
        self.watch.lists_complete() > self.since()
    }

    /// The number of a list. Any later list is the proof.
    pub(super) fn since(&self) -> u64 {
        *self.since.get_or_init(|| self.watch.lists_begun())
    }
}
