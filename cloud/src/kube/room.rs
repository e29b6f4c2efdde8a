//! Memory for answers to what a node asks: taken from the node's share while they are read.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tombolo_runtime::{Held, Share};

use super::CallError;

/// Longest answer to a question of a node, in bytes. With the rest of a session it stays below what one node may take.
pub(crate) const NODE_ANSWER_LEN_MAX: usize = 4 * 1024 * 1024;

/// An answer that is longer than this is read alone: a node has one such answer at a time, until it has taken it.
pub(crate) const LARGE_ANSWER: usize = 256 * 1024;

tokio::task_local! {
    static ROOM: Room;
}

/// What one question of a node may use. Clones are the same room.
#[derive(Debug, Clone)]
pub(crate) struct Room(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    held: Mutex<Held>,
    large: Arc<Semaphore>,
    turn: Mutex<Option<OwnedSemaphorePermit>>,
}

impl Room {
    /// Room out of a node's share. `large` has one permit, and all questions of the node share it.
    pub(crate) fn new(share: &Share, large: &Arc<Semaphore>) -> Self {
        let (held, turn) = (Mutex::new(share.nothing()), Mutex::default());
        Self(Arc::new(Inner { held, large: Arc::clone(large), turn }))
    }

    /// Runs work whose calls read their answers into this room.
    pub(crate) async fn scope<F: Future>(self, work: F) -> F::Output {
        ROOM.scope(self, work).await
    }

    /// The room of the question that is being answered; none when nobody asked.
    pub(super) fn current() -> Option<Self> {
        ROOM.try_with(Clone::clone).ok()
    }

    /// Whether an answer of so many bytes need not wait for the one before.
    pub(super) fn has_turn(&self, bytes: usize) -> bool {
        bytes <= LARGE_ANSWER || self.0.turn.lock().is_some() || self.0.large.available_permits() > 0
    }

    /// Makes room for an answer of which so many bytes are there. An answer that grows large waits until the one before has
    /// been taken.
    pub(super) async fn grow(&self, bytes: usize) -> Result<(), CallError> {
        if bytes > NODE_ANSWER_LEN_MAX {
            return Err(CallError::TooLarge(NODE_ANSWER_LEN_MAX));
        }
        if bytes > LARGE_ANSWER && self.0.turn.lock().is_none() {
            let turn = Arc::clone(&self.0.large).acquire_owned().await.map_err(|_| CallError::NoRoom)?;
            *self.0.turn.lock() = Some(turn);
        }
        if self.0.held.lock().set(bytes) { Ok(()) } else { Err(CallError::NoRoom) }
    }

    /// The turn of a large answer, which ends when it has left.
    pub(crate) fn take_turn(&self) -> Option<OwnedSemaphorePermit> {
        self.0.turn.lock().take()
    }
}
