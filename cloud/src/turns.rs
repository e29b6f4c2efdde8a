//! Turns: of what many share, each has so many at a time, and its others wait behind them and not in front of everybody.

use std::hash::Hash;
use std::sync::Arc;

use dashmap::DashMap;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The turns of all who have one or wait for one, by name. Nothing is kept of others. Clones are the same turns.
#[derive(Debug, Clone)]
pub(crate) struct Turns<K: Eq + Hash>(Arc<DashMap<K, Arc<Semaphore>>>);

/// One turn, until this is dropped.
#[derive(Debug)]
pub(crate) struct Turn<K: Eq + Hash> {
    turns: Turns<K>,
    key: K,
    /// None in the end, when it may be nobody's any more.
    semaphore: Option<Arc<Semaphore>>,
    permit: Option<OwnedSemaphorePermit>,
}

impl<K: Eq + Hash> Default for Turns<K> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<K: Eq + Hash + Clone> Turns<K> {
    /// Waits for a turn, in order. All who ask under one name say the same number of turns at a time.
    pub(crate) async fn take(&self, key: &K, at_a_time: usize) -> Turn<K> {
        let (mut turn, semaphore) = self.enter(key, at_a_time);
        // The semaphore is never closed.
        turn.permit = semaphore.acquire_owned().await.ok();
        turn
    }

    /// A turn that can be had at once.
    pub(crate) fn try_take(&self, key: &K, at_a_time: usize) -> Option<Turn<K>> {
        let (mut turn, semaphore) = self.enter(key, at_a_time);
        turn.permit = semaphore.try_acquire_owned().ok();
        turn.permit.is_some().then_some(turn)
    }

    /// Made before there is a turn, so that nothing stays of who gives up while it waits.
    fn enter(&self, key: &K, at_a_time: usize) -> (Turn<K>, Arc<Semaphore>) {
        let new = || Arc::new(Semaphore::new(at_a_time));
        let semaphore = Arc::clone(&*self.0.entry(key.clone()).or_insert_with(new));
        let held = Some(Arc::clone(&semaphore));
        let turns = Self(Arc::clone(&self.0));
        (Turn { turns, key: key.clone(), semaphore: held, permit: None }, semaphore)
    }

    /// How many have a turn or wait for one.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

impl<K: Eq + Hash> Drop for Turn<K> {
    fn drop(&mut self) {
        (self.permit, self.semaphore) = (None, None);
        self.turns.0.remove_if(&self.key, |_, semaphore| Arc::strong_count(semaphore) == 1);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[test]
    fn each_has_its_turns_in_order_and_leaves_nothing() {
        let turns = Turns::default();
        let first = turns.take(&"a", 2).now_or_never().expect("at once");
        let _second = turns.try_take(&"a", 2).expect("at once");
        assert!(turns.try_take(&"a", 2).is_none() && turns.try_take(&"b", 1).is_some());
        let mut third = Box::pin(turns.take(&"a", 2));
        let mut fourth = Box::pin(turns.take(&"a", 2));
        assert!(third.as_mut().now_or_never().is_none() && fourth.as_mut().now_or_never().is_none());
        drop(first);
        assert!(fourth.as_mut().now_or_never().is_none(), "who has come first is next");
        let third = third.now_or_never().expect("its turn");
        drop((third, _second));
        assert_eq!(turns.len(), 1, "one waits");
        drop(fourth);
        assert_eq!(turns.len(), 0, "and has given up");
    }
}
