//! Rows of the journal. Their encoding is part of the data directory's format version.

use bytes::Bytes;
use tombolo_apicore::store::{Revision, Stored};
use tombolo_proto::ids::Uid;
use tombolo_proto::object::{ObjectKey, Resource};

/// Separates the parts of a key; no part can contain it.
const SEPARATOR: char = '\0';

/// `group NUL version NUL resource NUL namespace NUL name`.
pub(super) fn key(key: &ObjectKey) -> String {
    let resource = key.resource();
    let parts = [&*resource.group, &*resource.version, &*resource.name, key.namespace(), key.name()];
    parts.join(SEPARATOR.encode_utf8(&mut [0; 4]))
}

/// Revision (8 bytes, big-endian), length of the UID (1 byte), UID, JSON text.
pub(super) fn encode(object: &Stored) -> Vec<u8> {
    let uid = object.uid.as_str().as_bytes();
    let mut row = Vec::with_capacity(9 + uid.len() + object.body_len());
    row.extend_from_slice(&object.revision.0.to_be_bytes());
    // A UID is at most 128 bytes long (proto: UID_LEN_MAX).
    row.push(u8::try_from(uid.len()).unwrap_or(u8::MAX));
    row.extend_from_slice(uid);
    row.extend_from_slice(&object.body());
    row
}

/// The object of a row; `None` when the row is damaged.
pub(super) fn decode(key: &str, row: &[u8]) -> Option<Stored> {
    let mut parts = key.split(SEPARATOR);
    let mut part = || parts.next();
    let resource = Resource::new(part()?, part()?, part()?);
    let key = ObjectKey::new(resource, part()?, part()?);
    let (revision, rest) = row.split_first_chunk::<8>()?;
    let (uid_len, rest) = rest.split_first()?;
    let (uid, body) = rest.split_at_checked(usize::from(*uid_len))?;
    let uid = Uid::parse(std::str::from_utf8(uid).ok()?).ok()?;
    let revision = Revision(u64::from_be_bytes(*revision));
    Some(Stored::new(key, uid, revision, Bytes::copy_from_slice(body)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_reads_back_and_damage_is_detected() {
        let key_ = ObjectKey::new(Resource::new("apps", "v1", "deployments"), "shop", "till");
        let object = Stored::new(key_, Uid::parse("6b1c").unwrap(), Revision(7), Bytes::from_static(b"{}"));
        let (key, row) = (key(&object.key), encode(&object));
        assert_eq!(decode(&key, &row), Some(object));
        assert_eq!(decode("only\0three\0parts", &row), None);
        for len in 0..13 {
            assert_eq!(decode(&key, &row[..len]), None, "{len}");
        }
    }
}
