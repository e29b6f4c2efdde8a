//! The versions that nodes have written themselves and that the watches may not have shown yet.

use dashmap::DashMap;
use tombolo_proto::object::KeyHashes;
use tombolo_proto::{CloudRevision, ObjectKey};

/// Versions in memory. With more all are forgotten: each costs a write that is refused once and sent again.
const WRITTEN_MAX: usize = 16_384;

/// Newest versions by object.
#[derive(Debug, Default)]
pub(super) struct Written(DashMap<ObjectKey, CloudRevision, KeyHashes>);

impl Written {
    /// The API server has told of this version.
    pub(super) fn note(&self, key: &ObjectKey, revision: CloudRevision) {
        if self.0.len() >= WRITTEN_MAX && !self.0.contains_key(key) {
            self.0.clear();
        }
        self.0.insert(key.clone(), revision);
    }

    /// The newest version that is known, which is forgotten here once the watches have shown it.
    pub(super) fn newest(&self, key: &ObjectKey, watched: Option<CloudRevision>) -> Option<CloudRevision> {
        let written = self.0.get(key).map(|revision| *revision);
        if written.is_some() && written <= watched {
            self.0.remove(key);
            return watched;
        }
        written.or(watched)
    }

    pub(super) fn clear(&self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use tombolo_proto::Resource;

    use super::*;

    fn key(name: &str) -> ObjectKey {
        ObjectKey::new(Resource::new("", "v1", "pods"), "d", name)
    }

    #[test]
    fn the_newest_of_both_counts_and_what_the_watches_show_is_forgotten() {
        let (written, at) = (Written::default(), |revision| Some(CloudRevision(revision)));
        assert_eq!((written.newest(&key("a"), None), written.newest(&key("a"), at(3))), (None, at(3)));
        written.note(&key("a"), CloudRevision(5));
        assert_eq!((written.newest(&key("a"), at(3)), written.newest(&key("a"), None)), (at(5), at(5)));
        assert_eq!((written.newest(&key("a"), at(6)), written.0.len()), (at(6), 0));
    }

    #[test]
    fn no_more_is_kept_than_the_bound() {
        let written = Written::default();
        for number in 0..2 * WRITTEN_MAX {
            written.note(&key(&number.to_string()), CloudRevision(1));
            assert!(written.0.len() <= WRITTEN_MAX);
        }
    }
}
