//! Parts that several frames share, converted between their Rust and protobuf forms.

use std::time::Duration;

use bytes::Bytes;
use uuid::Uuid;

use super::{CodecError, wire};
use crate::error::IdError;
use crate::frame::Inventory;
use crate::ids::{self, CloudRevision, Epoch, Lane};
use crate::limits;
use crate::object::{ContentHash, HeldState, InventoryEntry, ObjectKey, ObjectVersion, Resource};

pub(super) fn write_millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

pub(super) fn write_uid(uid: &ids::Uid) -> (Bytes, String) {
    let text = uid.as_str();
    if let Ok(uuid) = Uuid::try_parse(text)
        && uuid.hyphenated().encode_lower(&mut Uuid::encode_buffer()) == text
    {
        return (Bytes::copy_from_slice(uuid.as_bytes()), String::new());
    }
    (Bytes::new(), text.to_owned())
}

pub(super) fn read_uid(field: &'static str, uuid: &[u8], text: &str) -> Result<ids::Uid, CodecError> {
    let parse = |text: &str| ids::Uid::parse(text).map_err(|source| CodecError::Id { field, source });
    if uuid.is_empty() {
        return parse(text);
    }
    let bits = sixteen(field, uuid)?;
    parse(Uuid::from_bytes(bits).hyphenated().encode_lower(&mut Uuid::encode_buffer()))
}

pub(super) fn sixteen(field: &'static str, bytes: &[u8]) -> Result<[u8; 16], CodecError> {
    let value = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
    bytes.try_into().map_err(|_| CodecError::Value { field, value, rule: "16 bytes" })
}

pub(super) fn write_epoch(epoch: &Epoch) -> wire::Epoch {
    let (uuid, text) = write_uid(&epoch.cluster);
    wire::Epoch { cluster: Some(wire::Uid { uuid, text }), generation: epoch.generation }
}

pub(super) fn read_epoch(epoch: wire::Epoch) -> Result<Epoch, CodecError> {
    let cluster = epoch.cluster.ok_or(CodecError::Missing { field: "epoch.cluster" })?;
    let cluster = read_uid("epoch.cluster", &cluster.uuid, &cluster.text)?;
    Ok(Epoch { cluster, generation: epoch.generation })
}

pub(super) fn write_key(key: &ObjectKey) -> wire::ObjectKey {
    let resource = key.resource();
    wire::ObjectKey {
        group: resource.group.to_string(),
        version: resource.version.to_string(),
        resource: resource.name.to_string(),
        namespace: key.namespace().to_owned(),
        name: key.name().to_owned(),
    }
}

pub(super) fn read_key(key: Option<wire::ObjectKey>) -> Result<ObjectKey, CodecError> {
    let key = key.ok_or(CodecError::Missing { field: "object key" })?;
    let resource = Resource::new(&key.group, &key.version, &key.resource);
    let key = ObjectKey::new(resource, &key.namespace, &key.name);
    check_key(&key)?;
    Ok(key)
}

/// The rules for keys, in both directions: a key that breaks them is never sent.
pub(super) fn check_key(key: &ObjectKey) -> Result<(), CodecError> {
    let resource = key.resource();
    check_resource(&resource.group, &resource.version, &resource.name)?;
    segment("object namespace", key.namespace())?;
    segment("object name", key.name())?;
    if key.name().is_empty() {
        return Err(CodecError::Missing { field: "object name" });
    }
    Ok(())
}

pub(super) fn read_resource(group: &str, version: &str, name: &str) -> Result<Resource, CodecError> {
    check_resource(group, version, name)?;
    Ok(Resource::new(group, version, name))
}

fn check_resource(group: &str, version: &str, name: &str) -> Result<(), CodecError> {
    segment("resource group", group)?;
    segment("resource version", version)?;
    segment("resource name", name)?;
    if version.is_empty() || name.is_empty() {
        return Err(CodecError::Missing { field: "resource version and name" });
    }
    Ok(())
}

/// Parts of keys become parts of paths and of store keys: text that could break out of one is refused here.
pub(super) fn segment(field: &'static str, text: &str) -> Result<(), CodecError> {
    let bad = |c: char| c == '/' || c == '%' || c.is_control();
    if text.len() > ids::NAME_LEN_MAX || text.contains(bad) || text == "." || text == ".." {
        let rule = "must be at most 253 bytes without '/', '%' and control characters";
        return Err(CodecError::Id { field, source: IdError::new("path segment", text, rule) });
    }
    Ok(())
}

pub(super) fn write_version(version: &ObjectVersion) -> wire::ObjectVersion {
    let (uuid, uid) = write_uid(&version.uid);
    let (hash, hash_upper) = version.hash.halves();
    wire::ObjectVersion { uuid, uid, revision: version.revision.0, hash, hash_upper }
}

pub(super) fn read_version(version: &wire::ObjectVersion) -> Result<ObjectVersion, CodecError> {
    Ok(ObjectVersion {
        uid: read_uid("object uid", &version.uuid, &version.uid)?,
        revision: CloudRevision(version.revision),
        hash: ContentHash::of_halves(version.hash, version.hash_upper),
    })
}

pub(super) fn write_entries(entries: &[InventoryEntry]) -> Vec<wire::InventoryEntry> {
    let entry = |entry: &InventoryEntry| wire::InventoryEntry {
        key: Some(write_key(&entry.key)),
        version: match &entry.held {
            HeldState::Present(version) => Some(write_version(version)),
            HeldState::Absent | HeldState::Unreadable => None,
        },
        unreadable: entry.held == HeldState::Unreadable,
    };
    entries.iter().map(entry).collect()
}

pub(super) fn read_entries(entries: Vec<wire::InventoryEntry>) -> Result<Vec<InventoryEntry>, CodecError> {
    // Neighbouring entries mostly have the same resource and share its texts.
    let mut resource: Option<Resource> = None;
    let entry = |entry: wire::InventoryEntry| {
        let nothing = if entry.unreadable { HeldState::Unreadable } else { HeldState::Absent };
        let held = entry.version.as_ref().map(read_version).transpose()?.map_or(nothing, HeldState::Present);
        let key = entry.key.ok_or(CodecError::Missing { field: "object key" })?;
        let same = |known: &Resource| {
            (&*known.group, &*known.version, &*known.name) == (&*key.group, &*key.version, &*key.resource)
        };
        let resource = match resource.take_if(|known| same(known)) {
            Some(known) => resource.insert(known).clone(),
            None => resource.insert(Resource::new(&key.group, &key.version, &key.resource)).clone(),
        };
        let key = ObjectKey::new(resource, &key.namespace, &key.name);
        check_key(&key)?;
        Ok(InventoryEntry { key, held })
    };
    entries.into_iter().map(entry).collect()
}

pub(super) fn write_inventory(
    inventory: &Inventory,
) -> (Vec<wire::InventoryEntry>, Option<wire::InventoryDigest>) {
    match inventory {
        Inventory::Full(entries) => (write_entries(entries), None),
        Inventory::Digest { count, digest } => {
            let digest = Bytes::copy_from_slice(digest);
            (Vec::new(), Some(wire::InventoryDigest { count: *count, digest }))
        }
    }
}

pub(super) fn read_inventory(
    entries: Vec<wire::InventoryEntry>,
    digest: Option<wire::InventoryDigest>,
) -> Result<Inventory, CodecError> {
    match digest {
        None => Ok(Inventory::Full(read_entries(entries)?)),
        Some(wire::InventoryDigest { count, digest }) => {
            Ok(Inventory::Digest { count, digest: sixteen("inventory digest", &digest)? })
        }
    }
}

pub(super) fn read_lane(field: &'static str, number: u32) -> Result<Lane, CodecError> {
    let lane = u8::try_from(number).ok().and_then(Lane::from_number);
    lane.ok_or(CodecError::Value { field, value: number.into(), rule: "a lane: 0, 1 or 2" })
}

pub(super) fn read_code(field: &'static str, code: u32) -> Result<u16, CodecError> {
    let known = u16::try_from(code).ok().filter(|code| (100..1000).contains(code));
    known.ok_or(CodecError::Value { field, value: code.into(), rule: "an HTTP status code" })
}

pub(super) fn bounded(field: &'static str, text: String, max: usize) -> Result<String, CodecError> {
    if text.len() > max {
        return Err(CodecError::Limit { field, size: text.len(), max });
    }
    Ok(text)
}

/// The text, cut to at most `max` bytes at a character boundary.
pub(super) fn cut(mut text: String, max: usize) -> String {
    text.truncate(text.floor_char_boundary(max));
    text
}

pub(super) fn sentence(text: String) -> String {
    cut(text, limits::SENTENCE_LEN_MAX)
}

pub(super) fn agent(text: String) -> String {
    cut(text, limits::AGENT_LEN_MAX)
}
