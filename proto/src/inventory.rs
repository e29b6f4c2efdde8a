//! Order-independent digest of an inventory (docs/protocol.md#reconnecting): when digests are equal, the list is not
//! sent.

use sha2::{Digest as _, Sha256};

use crate::ids::StoreId;
use crate::object::{ContentHash, HeldState, InventoryEntry, ObjectKey};

/// Prefix of the hashed bytes: changing the framing below needs another text.
const FRAMING: &[u8] = b"tombolo inventory 2\n";

/// Digest and number of entries of an inventory, in any order. No two entries have the same key.
///
/// The digest is the first half of a SHA-256 of the store's id and the sorted list. It is one hash of everything, not
/// a sum of hashes, for which collisions can be composed from many entries. Only the edge and its cloud know the id:
/// the users who name the objects cannot compute a digest, so they cannot find two lists with the same one.
#[must_use]
pub fn digest<'a>(store: StoreId, entries: impl IntoIterator<Item = &'a InventoryEntry>) -> ([u8; 16], u64) {
    let mut entries: Vec<_> = entries.into_iter().collect();
    entries.sort_unstable_by(|one, other| texts(&one.key).cmp(&texts(&other.key)));
    let mut hasher = Sha256::new_with_prefix(FRAMING);
    hasher.update(store.0);
    for entry in &entries {
        hash_entry(&mut hasher, entry);
    }
    (start(hasher), u64::try_from(entries.len()).unwrap_or(u64::MAX))
}

/// The texts that name an object. Their order is part of the digest, so it does not depend on the key's own order.
fn texts(key: &ObjectKey) -> [&str; 5] {
    let resource = key.resource();
    [&resource.group, &resource.version, &resource.name, key.namespace(), key.name()]
}

/// Each text is preceded by its length, so that no two entries give the same bytes. The content hash is left out:
/// within one epoch the revision determines the content, and across epochs inventories are exchanged in full.
fn hash_entry(hasher: &mut Sha256, entry: &InventoryEntry) {
    let text = |hasher: &mut Sha256, text: &str| {
        hasher.update(u64::try_from(text.len()).unwrap_or(u64::MAX).to_le_bytes());
        hasher.update(text);
    };
    texts(&entry.key).into_iter().for_each(|part| text(hasher, part));
    match &entry.held {
        HeldState::Present(version) => {
            text(hasher, version.uid.as_str());
            hasher.update([1]);
            hasher.update(version.revision.0.to_le_bytes());
        }
        HeldState::Absent => hasher.update([0]),
        HeldState::Unreadable => hasher.update([2]),
    }
}

/// The first bytes of a finished hash.
fn start<const LENGTH: usize>(hasher: Sha256) -> [u8; LENGTH] {
    let mut start = [0; LENGTH];
    start.iter_mut().zip(hasher.finalize()).for_each(|(into, byte)| *into = byte);
    start
}

/// Hash of an object's trimmed JSON. The caller has removed `metadata.resourceVersion`: the hash must be the same in
/// two epochs of one cluster. An object can have several writers, and a version with an equal hash is not sent, so
/// nobody may be able to construct another text with a given hash.
#[must_use]
pub fn content_hash(body_without_resource_version: &[u8]) -> ContentHash {
    let mut hasher = ContentHasher::default();
    hasher.update(body_without_resource_version);
    hasher.finish()
}

/// [`content_hash`] of a text that arrives in parts: the start of its SHA-256.
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
        let start: [u8; 16] = start(self.0);
        let half = |at: usize| start[at..at + 8].iter().fold(0, |half, byte| half << 8 | u64::from(*byte));
        ContentHash::of_halves(half(0), half(8))
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
        let held = held.map_or(HeldState::Absent, |(uid, revision)| {
            HeldState::Present(ObjectVersion {
                uid: Uid::parse(uid).expect(uid),
                revision: CloudRevision(revision),
                hash: ContentHash(revision.into()),
            })
        });
        InventoryEntry { key, held }
    }

    #[test]
    fn the_digest_is_fixed_for_ever() {
        let entries = [entry("default", "web", Some(("u1", 7))), entry("default", "gone", None)];
        let (digest, count) = digest(STORE, &entries);
        assert_eq!((u128::from_be_bytes(digest), count), (GOLDEN, 2));
    }

    const STORE: StoreId = StoreId([7; 16]);

    /// Peers of two versions compare digests. A changed value makes every large node send its whole list once.
    const GOLDEN: u128 = 292_170_843_390_786_848_176_057_642_634_771_682_559;

    #[test]
    fn equal_lists_of_two_stores_have_different_digests() {
        let list = [entry("default", "web", Some(("u1", 7)))];
        assert_ne!(digest(STORE, &list), digest(StoreId([8; 16]), &list));
    }

    #[test]
    fn moving_a_letter_between_fields_changes_the_digest() {
        assert_ne!(digest(STORE, &[entry("ab", "c", None)]), digest(STORE, &[entry("a", "bc", None)]));
    }

    #[test]
    fn unreadable_and_absent_entries_differ_in_the_digest() {
        let absent = entry("default", "web", None);
        let unreadable = InventoryEntry { held: HeldState::Unreadable, ..absent.clone() };
        assert_ne!(digest(STORE, &[absent]), digest(STORE, &[unreadable]));
    }

    #[test]
    fn the_hash_of_content_is_fixed_for_ever() {
        assert_eq!(content_hash(b"{}"), ContentHash::of_halves(0x4413_6fa3_55b3_678a, 0x1146_ad16_f7e8_649e));
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
            prop_assert_eq!(digest(STORE, &turned), digest(STORE, &list));
        }

        #[test]
        fn different_inventories_differ(a in entries(), b in entries()) {
            prop_assert_eq!(digest(STORE, &a) == digest(STORE, &b), a == b);
        }
    }
}
