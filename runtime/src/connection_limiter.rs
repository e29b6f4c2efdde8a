//! Admission of unauthenticated connections: each gets few resources, and they never use up all of a listener's slots.
//!
//! A connection first waits for its peer's first byte, which costs next to nothing, and then does its handshake. Each
//! phase has a number of slots for all sources together and a smaller number for each source, so that no address takes
//! every slot. When a source has no waiting slot left, its connection that has been silent for longest is closed: an
//! honest peer speaks at once, even behind the same address as one that does not. When no waiting slot is left at all,
//! the source with the most connections gives one up. The next handshake is that of the source with the fewest, so that
//! even several hostile sources lock no other source out. Once a peer is authenticated, its connection no longer
//! counts: a fleet behind one address is bounded only while it connects.

use std::collections::btree_map::OccupiedEntry;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

/// A handshake that has run for this long gives up its slot if another source has none: an honest peer has finished by
/// then.
const UNDISTURBED: Duration = Duration::from_secs(2);

/// Numbers of slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// Connections of all sources that wait for their peer's first byte or for a working slot.
    pub waiting: usize,
    /// The same for one source.
    pub waiting_per_source: usize,
    /// Running handshakes of all sources.
    pub working: usize,
    /// The same for one source.
    pub working_per_source: usize,
}

/// Where a connection comes from: an IPv4 address, or the first 64 bits of an IPv6 address, which a network gives to
/// one customer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Source(IpAddr);

impl From<IpAddr> for Source {
    fn from(address: IpAddr) -> Self {
        Self(match address.to_canonical() {
            IpAddr::V4(address) => IpAddr::V4(address),
            IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX))),
        })
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Why an unauthenticated connection is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Crowded {
    /// The source has reached its limit.
    #[error("this source has reached its limit of unauthenticated connections")]
    Source,
    /// All sources together have reached the limit.
    #[error("the limit of unauthenticated connections is reached")]
    Whole,
}

/// The admission control of a listener. Clones are the same limiter.
#[derive(Debug, Clone)]
pub struct ConnectionLimiter(Arc<LimiterInner>);

#[derive(Debug)]
struct LimiterInner {
    limits: ConnectionLimits,
    state: Mutex<LimiterState>,
    evicted: AtomicU64,
    refused: AtomicU64,
}

#[derive(Debug, Default)]
struct LimiterState {
    sources: HashMap<Source, SourceConnections>,
    waiting: usize,
    working: usize,
    next: u64,
}

/// The connections of one source, oldest first. The entry is removed with its last connection.
#[derive(Debug, Default)]
struct SourceConnections {
    /// Connections whose peer has not spoken yet.
    silent: BTreeMap<u64, Arc<Signal>>,
    /// Connections whose peer has spoken and that have no working slot yet.
    spoken: BTreeMap<u64, Arc<Signal>>,
    /// Those of `spoken` that ask for a working slot.
    asking: BTreeMap<u64, Arc<Signal>>,
    working: BTreeMap<u64, (Instant, Arc<Signal>)>,
}

impl SourceConnections {
    fn waiting(&self) -> usize {
        self.silent.len() + self.spoken.len()
    }

    fn is_empty(&self) -> bool {
        self.waiting() == 0 && self.working.is_empty()
    }
}

/// Notifies a connection that it has a working slot or must close.
#[derive(Debug, Default)]
struct Signal {
    notify: Notify,
    works: AtomicBool,
    gone: AtomicBool,
}

impl Signal {
    fn send_away(&self) {
        self.gone.store(true, Ordering::Relaxed);
        self.notify.notify_one();
    }
}

impl LimiterState {
    /// The source with the highest count, and that count.
    fn most(&self, of: impl Fn(&SourceConnections) -> usize) -> Option<(Source, usize)> {
        self.sources.iter().map(|(source, entry)| (*source, of(entry))).max_by_key(|(_, count)| *count)
    }

    /// Gives working slots to connections that ask, starting with the source that has the fewest.
    fn dispatch(&mut self, limits: &ConnectionLimits) {
        while self.working < limits.working {
            let asking =
                self.sources.iter_mut().filter(|(_, entry)| entry.working.len() < limits.working_per_source);
            let asking = asking
                .filter_map(|(_, entry)| Some(((entry.working.len(), *entry.asking.keys().next()?), entry)));
            let Some(((_, number), entry)) = asking.min_by_key(|(rank, _)| *rank) else { return };
            let Some(signal) = entry.asking.remove(&number) else { return };
            entry.spoken.remove(&number);
            signal.works.store(true, Ordering::Relaxed);
            signal.notify.notify_one();
            entry.working.insert(number, (Instant::now(), signal));
            self.waiting = self.waiting.saturating_sub(1);
            self.working += 1;
        }
    }

    /// Takes a working slot from the source that has the most, for one that has fewer. Returns false if no handshake of
    /// that source has run for [`UNDISTURBED`].
    fn press(&mut self, source: Source) -> bool {
        let own = self.sources.get(&source).map_or(0, |entry| entry.working.len());
        let Some((most, count)) = self.most(|entry| entry.working.len()) else { return false };
        let Some(entry) = self.sources.get_mut(&most).filter(|_| count > own + 1) else { return false };
        let oldest = entry.working.first_entry().filter(|oldest| oldest.get().0.elapsed() >= UNDISTURBED);
        let Some((_, signal)) = oldest.map(OccupiedEntry::remove) else { return false };
        signal.send_away();
        self.working = self.working.saturating_sub(1);
        true
    }

    /// Takes a waiting slot from a source. Takes it from a connection that has spoken only if `spoken` is true.
    fn evict(&mut self, source: Source, spoken: bool) -> bool {
        let Some(entry) = self.sources.get_mut(&source) else { return false };
        let gone = match entry.silent.pop_first() {
            Some((_, signal)) => Some(signal),
            None if spoken => entry.spoken.pop_last().map(|(number, signal)| {
                entry.asking.remove(&number);
                signal
            }),
            None => None,
        };
        let Some(signal) = gone else { return false };
        // Its slot is free now, and is not freed a second time when its task ends.
        signal.send_away();
        self.waiting = self.waiting.saturating_sub(1);
        true
    }

    /// Makes room for one more waiting connection of a source. Returns whether another was evicted for it.
    fn make_room(&mut self, source: Source, limits: &ConnectionLimits) -> Result<bool, Crowded> {
        let own = self.sources.get(&source).map_or(0, SourceConnections::waiting);
        if own >= limits.waiting_per_source {
            self.evict(source, false).then_some(true).ok_or(Crowded::Source)
        } else if self.waiting >= limits.waiting {
            let most = self.most(SourceConnections::waiting);
            let evicted = most.is_some_and(|(most, count)| self.evict(most, count > own + 1));
            evicted.then_some(true).ok_or(Crowded::Whole)
        } else {
            Ok(false)
        }
    }

    /// Removes a connection that has ended, unless it was evicted before.
    fn forget(&mut self, source: Source, number: u64) {
        let Some(entry) = self.sources.get_mut(&source) else { return };
        entry.asking.remove(&number);
        if entry.silent.remove(&number).is_some() || entry.spoken.remove(&number).is_some() {
            self.waiting = self.waiting.saturating_sub(1);
        }
        if entry.working.remove(&number).is_some() {
            self.working = self.working.saturating_sub(1);
        }
        if entry.is_empty() {
            self.sources.remove(&source);
        }
    }
}

impl ConnectionLimiter {
    /// A limiter with these limits.
    #[must_use]
    pub fn new(limits: ConnectionLimits) -> Self {
        let (state, evicted, refused) = Default::default();
        Self(Arc::new(LimiterInner { limits, state, evicted, refused }))
    }

    /// Takes a waiting slot for a connection that was just accepted.
    ///
    /// # Errors
    /// No slot is free, and no connection may be evicted for this one.
    pub fn enter(&self, address: IpAddr) -> Result<Waiting, Crowded> {
        let source = Source::from(address);
        let mut state = self.lock();
        let evicted = state.make_room(source, &self.0.limits).map_err(|why| self.refuse(why))?;
        self.0.evicted.fetch_add(u64::from(evicted), Ordering::Relaxed);
        let number = state.next;
        state.next += 1;
        state.waiting += 1;
        let signal = Arc::new(Signal::default());
        state.sources.entry(source).or_default().silent.insert(number, Arc::clone(&signal));
        Ok(Waiting { limiter: self.clone(), source, number, signal })
    }

    /// Number of waiting connections.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.lock().waiting
    }

    /// Number of running handshakes.
    #[must_use]
    pub fn working(&self) -> usize {
        self.lock().working
    }

    /// Number of connections evicted for others since the start.
    #[must_use]
    pub fn evicted(&self) -> u64 {
        self.0.evicted.load(Ordering::Relaxed)
    }

    /// Number of connections refused since the start.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.0.refused.load(Ordering::Relaxed)
    }

    fn refuse(&self, why: Crowded) -> Crowded {
        self.0.refused.fetch_add(1, Ordering::Relaxed);
        why
    }

    fn lock(&self) -> MutexGuard<'_, LimiterState> {
        // Changed by short calls that cannot leave it half-changed.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A waiting connection. Dropping this frees its slot.
#[derive(Debug)]
pub struct Waiting {
    limiter: ConnectionLimiter,
    source: Source,
    number: u64,
    signal: Arc<Signal>,
}

impl Waiting {
    /// Completes when this slot was given to another connection: this connection must end.
    pub async fn evicted(&self) {
        self.signal.notify.notified().await;
    }

    /// Records that the peer has spoken: from now on no connection of the same source takes this slot. Returns false if
    /// one just did.
    #[must_use]
    pub fn spoke(&self) -> bool {
        let mut state = self.limiter.lock();
        let Some(entry) = state.sources.get_mut(&self.source) else { return false };
        let Some(signal) = entry.silent.remove(&self.number) else { return false };
        entry.spoken.insert(self.number, signal);
        true
    }

    /// Waits for a working slot; the connections of one source get theirs in the order in which they asked. Returns
    /// `None` if the waiting slot was given to another connection meanwhile: this connection must end.
    pub async fn work(self) -> Option<Working> {
        let mut works = self.ask();
        while !works && !self.signal.gone.load(Ordering::Relaxed) {
            tokio::select! {
                () = self.signal.notify.notified() => works = self.signal.works.load(Ordering::Relaxed),
                () = tokio::time::sleep(UNDISTURBED) => works = self.ask(),
            }
        }
        works.then(|| Working(self))
    }

    /// Asks for a working slot. Returns whether the connection has one now.
    fn ask(&self) -> bool {
        let limits = &self.limiter.0.limits;
        let mut state = self.limiter.lock();
        let Some(entry) = state.sources.get_mut(&self.source) else { return false };
        if entry.spoken.contains_key(&self.number) {
            entry.asking.insert(self.number, Arc::clone(&self.signal));
        }
        let may_press = entry.working.len() < limits.working_per_source;
        state.dispatch(limits);
        let works = || self.signal.works.load(Ordering::Relaxed);
        if !works() && may_press && state.press(self.source) {
            self.limiter.0.evicted.fetch_add(1, Ordering::Relaxed);
            state.dispatch(limits);
        }
        works()
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut state = self.limiter.lock();
        state.forget(self.source, self.number);
        state.dispatch(&self.limiter.0.limits);
    }
}

/// A connection whose handshake runs. Dropping this frees its slot.
#[derive(Debug)]
pub struct Working(Waiting);

impl Working {
    /// Completes when this handshake has run too long while another source has no slot: the connection must end.
    pub async fn evicted(&self) {
        while !self.0.signal.gone.load(Ordering::Relaxed) {
            self.0.signal.notify.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    const LIMITS: ConnectionLimits =
        ConnectionLimits { waiting: 6, waiting_per_source: 4, working: 4, working_per_source: 2 };

    fn address(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    async fn work(slot: Waiting) -> Working {
        assert!(slot.spoke());
        slot.work().await.expect("a slot")
    }

    #[test]
    fn longest_silent_connection_is_evicted_first() {
        let limiter = ConnectionLimiter::new(LIMITS);
        let mut slots: Vec<_> = (0..4).map(|_| limiter.enter(address(1)).expect("a place")).collect();
        assert!(slots[1].spoke());
        let fifth = limiter.enter(address(1)).expect("the slot of the oldest");
        assert!(slots[0].evicted().now_or_never().is_some());
        assert!(!slots[0].spoke(), "too late");
        assert!(slots.iter().skip(1).all(|slot| slot.evicted().now_or_never().is_none()));
        let _sixth = limiter.enter(address(1)).expect("the slot of the third");
        assert!(slots[1].evicted().now_or_never().is_none(), "it has spoken");
        assert!(slots[2].evicted().now_or_never().is_some());
        assert_eq!((limiter.waiting(), limiter.evicted(), limiter.refused()), (4, 2, 0));
        slots.clear();
        drop(fifth);
        assert_eq!(limiter.waiting(), 1);
    }

    #[test]
    fn one_source_evicts_only_its_own_connections() {
        let limiter = ConnectionLimiter::new(LIMITS);
        let flood: Vec<_> = (0..40).filter_map(|_| limiter.enter(address(1)).ok()).collect();
        assert_eq!((flood.len(), limiter.waiting()), (40, 4), "all but the newest were evicted");
        let honest: Vec<_> = (2..4).map(|last| limiter.enter(address(last)).expect("a place")).collect();
        assert!(honest.iter().all(|slot| slot.evicted().now_or_never().is_none()));
        // All slots are taken now: the source that has the most gives one up.
        let third = limiter.enter(address(4)).expect("a place");
        assert!(honest.iter().chain([&third]).all(|slot| slot.evicted().now_or_never().is_none()));
        assert_eq!(limiter.waiting(), 6);
    }

    #[test]
    fn connection_that_has_spoken_is_not_evicted_for_another_source() {
        let limiter = ConnectionLimiter::new(LIMITS);
        let busy: Vec<_> = (0..4).map(|_| limiter.enter(address(1)).expect("a place")).collect();
        assert!(busy.iter().all(Waiting::spoke));
        assert_eq!(limiter.enter(address(1)).err(), Some(Crowded::Source));
        assert!(limiter.enter(address(2)).is_ok());
        assert_eq!(limiter.refused(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn handshakes_of_one_source_leave_slots_for_others() {
        let limiter = ConnectionLimiter::new(LIMITS);
        let enter = |last| limiter.enter(address(last)).expect("a place");
        let working: Vec<_> = (0..2).map(|_| work(enter(1)).now_or_never().expect("a slot")).collect();
        let mut third = Box::pin(work(enter(1)));
        assert!(third.as_mut().now_or_never().is_none(), "its source has two");
        let other: Vec<_> = (0..2).map(|_| work(enter(2)).now_or_never().expect("a slot")).collect();
        assert!(work(enter(3)).now_or_never().is_none(), "all are occupied");
        assert_eq!((limiter.working(), limiter.waiting()), (4, 1));
        drop(other);
        drop(working);
        drop(third.await);
        assert_eq!((limiter.working(), limiter.waiting()), (0, 0));
        assert!(limiter.lock().sources.is_empty(), "no state of closed connections is kept");
    }

    #[test]
    fn several_sources_leave_slots_for_waiting_connections() {
        let limiter = ConnectionLimiter::new(LIMITS);
        let busy: Vec<_> =
            [1, 1, 1, 2, 2, 2].map(|last| limiter.enter(address(last)).expect("a place")).into();
        assert!(busy.iter().all(Waiting::spoke));
        let honest = limiter.enter(address(3)).expect("of one that has most");
        let evicted = busy.iter().filter(|slot| slot.evicted().now_or_never().is_some()).count();
        assert_eq!((evicted, limiter.waiting(), limiter.evicted()), (1, 6, 1));
        let second = limiter.enter(address(3)).expect("it still has fewer");
        assert!(honest.spoke() && second.spoke());
        assert_eq!(limiter.enter(address(1)).err(), Some(Crowded::Whole), "no other client has more");
        drop((busy, honest, second));
        assert_eq!((limiter.waiting(), limiter.lock().sources.len()), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn stalled_handshakes_of_several_sources_give_way() {
        let limiter = ConnectionLimiter::new(LIMITS);
        let mut stuck = Vec::new();
        for last in [1, 1, 2, 2] {
            stuck.push(work(limiter.enter(address(last)).expect("a place")).await);
        }
        let queued: Vec<_> =
            [1, 2].map(|last| Box::pin(work(limiter.enter(address(last)).expect("a place")))).into();
        let begin = Instant::now();
        let honest = work(limiter.enter(address(3)).expect("a place"));
        let honest = tokio::time::timeout(2 * UNDISTURBED, honest).await.expect("its turn arrives");
        assert_eq!(begin.elapsed(), UNDISTURBED, "a handshake has some time");
        let evicted = stuck.iter().filter(|slot| slot.evicted().now_or_never().is_some()).count();
        assert_eq!((evicted, limiter.working()), (1, 4));
        drop(queued);
        drop((stuck, honest));
        assert_eq!((limiter.working(), limiter.waiting(), limiter.lock().sources.len()), (0, 0, 0));
    }

    #[test]
    fn sources_are_addresses_and_networks() {
        let source = |text: &str| Source::from(text.parse::<IpAddr>().expect("an address"));
        assert_eq!(source("192.0.2.7"), source("::ffff:192.0.2.7"));
        assert_ne!(source("192.0.2.7"), source("192.0.2.8"));
        assert_eq!(source("2001:db8::1"), source("2001:db8::ffff:1:2:3"));
        assert_ne!(source("2001:db8::1"), source("2001:db8:0:1::1"));
    }
}
