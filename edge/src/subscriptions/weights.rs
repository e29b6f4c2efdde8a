//! The size of each copy on disk. Measuring reads the whole copy, so it is done only after a commit, and on a blocking
//! thread.

use std::collections::{BTreeMap, BTreeSet};

use tokio::sync::watch;
use tombolo_proto::ids::SubscriptionId;
use tombolo_runtime::blocking;

use super::Unreadable;
use crate::store::ReadError;

/// Bytes that only this copy keeps, for each copy, as last measured.
#[derive(Debug)]
pub(super) struct Weights {
    commits: watch::Receiver<u64>,
    measured: BTreeMap<SubscriptionId, u64>,
}

impl Weights {
    /// Weights that are not measured yet. `commits` grows with every commit of the store.
    pub(super) fn new(mut commits: watch::Receiver<u64>) -> Self {
        commits.mark_changed();
        Self { commits, measured: BTreeMap::new() }
    }

    /// Measures the copies, unless nothing was committed since the last time.
    ///
    /// # Errors
    /// [`Unreadable::Store`] when one cannot be read; the next call retries.
    pub(super) async fn refresh(
        &mut self,
        copies: BTreeSet<SubscriptionId>,
        weigh: impl Fn(SubscriptionId) -> Result<u64, ReadError> + Send + 'static,
    ) -> Result<(), Unreadable> {
        if !self.commits.has_changed().unwrap_or(false) {
            return Ok(());
        }
        self.commits.borrow_and_update();
        let all =
            move || copies.into_iter().map(|subscription| Ok((subscription, weigh(subscription)?))).collect();
        let measured: Result<BTreeMap<_, _>, ReadError> = match blocking::run(all).await {
            Ok(measured) => measured,
            Err(error) => Err(ReadError::Storage(error.to_string())),
        };
        if measured.is_err() {
            self.commits.mark_changed();
        }
        self.measured = measured?;
        Ok(())
    }

    /// Bytes of one copy.
    pub(super) fn of(&self, subscription: SubscriptionId) -> u64 {
        self.measured.get(&subscription).copied().unwrap_or(0)
    }

    /// Bytes of these copies.
    pub(super) fn sum(&self, copies: &BTreeSet<SubscriptionId>) -> u64 {
        copies.iter().map(|subscription| self.of(*subscription)).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread::{ThreadId, current};

    use parking_lot::Mutex;

    use super::*;

    #[tokio::test]
    async fn copies_are_read_beside_the_runtime_and_only_after_a_commit() {
        let (commits, committed) = watch::channel(0_u64);
        let copies = BTreeSet::from([SubscriptionId(3), SubscriptionId(4)]);
        let reads: Arc<Mutex<Vec<ThreadId>>> = Arc::default();
        let mut weights = Weights::new(committed);
        let mut fails = false;
        for (step, reads_in_all) in [("first", 2), ("idle", 2), ("commit", 4), ("fails", 5), ("again", 7)] {
            if matches!(step, "commit" | "fails") {
                commits.send_modify(|count| *count += 1);
            }
            fails = step == "fails";
            let noted = Arc::clone(&reads);
            let weigh = move |subscription: SubscriptionId| {
                noted.lock().push(current().id());
                if fails { Err(ReadError::Damaged("row")) } else { Ok(u64::from(subscription.0)) }
            };
            assert_eq!(weights.refresh(copies.clone(), weigh).await.is_err(), fails, "{step}");
            assert_eq!(reads.lock().len(), reads_in_all, "{step}");
            assert_eq!((weights.sum(&copies), weights.of(SubscriptionId(4))), (7, 4), "{step}");
        }
        assert!(!fails && !reads.lock().contains(&current().id()));
    }
}
