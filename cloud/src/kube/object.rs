//! An object of any kind, as the API server sent it.

use std::borrow::Cow;

use kube::Resource as KubeResource;
use kube::api::{ApiResource, DynamicObject, ObjectMeta};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use thiserror::Error;
use tombolo_proto::{CloudRevision, ObjectKey, Resource, Uid};

/// An object as JSON, with the few metadata fields that the watch machinery needs taken out.
#[derive(Debug, Clone)]
pub struct RawObject {
    /// Boxed: the machinery's type is ten times as large as what is used of it.
    metadata: Box<ObjectMeta>,
    value: Value,
}

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
        Self { metadata: Box::new(metadata), value }
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

    /// Which object it is.
    #[must_use]
    pub fn key(&self, resource: &Resource) -> ObjectKey {
        let name = self.metadata.name.as_deref().unwrap_or_default();
        ObjectKey::new(resource.clone(), self.metadata.namespace.as_deref().unwrap_or_default(), name)
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
        let part = |text: &Option<String>| text.clone().unwrap_or_default();
        let key = format!("{}/{}", part(&self.metadata.namespace), part(&self.metadata.name));
        ObjectError::Field { key, field }
    }
}

impl<'de> Deserialize<'de> for RawObject {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        if value.get("metadata").is_none() {
            return Err(D::Error::custom("an object without metadata"));
        }
        Ok(Self::new(value))
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
    use serde_json::json;

    use super::*;

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

    #[test]
    fn json_without_metadata_is_no_object() {
        assert!(serde_json::from_str::<RawObject>("{}").is_err());
        assert!(serde_json::from_str::<RawObject>("[]").is_err());
    }
}
