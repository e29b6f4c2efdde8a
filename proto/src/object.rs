//! Objects as the protocol sees them: an identity, a version and opaque JSON bytes.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::hashing::hash_of;
use crate::ids::{CloudRevision, Uid};
use crate::limits;
use crate::message::Content;

/// Group, version and plural name of a kind, for example `apps`/`v1`/`deployments`. The core group is empty. Cheap to
/// clone and the size of a pointer, because the key of every object has one.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Resource(Arc<ResourceParts>);

/// The texts of a [`Resource`].
#[derive(PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ResourceParts {
    /// API group; empty for core.
    pub group: Arc<str>,
    /// API version, for example `v1`.
    pub version: Arc<str>,
    /// Plural, lower-case resource name.
    pub name: Arc<str>,
}

impl Resource {
    /// Puts a resource together.
    #[must_use]
    pub fn new(group: &str, version: &str, name: &str) -> Self {
        Self(Arc::new(ResourceParts { group: group.into(), version: version.into(), name: name.into() }))
    }
}

impl Deref for Resource {
    type Target = ResourceParts;

    fn deref(&self) -> &ResourceParts {
        &self.0
    }
}

impl fmt::Debug for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.group {
            "" => write!(f, "{}/{}", self.version, self.name),
            group => write!(f, "{group}/{}/{}", self.version, self.name),
        }
    }
}

/// Namespace and name are stored as one text: there is a key for every object, and each separate text costs an
/// allocation.
#[derive(PartialEq, Eq, Hash)]
struct KeyParts {
    resource: Resource,
    namespace_len: usize,
    text: Box<str>,
}

impl KeyParts {
    fn namespace_and_name(&self) -> (&str, &str) {
        // The length is that of a prefix of this text.
        self.text.split_at_checked(self.namespace_len).unwrap_or_default()
    }
}

impl Ord for KeyParts {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_resource = self.resource.cmp(&other.resource);
        by_resource.then_with(|| self.namespace_and_name().cmp(&other.namespace_and_name()))
    }
}

impl PartialOrd for KeyParts {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

struct HashedParts {
    parts: KeyParts,
    hash: u64,
}

/// Identifies an object: resource, namespace and name. Cheap to clone, to look up and to compare with its own clones:
/// the texts are hashed once.
#[derive(Clone)]
pub struct ObjectKey(Arc<HashedParts>);

impl ObjectKey {
    /// Puts a key together; `namespace` is empty for cluster-scoped objects.
    #[must_use]
    pub fn new(resource: Resource, namespace: &str, name: &str) -> Self {
        let text = [namespace, name].concat().into_boxed_str();
        let parts = KeyParts { resource, namespace_len: namespace.len(), text };
        let hash = hash_of(&parts);
        Self(Arc::new(HashedParts { parts, hash }))
    }

    /// Group, version and plural.
    #[must_use]
    pub fn resource(&self) -> &Resource {
        &self.0.parts.resource
    }

    /// Namespace; empty for cluster-scoped objects.
    #[must_use]
    pub fn namespace(&self) -> &str {
        self.0.parts.namespace_and_name().0
    }

    /// Object name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.parts.namespace_and_name().1
    }

    /// Bytes of namespace and name.
    pub(crate) fn text_len(&self) -> usize {
        self.0.parts.text.len()
    }
}

impl PartialEq for ObjectKey {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || (self.0.hash == other.0.hash && self.0.parts == other.0.parts)
    }
}

impl Eq for ObjectKey {}

impl Hash for ObjectKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.0.hash);
    }
}

impl Ord for ObjectKey {
    fn cmp(&self, other: &Self) -> Ordering {
        if Arc::ptr_eq(&self.0, &other.0) { Ordering::Equal } else { self.0.parts.cmp(&other.0.parts) }
    }
}

impl PartialOrd for ObjectKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// A map by key. A lookup hashes no text, and compares none with a clone of the same key.
pub type KeyMap<V> = HashMap<ObjectKey, V, KeyHashes>;

/// Builds [`KeyHasher`]s.
pub type KeyHashes = BuildHasherDefault<KeyHasher>;

/// Passes on the hash of an [`ObjectKey`], which was already made from its texts and a secret of this process.
#[derive(Debug, Default, Clone, Copy)]
pub struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

impl fmt::Debug for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.namespace() {
            "" => write!(f, "{}/{}", self.resource(), self.name()),
            namespace => write!(f, "{}/{namespace}/{}", self.resource(), self.name()),
        }
    }
}

/// Start of the SHA-256 of an object's trimmed JSON without `metadata.resourceVersion`: compared across two epochs. It
/// has 128 bits, so that a user who writes an object twice cannot find two texts with one hash: the edge would keep
/// the first.
///
/// Older versions have only the lower half; their upper half is 0. Packed, because every node pays for the versions
/// that it holds: an alignment of sixteen would cost sixteen bytes more in each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(Rust, packed(8))]
pub struct ContentHash(pub u128);

impl ContentHash {
    /// A hash from its two halves.
    #[must_use]
    pub fn of_halves(lower: u64, upper: u64) -> Self {
        Self(u128::from(upper) << 64 | u128::from(lower))
    }

    /// Lower and upper half; the upper half is 0 in hashes of older versions.
    #[must_use]
    pub fn halves(self) -> (u64, u64) {
        let half = |bits: u128| u64::try_from(bits & u128::from(u64::MAX)).unwrap_or_default();
        (half(self.0), half(self.0 >> 64))
    }

    /// Whether a peer that reports `reported` may mean this hash: an older peer reports only the lower half.
    #[must_use]
    pub fn is_meant_by(self, reported: Self) -> bool {
        let (lower, upper) = reported.halves();
        self == reported || (upper == 0 && lower == self.halves().0)
    }
}

/// Which version of an object: its incarnation, its position in the cloud's history, and its content.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ObjectVersion {
    /// Incarnation.
    pub uid: Uid,
    /// Position in the cloud's history, within one epoch.
    pub revision: CloudRevision,
    /// Content, comparable across epochs.
    pub hash: ContentHash,
}

impl ObjectVersion {
    /// Whether this and another version of one history are the same. A revision has one content, and its hash only
    /// shows which trimming rules made it, so the half that older versions have is enough.
    #[must_use]
    pub fn is_same_place(&self, other: &Self) -> bool {
        (&self.uid, self.revision, self.hash.halves().0)
            == (&other.uid, other.revision, other.hash.halves().0)
    }
}

/// What a store holds under a key.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum HeldState {
    /// An object.
    Present(ObjectVersion),
    /// The cloud has no such object, and the edge knows: a pod may need to know (docs/protocol.md#lanes).
    Absent,
    /// The cloud cannot read the object, and the edge knows; nothing of the object is held.
    Unreadable,
}

/// One line of an inventory.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct InventoryEntry {
    /// Which object.
    pub key: ObjectKey,
    /// What is held under the key.
    pub held: HeldState,
}

/// One version of one object, trimmed and encoded once, shared by every node that needs it.
#[derive(Debug)]
pub struct SharedObject {
    /// Which object.
    pub key: ObjectKey,
    /// Which version.
    pub version: ObjectVersion,
    /// The oldest revision of this incarnation whose content is known to be the same for an edge: an edge that holds
    /// it, or anything newer, needs no delivery. This version's own revision unless the owner of the view knows more.
    pub same_since: CloudRevision,
    /// Trimmed JSON.
    pub body: Bytes,
    /// Objects without which this one must stay invisible at the edge (a pod's references).
    pub dependencies: Vec<ObjectKey>,
    compressed: OnceLock<Option<Bytes>>,
    revision_place: OnceLock<Option<RevisionPlace>>,
    delivery_head: OnceLock<Bytes>,
    obstacle: OnceLock<Option<Box<str>>>,
    kubeedge_update: OnceLock<Option<Bytes>>,
}

/// Position for `metadata.resourceVersion` in a body that has none.
#[derive(Debug, Clone, Copy)]
struct RevisionPlace {
    offset: usize,
    /// Whether other members follow.
    comma: bool,
}

#[derive(Deserialize)]
struct WithMetadata<'a> {
    #[serde(borrow)]
    metadata: &'a RawValue,
}

impl RevisionPlace {
    fn find(body: &[u8]) -> Option<Self> {
        // A JSON array would also deserialize, as the members in order.
        let object: WithMetadata<'_> =
            body.starts_with(b"{").then(|| serde_json::from_slice(body).ok())??;
        let members = object.metadata.get().strip_prefix('{')?;
        let offset = (members.as_ptr() as usize).checked_sub(body.as_ptr() as usize)?;
        Some(Self { offset, comma: !members.trim_start().starts_with('}') })
    }
}

impl SharedObject {
    /// Wraps trimmed JSON for delivery.
    #[must_use]
    pub fn new(key: ObjectKey, version: ObjectVersion, body: Bytes, dependencies: Vec<ObjectKey>) -> Self {
        let (compressed, revision_place, delivery_head, obstacle, kubeedge_update) = Default::default();
        let same_since = version.revision;
        Self {
            key,
            version,
            same_since,
            body,
            dependencies,
            compressed,
            revision_place,
            delivery_head,
            obstacle,
            kubeedge_update,
        }
    }

    /// The same object for an edge that receives none of the dependencies. Its content hash differs, so that it
    /// replaces the version that waits for them.
    #[must_use]
    pub fn without_dependencies(&self) -> Self {
        let version = ObjectVersion { hash: ContentHash(!self.version.hash.0), ..self.version.clone() };
        let object = Self::new(self.key.clone(), version, self.body.clone(), Vec::new());
        Self { same_since: self.same_since, ..object }
    }

    /// The body with `metadata.resourceVersion`, for readers without the envelope; `None` when the body is no JSON
    /// object with metadata. The JSON is parsed at most once; every later call copies.
    #[must_use]
    pub fn with_revision(&self) -> Option<Content> {
        let (head, member, tail) = self.revision_parts()?;
        Some(Content::from_checked([&*head, member.as_bytes(), &*tail].concat().into()))
    }

    /// Whether the body has a position for its version.
    pub(crate) fn has_revision_place(&self) -> bool {
        self.revision_place().is_some()
    }

    fn revision_place(&self) -> Option<RevisionPlace> {
        *self.revision_place.get_or_init(|| RevisionPlace::find(&self.body))
    }

    /// The body with its version in three pieces, of which the first and the last share the body.
    pub(crate) fn revision_parts(&self) -> Option<(Bytes, String, Bytes)> {
        let RevisionPlace { offset, comma } = self.revision_place()?;
        let separator = if comma { "," } else { "" };
        let member = format!("\"resourceVersion\":\"{}\"{separator}", self.version.revision);
        Some((self.body.slice(..offset), member, self.body.slice(offset..)))
    }

    /// Why an edge could not read a delivery of this object. `find` is called once and its answer cached.
    pub(crate) fn obstacle(&self, find: impl FnOnce() -> Option<String>) -> Option<&str> {
        self.obstacle.get_or_init(|| find().map(String::into_boxed_str)).as_deref()
    }

    /// The part of a delivery's encoding that is the same for every node. `encode` is called once and its result
    /// cached.
    pub(crate) fn delivery_head(&self, encode: impl FnOnce() -> Bytes) -> &Bytes {
        self.delivery_head.get_or_init(encode)
    }

    /// The same for an update in dialect `kubeedge`: the bytes between its time and its content. None when `encode`
    /// found nothing that all nodes could share.
    pub(crate) fn kubeedge_update(&self, encode: impl FnOnce() -> Option<Bytes>) -> Option<&Bytes> {
        self.kubeedge_update.get_or_init(encode).as_ref()
    }

    /// The body as one zstd frame, made at most once; `None` when the body is small or does not shrink.
    #[must_use]
    pub fn compressed(&self) -> Option<&Bytes> {
        let compress = || {
            if self.body.len() < limits::COMPRESS_MIN {
                return None;
            }
            let packed = zstd::bulk::compress(&self.body, 3).ok()?;
            (packed.len() < self.body.len()).then(|| packed.into())
        };
        self.compressed.get_or_init(compress).as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(body: &'static str) -> SharedObject {
        let key = ObjectKey::new(Resource::new("", "v1", "configmaps"), "d", "c");
        let uid = Uid::parse("u").expect("a UID");
        let version = ObjectVersion { uid, revision: CloudRevision(7), hash: ContentHash(1) };
        SharedObject::new(key, version, Bytes::from_static(body.as_bytes()), Vec::new())
    }

    #[test]
    fn keys_are_ordered_by_namespace_then_name() {
        let key = |namespace: &str, name: &str| {
            let key = ObjectKey::new(Resource::new("", "v1", "things"), namespace, name);
            assert_eq!((key.namespace(), key.name()), (namespace, name));
            key
        };
        // All but the last have the same concatenated text and differ only in where the namespace ends.
        let ordered = [key("", "abc"), key("a", "bc"), key("ab", "c"), key("abc", ""), key("é", "a")];
        assert!(ordered.is_sorted());
        assert!(ordered.windows(2).all(|pair| pair[0] != pair[1]));
    }

    #[test]
    fn keys_compare_by_their_texts() {
        let key = |group: &str, name: &str| ObjectKey::new(Resource::new(group, "v1", "things"), "d", name);
        let hash = |key: &ObjectKey| hash_of(key);
        assert_eq!(key("", "a"), key("", "a"));
        assert_eq!(hash(&key("", "a")), hash(&key("", "a")));
        assert_ne!(key("", "a"), key("", "b"));
        assert_ne!(key("", "a"), key("x", "a"));
        assert!(key("", "a") < key("", "b") && key("", "b") < key("x", "a"));
    }

    #[test]
    fn revision_is_inserted_and_nothing_else_changes() {
        for (body, expected) in [
            (
                r#"{"data":{"metadata":"{"},"metadata":{"name":"c"},"z":1.50}"#,
                r#"{"data":{"metadata":"{"},"metadata":{"resourceVersion":"7","name":"c"},"z":1.50}"#,
            ),
            (r#"{"metadata":{ }}"#, r#"{"metadata":{"resourceVersion":"7" }}"#),
        ] {
            let object = object(body);
            for _ in 0..2 {
                assert_eq!(object.with_revision().expect(body).as_json(), expected);
            }
        }
    }

    #[test]
    fn body_without_metadata_gets_no_revision() {
        for body in ["", "[]", "{}", r#"[{"metadata":{}}]"#, r#"{"metadata":7}"#, r#"{"metadata":{}"#] {
            assert!(object(body).with_revision().is_none(), "{body}");
        }
    }
}
