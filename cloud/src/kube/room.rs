//! Memory for answers to what a node asks: taken from the node's share while they are read.

use std::fmt::Debug;
use std::sync::{Arc, Weak};

use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tombolo_runtime::{Held, Share};

use super::CallError;
use crate::metrics::Refusals;

/// Longest answer to a question of a node, in bytes. With the rest of a session it stays below what one node may take.
pub(crate) const NODE_ANSWER_LEN_MAX: usize = 4 * 1024 * 1024;

/// An answer that is longer than this is read alone: a node has one such answer at a time, until it has taken it.
pub(crate) const LARGE_ANSWER: usize = 256 * 1024;

/// What is refused here, for the metric.
const ANSWER: &str = "answer";

tokio::task_local! {
    static ROOM: Room;
}

/// What a question holds of what all nodes share. It has nothing of that while it waits for its own node.
pub(crate) trait GivesWay: Debug + Send + Sync {
    /// Gives it back.
    fn give_way(&self);

    /// Waits until it has it again.
    fn go_on(&self) -> BoxFuture<'_, ()>;
}

/// What one question of a node may use. Clones are the same room.
#[derive(Debug, Clone)]
pub(crate) struct Room(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    held: Mutex<Held>,
    share: Share,
    large: Arc<Semaphore>,
    turn: Mutex<Option<OwnedSemaphorePermit>>,
    /// What others could have meanwhile, while it waits.
    shared: Mutex<Option<Weak<dyn GivesWay>>>,
    refusals: Refusals,
}

impl Room {
    /// Room out of a node's share. `large` has one permit, and all questions of the node share it.
    pub(crate) fn new(share: &Share, large: &Arc<Semaphore>, refusals: &Refusals) -> Self {
        let (held, turn, shared) = (Mutex::new(share.nothing()), Mutex::default(), Mutex::default());
        let (share, refusals) = (share.clone(), refusals.clone());
        Self(Arc::new(Inner { held, share, large: Arc::clone(large), turn, shared, refusals }))
    }

    /// Runs work whose calls read their answers into this room.
    pub(crate) async fn scope<F: Future>(self, work: F) -> F::Output {
        ROOM.scope(self, work).await
    }

    /// The room of the question that is being answered; none when nobody asked.
    pub(crate) fn current() -> Option<Self> {
        ROOM.try_with(Clone::clone).ok()
    }

    /// This gives way from now on whenever the question waits for its node.
    pub(crate) fn gives_way<G: GivesWay + 'static>(&self, shared: &Arc<G>) {
        let shared: Weak<G> = Arc::downgrade(shared);
        *self.0.shared.lock() = Some(shared);
    }

    /// Makes room for an answer of so many bytes. False when it is a large one whose turn has not come: nothing of it must be
    /// kept then, neither its bytes nor a place that others could have. See [`Self::wait`].
    pub(super) fn grow(&self, bytes: usize) -> Result<bool, CallError> {
        self.fits(bytes)?;
        if bytes > LARGE_ANSWER {
            let mut turn = self.0.turn.lock();
            if turn.is_none() {
                *turn = Arc::clone(&self.0.large).try_acquire_owned().ok();
            }
            if turn.is_none() {
                self.clear();
                return Ok(false);
            }
        }
        self.take(bytes).map(|()| true)
    }

    /// The same for an answer that cannot be had a second time: it waits for nothing.
    pub(super) fn take(&self, bytes: usize) -> Result<(), CallError> {
        self.fits(bytes)?;
        let mut held = self.0.held.lock();
        if held.set(bytes) {
            return Ok(());
        }
        self.0.refusals.count(ANSWER, &self.0.share, bytes.saturating_sub(held.bytes()));
        Err(CallError::NoRoom)
    }

    fn fits(&self, bytes: usize) -> Result<(), CallError> {
        if bytes > NODE_ANSWER_LEN_MAX {
            self.0.refusals.too_long(ANSWER);
            return Err(CallError::TooLarge(NODE_ANSWER_LEN_MAX));
        }
        Ok(())
    }

    /// Waits for the turn of a large answer: until the node has taken the one before.
    pub(super) async fn wait(&self) {
        let shared = self.0.shared.lock().as_ref().and_then(Weak::upgrade);
        if let Some(shared) = &shared {
            shared.give_way();
        }
        // The semaphore is never closed.
        let turn = Arc::clone(&self.0.large).acquire_owned().await.ok();
        *self.0.turn.lock() = turn;
        if let Some(shared) = &shared {
            shared.go_on().await;
        }
    }

    /// Nothing is read any more.
    pub(super) fn clear(&self) {
        // Holding less never fails.
        let _ = self.0.held.lock().set(0);
    }

    /// The turn of a large answer, which ends when it has left.
    pub(crate) fn take_turn(&self) -> Option<OwnedSemaphorePermit> {
        self.0.turn.lock().take()
    }
}
