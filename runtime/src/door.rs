//! Places for connections of strangers: who has not said who it is gets little, and never all of it.
//!
//! A connection first waits for its peer's first byte, which costs next to nothing, and then does its handshake. Both have a
//! number of places for all sources together and a smaller one for each source, so that no address takes every place. When the
//! waiting places of a source or all of them are taken, the connection that has been silent for longest goes: an honest peer
//! speaks at once, also behind the address of one that does not. Once a peer is known its connection has left the door and
//! counts no more: a fleet behind one address is bounded only while it arrives.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// Numbers of places.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DoorLimits {
    /// Connections of all sources that wait for their peer's first byte or for a working place.
    pub waiting: usize,
    /// Those of one source.
    pub waiting_per_source: usize,
    /// Handshakes of all sources that run.
    pub working: usize,
    /// Those of one source.
    pub working_per_source: usize,
}

/// Where a connection comes from: an IPv4 address, or the 64 bits of an IPv6 address that a network gives to one customer.
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

/// Why a stranger is not let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Crowded {
    /// Its source has as many connections as it may.
    #[error("this source has as many unauthenticated connections as it may")]
    Source,
    /// All sources together have.
    #[error("there are as many unauthenticated connections as there may be")]
    Whole,
}

/// A listener's door. Clones are the same door.
#[derive(Debug, Clone)]
pub struct Door(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    limits: DoorLimits,
    working: Arc<Semaphore>,
    state: Mutex<State>,
    evicted: AtomicU64,
    refused: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    sources: HashMap<Source, Entry>,
    /// Who has not spoken yet, oldest first.
    silent: BTreeMap<u64, (Source, Arc<Leave>)>,
    waiting: usize,
    next: u64,
}

/// How a connection that waits hears that it must go.
#[derive(Debug, Default)]
struct Leave {
    told: Notify,
    gone: AtomicBool,
}

#[derive(Debug)]
struct Entry {
    waiting: usize,
    working: Arc<Semaphore>,
    /// Places of either kind; the entry goes with the last.
    places: usize,
}

impl Door {
    /// A door with so many places.
    #[must_use]
    pub fn new(limits: DoorLimits) -> Self {
        let working = Arc::new(Semaphore::new(limits.working));
        let (state, evicted, refused) = Default::default();
        Self(Arc::new(Shared { limits, working, state, evicted, refused }))
    }

    /// A place to wait in for a connection that was just accepted.
    ///
    /// # Errors
    /// When there is none, and nobody silent whose place could be had.
    pub fn enter(&self, address: IpAddr) -> Result<Waiting, Crowded> {
        let source = Source::from(address);
        let mut state = self.lock();
        let of_source = state.sources.get(&source).map_or(0, |entry| entry.waiting);
        if of_source >= self.0.limits.waiting_per_source {
            self.evict(&mut state, Some(source)).ok_or_else(|| self.refuse(Crowded::Source))?;
        } else if state.waiting >= self.0.limits.waiting {
            self.evict(&mut state, None).ok_or_else(|| self.refuse(Crowded::Whole))?;
        }
        let limit = self.0.limits.working_per_source;
        let entry = state.sources.entry(source).or_insert_with(|| Entry {
            waiting: 0,
            working: Arc::new(Semaphore::new(limit)),
            places: 0,
        });
        entry.waiting += 1;
        entry.places += 1;
        let per_source = Arc::clone(&entry.working);
        state.waiting += 1;
        let number = state.next;
        state.next += 1;
        let leave = Arc::new(Leave::default());
        state.silent.insert(number, (source, Arc::clone(&leave)));
        Ok(Waiting { door: self.clone(), source, number, leave, per_source, counted: true })
    }

    /// A working place at once, for a listener whose connections wait elsewhere.
    ///
    /// # Errors
    /// When the source or all sources have taken theirs.
    pub fn work_now(&self, address: IpAddr) -> Result<Working, Crowded> {
        let waiting = self.enter(address)?;
        let of_source = Arc::clone(&waiting.per_source).try_acquire_owned();
        let of_source = of_source.map_err(|_| self.refuse(Crowded::Source))?;
        let of_all = Arc::clone(&self.0.working).try_acquire_owned();
        let of_all = of_all.map_err(|_| self.refuse(Crowded::Whole))?;
        Ok(waiting.works(of_source, of_all))
    }

    /// Connections that wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.lock().waiting
    }

    /// Handshakes that run.
    #[must_use]
    pub fn working(&self) -> usize {
        self.0.limits.working.saturating_sub(self.0.working.available_permits())
    }

    /// Silent connections that had to go, since the start.
    #[must_use]
    pub fn evicted(&self) -> u64 {
        self.0.evicted.load(Ordering::Relaxed)
    }

    /// Connections that found no place, since the start.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.0.refused.load(Ordering::Relaxed)
    }

    fn refuse(&self, why: Crowded) -> Crowded {
        self.0.refused.fetch_add(1, Ordering::Relaxed);
        why
    }

    /// Sends the connection away that has been silent for longest: of one source, or of the source that waits most.
    fn evict(&self, state: &mut State, source: Option<Source>) -> Option<()> {
        let source = source.or_else(|| {
            let most = state.sources.iter().max_by_key(|(_, entry)| entry.waiting);
            most.map(|(source, _)| *source)
        })?;
        let oldest = state.silent.iter().find(|(_, (of, _))| *of == source);
        let number = oldest.map(|(number, _)| *number)?;
        let (_, leave) = state.silent.remove(&number)?;
        // Its place is free now, and no more counted when its task ends.
        leave.gone.store(true, Ordering::Relaxed);
        leave.told.notify_one();
        state.waiting = state.waiting.saturating_sub(1);
        if let Some(entry) = state.sources.get_mut(&source) {
            entry.waiting = entry.waiting.saturating_sub(1);
        }
        self.0.evicted.fetch_add(1, Ordering::Relaxed);
        Some(())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Changed by short calls that cannot leave it half-changed.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn leave(&self, source: Source) {
        let mut state = self.lock();
        if let Some(entry) = state.sources.get_mut(&source) {
            entry.places = entry.places.saturating_sub(1);
            if entry.places == 0 {
                state.sources.remove(&source);
            }
        }
    }
}

/// A connection that waits. Its place is free when this is dropped.
#[derive(Debug)]
pub struct Waiting {
    door: Door,
    source: Source,
    number: u64,
    leave: Arc<Leave>,
    per_source: Arc<Semaphore>,
    /// It still counts as one that waits.
    counted: bool,
}

impl Waiting {
    /// Completes when somebody else was given this place: the connection must end. Never once the peer has spoken.
    pub async fn evicted(&self) {
        self.leave.told.notified().await;
    }

    /// The peer has spoken: from now on nobody takes this place. False when somebody just has.
    #[must_use]
    pub fn spoke(&self) -> bool {
        self.door.lock().silent.remove(&self.number).is_some()
    }

    /// Waits for a working place, in the order in which those of one source have asked.
    pub async fn work(self) -> Working {
        let of_source = Arc::clone(&self.per_source).acquire_owned().await;
        let of_all = Arc::clone(&self.door.0.working).acquire_owned().await;
        match (of_source, of_all) {
            (Ok(of_source), Ok(of_all)) => self.works(of_source, of_all),
            // The semaphores are never closed.
            _ => std::future::pending().await,
        }
    }

    fn works(mut self, of_source: OwnedSemaphorePermit, of_all: OwnedSemaphorePermit) -> Working {
        self.stop_waiting();
        Working { _permits: [of_source, of_all], _place: self }
    }

    fn stop_waiting(&mut self) {
        if !std::mem::take(&mut self.counted) {
            return;
        }
        let mut state = self.door.lock();
        state.silent.remove(&self.number);
        // Who was sent away was taken out of the numbers then.
        if self.leave.gone.load(Ordering::Relaxed) {
            return;
        }
        state.waiting = state.waiting.saturating_sub(1);
        if let Some(entry) = state.sources.get_mut(&self.source) {
            entry.waiting = entry.waiting.saturating_sub(1);
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.stop_waiting();
        self.door.leave(self.source);
    }
}

/// A connection whose handshake runs. Its place is free when this is dropped.
#[derive(Debug)]
pub struct Working {
    _permits: [OwnedSemaphorePermit; 2],
    _place: Waiting,
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    const LIMITS: DoorLimits =
        DoorLimits { waiting: 6, waiting_per_source: 4, working: 4, working_per_source: 2 };

    fn address(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    #[test]
    fn the_connection_that_is_silent_for_longest_goes_first() {
        let door = Door::new(LIMITS);
        let mut places: Vec<_> = (0..4).map(|_| door.enter(address(1)).expect("a place")).collect();
        assert!(places[1].spoke());
        let fifth = door.enter(address(1)).expect("the place of the oldest");
        assert!(places[0].evicted().now_or_never().is_some());
        assert!(!places[0].spoke(), "too late");
        assert!(places.iter().skip(1).all(|place| place.evicted().now_or_never().is_none()));
        let _sixth = door.enter(address(1)).expect("the place of the third");
        assert!(places[1].evicted().now_or_never().is_none(), "it has spoken");
        assert!(places[2].evicted().now_or_never().is_some());
        assert_eq!((door.waiting(), door.evicted(), door.refused()), (4, 2, 0));
        places.clear();
        drop(fifth);
        assert_eq!(door.waiting(), 1);
    }

    #[test]
    fn one_source_takes_places_from_itself_alone() {
        let door = Door::new(LIMITS);
        let flood: Vec<_> = (0..40).filter_map(|_| door.enter(address(1)).ok()).collect();
        assert_eq!((flood.len(), door.waiting()), (40, 4), "all but the newest were told to go");
        let honest: Vec<_> = (2..4).map(|last| door.enter(address(last)).expect("a place")).collect();
        assert!(honest.iter().all(|place| place.evicted().now_or_never().is_none()));
        // All places are taken now: the source that has the most gives one.
        let third = door.enter(address(4)).expect("a place");
        assert!(honest.iter().chain([&third]).all(|place| place.evicted().now_or_never().is_none()));
        assert_eq!(door.waiting(), 6);
    }

    #[test]
    fn who_has_spoken_is_not_sent_away_for_somebody_else() {
        let door = Door::new(LIMITS);
        let busy: Vec<_> = (0..4).map(|_| door.enter(address(1)).expect("a place")).collect();
        assert!(busy.iter().all(Waiting::spoke));
        assert_eq!(door.enter(address(1)).err(), Some(Crowded::Source));
        assert!(door.enter(address(2)).is_ok());
        assert_eq!(door.refused(), 1);
    }

    #[test]
    fn handshakes_of_one_source_leave_places_for_others() {
        let door = Door::new(LIMITS);
        let enter = |last| door.enter(address(last)).expect("a place");
        let working: Vec<_> =
            (0..2).map(|_| enter(1).work().now_or_never().expect("a working place")).collect();
        let mut third = Box::pin(enter(1).work());
        assert!(third.as_mut().now_or_never().is_none(), "its source has two");
        assert_eq!(door.work_now(address(1)).err(), Some(Crowded::Source));
        let other: Vec<_> = (0..2).map(|_| door.work_now(address(2)).expect("a working place")).collect();
        assert_eq!(door.work_now(address(3)).err(), Some(Crowded::Whole));
        assert_eq!((door.working(), door.waiting()), (4, 1));
        drop(other);
        drop(working);
        assert!(third.now_or_never().is_some());
        assert_eq!((door.working(), door.waiting()), (0, 0));
        assert!(door.lock().sources.is_empty(), "nothing is kept of who has left");
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
