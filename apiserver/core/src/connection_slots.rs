//! The connection slots of a listener, and which connection is closed when there are too many.
//!
//! A new connection is unproven: its slot can be taken over by the next one. Once an authenticated request arrives on
//! it, the connection is proven and keeps its slot.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::request_limits::RequestLimits;
use crate::senders::{Good, Sender, Source};

/// Maximum number of concurrent connections, unless the server sets another; further ones wait in the listen queue of
/// the operating system.
pub const CONNECTIONS_MAX: usize = 16 * 1024;

/// Maximum number of connections without an authenticated request. Beyond it, the oldest one of the source that has the
/// most is closed.
pub const UNPROVEN_MAX: usize = 1024;

/// The same limit per address: beyond it, the oldest connection of that address is closed.
pub const UNPROVEN_PER_SOURCE_MAX: usize = 256;

/// On a server with fewer slots, at most this fraction of them may be unproven.
const UNPROVEN_SHARE: usize = 4;

/// The connection slots of one listener.
pub(crate) struct ConnectionSlots {
    max: usize,
    unproven_max: usize,
    limits: Arc<RequestLimits>,
    state: Mutex<OpenConnections>,
    freed: Notify,
}

#[derive(Default)]
struct OpenConnections {
    open: usize,
    proven: usize,
    next: u64,
    /// By age.
    unproven: BTreeMap<u64, Unproven>,
    sources: HashMap<Source, usize>,
}

struct Unproven {
    source: Source,
    end: CancellationToken,
}

/// The slot of one connection; released when dropped.
pub(crate) struct ConnectionSlot {
    slots: Arc<ConnectionSlots>,
    number: u64,
    source: Source,
    /// Cancelled when the slot is needed for another connection.
    pub(crate) end: CancellationToken,
    proven: AtomicBool,
    sender: Mutex<Option<Arc<Sender>>>,
}

impl ConnectionSlots {
    pub(crate) fn new(max: usize, limits: &Arc<RequestLimits>) -> Arc<Self> {
        let unproven_max = UNPROVEN_MAX.min(max / UNPROVEN_SHARE).max(1);
        let (limits, state) = (Arc::clone(limits), Mutex::default());
        Arc::new(Self { max, unproven_max, limits, state, freed: Notify::new() })
    }

    /// Resolves when one more connection can be accepted. Where limits are divided among senders, unproven connections
    /// make room.
    pub(crate) async fn room(&self) {
        loop {
            let freed = self.freed.notified();
            {
                let mut state = self.state.lock();
                if state.open < self.max {
                    return;
                }
                if self.limits.is_shared() {
                    self.end_one(&mut state, None);
                }
            }
            freed.await;
        }
    }

    /// Takes a slot for an accepted connection.
    pub(crate) fn enter(self: &Arc<Self>, source: Source) -> Arc<ConnectionSlot> {
        let mut state = self.state.lock();
        let end = CancellationToken::new();
        if self.limits.is_shared() {
            let own = state.sources.get(&source).copied().unwrap_or(0);
            if own >= UNPROVEN_PER_SOURCE_MAX.min(self.unproven_max) {
                self.end_one(&mut state, Some(source));
            } else if state.unproven.len() >= self.unproven_max {
                self.end_one(&mut state, None);
            }
        }
        let number = state.next;
        state.next += 1;
        state.open += 1;
        state.unproven.insert(number, Unproven { source, end: end.clone() });
        *state.sources.entry(source).or_default() += 1;
        self.count(&state);
        drop(state);
        let (slots, proven) = (Arc::clone(self), AtomicBool::new(false));
        Arc::new(ConnectionSlot { slots, number, source, end, proven, sender: Mutex::new(None) })
    }

    /// Closes the oldest unproven connection of the given source, or of the sources that have the most. A client with
    /// many sources and one connection each thus replaces its own oldest connections, and newcomers keep their time.
    fn end_one(&self, state: &mut OpenConnections, source: Option<Source>) {
        let most = state.sources.values().max().copied();
        let fits = |unproven: &Unproven| match source {
            Some(source) => unproven.source == source,
            None => state.sources.get(&unproven.source).copied() == most,
        };
        let oldest = state.unproven.iter().find(|(_, unproven)| fits(unproven));
        let Some(number) = oldest.map(|(number, _)| *number) else { return };
        if let Some(ended) = state.remove(number) {
            ended.end.cancel();
            self.limits.connections.ended.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn count(&self, state: &OpenConnections) {
        self.limits.connections.open.store(state.open, Ordering::Relaxed);
        self.limits.connections.unproven.store(state.unproven.len(), Ordering::Relaxed);
    }
}

impl OpenConnections {
    fn remove(&mut self, number: u64) -> Option<Unproven> {
        let removed = self.unproven.remove(&number)?;
        if let Some(count) = self.sources.get_mut(&removed.source) {
            *count -= 1;
            if *count == 0 {
                self.sources.remove(&removed.source);
            }
        }
        Some(removed)
    }
}

impl ConnectionSlot {
    /// Where the connection comes from.
    pub(crate) fn source(&self) -> Source {
        self.source
    }

    /// Marks the connection as proven by an authenticated sender. False when the sender, or all together, have too many
    /// proven connections.
    pub(crate) fn prove(&self, sender: &Arc<Sender>) -> bool {
        if self.proven.load(Ordering::Acquire) {
            return true;
        }
        let slots = &self.slots;
        let mut state = slots.state.lock();
        // Concurrent requests prove it once.
        if self.proven.load(Ordering::Acquire) {
            return true;
        }
        // Slots for new connections are kept free of proven ones.
        let whole = slots.max - slots.unproven_max.min(slots.max - 1);
        if state.proven >= sender.reach(whole) || !sender.take(Good::Connections, 1, whole) {
            slots.limits.connections.refused.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        *self.sender.lock() = Some(Arc::clone(sender));
        state.proven += 1;
        state.remove(self.number);
        slots.count(&state);
        self.proven.store(true, Ordering::Release);
        true
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut state = self.slots.state.lock();
        state.open -= 1;
        state.remove(self.number);
        if let Some(sender) = self.sender.lock().take() {
            state.proven -= 1;
            sender.give_back(Good::Connections, 1);
        }
        self.slots.count(&state);
        drop(state);
        self.slots.freed.notify_one();
    }
}
