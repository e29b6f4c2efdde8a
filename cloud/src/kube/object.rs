//! An object of any kind, as the API server has sent it.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use kube::Resource as KubeResource;
use kube::api::{ApiResource, DynamicObject, ObjectMeta};
use serde::de::{DeserializeOwned, Error as _, IgnoredAny};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use thiserror::Error;
use tokio::sync::OwnedSemaphorePermit;
use tombolo_apicore::tree::tree_bytes;
use tombolo_proto::{CloudRevision, ObjectKey, Resource, Uid};

use super::tree::{LARGE_TREE_BYTES_MAX, exceeds, tree_bytes_of};

/// An object's part of the memory for queued events, held until it is dropped.
pub(super) type MemoryPermit = Arc<OwnedSemaphorePermit>;

/// An object as JSON, with the few metadata fields extracted that the watch code needs.
#[derive(Debug, Clone)]
pub struct RawObject {
    /// Boxed, because the type is ten times as large as the fields used here.
    metadata: Box<ObjectMeta>,
    value: Value,
    /// The reason why only the metadata could be read, if this is so.
    unread: Option<Box<str>>,
    /// Whether the object's text was skimmed, so that little more than its identity is known.
    in_part: bool,
    /// The object's part of the memory for queued events, if it is from an event.
    permit: Option<MemoryPermit>,
}

/// Maximum nesting depth of an object that is passed on. serde_json reads 127 levels, and lists and events add some of
/// their own.
const LEVELS_MAX: usize = 120;

/// The metadata fields of an unread object that are kept: its identity, and whether it is being deleted.
pub(super) const IDENTITY: [&str; 7] = [
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
];

/// The fields that can grow in the spec of a running pod (Kubernetes: pod update and replacement). All other fields
/// stay as they were at the first read.
const GROWING: [&str; 2] = ["ephemeralContainers", "tolerations"];

/// Annotation of a mirror pod, which a kubelet has created from a static pod.
pub(crate) const MIRROR: &str = "kubernetes.io/config.mirror";

fn bytes_of(text: &RawValue) -> &[u8] {
    text.get().as_bytes()
}

/// The fields of a JSON object by name, as slices of its text.
type Members<'a> = BTreeMap<String, &'a RawValue>;

/// Maximum bytes that the labels, or the owner references, of an unread object may take beyond their text: some 2,000
/// labels.
const TIES_BYTES_MAX: usize = 256 * 1024;

/// A text of up to this many bytes is parsed in one step.
const SHORT_LEN_MAX: usize = 64 * 1024;

/// An object without its identity.
#[derive(Debug, Error)]
pub enum ObjectError {
    /// A field is missing or invalid.
    #[error("object {key} has no usable {field}")]
    Field {
        /// The object.
        key: String,
        /// The field.
        field: &'static str,
    },
    /// The object cannot be read: it is nested deeper than any object of Kubernetes' own kinds, or does not have the
    /// requested type.
    #[error("object {key} cannot be read: {why}")]
    Unread {
        /// The object.
        key: String,
        /// The reason.
        why: Box<str>,
    },
}

impl RawObject {
    /// Takes over parsed JSON.
    #[must_use]
    pub fn new(value: Value) -> Self {
        let text = |pointer: &str| value.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
        let metadata = ObjectMeta {
            name: text("/metadata/name"),
            namespace: text("/metadata/namespace"),
            uid: text("/metadata/uid"),
            resource_version: text("/metadata/resourceVersion"),
            ..ObjectMeta::default()
        };
        Self { metadata: Box::new(metadata), value, unread: None, in_part: false, permit: None }
    }

    /// Parses a text if its tree takes at most `most` bytes beyond the text. Parts that cannot be read are left out,
    /// and the object keeps the reason.
    ///
    /// # Errors
    /// The text is not an object with metadata.
    pub(super) fn read(text: &str, most: usize) -> serde_json::Result<Self> {
        match read_short(text, most) {
            Some(object) => Ok(Self::new(object.into())),
            None => read_with_care(text, most),
        }
    }

    /// Parses an object of this kind. See [`Self::read`].
    ///
    /// # Errors
    /// The text is not an object with metadata.
    pub(crate) fn of_kind(resource: &Resource, text: &[u8]) -> serde_json::Result<Self> {
        let text = std::str::from_utf8(text).map_err(serde_json::Error::custom)?;
        Self::read(text, tree_bytes_of(&resource.group, &resource.name))
    }

    /// Marks the object as skimmed: only its identity is known, and for a pod its node.
    pub(crate) fn leave_unread(&mut self, why: &str) {
        (self.unread, self.in_part) = (Some(why.into()), true);
    }

    /// Whether only the object's identity is known, and for a pod its node.
    pub(crate) fn is_in_part(&self) -> bool {
        self.in_part
    }

    /// The object's part of the memory for queued events, for a caller that takes the object apart but is not finished
    /// with it.
    pub(crate) fn permit(&self) -> Option<MemoryPermit> {
        self.permit.clone()
    }

    /// Sets the part of memory that the object holds until it is dropped or [consumed](Self::into_value).
    pub(super) fn set_permit(&mut self, permit: Option<MemoryPermit>) {
        self.permit = permit;
    }

    /// The JSON.
    #[must_use]
    pub fn value(&self) -> &Value {
        &self.value
    }

    /// Consumes the object and returns the JSON.
    #[must_use]
    pub fn into_value(self) -> Value {
        self.value
    }

    /// The JSON of an object that was read completely.
    ///
    /// # Errors
    /// [`ObjectError`] when it was not.
    pub fn whole(&self) -> Result<&Value, ObjectError> {
        match &self.unread {
            Some(why) => Err(ObjectError::Unread { key: self.name(), why: why.clone() }),
            None => Ok(&self.value),
        }
    }

    /// The same, consuming the object.
    ///
    /// # Errors
    /// [`ObjectError`] when it was not read completely.
    pub fn into_whole(self) -> Result<Value, ObjectError> {
        self.whole()?;
        Ok(self.value)
    }

    /// The same, converted to a type.
    ///
    /// # Errors
    /// [`ObjectError`] when it was not read completely, or does not have this type.
    pub fn into_typed<T: DeserializeOwned>(self) -> Result<T, ObjectError> {
        let key = self.name();
        let unread = |error: serde_json::Error| ObjectError::Unread { key, why: error.to_string().into() };
        serde_json::from_value(self.into_whole()?).map_err(unread)
    }

    /// The object's key.
    #[must_use]
    pub fn key(&self, resource: &Resource) -> ObjectKey {
        let name = self.metadata.name.as_deref().unwrap_or_default();
        ObjectKey::new(resource.clone(), self.metadata.namespace.as_deref().unwrap_or_default(), name)
    }

    /// Whether only the object's identity could be read. The object still exists.
    #[must_use]
    pub fn is_unread(&self) -> bool {
        self.unread.is_some()
    }

    /// The UID, which identifies the incarnation.
    ///
    /// # Errors
    /// [`ObjectError`] when the object has none.
    pub fn uid(&self) -> Result<Uid, ObjectError> {
        let uid = self.metadata.uid.as_deref().and_then(|uid| Uid::parse(uid).ok());
        uid.ok_or_else(|| self.lacks("metadata.uid"))
    }

    /// The resource version as a revision of the cloud's history.
    ///
    /// # Errors
    /// [`ObjectError`] when the object has none.
    pub fn revision(&self) -> Result<CloudRevision, ObjectError> {
        let revision =
            self.metadata.resource_version.as_deref().and_then(|text| CloudRevision::parse(text).ok());
        revision.ok_or_else(|| self.lacks("metadata.resourceVersion"))
    }

    fn lacks(&self, field: &'static str) -> ObjectError {
        ObjectError::Field { key: self.name(), field }
    }

    fn name(&self) -> String {
        let part = |text: &Option<String>| text.clone().unwrap_or_default();
        format!("{}/{}", part(&self.metadata.namespace), part(&self.metadata.name))
    }
}

impl<'de> Deserialize<'de> for RawObject {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // This copies the text, because a deserialised tree has no text to borrow from. Lists and watches avoid the
        // copy.
        let text = Box::<RawValue>::deserialize(deserializer)?;
        Self::read(text.get(), LARGE_TREE_BYTES_MAX).map_err(D::Error::custom)
    }
}

/// Parses an ordinary object, whose text is short and not nested too deep. None when it needs careful parsing, so that
/// one bad object does not make a whole list fail.
fn read_short(text: &str, most: usize) -> Option<Map<String, Value>> {
    if text.len() > SHORT_LEN_MAX || exceeds(std::iter::once(text.as_bytes()), most) {
        return None;
    }
    let Ok(Value::Object(mut object)) = serde_json::from_str(text) else { return None };
    let metadata = object.get_mut("metadata").and_then(Value::as_object_mut)?;
    if let Some(mut writers) = metadata.remove("managedFields")
        && shorten(&mut writers).is_some()
    {
        metadata.insert("managedFields".to_owned(), writers);
    }
    let mut others = object.iter().filter(|(name, _)| *name != "metadata");
    others.all(|(_, member)| levels(member) < LEVELS_MAX).then_some(object)
}

/// Reduces the fields of managedFields to their first level. None when this is not a list of managers.
fn shorten(writers: &mut Value) -> Option<()> {
    for writer in writers.as_array_mut()? {
        if let Some(fields) = writer.as_object_mut()?.get_mut("fieldsV1") {
            fields.as_object_mut()?.values_mut().for_each(|field| *field = Map::new().into());
        }
    }
    Some(())
}

fn read_with_care(text: &str, most: usize) -> serde_json::Result<RawObject> {
    let mut members: Members<'_> = serde_json::from_str(text)?;
    let metadata = members.remove("metadata").map(|text| serde_json::from_str::<Members<'_>>(text.get()));
    let Some(Ok(mut metadata)) = metadata else {
        return Err(serde_json::Error::custom("an object without metadata"));
    };
    let writers = metadata.remove("managedFields");
    let writers = writers.filter(|text| !exceeds(std::iter::once(bytes_of(text)), most));
    let writers = writers.and_then(|text| writers_of(text).ok());
    let ties = ties_of(&metadata);
    let all = metadata.values().chain(members.values()).map(|text| bytes_of(text));
    let is_large = exceeds(all, most);
    let spec = members.get("spec").copied();
    let spec = || spec.and_then(|text| spec_within(text, most));
    let mut kept = None;
    let is_mirror = metadata.get("annotations").is_some_and(|annotations| is_mirror(annotations));
    if is_large {
        kept = spec();
        leave_identity(&mut metadata, most.saturating_sub(kept.as_ref().map_or(0, |(_, bytes)| *bytes)));
        members.clear();
    }
    let mut metadata = read(&metadata)?;
    if is_large && is_mirror && !metadata.contains_key("annotations") {
        metadata.insert("annotations".to_owned(), Map::from_iter([(MIRROR.to_owned(), "".into())]).into());
    }
    metadata.extend(writers.map(|writers| ("managedFields".to_owned(), writers)));
    metadata.extend(ties);
    let (mut value, unread) = match read(&members) {
        Ok(_) if is_large => (Map::new(), Some("it has more parts than its kind may have".into())),
        Ok(value) if value.values().all(|member| levels(member) < LEVELS_MAX) => (value, None),
        Ok(_) => (Map::new(), Some(format!("it is nested more than {LEVELS_MAX} levels deep").into())),
        Err(error) => (Map::new(), Some(error.to_string().into_boxed_str())),
    };
    if unread.is_some() {
        // Keep the pod's node and spec: a running pod must not be treated as gone.
        value.extend(kept.or_else(spec).map(|(spec, _)| ("spec".to_owned(), spec)));
    }
    value.insert("metadata".to_owned(), metadata.into());
    Ok(RawObject { unread, ..RawObject::new(value.into()) })
}

/// Reduces metadata that are too large to the identity. The metadata of an object that is being deleted keep all fields
/// that fit into `most` bytes, because the node is notified of that deletion.
fn leave_identity(metadata: &mut Members<'_>, most: usize) {
    let is_to_go = metadata.contains_key("deletionTimestamp");
    let mut left = most;
    metadata.retain(|name, text| {
        let bytes = tree_bytes(bytes_of(text));
        let is_kept = IDENTITY.contains(&name.as_str()) || (is_to_go && bytes <= left);
        if is_kept {
            left = left.saturating_sub(bytes);
        }
        is_kept
    });
}

/// The spec of a pod and its tree size, if the tree takes at most `most` bytes. For a larger spec only the part that
/// existed when the pod started, or only the pod's node.
fn spec_within(text: &RawValue, most: usize) -> Option<(Value, usize)> {
    let whole = tree_bytes(bytes_of(text));
    let (spec, bytes) = match whole <= most {
        true => (serde_json::from_str(text.get()).ok()?, whole),
        false => {
            let mut members: Members<'_> = serde_json::from_str(text.get()).ok()?;
            members.retain(|name, _| !GROWING.contains(&name.as_str()));
            let bytes = |members: &Members<'_>| members.values().map(|text| tree_bytes(bytes_of(text))).sum();
            if bytes(&members) > most {
                members.retain(|name, _| name == "nodeName");
            }
            (read(&members).ok()?.into(), bytes(&members))
        }
    };
    (levels(&spec) < LEVELS_MAX).then_some((spec, bytes))
}

fn read(members: &Members<'_>) -> serde_json::Result<Map<String, Value>> {
    members.iter().map(|(name, text)| Ok((name.clone(), serde_json::from_str(text.get())?))).collect()
}

/// Labels and owner references, each unless it is what makes the object large. Much can depend on the identity of the
/// owner, even if the rest is unread.
fn ties_of(metadata: &Members<'_>) -> Vec<(String, Value)> {
    let small = |text: &&RawValue| !exceeds(std::iter::once(bytes_of(text)), TIES_BYTES_MAX);
    let read = |name: &str| {
        let text = metadata.get(name).copied().filter(small)?;
        Some((name.to_owned(), serde_json::from_str(text.get()).ok()?))
    };
    ["labels", "ownerReferences"].into_iter().filter_map(read).collect()
}

/// Whether annotations contain that of a mirror pod. Nothing of them is kept.
fn is_mirror(annotations: &RawValue) -> bool {
    #[derive(Deserialize)]
    struct Annotations {
        #[serde(rename = "kubernetes.io/config.mirror")]
        _mirror: IgnoredAny,
    }
    serde_json::from_str::<Annotations>(annotations.get()).is_ok()
}

/// The managedFields of an object, reduced to the first level of their fields: no code here needs more, and the writer
/// of the object chooses how deep they are nested.
fn writers_of(text: &RawValue) -> serde_json::Result<Value> {
    let mut writers: Vec<Members<'_>> = serde_json::from_str(text.get())?;
    let writers = writers.iter_mut().map(|writer| {
        let fields = writer.remove("fieldsV1");
        let mut writer = read(writer)?;
        if let Some(fields) = fields {
            let names: BTreeMap<String, IgnoredAny> = serde_json::from_str(fields.get())?;
            let fields: Map<_, _> = names.into_keys().map(|name| (name, Map::new().into())).collect();
            writer.insert("fieldsV1".to_owned(), fields.into());
        }
        Ok(Value::from(writer))
    });
    writers.collect::<serde_json::Result<Vec<_>>>().map(Value::from)
}

fn levels(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(levels).max().unwrap_or(0),
        Value::Object(members) => 1 + members.values().map(levels).max().unwrap_or(0),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    }
}

impl KubeResource for RawObject {
    type DynamicType = ApiResource;
    type Scope = <DynamicObject as KubeResource>::Scope;

    fn kind(kind: &ApiResource) -> Cow<'_, str> {
        kind.kind.as_str().into()
    }

    fn group(kind: &ApiResource) -> Cow<'_, str> {
        kind.group.as_str().into()
    }

    fn version(kind: &ApiResource) -> Cow<'_, str> {
        kind.version.as_str().into()
    }

    fn api_version(kind: &ApiResource) -> Cow<'_, str> {
        kind.api_version.as_str().into()
    }

    fn plural(kind: &ApiResource) -> Cow<'_, str> {
        kind.plural.as_str().into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

#[cfg(test)]
mod tests;
