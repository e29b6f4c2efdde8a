//! Order-independent digest of an inventory (design 9.10): equal digests spare the list.

use sha2::{Digest as _, Sha256};
use xxhash_rust::xxh3::Xxh3;

use crate::object::{ContentHash, Held, InventoryEntry, ObjectKey};

/// Seed of the digest's hash: changing the framing below needs another one.
const SEED: u64 = 0x746f_6d62_6f6c_6f01;

/// Digest and number of entries of an inventory, in whatever order they come.
///
/// The digest is the wrapping sum of the entries' 128-bit XXH3 hashes. It tells two honest stores apart; it is no
/// proof against a peer that looks for collisions, and need not be: an edge that lies about what it holds harms
/// only itself.
#[must_use]
pub fn digest<'a>(entries: impl IntoIterator<Item = &'a InventoryEntry>) -> ([u8; 16], u64) {
    let mut running = RunningDigest::default();
    for entry in entries {
        running.add(&entry.key, &entry.held);
    }
    running.finish()
}

/// A digest that follows its inventory: entries are added and taken out in any order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RunningDigest {
    sum: u128,
    count: u64,
}

impl RunningDigest {
    /// Takes an entry in.
    pub fn add(&mut self, key: &ObjectKey, held: &Held) {
        self.sum = self.sum.wrapping_add(entry_hash(key, held));
        self.count = self.count.wrapping_add(1);
    }

    /// Takes out an entry that was added before.
    pub fn remove(&mut self, key: &ObjectKey, held: &Held) {
        self.sum = self.sum.wrapping_sub(entry_hash(key, held));
        self.count = self.count.wrapping_sub(1);
    }

    /// Digest and number of entries.
    #[must_use]
    pub fn finish(self) -> ([u8; 16], u64) {
        (self.sum.to_be_bytes(), self.count)
    }
}

/// Each text is preceded by its length, so that no two entries give the same bytes. The content hash stays out:
/// within one epoch the revision says it all, and across epochs inventories are exchanged in full.
fn entry_hash(key: &ObjectKey, held: &Held) -> u128 {
    let mut hasher = Xxh3::with_seed(SEED);
    let mut text = |text: &str| {
        hasher.update(&u64::try_from(text.len()).unwrap_or(u64::MAX).to_le_bytes());
        hasher.update(text.as_bytes());
    };
    let resource = key.resource();
    [&*resource.group, &*resource.version, &*resource.name, key.namespace(), key.name()]
        .into_iter()
        .for_each(&mut text);
    match held {
        Held::Present(version) => {
            text(version.uid.as_str());
            hasher.update(&[1]);
            hasher.update(&version.revision.0.to_le_bytes());
        }
        Held::Absent => hasher.update(&[0]),
        Held::Unreadable => hasher.update(&[2]),
    }
    hasher.digest128()
}

/// Hash of an object's trimmed JSON. The caller has taken `metadata.resourceVersion` out: the hash must be the same
/// in two epochs of one cluster. An object can have several writers, and a version of equal hash is not sent: so it is one
/// of which nobody can make another text with a given value.
#[must_use]
pub fn content_hash(body_without_resource_version: &[u8]) -> ContentHash {
    let mut hasher = ContentHasher::default();
    hasher.update(body_without_resource_version);
    hasher.finish()
}

/// [`content_hash`] of a text that comes in parts: the start of its SHA-256.
#[derive(Debug, Clone, Default)]
pub struct ContentHasher(Sha256);

impl ContentHasher {
    /// Takes the next part.
    pub fn update(&mut self, part: &[u8]) {
        self.0.update(part);
    }

    /// The hash of all parts.
    #[must_use]
    pub fn finish(self) -> ContentHash {
        let mut start = [0; 8];
        start.iter_mut().zip(self.0.finalize()).for_each(|(into, byte)| *into = byte);
        ContentHash(u64::from_be_bytes(start))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ids::{CloudRevision, Uid};
    use crate::object::{ObjectVersion, Resource};

    fn entry(namespace: &str, name: &str, held: Option<(&str, u64)>) -> InventoryEntry {
        let key = ObjectKey::new(Resource::new("", "v1", "configmaps"), namespace, name);
        let held = held.map_or(Held::Absent, |(uid, revision)| {
            Held::Present(ObjectVersion {
                uid: Uid::parse(uid).expect(uid),
                revision: CloudRevision(revision),
                hash: ContentHash(revision),
            })
        });
        InventoryEntry { key, held }
    }

    #[test]
    fn the_digest_is_fixed_for_ever() {
        let entries = [entry("default", "web", Some(("u1", 7))), entry("default", "gone", None)];
        let (digest, count) = digest(&entries);
        assert_eq!((u128::from_be_bytes(digest), count), (GOLDEN, 2));
    }

    /// Stores of two versions compare digests, so this number may never change.
    const GOLDEN: u128 = 21_960_026_724_779_213_891_942_997_095_219_271_447;

    #[test]
    fn moving_a_letter_between_fields_changes_the_digest() {
        assert_ne!(digest(&[entry("ab", "c", None)]), digest(&[entry("a", "bc", None)]));
    }

    #[test]
    fn what_cannot_be_read_is_not_what_is_known_to_be_absent() {
        let absent = entry("default", "web", None);
        let unreadable = InventoryEntry { held: Held::Unreadable, ..absent.clone() };
        assert_ne!(digest(&[absent]), digest(&[unreadable]));
    }

    #[test]
    fn the_hash_of_content_is_fixed_for_ever() {
        assert_eq!(content_hash(b"{}"), ContentHash(4_905_387_166_444_775_306));
    }

    fn entries() -> impl Strategy<Value = Vec<InventoryEntry>> {
        let one = ("[a-c]{1,2}", "[a-c]{1,3}", proptest::option::of(("[a-c]{1,2}", 0u64..4)));
        proptest::collection::vec(one, 0..20).prop_map(|list| {
            let unique: std::collections::BTreeMap<_, _> =
                list.into_iter().map(|(namespace, name, held)| ((namespace, name), held)).collect();
            unique
                .into_iter()
                .map(|((namespace, name), held)| {
                    entry(&namespace, &name, held.as_ref().map(|(uid, revision)| (uid.as_str(), *revision)))
                })
                .collect()
        })
    }

    proptest! {
        #[test]
        fn order_does_not_matter(list in entries(), seed in any::<prop::sample::Index>()) {
            let mut turned = list.clone();
            turned.rotate_left(if list.is_empty() { 0 } else { seed.index(list.len()) });
            turned.reverse();
            prop_assert_eq!(digest(&turned), digest(&list));
        }

        #[test]
        fn different_inventories_differ(a in entries(), b in entries()) {
            prop_assert_eq!(digest(&a) == digest(&b), a == b);
        }

        #[test]
        fn a_running_digest_follows(list in entries(), gone in entries()) {
            let mut running = RunningDigest::default();
            gone.iter().chain(&list).for_each(|entry| running.add(&entry.key, &entry.held));
            gone.iter().for_each(|entry| running.remove(&entry.key, &entry.held));
            prop_assert_eq!(running.finish(), digest(&list));
        }
    }
}
