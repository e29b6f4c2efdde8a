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
use tombolo_proto::{CloudRevision, ObjectKey, Resource, Uid};

use super::tree::{LARGE_TREE_BYTES_MAX, exceeds};
use super::waiting::Place;

/// An object as JSON, with the few metadata fields that the watch machinery needs taken out.
#[derive(Debug, Clone)]
pub struct RawObject {
    /// Boxed: the machinery's type is ten times as large as what is used of it.
    metadata: Box<ObjectMeta>,
    value: Value,
    /// Why nothing of it could be read but its metadata.
    unread: Option<Box<str>>,
    /// The object's part of the memory of what waits, if it is an event's.
    place: Option<Place>,
}

/// Levels of an object that is passed on: serde_json reads 127, and lists and events have some of their own.
const LEVELS_MAX: usize = 120;

/// Of what is not read, what says which object it is.
pub(super) const IDENTITY: [&str; 5] = ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"];

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
        Self { metadata: Box::new(metadata), value, unread: None, place: None }
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

    /// Nothing is known of it but which object it is.
    pub(super) fn leave_unread(&mut self, why: &str) {
        self.unread = Some(why.into());
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
    let is_mirror = metadata.get("annotations").is_some_and(|annotations| is_mirror(annotations));
    if is_large {
        metadata.retain(|name, _| IDENTITY.contains(&name.as_str()));
        members.clear();
    }
    let mut metadata = read(&metadata)?;
    if is_large && is_mirror {
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
        let spec = spec.filter(|text| !exceeds(std::iter::once(bytes_of(text)), most));
        let spec = spec.and_then(|text| serde_json::from_str::<Value>(text.get()).ok());
        value.extend(spec.filter(|spec| levels(spec) < LEVELS_MAX).map(|spec| ("spec".to_owned(), spec)));
    }
    value.insert("metadata".to_owned(), metadata.into());
    Ok(RawObject { unread, ..RawObject::new(value.into()) })
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
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::super::tree::TREE_BYTES_MAX;
    use super::*;

    /// Empty strings in one list, where each is taken for 64 bytes.
    const STRINGS_MAX: usize = LARGE_TREE_BYTES_MAX / 64;

    #[test]
    fn identity_is_read_and_missing_parts_are_named() {
        let metadata = json!({"name": "web", "namespace": "shop", "uid": "u-1", "resourceVersion": "42"});
        let object = RawObject::new(json!({"metadata": metadata}));
        let resource = Resource::new("", "v1", "pods");
        assert_eq!(object.key(&resource), ObjectKey::new(resource, "shop", "web"));
        assert_eq!(object.uid().expect("uid"), Uid::parse("u-1").expect("valid"));
        assert_eq!(object.revision().expect("revision"), CloudRevision(42));
        let nameless = RawObject::new(json!({"metadata": {"name": "web", "namespace": "shop"}}));
        assert_eq!(
            nameless.uid().expect_err("none").to_string(),
            "object shop/web has no usable metadata.uid"
        );
        assert!(nameless.revision().is_err());
    }

    /// An API server stores JSON that is nested ten thousand times; serde_json reads 128 levels.
    #[test]
    fn what_is_nested_too_deep_costs_no_other_object_anything() {
        let deep = |levels: usize| format!("{}{}", r#"{"f:a":"#.repeat(levels), "0") + &"}".repeat(levels);
        let object = |name: &str, fields: &str, data: &str| {
            let metadata =
                format!(r#"{{"name":"{name}","uid":"u","resourceVersion":"4","managedFields":{fields}}}"#);
            format!(r#"{{"kind":"Thing","metadata":{metadata},"data":{data}}}"#)
        };
        let most = deep(LEVELS_MAX - 1);
        let items = [
            object("a", &deep(9000), "7"),
            object("b", "[]", &deep(200)),
            object("c", "[]", &most),
            object("d", "[]", &deep(LEVELS_MAX)),
        ];
        let list = format!(r#"{{"metadata":{{}},"items":[{}]}}"#, items.join(","));
        let list: kube::core::ObjectList<RawObject> = serde_json::from_str(&list).expect("a list");
        let unread: Vec<bool> = list.items.iter().map(RawObject::is_unread).collect();
        assert_eq!(unread, [false, true, false, true]);
        assert!(list.items.iter().all(|object| object.uid().is_ok()), "which object it is, is known");
        let passed_on = format!(r#"[{{"items":[{}]}}]"#, list.items[2].value());
        assert!(serde_json::from_str::<Value>(&passed_on).is_ok());
        let metadata = json!({"name": "a", "uid": "u", "resourceVersion": "4"});
        let whole = json!({"kind": "Thing", "metadata": metadata, "data": 7});
        assert_eq!(*list.items[0].value(), whole, "what the API server keeps of its writers is left out");
        let error = list.items[1].clone().into_whole().expect_err("not read").to_string();
        assert!(error.contains("/b cannot be read") && error.contains("recursion"), "{error}");
        let event = format!(r#"{{"type":"ADDED","object":{}}}"#, items[0]);
        let event: kube::core::WatchEvent<RawObject> = serde_json::from_str(&event).expect("an event");
        assert!(matches!(event, kube::core::WatchEvent::Added(object) if *object.value() == whole));
    }

    #[test]
    fn of_writers_the_names_of_their_fields_are_known_however_deep_these_are() {
        let deep = "{\"f:a\":".repeat(9000) + "0" + &"}".repeat(9000);
        let writer = format!(
            r#"{{"manager":"m","operation":"Apply","fieldsV1":{{"f:spec":{deep},"f:status":{{}}}}}}"#
        );
        let text = format!(r#"{{"metadata":{{"name":"a","managedFields":[{writer},{{"manager":"n"}}]}}}}"#);
        let object: RawObject = serde_json::from_str(&text).expect("an object");
        let fields = json!({"f:spec": {}, "f:status": {}});
        let expected = json!([{"manager": "m", "operation": "Apply", "fieldsV1": fields}, {"manager": "n"}]);
        assert_eq!(object.value()["metadata"]["managedFields"], expected);
    }

    /// An API server stores a list of half a million empty strings, whoever may write the object.
    #[test]
    fn what_would_take_many_times_its_text_is_not_read_and_costs_no_other_object_anything() {
        let list = |count: usize| format!("[{}0]", r#""","#.repeat(count));
        let object = |name: &str, labels: &str, status: &str| {
            format!(
                r#"{{"metadata":{{"name":"{name}","uid":"u","resourceVersion":"4","labels":{labels}}},"status":{status}}}"#
            )
        };
        let text = format!(r#""{}""#, r#",[{\""#.repeat(200_000));
        let labels: Vec<String> = (0..STRINGS_MAX).map(|number| format!(r#""l{number}":"""#)).collect();
        for (name, labels, status, is_read) in [
            ("many", "{}", list(500_000), false),
            ("few", "{}", list(STRINGS_MAX - 100), true),
            ("text", "{}", text, true),
            ("labels", &*format!("{{{}}}", labels.join(",")), "{}".to_owned(), false),
        ] {
            let object: RawObject = serde_json::from_str(&object(name, labels, &status)).expect("an object");
            assert_eq!((!object.is_unread(), object.metadata.name.as_deref()), (is_read, Some(name)));
            assert_eq!(object.revision().expect("known").0, 4, "{name}");
            let metadata = &object.value()["metadata"];
            assert_eq!(
                metadata.get("labels").is_some(),
                is_read || name == "many",
                "of what is not read, {name} keeps its identity, and labels that are few"
            );
        }
        let writers = format!("[{}{{}}]", "{},".repeat(STRINGS_MAX));
        let metadata = format!(r#"{{"name":"a","uid":"u","managedFields":{writers}}}"#);
        let object: RawObject =
            serde_json::from_str(&format!(r#"{{"metadata":{metadata}}}"#)).expect("an object");
        assert!(object.uid().is_ok() && object.value()["metadata"].get("managedFields").is_none());
    }

    /// A node writes its Node, and everybody who watches it reads it.
    #[test]
    fn what_a_node_may_write_is_read_up_to_a_smaller_size() {
        let object = |part: &str, count: usize| {
            format!(r#"{{"metadata":{{"name":"n","uid":"u"}},"status":{{"x":[{}0]}}}}"#, part.repeat(count))
        };
        for (part, most) in [(r#""","#, 32_000), (r#"{"":0},"#, 2_900), (r#"{"a":{}},"#, 1_500)] {
            let read = |count| {
                let object = RawObject::read(&object(part, count), TREE_BYTES_MAX).expect("an object");
                (object.is_unread(), object.metadata.name)
            };
            assert_eq!(read(most), (false, Some("n".to_owned())), "{part}");
            assert_eq!(read(most * 5 / 4), (true, Some("n".to_owned())), "{part}");
        }
    }

    #[test]
    fn of_a_pod_that_is_not_read_where_it_runs_and_who_made_it_is_known() {
        let many = (0..STRINGS_MAX).map(|number| format!(r#","l{number}":"""#)).collect::<String>();
        let pod = |annotation: &str, spec: &str| {
            let text = format!(
                r#"{{"metadata":{{"name":"p","uid":"u","annotations":{{"{annotation}":""{many}}}}},"spec":{spec}}}"#
            );
            let pod: RawObject = serde_json::from_str(&text).expect("an object");
            assert!(pod.is_unread());
            pod.into_value()
        };
        let spec = json!({"nodeName": "n", "volumes": [{"secret": {"secretName": "s"}}]});
        let metadata = json!({"name": "p", "uid": "u"});
        assert_eq!(pod("x", &spec.to_string()), json!({"metadata": metadata, "spec": spec}));
        assert_eq!(pod(MIRROR, "{}")["metadata"]["annotations"], json!({MIRROR: ""}));
        let large = format!(r#"{{"nodeName":"n","args":[{}0]}}"#, "0,".repeat(STRINGS_MAX));
        assert_eq!(pod("x", &large), json!({ "metadata": metadata }));
    }

    /// JSON of all kinds, as text: members twice, names with escapes, deep ones.
    fn json_text() -> impl Strategy<Value = String> {
        let leaf = prop_oneof![
            Just("null".to_owned()),
            any::<bool>().prop_map(|value| value.to_string()),
            any::<i64>().prop_map(|value| value.to_string()),
            any::<f64>()
                .prop_filter("JSON", |value| value.is_finite())
                .prop_map(|value| format!("{value:e}")),
            any::<String>().prop_map(|text| json!(text).to_string()),
            Just(r#""\u003ca\u00e9\ud83d\ude00\/""#.to_owned()),
            (110_usize..130).prop_map(|levels| "[".repeat(levels) + &"]".repeat(levels)),
        ];
        leaf.prop_recursive(4, 32, 4, |inner| {
            let members = prop::collection::vec((name_text(), inner.clone()), 0..5);
            prop_oneof![
                prop::collection::vec(inner, 0..5).prop_map(|items| format!("[{}]", items.join(" ,"))),
                members.prop_map(|members| object_text(&members)),
            ]
        })
    }

    fn name_text() -> impl Strategy<Value = String> {
        const KNOWN: [&str; 8] =
            ["managedFields", "fieldsV1", "name", "uid", "na\\u006de", "metad\\u0061ta", "a", ""];
        prop_oneof![
            prop::sample::select(&KNOWN[..]).prop_map(|name| format!("\"{name}\"")),
            any::<String>().prop_map(|name| json!(name).to_string())
        ]
    }

    fn object_text(members: &[(String, String)]) -> String {
        let members: Vec<_> = members.iter().map(|(name, value)| format!("{name} : {value}")).collect();
        format!("{{{}}}", members.join(","))
    }

    proptest! {
        /// Whichever way a text is read, and where it is read as serde_json does, but for the fields of writers.
        #[test]
        fn an_object_is_the_same_whichever_way_it_is_read(
            mut metadata in prop::collection::vec((name_text(), json_text()), 0..6),
            mut members in prop::collection::vec((name_text(), json_text()), 0..6),
            place in any::<prop::sample::Index>(),
        ) {
            metadata.push((r#""uid""#.to_owned(), r#""u""#.to_owned()));
            let place = place.index(members.len() + 1);
            members.insert(place, (r#""metadata""#.to_owned(), object_text(&metadata)));
            let text = object_text(&members);
            let careful = read_with_care(&text, LARGE_TREE_BYTES_MAX);
            let short = read_short(&text, TREE_BYTES_MAX);
            let plain: Option<Value> = serde_json::from_str(&text).ok();
            if let Some(short) = short {
                let careful = careful.expect("it is read at once");
                prop_assert!(careful.unread.is_none());
                prop_assert_eq!(careful.value(), &Value::from(short.clone()));
                let without = |mut object: Value| {
                    object["metadata"].as_object_mut().map(|metadata| metadata.remove("managedFields"));
                    object
                };
                prop_assert_eq!(without(short.into()), without(plain.expect("JSON")));
            } else if let (Ok(careful), Some(_)) = (careful, plain) {
                prop_assert!(careful.unread.is_some(), "what is not read at once is nested too deep: {}", text);
            }
        }
    }

    /// A measurement: `cargo test -p tombolo-cloud --lib -- --ignored --nocapture how_long_an_ordinary_pod_takes`.
    #[test]
    #[ignore = "a measurement"]
    fn how_long_an_ordinary_pod_takes() {
        let fields: Map<String, Value> = (0..40)
            .map(|number| (format!("f:field{number}"), json!({"f:a": {}, "f:b": {"f:c": {}}})))
            .collect();
        let writer = json!({"manager": "kubelet", "operation": "Update", "fieldsV1": fields});
        let container = json!({"name": "c", "image": "registry.example/app:1.0", "env": [{"name": "A", "value": "b"}],
            "resources": {"limits": {"cpu": "1", "memory": "1Gi"}}, "volumeMounts": [{"name": "v", "mountPath": "/v"}]});
        let metadata = json!({"name": "web-5d9c7b6f4-abcde", "namespace": "shop", "uid": "u", "resourceVersion": "4",
            "labels": {"app": "web"}, "managedFields": [writer.clone(), writer]});
        let text = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata,
            "spec": {"containers": vec![container; 8]}, "status": {"phase": "Running"}})
        .to_string();
        let time = |read: &dyn Fn()| {
            let begun = std::time::Instant::now();
            (0..2000).for_each(|_| read());
            begun.elapsed() / 2000
        };
        for _ in 0..3 {
            let short = time(&|| drop(read_short(&text, TREE_BYTES_MAX).expect("an object")));
            let careful = time(&|| drop(read_with_care(&text, LARGE_TREE_BYTES_MAX).expect("an object")));
            println!("{} bytes: at once {short:?}, with care {careful:?}", text.len());
        }
    }

    #[test]
    fn json_without_metadata_is_no_object() {
        assert!(serde_json::from_str::<RawObject>("{}").is_err());
        assert!(serde_json::from_str::<RawObject>("[]").is_err());
    }
}
