//! Accounts for requests and watches in progress, and for answers until they are sent.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use http::{Response, StatusCode};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::accept::Accepted;
use crate::auth::Identity;
use crate::body::{self, Body};
use crate::senders::{Good, Sender, Senders, Source};
use crate::status::ApiError;
use crate::tree::{self, BODY_TREE_MAX};

/// Maximum number of concurrent requests, not counting watches; further ones are answered with 429. A request counts
/// until its answer is sent.
pub const REQUESTS_MAX: usize = 1024;

/// Maximum number of concurrent watches, unless [`crate::api::builder::Builder::watches_max`] sets another; further
/// ones are answered with 429.
pub const WATCHES_MAX: usize = 20_000;

/// Maximum number of bytes of answers being sent, unless [`crate::api::builder::Builder::answers_len_max`] sets
/// another. What the store keeps anyway does not count. A larger answer is sent alone; further ones are refused with
/// 429.
pub const ANSWERS_LEN_MAX: usize = 1024 * 1024 * 1024;

/// Maximum number of bytes of request bodies being received or processed, unless
/// [`crate::api::builder::Builder::bodies_len_max`] sets another; a request beyond it is answered with 429.
pub const BODIES_LEN_MAX: usize = 1024 * 1024 * 1024;

/// Largest accepted request body, in bytes (as in kube-apiserver by default).
pub(crate) const BODY_LEN_MAX: usize = 3 * 1024 * 1024;

/// Cost in bytes of an answer until it is sent, in addition to its length.
const ANSWER_OVERHEAD: usize = 4 * 1024;

/// Counts requests, watches, bodies and answers in progress.
#[derive(Debug)]
pub(crate) struct RequestLimits {
    /// Requests that are not authenticated yet.
    authenticating: AtomicUsize,
    requests: AtomicUsize,
    watches: AtomicUsize,
    pub(crate) watches_max: usize,
    /// Bytes of answers that are being sent.
    answers_len: AtomicUsize,
    pub(crate) answers_len_max: usize,
    /// Bytes of request bodies that were received and are still in use.
    bodies_len: AtomicUsize,
    pub(crate) bodies_len_max: usize,
    /// None for a server whose limits apply to all senders together.
    pub(crate) senders: Option<Senders>,
    everybody: Arc<Sender>,
    pub(crate) connections: Connections,
    /// Requests that were refused because a limit of their sender, or of all together, was reached.
    refused: AtomicU64,
}

/// Connections of all listeners of a server that divides its limits among senders.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    pub(crate) open: AtomicUsize,
    pub(crate) unproven: AtomicUsize,
    /// Unproven connections that were closed to make room.
    pub(crate) ended: AtomicU64,
    /// Connections that could not be proven because there were too many.
    pub(crate) refused: AtomicU64,
}

/// The activity of a server at one moment, for metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Activity {
    /// Requests in progress.
    pub requests: usize,
    /// Watches.
    pub watches: usize,
    /// Bytes of answers that are being sent.
    pub answers_len: usize,
    /// Bytes of request bodies being received or processed.
    pub bodies_len: usize,
    /// Connections.
    pub connections: usize,
    /// Connections without an authenticated request so far.
    pub unproven: usize,
    /// Such connections that were closed to make room, since the start.
    pub ended: u64,
    /// Connections of authenticated senders that already had too many, since the start.
    pub crowded: u64,
    /// Requests refused because a limit of their sender, or of all together, was reached, since the start.
    pub refused: u64,
}

/// One slot of a request or watch in progress; released when dropped.
#[derive(Debug)]
pub(crate) struct Slot {
    limits: Arc<RequestLimits>,
    watch: bool,
    sender: Arc<Sender>,
}

/// A slot of a request that is being authenticated.
#[derive(Debug)]
pub(crate) struct Authenticating(Arc<RequestLimits>);

impl Drop for Authenticating {
    fn drop(&mut self) {
        self.0.authenticating.fetch_sub(1, Ordering::Relaxed);
    }
}

/// An answer that is being sent. Every owner of a part of its memory also holds this value, which counts against the
/// limits.
#[derive(Debug)]
pub(crate) struct Sending {
    /// None on a server that divides its limits: there the slot is free for another request, and an answer that is not
    /// read occupies only bytes.
    _slot: Option<Slot>,
    limits: Arc<RequestLimits>,
    sender: Arc<Sender>,
    len: usize,
    /// When a part of it was last requested or sent.
    moved: Mutex<Instant>,
}

impl RequestLimits {
    pub(crate) fn new(watches_max: usize) -> Self {
        Self {
            authenticating: AtomicUsize::new(0),
            requests: AtomicUsize::new(0),
            watches: AtomicUsize::new(0),
            watches_max,
            answers_len: AtomicUsize::new(0),
            answers_len_max: ANSWERS_LEN_MAX,
            bodies_len: AtomicUsize::new(0),
            bodies_len_max: BODIES_LEN_MAX,
            senders: None,
            everybody: Sender::everybody(),
            connections: Connections::default(),
            refused: AtomicU64::new(0),
        }
    }

    /// Whether the limits are divided, so that no sender can use up all of them.
    pub(crate) fn is_shared(&self) -> bool {
        self.senders.is_some()
    }

    /// A slot for the time of authentication: unauthenticated clients must not occupy slots of requests.
    pub(crate) fn authenticate(self: &Arc<Self>) -> Option<Authenticating> {
        let permit = Authenticating(Arc::clone(self));
        (self.authenticating.fetch_add(1, Ordering::Relaxed) < REQUESTS_MAX).then_some(permit)
    }

    /// Where a connection comes from.
    pub(crate) fn source(&self, address: Option<IpAddr>) -> Source {
        self.senders.as_ref().map_or_else(|| Source::of(address), |all| all.source(address))
    }

    /// The sender behind an identity.
    pub(crate) fn sender(&self, identity: &Identity, source: Source) -> Arc<Sender> {
        self.senders.as_ref().map_or_else(|| Arc::clone(&self.everybody), |all| all.find(identity, source))
    }

    pub(crate) fn enter(self: &Arc<Self>, watch: bool, sender: &Arc<Sender>) -> Option<Slot> {
        let (counter, limit) = self.counter(watch);
        let good = if watch { Good::Watches } else { Good::Requests };
        if !sender.take(good, 1, limit) {
            self.refuse();
            return None;
        }
        // Counted before it is compared, so that a burst cannot exceed the limit.
        let slot = Slot { limits: Arc::clone(self), watch, sender: Arc::clone(sender) };
        let entered = counter.fetch_add(1, Ordering::Relaxed) < sender.reach(limit);
        if !entered {
            self.refuse();
        }
        entered.then_some(slot)
    }

    /// Counts a refusal.
    pub(crate) fn refuse(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Numbers of requests and watches.
    pub(crate) fn now(&self) -> (usize, usize) {
        (self.requests.load(Ordering::Relaxed), self.watches.load(Ordering::Relaxed))
    }

    /// All values for metrics.
    pub(crate) fn activity(&self) -> Activity {
        let number = |counter: &AtomicUsize| counter.load(Ordering::Relaxed);
        let total = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Activity {
            requests: number(&self.requests),
            watches: number(&self.watches),
            answers_len: number(&self.answers_len),
            bodies_len: number(&self.bodies_len),
            connections: number(&self.connections.open),
            unproven: number(&self.connections.unproven),
            ended: total(&self.connections.ended),
            crowded: total(&self.connections.refused),
            refused: total(&self.refused),
        }
    }

    fn counter(&self, watch: bool) -> (&AtomicUsize, usize) {
        if watch { (&self.watches, self.watches_max) } else { (&self.requests, REQUESTS_MAX) }
    }
}

impl Slot {
    /// The sender that occupies the slot.
    pub(crate) fn sender(&self) -> &Arc<Sender> {
        &self.sender
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.limits.counter(self.watch).0.fetch_sub(1, Ordering::Relaxed);
        self.sender.give_back(if self.watch { Good::Watches } else { Good::Requests }, 1);
    }
}

/// The body of a request. Its received bytes count until this is dropped.
#[derive(Debug)]
pub(crate) struct Receiving {
    limits: Arc<RequestLimits>,
    sender: Arc<Sender>,
    len: usize,
}

impl Receiving {
    pub(crate) fn begin(limits: &Arc<RequestLimits>, sender: &Arc<Sender>) -> Self {
        Self { limits: Arc::clone(limits), sender: Arc::clone(sender), len: 0 }
    }

    /// Counts received bytes. False when too many are being received at the same time.
    pub(crate) fn more(&mut self, len: usize) -> bool {
        if !self.sender.grow(Good::BodiesLen, self.len, len, self.limits.bodies_len_max) {
            self.limits.refuse();
            return false;
        }
        self.len += len;
        let whole = self.sender.reach(self.limits.bodies_len_max);
        let fits = self.limits.bodies_len.fetch_add(len, Ordering::Relaxed) + len <= whole;
        if !fits {
            self.limits.refuse();
        }
        fits
    }

    /// Counts the memory needed to parse the body, like received bytes.
    ///
    /// # Errors
    /// 413 when it is too much for one body, 429 when it is too much for all bodies together.
    pub(crate) fn becomes(&mut self, bytes: usize) -> Result<(), ApiError> {
        if bytes > BODY_TREE_MAX.min(self.limits.bodies_len_max) {
            let message = "Request entity too large: it has more parts than are read here. Send fewer fields and items.";
            return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "RequestEntityTooLarge", message));
        }
        if self.more(bytes) { Ok(()) } else { Err(too_many_bodies()) }
    }

    /// Counts the stored object that is read beside the body.
    ///
    /// # Errors
    /// 429 as [`Self::becomes`].
    pub(crate) fn beside(&mut self, stored: &[u8]) -> Result<(), ApiError> {
        self.makes(stored.len().saturating_add(tree::read_bytes(stored, false)))
    }

    /// Counts the memory that a patch may need in addition.
    ///
    /// # Errors
    /// 429 as [`Self::becomes`].
    pub(crate) fn makes(&mut self, bytes: usize) -> Result<(), ApiError> {
        if self.more(bytes) { Ok(()) } else { Err(too_many_bodies()) }
    }
}

pub(crate) fn too_many_bodies() -> ApiError {
    ApiError::too_many_requests("Too many bodies are being received, please try again later.")
}

impl Drop for Receiving {
    fn drop(&mut self) {
        self.limits.bodies_len.fetch_sub(self.len, Ordering::Relaxed);
        self.sender.give_back(Good::BodiesLen, self.len);
    }
}

impl Sending {
    fn begin(slot: Slot, len: usize) -> Option<Arc<Self>> {
        let (limits, sender) = (Arc::clone(&slot.limits), Arc::clone(&slot.sender));
        let len = if limits.is_shared() { len + ANSWER_OVERHEAD } else { len };
        if !sender.take(Good::AnswersLen, len, limits.answers_len_max) {
            limits.refuse();
            return None;
        }
        let before = limits.answers_len.fetch_add(len, Ordering::Relaxed);
        let fits = before == 0 || before + len <= sender.reach(limits.answers_len_max);
        // From here on, dropping `sending` releases the bytes.
        let slot = (!limits.is_shared()).then_some(slot);
        let sending = Self { _slot: slot, limits, sender, len, moved: Mutex::new(Instant::now()) };
        if !fits {
            sending.limits.refuse();
        }
        fits.then(|| Arc::new(sending))
    }

    /// An answer that does not count against the limits, such as a refusal. Its connection is still closed when the
    /// client does not read it.
    pub(crate) fn uncounted(limits: &Arc<RequestLimits>) -> Arc<Self> {
        let (sender, moved) = (Arc::clone(&limits.everybody), Mutex::new(Instant::now()));
        Arc::new(Self { _slot: None, limits: Arc::clone(limits), sender, len: 0, moved })
    }

    /// A part of the answer was requested or sent.
    pub(crate) fn moves(&self) {
        *self.moved.lock() = Instant::now();
    }

    /// When [`Self::moves`] was last called.
    pub(crate) fn moved(&self) -> Instant {
        *self.moved.lock()
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        self.limits.answers_len.fetch_sub(self.len, Ordering::Relaxed);
        self.sender.give_back(Good::AnswersLen, self.len);
    }
}

/// Counts an answer until it is sent, or refuses it when too much is being sent. The sending code finds the [`Sending`]
/// among the extensions of the response.
pub(crate) fn sending(slot: Slot, mut response: Response<Body>, accepted: &Accepted) -> Response<Body> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::AUTHENTICATED_GROUP;
    use crate::senders::SENDER_SHARE;

    #[test]
    fn parsed_body_memory_counts_and_never_exceeds_the_bound() {
        let mut limits = RequestLimits::new(1);
        limits.bodies_len_max = 4 * BODY_TREE_MAX;
        limits.senders = Some(Senders::default());
        let limits = Arc::new(limits);
        let sender =
            |name: &str| limits.sender(&Identity::new(name, &[AUTHENTICATED_GROUP]), Source::of(None));
        let receive = |name: &str, bytes: usize| {
            let mut receiving = Receiving::begin(&limits, &sender(name));
            assert!(receiving.more(1));
            receiving.becomes(bytes).map(|()| receiving).map_err(|error| error.code.as_u16())
        };
        assert_eq!(receive("eve", BODY_TREE_MAX + 1).err(), Some(413));
        let share = limits.bodies_len_max / SENDER_SHARE;
        let held = receive("eve", share - 2).expect("her share");
        assert_eq!(receive("eve", share / 2).err(), Some(429));
        let others: Vec<_> =
            (0..8).filter_map(|number| receive(&format!("u{number}"), share - 2).ok()).collect();
        assert_eq!(others.len(), 2, "a part is reserved");
        assert!(limits.activity().bodies_len <= limits.bodies_len_max);
        let mut patch = Receiving::begin(&limits, &sender("eve"));
        let stored = format!("[{}0]", "[],".repeat(share / 100));
        assert_eq!(patch.beside(stored.as_bytes()).map_err(|error| error.code.as_u16()), Err(429));
        let mut copies = Receiving::begin(&limits, &sender("eve"));
        assert_eq!(copies.makes(share / 2).map_err(|error| error.code.as_u16()), Err(429));
        drop((held, others, patch, copies));
        assert_eq!(limits.activity().bodies_len, 0);
    }
}
