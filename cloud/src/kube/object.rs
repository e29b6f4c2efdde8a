//! An object of any kind, as the API server sent it.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use thiserror::Error;
use tombolo_proto::{CloudRevision, ObjectKey, Resource, Uid};

use super::waiting::Place;

/// An object as JSON.
#[derive(Debug, Clone)]
pub struct RawObject {
    value: Value,
    /// The object's part of the memory of what waits, if it is an event's.
    place: Option<Place>,
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
        Self { value, place: None }
    }

    /// Holds its place until it is dropped or [given away](Self::into_value).
    pub(super) fn set_place(&mut self, place: Option<Place>) {
        self.place = place;
    }

    fn metadata(&self, member: &str) -> Option<&str> {
        self.value.get("metadata")?.get(member)?.as_str()
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
        let part = |member| self.metadata(member).unwrap_or_default();
        ObjectKey::new(resource.clone(), part("namespace"), part("name"))
    }

    /// Which incarnation.
    ///
    /// # Errors
    /// [`ObjectError`] when the object has none.
    pub fn uid(&self) -> Result<Uid, ObjectError> {
        let uid = self.metadata("uid").and_then(|uid| Uid::parse(uid).ok());
        uid.ok_or_else(|| self.lacks("metadata.uid"))
    }

    /// Its place in the cloud's history.
    ///
    /// # Errors
    /// [`ObjectError`] when the object has none.
    pub fn revision(&self) -> Result<CloudRevision, ObjectError> {
        let revision = self.metadata("resourceVersion").and_then(|text| CloudRevision::parse(text).ok());
        revision.ok_or_else(|| self.lacks("metadata.resourceVersion"))
    }

    fn lacks(&self, field: &'static str) -> ObjectError {
        let part = |member| self.metadata(member).unwrap_or_default();
        let key = format!("{}/{}", part("namespace"), part("name"));
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
