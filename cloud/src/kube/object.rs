//! An object of any kind, as the API server sent it.

use std::borrow::Cow;
use std::collections::BTreeMap;

use kube::Resource as KubeResource;
use kube::api::{ApiResource, DynamicObject, ObjectMeta};
use serde::de::{DeserializeOwned, Error as _, IgnoredAny};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use thiserror::Error;
use tombolo_apicore::tree::tree_bytes;
use tombolo_proto::{CloudRevision, ObjectKey, Resource, Uid};

use super::tree::{LARGE_TREE_BYTES_MAX, exceeds, tree_bytes_of};
use super::waiting::Place;

/// An object as JSON, with the few metadata fields that the watch machinery needs taken out.
#[derive(Debug, Clone)]
pub struct RawObject {
    /// Boxed: the machinery's type is ten times as large as what is used of it.
    metadata: Box<ObjectMeta>,
    value: Value,
    /// Why nothing of it could be read but its metadata.
    unread: Option<Box<str>>,
    /// Nothing else of it was even looked at.
    in_part: bool,
    /// The object's part of the memory of what waits, if it is an event's.
    place: Option<Place>,
}

/// Levels of an object that is passed on: serde_json reads 127, and lists and events have some of their own.
const LEVELS_MAX: usize = 120;

/// Of what is not read, what says which object it is, and whether it is to go.
pub(super) const IDENTITY: [&str; 7] = [
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
];

/// What can become more in the spec of a pod that runs (Kubernetes: pod update and replacement); all else is as it was when it
/// was read first.
const GROWING: [&str; 2] = ["ephemeralContainers", "tolerations"];

/// Annotation of a pod that a kubelet has made after a file of its own.
pub(crate) const MIRROR: &str = "kubernetes.io/config.mirror";

fn bytes_of(text: &RawValue) -> &[u8] {
    text.get().as_bytes()
}

/// Members by name, where they were written.
type Members<'a> = BTreeMap<String, &'a RawValue>;

/// Bytes that the labels, or the owners, of an object that is not read may take beyond their text: some 2,000 labels.
const TIES_BYTES_MAX: usize = 256 * 1024;

/// A text of so many bytes is read at once.
const SHORT_LEN_MAX: usize = 64 * 1024;

/// An object that lacks its identity.
#[derive(Debug, Error)]
pub enum ObjectError {
    /// A field is missing or unusable.
    #[error("object {key} has no usable {field}")]
    Field {
        /// Which object.
        key: String,
        /// Which field.
        field: &'static str,
    },
    /// It cannot be read: it is nested deeper than any object of Kubernetes' own kinds, or is not of the type that was asked for.
    #[error("object {key} cannot be read: {why}")]
    Unread {
        /// Which object.
        key: String,
        /// Why.
        why: Box<str>,
    },
}

impl RawObject {
    /// Takes over JSON.
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
        Self { metadata: Box::new(metadata), value, unread: None, in_part: false, place: None }
    }

    /// Reads a text, if its tree takes at most this many bytes beyond it. What cannot be read is left out, and the object knows
    /// why.
    ///
    /// # Errors
    /// It is no object with metadata.
    pub(super) fn read(text: &str, most: usize) -> serde_json::Result<Self> {
        match read_short(text, most) {
            Some(object) => Ok(Self::new(object.into())),
            None => read_with_care(text, most),
        }
    }

    /// Reads an object of this kind, as [`Self::read`].
    ///
    /// # Errors
    /// It is no object with metadata.
    pub(crate) fn of_kind(resource: &Resource, text: &[u8]) -> serde_json::Result<Self> {
        let text = std::str::from_utf8(text).map_err(serde_json::Error::custom)?;
        Self::read(text, tree_bytes_of(&resource.group, &resource.name))
    }

    /// Nothing is known of it but which object it is, and of a pod where it runs.
    pub(crate) fn leave_unread(&mut self, why: &str) {
        (self.unread, self.in_part) = (Some(why.into()), true);
    }

    /// Whether nothing is known of it but which object it is, and of a pod where it runs.
    pub(crate) fn is_in_part(&self) -> bool {
        self.in_part
    }

    /// Its part of the memory of what waits, for whoever uses it up and is not done.
    pub(crate) fn place(&self) -> Option<Place> {
        self.place.clone()
    }

    /// Holds its place until it is dropped or [given away](Self::into_value).
    pub(super) fn set_place(&mut self, place: Option<Place>) {
        self.place = place;
    }

    /// The JSON.
    #[must_use]
    pub fn value(&self) -> &Value {
        &self.value
    }

    /// Gives the JSON away.
    #[must_use]
    pub fn into_value(self) -> Value {
        self.value
    }

    /// The JSON of an object that was read whole.
    ///
    /// # Errors
    /// [`ObjectError`] when it was not.
    pub fn whole(&self) -> Result<&Value, ObjectError> {
        match &self.unread {
            Some(why) => Err(ObjectError::Unread { key: self.name(), why: why.clone() }),
            None => Ok(&self.value),
        }
    }

    /// The same, given away.
    ///
    /// # Errors
    /// [`ObjectError`] when it was not.
    pub fn into_whole(self) -> Result<Value, ObjectError> {
        self.whole()?;
        Ok(self.value)
    }

    /// The same as an object of this type.
    ///
    /// # Errors
    /// [`ObjectError`] when it was not read whole, or is none.
    pub fn into_typed<T: DeserializeOwned>(self) -> Result<T, ObjectError> {
        let key = self.name();
        let unread = |error: serde_json::Error| ObjectError::Unread { key, why: error.to_string().into() };
        serde_json::from_value(self.into_whole()?).map_err(unread)
    }

    /// Which object it is.
    #[must_use]
    pub fn key(&self, resource: &Resource) -> ObjectKey {
        let name = self.metadata.name.as_deref().unwrap_or_default();
        ObjectKey::new(resource.clone(), self.metadata.namespace.as_deref().unwrap_or_default(), name)
    }

    /// Whether more than its identity could not be read. It is there all the same.
    #[must_use]
    pub fn is_unread(&self) -> bool {
        self.unread.is_some()
    }

    /// Which incarnation.
    ///
    /// # Errors
    /// [`ObjectError`] when the object has none.
    pub fn uid(&self) -> Result<Uid, ObjectError> {
        let uid = self.metadata.uid.as_deref().and_then(|uid| Uid::parse(uid).ok());
        uid.ok_or_else(|| self.lacks("metadata.uid"))
    }

    /// Its place in the cloud's history.
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
        // A copy, for what is read from a tree has no text to lie in. Lists and watches do without.
        let text = Box::<RawValue>::deserialize(deserializer)?;
        Self::read(text.get(), LARGE_TREE_BYTES_MAX).map_err(D::Error::custom)
    }
}

/// An ordinary object, whose text is short and nested as it should be. None when it has to be read with care, for what is wrong
/// with one object must not cost a list all others.
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

/// Of the fields of the writers of an object, leaves the first level. None when it is no list of writers.
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
        Ok(_) if is_large => (Map::new(), Some("it has more parts than are read of its kind".into())),
        Ok(value) if value.values().all(|member| levels(member) < LEVELS_MAX) => (value, None),
        Ok(_) => (Map::new(), Some(format!("it is nested more than {LEVELS_MAX} levels deep").into())),
        Err(error) => (Map::new(), Some(error.to_string().into_boxed_str())),
    };
    if unread.is_some() {
        // Where a pod runs and what it needs: a running one must not count as gone.
        value.extend(kept.or_else(spec).map(|(spec, _)| ("spec".to_owned(), spec)));
    }
    value.insert("metadata".to_owned(), metadata.into());
    Ok(RawObject { unread, ..RawObject::new(value.into()) })
}

/// Of metadata that are too large, leaves the identity; of what is to go everything that takes at most so many bytes, for a node
/// is told of that.
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

/// The spec of a pod, if its tree takes at most so many bytes, and how many; of a larger one what was there when the pod began to
/// run, or where that is.
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

/// Labels and owners, each where it is not what makes an object large: of what they are in, much can depend on whose it is.
fn ties_of(metadata: &Members<'_>) -> Vec<(String, Value)> {
    let small = |text: &&RawValue| !exceeds(std::iter::once(bytes_of(text)), TIES_BYTES_MAX);
    let read = |name: &str| {
        let text = metadata.get(name).copied().filter(small)?;
        Some((name.to_owned(), serde_json::from_str(text.get()).ok()?))
    };
    ["labels", "ownerReferences"].into_iter().filter_map(read).collect()
}

/// Whether annotations have the one of a mirror pod. Nothing of them is kept.
fn is_mirror(annotations: &RawValue) -> bool {
    #[derive(Deserialize)]
    struct Annotations {
        #[serde(rename = "kubernetes.io/config.mirror")]
        _mirror: IgnoredAny,
    }
    serde_json::from_str::<Annotations>(annotations.get()).is_ok()
}

/// What the API server keeps of the writers of an object, of their fields the first level alone: nobody here needs more, and
/// whoever writes chooses how deep they are nested.
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
