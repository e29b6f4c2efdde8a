//! A bounded map that several owners share fairly.
//!
//! An owner that inserts or uses an entry has a claim to it. When the map is full, the owner whose claims weigh most
//! gives up its oldest claim, and an entry is removed with its last claim. So an owner that fills the map evicts only
//! entries that no other owner uses, and an owner with less than an equal part loses nothing.

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;

/// A bounded map shared fairly. `O` identifies owners, `K` entries.
#[derive(Debug)]
pub(crate) struct Fair<O, K, V> {
    max: usize,
    /// Weight of each further claim to an entry. The first one is part of the weight of the entry.
    claim: fn(&K) -> usize,
    weight: usize,
    /// Counts uses; their numbers order an owner's claims.
    uses: u64,
    entries: HashMap<K, FairEntry<O, V>>,
    /// Owners with at least one claim.
    owners: HashMap<O, Owned<K>>,
    by_weight: BTreeSet<(usize, O)>,
}

#[derive(Debug)]
struct FairEntry<O, V> {
    weight: usize,
    /// Its owners in sorted order, each with its last use. The weight of claims bounds their number.
    claims: Vec<(O, u64)>,
    value: V,
}

/// The claims of an owner; each counts with the full weight of its entry.
#[derive(Debug)]
struct Owned<K> {
    weight: usize,
    by_use: BTreeMap<u64, K>,
}

impl<K> Default for Owned<K> {
    fn default() -> Self {
        Self { weight: 0, by_use: BTreeMap::new() }
    }
}

impl<O: Clone + Hash + Ord, K: Clone + Hash + Eq, V> Fair<O, K, V> {
    /// A map with a maximum total weight. A further claim weighs 1.
    pub(crate) fn new(max: usize) -> Self {
        Self::with_claims(max, |_| 1)
    }

    /// As [`Fair::new`] with the weight of a further claim, which must not exceed that of its entry.
    pub(crate) fn with_claims(max: usize, claim: fn(&K) -> usize) -> Self {
        let (entries, owners, by_weight) = Default::default();
        Self { max, claim, weight: 0, uses: 0, entries, owners, by_weight }
    }

    pub(crate) fn get<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.entries.get(key).map(|entry| &entry.value)
    }

    pub(crate) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.entries.get_mut(key).map(|entry| &mut entry.value)
    }

    /// Inserts or replaces an entry, as the newest of its owner. Claims to a replaced entry stay. An entry heavier than
    /// the whole map is not kept.
    pub(crate) fn insert(&mut self, owner: O, key: K, weight: usize, value: V) {
        let claims = self.detach(&key).map(|entry| entry.claims).unwrap_or_default();
        self.weight += weight + claims.len().saturating_sub(1) * (self.claim)(&key);
        for (owner, used) in &claims {
            self.owe(owner.clone(), *used, key.clone(), weight);
        }
        self.entries.insert(key.clone(), FairEntry { weight, claims, value });
        self.claim(key, owner);
    }

    /// Records that `user` uses an entry: `user` gets a claim to it, as its newest one. The entry then stays even if
    /// its other owners give up their claims.
    pub(crate) fn touch(&mut self, key: &K, user: &O) {
        self.claim(key.clone(), user.clone());
    }

    fn claim(&mut self, key: K, user: O) {
        self.uses += 1;
        let used = self.uses;
        let Some(entry) = self.entries.get_mut(&key) else { return };
        match entry.claims.binary_search_by(|(owner, _)| owner.cmp(&user)) {
            Ok(at) => {
                let before = std::mem::replace(&mut entry.claims[at].1, used);
                if let Some(owned) = self.owners.get_mut(&user) {
                    owned.by_use.remove(&before);
                    owned.by_use.insert(used, key);
                }
            }
            Err(at) => {
                if !entry.claims.is_empty() {
                    self.weight += (self.claim)(&key);
                }
                entry.claims.insert(at, (user.clone(), used));
                let weight = entry.weight;
                self.owe(user, used, key, weight);
            }
        }
        while self.weight > self.max && self.give_up_oldest() {}
    }

    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        self.detach(key).map(|entry| entry.value)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.entries.iter().map(|(key, entry)| (key, &entry.value))
    }

    /// Number of entries and total weight.
    #[cfg(test)]
    pub(crate) fn size(&self) -> (usize, usize) {
        (self.entries.len(), self.weight)
    }

    /// Drops the oldest claim of the owner with the largest weight. Returns false if there are no claims.
    fn give_up_oldest(&mut self) -> bool {
        let Some((_, heaviest)) = self.by_weight.last().cloned() else { return false };
        let oldest = self.owners.get(&heaviest).and_then(|owned| owned.by_use.first_key_value());
        let Some((used, key)) = oldest.map(|(used, key)| (*used, key.clone())) else { return false };
        let Some(entry) = self.entries.get_mut(&key) else { return false };
        if entry.claims.len() == 1 {
            return self.remove(&key).is_some();
        }
        if let Ok(at) = entry.claims.binary_search_by(|(owner, _)| owner.cmp(&heaviest)) {
            entry.claims.remove(at);
        }
        let weight = entry.weight;
        self.weight -= (self.claim)(&key);
        self.release(&heaviest, used, weight);
        true
    }

    /// Adds a claim to an owner.
    fn owe(&mut self, owner: O, used: u64, key: K, weight: usize) {
        let owned = self.owners.entry(owner.clone()).or_default();
        self.by_weight.remove(&(owned.weight, owner.clone()));
        owned.weight += weight;
        owned.by_use.insert(used, key);
        self.by_weight.insert((owned.weight, owner));
    }

    /// Removes a claim from an owner.
    fn release(&mut self, owner: &O, used: u64, weight: usize) {
        let Some(owned) = self.owners.get_mut(owner) else { return };
        self.by_weight.remove(&(owned.weight, owner.clone()));
        owned.weight -= weight;
        owned.by_use.remove(&used);
        if owned.by_use.is_empty() {
            self.owners.remove(owner);
        } else {
            self.by_weight.insert((owned.weight, owner.clone()));
        }
    }

    /// Removes an entry with all claims to it.
    fn detach(&mut self, key: &K) -> Option<FairEntry<O, V>> {
        let entry = self.entries.remove(key)?;
        self.weight -= entry.weight + entry.claims.len().saturating_sub(1) * (self.claim)(key);
        for (owner, used) in &entry.claims {
            self.release(owner, *used, entry.weight);
        }
        Some(entry)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn filled() -> Fair<&'static str, String, usize> {
        let mut map = Fair::new(100);
        (0..20).for_each(|number| map.insert("honest", format!("honest {number}"), 1, number));
        (0..10_000).for_each(|number| map.insert("greedy", format!("greedy {number}"), 1, number));
        map
    }

    #[test]
    fn client_that_fills_the_cache_evicts_its_own_oldest() {
        let map = filled();
        assert_eq!(map.size(), (100, 100));
        assert!((0..20).all(|number| map.get(&format!("honest {number}")) == Some(&number)));
        let left = (0..10_000).filter(|number| map.get(&format!("greedy {number}")).is_some());
        assert_eq!(left.collect::<Vec<_>>(), (9_920..10_000).collect::<Vec<_>>(), "of the greedy the newest");
        assert_eq!((map.owners.len(), map.by_weight.len()), (2, 2));
    }

    /// This holds for either order of insertion, and for owners of any size.
    #[test]
    fn shared_entry_stays_for_every_user() {
        let key = |number: usize| format!("honest {number}");
        for (honest_first, honest_again) in [(true, false), (true, true), (false, true)] {
            let mut map = Fair::new(200);
            let owners = if honest_first { ["honest", "greedy"] } else { ["greedy", "honest"] };
            (0..40).for_each(|number| map.insert(owners[0], key(number), 1, number));
            (0..40).for_each(|number| map.touch(&key(number), &owners[1]));
            for number in 0..10_000 {
                map.insert("greedy", format!("greedy {number}"), 1, number);
                if honest_again && number % 100 == 0 {
                    (0..40).for_each(|number| map.touch(&key(number), &"honest"));
                }
            }
            let left = (0..40).filter(|number| map.get(&key(*number)) == Some(number)).count();
            assert_eq!((left, map.size()), (40, (200, 200)), "{honest_first} {honest_again}");
            // Nor are they evicted when the other owner rewrites them and fills the map again.
            (0..40).for_each(|number| map.insert("greedy", key(number), 1, 7));
            (0..10_000).for_each(|number| map.insert("greedy", format!("again {number}"), 1, number));
            assert!((0..40).all(|number| map.get(&key(number)) == Some(&7)), "{honest_first} {honest_again}");
        }
    }

    #[test]
    fn entry_is_removed_with_its_last_claim_and_claims_count() {
        let mut map = Fair::with_claims(100, |_| 2);
        map.insert(0, "common", 10, ());
        (1..40).for_each(|user| map.touch(&"common", &user));
        assert_eq!((map.size(), map.owners.len()), ((1, 88), 40));
        map.insert(99, "large", 50, ());
        assert_eq!(map.size(), (1, 88), "no other has more than the newcomer");
        (100..200).for_each(|user| map.touch(&"common", &user));
        assert!(map.size() == (1, 100) && map.get(&"common").is_some());
        assert_eq!(map.remove(&"common"), Some(()));
        assert_eq!((map.size(), map.owners.len(), map.by_weight.len()), ((0, 0), 0, 0));
    }

    proptest! {
        /// After any steps, the counters match the entries, and no owner below an equal part loses anything.
        #[test]
        fn client_below_an_equal_part_loses_nothing(
            steps in prop::collection::vec((0_u8..4, 0_u8..40, 4_usize..9, any::<bool>()), 0..300),
        ) {
            const MAX: usize = 200;
            let mut map = Fair::with_claims(MAX, |_| 1);
            let has = |map: &Fair<u8, u8, ()>, owner| -> BTreeSet<u8> {
                map.owners.get(&owner).map(|owned| owned.by_use.values().copied().collect()).unwrap_or_default()
            };
            for (owner, key, weight, inserts) in steps {
                let before: Vec<_> = (0..4).map(|owner| has(&map, owner)).collect();
                if inserts { map.insert(owner, key, weight, ()) } else { map.touch(&key, &owner) }
                let weigh = |entry: &FairEntry<u8, ()>| entry.weight + entry.claims.len() - 1;
                prop_assert_eq!(map.weight, map.entries.values().map(weigh).sum::<usize>());
                prop_assert!(map.weight <= MAX && map.entries.values().all(|entry| !entry.claims.is_empty()));
                let claims: usize = map.entries.values().map(|entry| entry.claims.len()).sum();
                prop_assert_eq!(claims, map.owners.values().map(|owned| owned.by_use.len()).sum::<usize>());
                prop_assert_eq!(map.owners.len(), map.by_weight.len());
                for (owner, before) in (0_u8..).zip(&before) {
                    let now = has(&map, owner);
                    // No entry weighs more than 8, the new one included.
                    let is_heavy = (before.len() + 1) * 8 > MAX / 4;
                    prop_assert!(is_heavy || before.is_subset(&now), "{owner}: {before:?} {now:?}");
                }
            }
        }
    }

    #[test]
    fn removed_entries_leave_nothing() {
        let mut map = filled();
        for number in 0..20 {
            assert_eq!(map.remove(&format!("honest {number}")), Some(number));
        }
        assert_eq!(map.size(), (80, 80));
        map.insert("huge", "huge".to_owned(), 101, 0);
        assert_eq!(map.get("huge"), None);
        let all: Vec<_> = map.iter().map(|(key, _)| key.clone()).collect();
        assert_eq!(all.len(), 80, "an entry that does not fit drops no other");
        assert!(all.iter().all(|key| map.remove(key).is_some()));
        assert_eq!((map.size(), map.owners.len(), map.by_weight.len()), ((0, 0), 0, 0));
    }
}
