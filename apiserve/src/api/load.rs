//! What is being answered: requests and watches, and the answers until they are sent.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::Response;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{ANSWERS_LEN_MAX, BODIES_LEN_MAX, REQUESTS_MAX};
use crate::accept::Accepted;
use crate::body::{self, Body};
use crate::status::ApiError;

/// Counts what is being answered.
#[derive(Debug)]
pub(crate) struct Load {
    requests: AtomicUsize,
    watches: AtomicUsize,
    pub(super) watches_max: usize,
    /// Bytes of answers that are being sent.
    answers_len: AtomicUsize,
    pub(super) answers_len_max: usize,
    /// Bytes of bodies of requests that were received and are not done with.
    bodies_len: AtomicUsize,
    pub(super) bodies_len_max: usize,
}

/// One place among the requests being answered; given back when dropped.
#[derive(Debug)]
pub(crate) struct Slot {
    load: Arc<Load>,
    watch: bool,
}

/// An answer that is being sent. Whoever keeps a part of it in memory keeps this, too: it is what the bounds count.
#[derive(Debug)]
pub(crate) struct Sending {
    slot: Slot,
    len: usize,
    /// When a part of it was last asked for or sent.
    moved: Mutex<Instant>,
}

impl Load {
    pub(crate) fn new(watches_max: usize) -> Self {
        Self {
            requests: AtomicUsize::new(0),
            watches: AtomicUsize::new(0),
            watches_max,
            answers_len: AtomicUsize::new(0),
            answers_len_max: ANSWERS_LEN_MAX,
            bodies_len: AtomicUsize::new(0),
            bodies_len_max: BODIES_LEN_MAX,
        }
    }

    pub(crate) fn enter(self: &Arc<Self>, watch: bool) -> Option<Slot> {
        let (counter, limit) = self.counter(watch);
        // Taken before it is compared, so that a burst cannot pass together.
        let slot = Slot { load: Arc::clone(self), watch };
        (counter.fetch_add(1, Ordering::Relaxed) < limit).then_some(slot)
    }

    /// Requests and watches.
    pub(super) fn now(&self) -> (usize, usize) {
        (self.requests.load(Ordering::Relaxed), self.watches.load(Ordering::Relaxed))
    }

    fn counter(&self, watch: bool) -> (&AtomicUsize, usize) {
        if watch { (&self.watches, self.watches_max) } else { (&self.requests, REQUESTS_MAX) }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.load.counter(self.watch).0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The body of a request. What has come of it counts until this is dropped.
#[derive(Debug)]
pub(super) struct Receiving {
    load: Arc<Load>,
    len: usize,
}

impl Receiving {
    pub(super) fn begin(load: &Arc<Load>) -> Self {
        Self { load: Arc::clone(load), len: 0 }
    }

    /// So much more has come. False: together, too much is being received.
    pub(super) fn more(&mut self, len: usize) -> bool {
        self.len += len;
        self.load.bodies_len.fetch_add(len, Ordering::Relaxed) + len <= self.load.bodies_len_max
    }
}

impl Drop for Receiving {
    fn drop(&mut self) {
        self.load.bodies_len.fetch_sub(self.len, Ordering::Relaxed);
    }
}

impl Sending {
    fn begin(slot: Slot, len: usize) -> Option<Arc<Self>> {
        let load = Arc::clone(&slot.load);
        let before = load.answers_len.fetch_add(len, Ordering::Relaxed);
        // From here on its end gives the bytes back.
        let sending = Self { slot, len, moved: Mutex::new(Instant::now()) };
        (before == 0 || before + len <= load.answers_len_max).then(|| Arc::new(sending))
    }

    /// A part of it was asked for or sent.
    pub(crate) fn moves(&self) {
        *self.moved.lock() = Instant::now();
    }

    /// When that was last so.
    pub(crate) fn moved(&self) -> Instant {
        *self.moved.lock()
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        self.slot.load.answers_len.fetch_sub(self.len, Ordering::Relaxed);
    }
}

/// Lets an answer count until it is sent, or refuses when too much is being sent. Whoever sends it finds the [`Sending`]
/// among its extensions.
pub(super) fn sending(slot: Slot, mut response: Response<Body>, accepted: &Accepted) -> Response<Body> {
    let Some(len) = body::weight(&response) else { return response };
    match Sending::begin(slot, len) {
        Some(sending) => {
            response.extensions_mut().insert(sending);
            response
        }
        None => {
            let error =
                ApiError::too_many_requests("Too many answers wait for clients that read them slowly.");
            body::refusal(&error, accepted)
        }
    }
}
