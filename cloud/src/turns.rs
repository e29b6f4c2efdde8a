//! Turns: each key may use a shared resource a limited number of times at once; its further requests queue behind its
//! own and not in front of everyone else.

use std::fmt;
use std::hash::Hash;
use std::pin::Pin;
use std::sync::Arc;

use dashmap::DashMap;
use futures::FutureExt as _;
use futures::future::{BoxFuture, MaybeDone, maybe_done};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::unconstrained;

/// The turns of all keys that hold or await one. Nothing is kept for other keys. Clones share the same turns.
#[derive(Debug, Clone)]
pub(crate) struct Turns<K: Eq + Hash>(Arc<DashMap<K, Arc<Semaphore>>>);

/// One turn, held until this is dropped.
#[derive(Debug)]
pub(crate) struct Turn<K: Eq + Hash> {
    turns: Turns<K>,
    key: K,
    /// `None` only while it is dropped, when the entry may be removed.
    semaphore: Option<Arc<Semaphore>>,
    permit: Option<OwnedSemaphorePermit>,
}

/// A position in the queue for a turn.
pub(crate) struct Queued<K: Eq + Hash>(MaybeDone<BoxFuture<'static, Turn<K>>>);

impl<K: Eq + Hash> fmt::Debug for Queued<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queued").finish_non_exhaustive()
    }
}

impl<K: Eq + Hash> Queued<K> {
    /// Waits for the turn.
    pub(crate) async fn turn(mut self) -> Option<Turn<K>> {
        (&mut self.0).await;
        Pin::new(&mut self.0).take_output()
    }
}

impl<K: Eq + Hash> Default for Turns<K> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<K: Eq + Hash + Clone> Turns<K> {
    /// Waits for a turn, in order. All callers must pass the same `at_a_time` for one key.
    pub(crate) async fn take(&self, key: &K, at_a_time: usize) -> Turn<K> {
        let (mut turn, semaphore) = self.enter(key, at_a_time);
        // The semaphore is never closed.
        turn.permit = semaphore.acquire_owned().await.ok();
        turn
    }

    /// Enters the queue at once: later callers are behind, whichever is awaited first.
    pub(crate) fn queue(&self, key: K, at_a_time: usize) -> Queued<K>
    where
        K: Send + Sync + 'static,
    {
        let turns = self.clone();
        // A future must be polled once to enter the queue. Without `unconstrained`, a task without coop budget would
        // not enter it.
        let turn = unconstrained(async move { turns.take(&key, at_a_time).await });
        let mut queued = maybe_done(turn.boxed());
        let _ = (&mut queued).now_or_never();
        Queued(queued)
    }

    /// A turn, if one is available at once.
    pub(crate) fn try_take(&self, key: &K, at_a_time: usize) -> Option<Turn<K>> {
        let (mut turn, semaphore) = self.enter(key, at_a_time);
        turn.permit = semaphore.try_acquire_owned().ok();
        turn.permit.is_some().then_some(turn)
    }

    /// Created before the turn is granted, so that nothing remains of a caller that gives up while it waits.
    fn enter(&self, key: &K, at_a_time: usize) -> (Turn<K>, Arc<Semaphore>) {
        let new = || Arc::new(Semaphore::new(at_a_time));
        let semaphore = Arc::clone(&*self.0.entry(key.clone()).or_insert_with(new));
        let held = Some(Arc::clone(&semaphore));
        let turns = Self(Arc::clone(&self.0));
        (Turn { turns, key: key.clone(), semaphore: held, permit: None }, semaphore)
    }

    /// Number of keys that hold or await a turn.
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
    use super::*;

    #[test]
    fn turns_are_granted_in_order_and_forgotten() {
        let turns = Turns::default();
        let first = turns.take(&"a", 2).now_or_never().expect("at once");
        let _second = turns.try_take(&"a", 2).expect("at once");
        assert!(turns.try_take(&"a", 2).is_none() && turns.try_take(&"b", 1).is_some());
        let mut third = Box::pin(turns.take(&"a", 2));
        let mut fourth = Box::pin(turns.take(&"a", 2));
        assert!(third.as_mut().now_or_never().is_none() && fourth.as_mut().now_or_never().is_none());
        drop(first);
        assert!(fourth.as_mut().now_or_never().is_none(), "the first to arrive is next");
        let third = third.now_or_never().expect("its turn");
        drop((third, _second));
        assert_eq!(turns.len(), 1, "one waits");
        drop(fourth);
        assert_eq!(turns.len(), 0, "and has given up");
    }
    /// The position is taken when `queue` is called, even by a task without budget.
    #[tokio::test]
    async fn queue_position_is_taken_on_request() {
        let turns = Turns::default();
        let first = turns.queue("a", 1);
        while tokio::task::coop::has_budget_remaining() {
            tokio::task::coop::consume_budget().now_or_never();
        }
        let [second, third] = [turns.queue("a", 1), turns.queue("a", 1)];
        tokio::task::yield_now().await;
        let mut third = Box::pin(third.turn());
        assert!(third.as_mut().now_or_never().is_none(), "it has come last");
        let first = first.turn().await.expect("the first");
        assert!(third.as_mut().now_or_never().is_none());
        drop(first);
        assert!(third.as_mut().now_or_never().is_none(), "the second has not been there");
        drop(second);
        drop(third.await.expect("its turn, once the one before it has given up"));
        assert_eq!(turns.len(), 0, "no state is kept");
    }
}
