//! A shared watch as one session follows it: how sure the session may be of what the copy does not have.

use std::sync::{Arc, OnceLock};

use super::shared::SharedWatch;

/// A shared watch, and since when this session doubts it.
#[derive(Debug)]
pub(super) struct Followed {
    pub(super) watch: Arc<SharedWatch>,
    /// Lists that had begun when the session has first asked.
    since: OnceLock<u64>,
}

impl Followed {
    pub(super) fn new(watch: Arc<SharedWatch>) -> Self {
        Self { watch, since: OnceLock::new() }
    }

    /// Whether what the copy does not have is not there: a list is complete that began after the session has first asked
    /// this. All that the edge could say that it holds was said before.
    pub(super) fn is_proven(&self) -> bool {
        self.watch.lists_complete() > self.since()
    }

    /// The list after which the next one is the proof.
    pub(super) fn since(&self) -> u64 {
        *self.since.get_or_init(|| self.watch.lists_begun())
    }
}
