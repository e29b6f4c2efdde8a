//! Memory for the answers to a node's requests, taken from the node's share while they are read.

use std::fmt::Debug;
use std::sync::{Arc, Weak};

use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tombolo_runtime::{Held, Share};

use super::api_call::CallError;
use crate::metrics::Refusals;

/// Longest answer to a node's request, in bytes. Together with the rest of a session it stays below the limit of a
/// node.
pub(crate) const NODE_ANSWER_LEN_MAX: usize = 4 * 1024 * 1024;

/// A longer answer is a large one. A node has one large answer at a time, until it has read it.
pub(crate) const LARGE_ANSWER: usize = 256 * 1024;

/// Metric label of refusals here.
const ANSWER: &str = "answer";

tokio::task_local! {
    static ROOM: Room;
}

/// What a request holds of shared resources. It gives them back while it waits for its own node.
pub(crate) trait GivesWay: Debug + Send + Sync {
    /// Gives the resources back.
    fn give_way(&self);

    /// Waits until it has the resources again.
    fn go_on(&self) -> BoxFuture<'_, ()>;
}

/// Memory that one request of a node may use. Clones share the same room.
#[derive(Debug, Clone)]
pub(crate) struct Room(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    held: Mutex<Held>,
    share: Share,
    large: Arc<Semaphore>,
    turn: Mutex<Option<OwnedSemaphorePermit>>,
    /// Shared resources to give back while the request waits.
    shared: Mutex<Option<Weak<dyn GivesWay>>>,
    refusals: Refusals,
}

impl Room {
    /// A room in a node's share. `large` has a single permit, which all requests of the node share.
    pub(crate) fn new(share: &Share, large: &Arc<Semaphore>, refusals: &Refusals) -> Self {
        let (held, turn, shared) = (Mutex::new(share.nothing()), Mutex::default(), Mutex::default());
        let (share, refusals) = (share.clone(), refusals.clone());
        Self(Arc::new(Inner { held, share, large: Arc::clone(large), turn, shared, refusals }))
    }

    /// Runs work whose calls read their answers into this room.
    pub(crate) async fn scope<F: Future>(self, work: F) -> F::Output {
        ROOM.scope(self, work).await
    }

    /// The room of the current request; none when the work is not for a request.
    pub(crate) fn current() -> Option<Self> {
        ROOM.try_with(Clone::clone).ok()
    }

    /// Registers resources to give back whenever the request waits for its node.
    pub(crate) fn gives_way<G: GivesWay + 'static>(&self, shared: &Arc<G>) {
        let shared: Weak<G> = Arc::downgrade(shared);
        *self.0.shared.lock() = Some(shared);
    }

    /// Makes room for an answer of so many bytes. False when it is a large answer whose turn has not come. The caller
    /// must then keep nothing of the answer, neither its bytes nor a slot that others could use, and call
    /// [`Self::wait`].
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

    /// The same for an answer that cannot be requested again: it does not wait.
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

    /// Waits for the turn of a large answer, until the node has read the previous one.
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

    /// Frees the memory of the answer.
    pub(super) fn clear(&self) {
        // A smaller amount always fits.
        let _ = self.0.held.lock().set(0);
    }

    /// Takes the permit for a large answer, to be held until the answer was sent.
    pub(crate) fn take_turn(&self) -> Option<OwnedSemaphorePermit> {
        self.0.turn.lock().take()
    }
}
