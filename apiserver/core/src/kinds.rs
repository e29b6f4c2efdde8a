//! The table of kinds: what discovery says about each, and its rules for defaults, validation, columns and merging.
//!
//! Built-in kinds come from the table of facts and hand-written rules after the Kubernetes API conventions; custom
//! kinds come from their CustomResourceDefinition. Everything here is a pure function over JSON values.

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
pub use self::validate::Verdict;
use crate::field_error::FieldError;
use crate::schema::decode::{self, DecodeError, Decoded, Target};
use crate::schema::default::Nulls;
use crate::schema::types::Place;
use crate::schema::{Schema, canonical};

/// One subresource as discovery shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubresourceInfo {
    /// Last path segment, for example `status`.
    pub name: Arc<str>,
    /// Group of the kind that requests carry; for `scale` it is `autoscaling`.
    pub group: Arc<str>,
    /// Version of the kind that requests carry.
    pub version: Arc<str>,
    /// Kind that requests carry, for example `Scale`.
    pub kind: Arc<str>,
    /// Verbs, sorted.
    pub verbs: Vec<Arc<str>>,
}

/// Where a kind with a `scale` subresource keeps what Scale shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScalePaths {
    /// Field of the wanted count, for example `spec.replicas`.
    pub spec_replicas: Arc<str>,
    /// Field of the observed count.
    pub status_replicas: Arc<str>,
    /// Field that holds the selector as a string (custom resources only); built-in kinds have `spec.selector`.
    pub label_selector: Option<Arc<str>>,
}

/// All that is known about one kind in one version.
#[derive(Debug)]
pub struct KindInfo {
    /// Group, version and plural under which the kind is served.
    pub resource: Resource,
    /// Group, version and plural under which objects are stored. Versions of one custom resource share it, and so
    /// do the two Event kinds.
    pub storage: Resource,
    /// Kind, for example `Pod`.
    pub kind: Arc<str>,
    /// Kind of lists.
    pub list_kind: Arc<str>,
    /// Singular name.
    pub singular: Arc<str>,
    /// Whether objects live in namespaces.
    pub namespaced: bool,
    /// Short names, for example `po`.
    pub short_names: Vec<Arc<str>>,
    /// Categories, for example `all`.
    pub categories: Vec<Arc<str>>,
    /// Verbs, sorted.
    pub verbs: Vec<Arc<str>>,
    /// Subresources in the order of discovery.
    pub subresources: Vec<SubresourceInfo>,
    /// Where the `scale` subresource finds its fields.
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

    /// `Kind` or `Kind.group` of the group it is stored in: how messages about invalid objects name the kind.
    #[must_use]
    pub fn qualified_kind(&self) -> String {
        match &*self.storage.group {
            "" => self.kind.to_string(),
            group => format!("{}.{group}", self.kind),
        }
    }

    /// Type of the objects.
    #[must_use]
    pub fn schema(&self) -> &Schema {
        &self.schema
    }

    /// What the kind does beyond storing what it is given.
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

    /// Cells of one row, in the order of [`Self::columns`]. `now` is what ages are counted from.
    #[must_use]
    pub fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        match &self.definition {
            Some(custom) => custom.cells(object, now),
            None => columns::cells(&self.resource.group, &self.kind, object, now),
        }
    }

    /// The value of a field that a field selector names: `None` when this kind cannot be selected by the field.
    #[must_use]
    pub fn field_value(&self, object: &Value, field: &str) -> Option<String> {
        match &self.definition {
            Some(custom) => custom.field_value(object, field),
            None => fields::value(self, object, field),
        }
    }

    /// Whether a field selector may name a field of this kind.
    #[must_use]
    pub fn is_selectable(&self, field: &str) -> bool {
        self.field_value(&Value::Null, field).is_some()
    }

    /// Decodes a JSON body.
    ///
    /// # Errors
    /// [`DecodeError`] when the body is not JSON, of another kind, or has a value of a wrong type.
    pub fn decode(&self, body: &[u8]) -> Result<Decoded, DecodeError> {
        decode::decode(&self.target(&self.api_version()), body)
    }

    /// Decodes a value that was parsed elsewhere (YAML, the result of a patch).
    ///
    /// # Errors
    /// [`DecodeError`] when the value is of another kind, or has a value of a wrong type.
    pub fn decode_value(&self, value: Value) -> Result<Decoded, DecodeError> {
        decode::decode_value(&self.target(&self.api_version()), value)
    }

    fn target<'a>(&'a self, api_version: &'a str) -> Target<'a> {
        Target { api_version, version: &self.resource.version, kind: &self.kind, schema: &self.schema }
    }

    /// Puts defaults in, and for built-in kinds the form in which the Go types would write the object back.
    pub fn default(&self, object: &mut Value) {
        self.default_with(object, Nulls::Removed);
    }

    /// The same for what a server-side apply made: nulls that a custom type does not allow stay, for validation to refuse.
    pub fn default_applied(&self, object: &mut Value) {
        self.default_with(object, Nulls::Kept);
    }

    fn default_with(&self, object: &mut Value, nulls: Nulls) {
        match self.definition.is_some() {
            true => crate::schema::default::default(self.place(), object, nulls),
            false => {
                self.strategy.default(self, object);
                self.canonical(object);
            }
        }
        self.canonical_metadata(object);
    }

    /// Drops zero values that the Go types leave out, writes those that they always write. Custom kinds have no such
    /// form. Idempotent; [`Self::default`] has done it.
    pub fn canonical(&self, object: &mut Value) {
        if !self.custom {
            canonical::canonical(self.place(), object);
        }
    }

    /// Metadata has a Go type even where the object has none.
    fn canonical_metadata(&self, object: &mut Value) {
        let (place, known) = self.place().child("metadata");
        if let Some(metadata) = object.get_mut("metadata").filter(|_| known && self.custom) {
            canonical::canonical(place, metadata);
        }
    }

    /// Makes a decoded object ready to be stored for the first time: status and server-set fields are dropped,
    /// the generation starts at 1.
    pub fn prepare_create(&self, object: &mut Value, now: Timestamp) {
        prepare::create(self, object, now);
    }

    /// Makes an update ready: the parts that this endpoint does not write are taken from `old`, the generation grows
    /// when the wanted state changes. `subresource` is empty for the object itself.
    pub fn prepare_update(&self, new: &mut Value, old: &Value, subresource: &str, now: Timestamp) {
        prepare::update(self, new, old, subresource, now);
    }

    /// Whether it may take long to say what is wrong with an object: somebody's expressions are read or evaluated for it.
    #[must_use]
    pub fn is_slow_to_validate(&self) -> bool {
        match self.custom {
            true => self.schema().types().has_rules(),
            false => &*self.kind == "CustomResourceDefinition",
        }
    }

    /// What is wrong with a new object.
    #[must_use]
    pub fn validate_create(&self, object: &Value) -> Vec<FieldError> {
        validate::create(self, object)
    }

    /// What is wrong with an update of `old`.
    #[must_use]
    pub fn validate_update(&self, new: &Value, old: &Value, subresource: &str) -> Verdict {
        validate::update(self, new, old, subresource)
    }

    /// What the writer of an object that is right should still be told.
    #[must_use]
    pub fn warnings(&self, object: &Value, old: Option<&Value>, subresource: &str) -> Vec<String> {
        let mut warnings = self.strategy.warnings(self, object, old, subresource);
        if self.custom && subresource.is_empty() {
            custom::finalizers::check(object, old, &mut warnings);
        }
        warnings
    }

    /// Turns an object of the served version into one of the stored version.
    pub fn to_storage(&self, object: &mut Value) {
        storage::convert(object, &self.resource, &self.storage);
    }

    /// Turns a stored object into one of the served version.
    pub fn from_storage(&self, object: &mut Value) {
        storage::convert(object, &self.storage, &self.resource);
        if !self.identical_storage() {
            self.canonical(object);
        }
    }

    /// The name under which a field that a selector of the served version names is stored.
    #[must_use]
    pub fn stored_field<'a>(&self, field: &'a str) -> Cow<'a, str> {
        storage::stored_field(field, &self.resource, &self.storage)
    }

    /// Whether objects are served as they are stored, byte for byte.
    #[must_use]
    pub fn identical_storage(&self) -> bool {
        self.resource == self.storage && !self.outlives_writes()
    }

    /// Whether the definition may have changed since an object was stored: its fields and defaults are then brought up
    /// to date whenever it is read.
    #[must_use]
    pub fn outlives_writes(&self) -> bool {
        self.definition.as_ref().is_some_and(|definition| definition.revised)
    }

    /// Whether the definition is being deleted.
    #[must_use]
    pub fn is_terminating(&self) -> bool {
        self.definition.as_ref().is_some_and(|definition| definition.fingerprint.terminating)
    }

    /// Reads the text of a stored object: in the served version, as the current definition has it.
    ///
    /// # Errors
    /// When it is no JSON.
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
            // An object that no longer fits the types of its definition is shown as it is. It is read once more: a copy that is
            // hardly ever needed would take as much as the object.
            Err(_) => written(),
        }
    }

    /// Seconds that deletion waits when the request does not say: pods that run are stopped gently.
    #[must_use]
    pub fn default_grace(&self, object: &Value) -> i64 {
        self.strategy.default_grace(self, object)
    }

    pub(crate) fn place(&self) -> Place<'_> {
        Place(Some(self.schema.cursor()))
    }

    pub(crate) fn definition(&self) -> Option<&Custom> {
        self.definition.as_ref()
    }

    /// Group and kind as rules are looked up by.
    #[must_use]
    pub fn group_kind(&self) -> (&str, &str) {
        (&self.resource.group, &self.kind)
    }
}
