//! A map that has a bound and belongs to many: when it is full, what is removed is the oldest entry of the owner that has most.
//! So whoever fills it pushes out its own entries, and an owner with less than an equal part loses nothing.

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;

/// See the module. `O` names owners, `K` entries.
#[derive(Debug)]
pub(crate) struct Fair<O, K, V> {
    max: usize,
    weight: usize,
    /// Counts the uses, which is the order in which an owner's entries go.
    uses: u64,
    entries: HashMap<K, Entry<O, V>>,
    /// Owners that have something.
    owners: HashMap<O, Owned<K>>,
    by_weight: BTreeSet<(usize, O)>,
}

#[derive(Debug)]
struct Entry<O, V> {
    owner: O,
    weight: usize,
    used: u64,
    value: V,
}

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
    /// A map whose entries weigh so much together, at most.
    pub(crate) fn new(max: usize) -> Self {
        let (entries, owners, by_weight) = Default::default();
        Self { max, weight: 0, uses: 0, entries, owners, by_weight }
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

    /// Puts an entry in the place of the one with its key, as the newest of its owner: as in [`Self::touch`] of the one who has
    /// less, where the old one was somebody else's. One that is heavier than all that fits is not kept.
    pub(crate) fn insert(&mut self, owner: O, key: K, weight: usize, value: V) {
        let former = self.detach(&key).map(|entry| entry.owner);
        let owner = former.filter(|former| self.weight_of(former) < self.weight_of(&owner)).unwrap_or(owner);
        self.attach(key, Entry { owner, weight, used: 0, value });
        while self.weight > self.max
            && let Some((_, heaviest)) = self.by_weight.last()
        {
            let oldest = self.owners.get(heaviest).and_then(|owned| owned.by_use.values().next()).cloned();
            let Some(oldest) = oldest else { return };
            self.remove(&oldest);
        }
    }

    /// Somebody uses an entry, which is the newest of its owner by that. Where several do it belongs to the one of them who has
    /// less, so that nobody makes somebody else's entry go by filling a share that it is counted in.
    pub(crate) fn touch(&mut self, key: &K, user: &O) {
        let Some(entry) = self.entries.get(key) else { return };
        let moves = self.weight_of(user) < self.weight_of(&entry.owner);
        let Some(mut entry) = self.detach(key) else { return };
        if moves {
            entry.owner = user.clone();
        }
        self.attach(key.clone(), entry);
    }

    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        self.detach(key).map(|entry| entry.value)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.entries.iter().map(|(key, entry)| (key, &entry.value))
    }

    /// How many entries there are, and what they weigh.
    #[cfg(test)]
    pub(crate) fn size(&self) -> (usize, usize) {
        (self.entries.len(), self.weight)
    }

    fn weight_of(&self, owner: &O) -> usize {
        self.owners.get(owner).map_or(0, |owned| owned.weight)
    }

    fn attach(&mut self, key: K, mut entry: Entry<O, V>) {
        self.uses += 1;
        entry.used = self.uses;
        self.weight += entry.weight;
        let owned = self.owners.entry(entry.owner.clone()).or_default();
        self.by_weight.remove(&(owned.weight, entry.owner.clone()));
        owned.weight += entry.weight;
        owned.by_use.insert(entry.used, key.clone());
        self.by_weight.insert((owned.weight, entry.owner.clone()));
        self.entries.insert(key, entry);
    }

    fn detach(&mut self, key: &K) -> Option<Entry<O, V>> {
        let entry = self.entries.remove(key)?;
        self.weight -= entry.weight;
        if let Some(owned) = self.owners.get_mut(&entry.owner) {
            self.by_weight.remove(&(owned.weight, entry.owner.clone()));
            owned.weight -= entry.weight;
            owned.by_use.remove(&entry.used);
            if owned.by_use.is_empty() {
                self.owners.remove(&entry.owner);
            } else {
                self.by_weight.insert((owned.weight, entry.owner.clone()));
            }
        }
        Some(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled() -> Fair<&'static str, String, usize> {
        let mut map = Fair::new(100);
        (0..20).for_each(|number| map.insert("honest", format!("honest {number}"), 1, number));
        (0..10_000).for_each(|number| map.insert("greedy", format!("greedy {number}"), 1, number));
        map
    }

    #[test]
    fn whoever_fills_it_pushes_out_its_own_oldest() {
        let map = filled();
        assert_eq!(map.size(), (100, 100));
        assert!((0..20).all(|number| map.get(&format!("honest {number}")) == Some(&number)));
        let left = (0..10_000).filter(|number| map.get(&format!("greedy {number}")).is_some());
        assert_eq!(left.collect::<Vec<_>>(), (9_920..10_000).collect::<Vec<_>>(), "of the greedy the newest");
        assert_eq!((map.owners.len(), map.by_weight.len()), (2, 2));
    }

    #[test]
    fn what_several_use_counts_for_the_one_who_has_less() {
        let mut map = Fair::new(100);
        map.insert("greedy", "common".to_owned(), 1, 0);
        (0..50).for_each(|number| map.insert("greedy", format!("greedy {number}"), 1, number));
        map.touch(&"common".to_owned(), &"honest");
        (50..1_000).for_each(|number| map.insert("greedy", format!("greedy {number}"), 1, number));
        assert_eq!(map.get("common"), Some(&0));
        map.touch(&"common".to_owned(), &"greedy");
        (1_000..2_000).for_each(|number| map.insert("greedy", format!("greedy {number}"), 1, number));
        assert_eq!(map.get("common"), Some(&0), "it is not taken back");
        map.insert("greedy", "common".to_owned(), 1, 7);
        (2_000..3_000).for_each(|number| map.insert("greedy", format!("greedy {number}"), 1, number));
        assert_eq!(map.get("common"), Some(&7), "nor by writing it anew");
    }

    #[test]
    fn nothing_is_left_of_what_goes() {
        let mut map = filled();
        for number in 0..20 {
            assert_eq!(map.remove(&format!("honest {number}")), Some(number));
        }
        assert_eq!(map.size(), (80, 80));
        map.insert("huge", "huge".to_owned(), 101, 0);
        assert_eq!(map.get("huge"), None);
        let all: Vec<_> = map.iter().map(|(key, _)| key.clone()).collect();
        assert_eq!(all.len(), 80, "what does not fit takes nothing with it");
        assert!(all.iter().all(|key| map.remove(key).is_some()));
        assert_eq!((map.size(), map.owners.len(), map.by_weight.len()), ((0, 0), 0, 0));
    }
}
