//! The table of kinds: their discovery data, and their rules for defaults, validation, columns and merging.
//!
//! Built-in kinds come from the table of facts and from hand-written rules that follow the Kubernetes API conventions;
//! custom kinds come from their CustomResourceDefinition. Everything here is a pure function over JSON values.

pub mod columns;
pub(crate) mod custom;
pub(crate) mod fields;
pub mod foreign;
pub(crate) mod jsonpath;
pub mod meta;
pub mod order;
pub(crate) mod part;
mod prepare;
mod registry;
pub mod rules;
pub(crate) mod storage;
pub mod strategy;
#[cfg(test)]
mod tests;
mod validate;
pub(crate) use std::sync::Arc;

use std::borrow::Cow;

use jiff::Timestamp;
use serde_json::Value;
use tombolo_proto::object::Resource;

pub use self::columns::Column;
use self::custom::Custom;
pub use self::custom::definition;
pub use self::custom::discovered::DeclaredColumns;
pub use self::registry::Kinds;
pub(crate) use self::registry::{scale as scale_kind, type_name};
use self::rules::Rules;
use self::strategy::Strategy;
pub use self::validate::UpdateValidation;
use crate::field_error::FieldError;
use crate::schema::decode::{self, DecodeError, DecodeTarget, Decoded};
use crate::schema::default::Nulls;
use crate::schema::types::SchemaPosition;
use crate::schema::{Schema, canonical};

/// One subresource as discovery shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubresourceInfo {
    /// Last path segment, for example `status`.
    pub name: Arc<str>,
    /// Group of the kind in request bodies; for `scale` it is `autoscaling`.
    pub group: Arc<str>,
    /// Version of the kind in request bodies.
    pub version: Arc<str>,
    /// Kind in request bodies, for example `Scale`.
    pub kind: Arc<str>,
    /// Verbs, sorted.
    pub verbs: Vec<Arc<str>>,
}

/// The fields of a kind with a `scale` subresource that a Scale shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScalePaths {
    /// Field of the desired replica count, for example `spec.replicas`.
    pub spec_replicas: Arc<str>,
    /// Field of the observed replica count.
    pub status_replicas: Arc<str>,
    /// Field that holds the selector as a string (custom resources only); built-in kinds use `spec.selector`.
    pub label_selector: Option<Arc<str>>,
}

/// Everything that is known about one kind in one version. It has many fields because there is one for each value that
/// discovery shows, and one for each set of rules about the objects.
#[derive(Debug)]
pub struct KindInfo {
    /// Group, version and plural under which the kind is served.
    pub resource: Resource,
    /// Group, version and plural under which objects are stored. All versions of one custom resource share it, and so
    /// do the two Event kinds.
    pub storage: Resource,
    /// Kind, for example `Pod`.
    pub kind: Arc<str>,
    /// Kind of its lists.
    pub list_kind: Arc<str>,
    /// Singular name.
    pub singular: Arc<str>,
    /// Whether objects are namespaced.
    pub namespaced: bool,
    /// Short names, for example `po`.
    pub short_names: Vec<Arc<str>>,
    /// Categories, for example `all`.
    pub categories: Vec<Arc<str>>,
    /// Verbs, sorted.
    pub verbs: Vec<Arc<str>>,
    /// Subresources in discovery order.
    pub subresources: Vec<SubresourceInfo>,
    /// The fields of the `scale` subresource.
    pub scale: Option<ScalePaths>,
    /// Whether the kind comes from a CustomResourceDefinition.
    pub custom: bool,
    rules: Arc<Rules>,
    schema: Schema,
    columns: Vec<Column>,
    strategy: &'static dyn Strategy,
    definition: Option<Custom>,
}

impl KindInfo {
    /// `group/version`, or the version alone for the core group.
    #[must_use]
    pub fn api_version(&self) -> String {
        match &*self.resource.group {
            "" => self.resource.version.to_string(),
            group => format!("{group}/{}", self.resource.version),
        }
    }

    /// Type of the objects.
    #[must_use]
    pub fn schema(&self) -> &Schema {
        &self.schema
    }

    /// Behavior of the kind that its type does not express.
    #[must_use]
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Whether a subresource is served.
    #[must_use]
    pub fn has_subresource(&self, name: &str) -> bool {
        self.subresources.iter().any(|subresource| &*subresource.name == name)
    }

    /// Columns of the Table form.
    #[must_use]
    pub fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// Cells of one row, in the order of [`Self::columns`]. Ages are relative to `now`.
    #[must_use]
    pub fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        match &self.definition {
            Some(custom) => custom.cells(object, now),
            None => columns::cells(&self.resource.group, &self.kind, object, now),
        }
    }

    /// The value of a field for field selectors: `None` when this kind does not support selection by the field.
    #[must_use]
    pub fn field_value(&self, object: &Value, field: &str) -> Option<String> {
        match &self.definition {
            Some(custom) => custom.field_value(object, field),
            None => fields::value(self, object, field),
        }
    }

    /// Whether field selectors of this kind may name a field.
    #[must_use]
    pub fn is_selectable(&self, field: &str) -> bool {
        self.field_value(&Value::Null, field).is_some()
    }

    /// Decodes a JSON body.
    ///
    /// # Errors
    /// [`DecodeError`] when the body is not JSON, is of another kind, or has a value of a wrong type.
    pub fn decode(&self, body: &[u8]) -> Result<Decoded, DecodeError> {
        decode::decode(&self.target(&self.api_version()), body)
    }

    /// Decodes an already parsed value (YAML, the result of a patch).
    ///
    /// # Errors
    /// [`DecodeError`] when the value is of another kind, or has a value of a wrong type.
    pub fn decode_value(&self, value: Value) -> Result<Decoded, DecodeError> {
        decode::decode_value(&self.target(&self.api_version()), value)
    }

    fn target<'a>(&'a self, api_version: &'a str) -> DecodeTarget<'a> {
        DecodeTarget { api_version, version: &self.resource.version, kind: &self.kind, schema: &self.schema }
    }

    /// Applies defaults, and brings objects of built-in kinds into the form in which the Go types would write them.
    pub fn default(&self, object: &mut Value) {
        self.default_with(object, Nulls::Removed);
    }

    /// Like [`Self::default`], for the result of a server-side apply: nulls that a custom type does not allow stay, and
    /// validation refuses them.
    pub fn default_applied(&self, object: &mut Value) {
        self.default_with(object, Nulls::Kept);
    }

    fn default_with(&self, object: &mut Value, nulls: Nulls) {
        match self.definition.is_some() {
            true => crate::schema::default::default(self.position(), object, nulls),
            false => {
                self.strategy.default(self, object);
                self.canonical(object);
            }
        }
        self.canonical_metadata(object);
    }

    /// Drops zero values that the Go types omit, and writes those that they always write. Custom kinds have no such
    /// form. Idempotent; [`Self::default`] includes it.
    pub fn canonical(&self, object: &mut Value) {
        if !self.custom {
            canonical::canonical(self.position(), object);
        }
    }

    /// Brings the metadata of a custom object into canonical form: it has a Go type although the object has none.
    fn canonical_metadata(&self, object: &mut Value) {
        let (position, known) = self.position().child("metadata");
        if let Some(metadata) = object.get_mut("metadata").filter(|_| known && self.custom) {
            canonical::canonical(position, metadata);
        }
    }

    /// Prepares a decoded object to be stored for the first time: status and server-set fields are dropped, and the
    /// generation starts at 1.
    pub fn prepare_create(&self, object: &mut Value, now: Timestamp) {
        prepare::create(self, object, now);
    }

    /// Prepares an update: the parts that this endpoint does not write are taken from `old`, and the generation
    /// increases when the desired state changes. `subresource` is empty for the object itself.
    pub fn prepare_update(&self, new: &mut Value, old: &Value, subresource: &str, now: Timestamp) {
        prepare::update(self, new, old, subresource, now);
    }

    /// Whether validating an object may take long because expressions of a user are compiled or evaluated.
    #[must_use]
    pub fn is_slow_to_validate(&self) -> bool {
        match self.custom {
            true => self.schema().types().has_rules(),
            false => &*self.kind == "CustomResourceDefinition",
        }
    }

    /// Validates a new object and returns the errors.
    #[must_use]
    pub fn validate_create(&self, object: &Value) -> Vec<FieldError> {
        validate::create(self, object)
    }

    /// Validates an update of `old`.
    #[must_use]
    pub fn validate_update(&self, new: &Value, old: &Value, subresource: &str) -> UpdateValidation {
        validate::update(self, new, old, subresource)
    }

    /// Warnings for the client that writes a valid object.
    #[must_use]
    pub fn warnings(&self, object: &Value, old: Option<&Value>, subresource: &str) -> Vec<String> {
        let mut warnings = self.strategy.warnings(self, object, old, subresource);
        if self.custom && subresource.is_empty() {
            custom::finalizers::check(object, old, &mut warnings);
        }
        warnings
    }

    /// Converts an object from the served version to the stored one.
    pub fn to_storage(&self, object: &mut Value) {
        storage::convert(object, &self.resource, &self.storage);
    }

    /// Converts an object from the stored version to the served one.
    pub fn from_storage(&self, object: &mut Value) {
        storage::convert(object, &self.storage, &self.resource);
        if !self.identical_storage() {
            self.canonical(object);
        }
    }

    /// The stored name of a field that a selector of the served version names.
    #[must_use]
    pub fn stored_field<'a>(&self, field: &'a str) -> Cow<'a, str> {
        storage::stored_field(field, &self.resource, &self.storage)
    }

    /// Whether objects are served as they are stored, byte for byte.
    #[must_use]
    pub fn identical_storage(&self) -> bool {
        self.resource == self.storage && !self.outlives_writes()
    }

    /// Whether the definition may have changed since an object was stored: fields and defaults are then updated
    /// whenever it is read.
    #[must_use]
    pub fn outlives_writes(&self) -> bool {
        self.definition.as_ref().is_some_and(|definition| definition.revised)
    }

    /// Whether the definition is being deleted.
    #[must_use]
    pub fn is_terminating(&self) -> bool {
        self.definition.as_ref().is_some_and(|definition| definition.fingerprint.terminating)
    }

    /// Parses a stored object: in the served version, following the current definition.
    ///
    /// # Errors
    /// When it is not JSON.
    pub fn read(&self, stored: &[u8]) -> serde_json::Result<Value> {
        let written = || -> serde_json::Result<Value> {
            let mut object = serde_json::from_slice(stored)?;
            self.from_storage(&mut object);
            Ok(object)
        };
        if !self.outlives_writes() {
            return written();
        }
        match self.decode_value(written()?) {
            Ok(Decoded { mut object, .. }) => {
                self.default(&mut object);
                Ok(object)
            }
            // An object that no longer fits the types of its definition is shown as stored. The text is parsed again: a
            // copy that is hardly ever needed would take as much memory as the object.
            Err(_) => written(),
        }
    }

    /// Default grace period of a deletion in seconds: running pods are stopped gracefully.
    #[must_use]
    pub fn default_grace(&self, object: &Value) -> i64 {
        self.strategy.default_grace(self, object)
    }

    pub(crate) fn position(&self) -> SchemaPosition<'_> {
        SchemaPosition(Some(self.schema.cursor()))
    }

    pub(crate) fn definition(&self) -> Option<&Custom> {
        self.definition.as_ref()
    }

    /// Group and kind, as rules are looked up by.
    #[must_use]
    pub fn group_kind(&self) -> (&str, &str) {
        (&self.resource.group, &self.kind)
    }
}
