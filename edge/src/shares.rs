//! A bounded number of slots, shared so that no source can take all of them.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use parking_lot::Mutex;

/// Slots that a source may always have while any are free.
const ALWAYS: usize = 2;

/// Slots shared among sources. A source may have half of what the others leave, so that the next source always finds
/// some.
#[derive(Debug, Clone)]
pub(crate) struct Shares<S: Hash + Eq> {
    max: usize,
    taken: Arc<Mutex<Taken<S>>>,
}

#[derive(Debug)]
struct Taken<S> {
    all: usize,
    /// Slots taken by each source. Sources without a slot are not listed, which bounds the map.
    by_source: HashMap<S, usize>,
}

/// A slot, held until it is dropped.
#[derive(Debug)]
pub(crate) struct HeldSlot<S: Hash + Eq> {
    source: S,
    taken: Arc<Mutex<Taken<S>>>,
}

impl<S: Hash + Eq + Clone> Shares<S> {
    pub(crate) fn new(max: usize) -> Self {
        let taken = Taken { all: 0, by_source: HashMap::new() };
        Self { max, taken: Arc::new(Mutex::new(taken)) }
    }

    /// Takes a slot for a source. Returns `None` if the source has its share, or all slots are taken.
    pub(crate) fn take(&self, source: S) -> Option<HeldSlot<S>> {
        let mut taken = self.taken.lock();
        let own = taken.by_source.get(&source).copied().unwrap_or(0);
        let left_by_others = self.max.saturating_sub(taken.all - own);
        if taken.all >= self.max || own >= (left_by_others / 2).max(ALWAYS) {
            return None;
        }
        taken.all += 1;
        *taken.by_source.entry(source.clone()).or_default() += 1;
        Some(HeldSlot { source, taken: Arc::clone(&self.taken) })
    }
}

impl<S: Hash + Eq> Drop for HeldSlot<S> {
    fn drop(&mut self) {
        let mut taken = self.taken.lock();
        taken.all -= 1;
        if let Some(own) = taken.by_source.get_mut(&self.source) {
            *own -= 1;
            if *own == 0 {
                taken.by_source.remove(&self.source);
            }
        }
    }
}

/// The address that identifies a client. All loopback addresses count as one, since a client in the node's network
/// (`hostNetwork`) can use any of them.
pub(crate) fn one_of_loopback(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        address if address.is_loopback() => Ipv4Addr::LOCALHOST.into(),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn greedy(shares: &Shares<IpAddr>, source: u8) -> Vec<HeldSlot<IpAddr>> {
        std::iter::from_fn(|| shares.take([10, 0, 0, source].into())).collect()
    }

    #[test]
    fn no_source_takes_all_slots_and_released_ones_are_reusable() {
        let shares = Shares::new(128);
        let held: Vec<Vec<HeldSlot<IpAddr>>> = (0..5).map(|source| greedy(&shares, source)).collect();
        assert_eq!(held.iter().map(Vec::len).collect::<Vec<_>>(), [64, 32, 16, 8, 4]);
        assert!(shares.take([10, 0, 0, 9].into()).is_some(), "the next one has a slot");
        drop(held);
        assert!(shares.taken.lock().by_source.is_empty());
        assert_eq!(greedy(&shares, 7).len(), 64);
        let few = Shares::new(1);
        let _one = few.take(1).unwrap();
        assert!(few.take(2).is_none());
    }
}
