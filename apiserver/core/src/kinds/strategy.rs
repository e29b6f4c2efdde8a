//! Behavior of built-in kinds that no table expresses. `tombolo-catalog` provides it for a server that acts as
//! kube-apiserver; a server of copied objects has none.

use std::fmt::Debug;

use jiff::Timestamp;
use serde_json::{Map, Value};

use super::KindInfo;
use crate::field_error::FieldError;
use crate::names;

/// The strategies of kube-apiserver for all built-in kinds (`rest.RESTCreateStrategy` and its siblings). Custom kinds
/// have none: their definition is complete. Methods that are not implemented do nothing.
#[allow(unused_variables, reason = "the names of the parameters are their documentation")]
pub trait Strategy: Debug + Send + Sync {
    /// Applies defaults.
    fn default(&self, kind: &KindInfo, object: &mut Value) {}

    /// The status of a new object, if any.
    fn initial_status(&self, kind: &KindInfo, object: &Map<String, Value>, now: Timestamp) -> Option<Value> {
        None
    }

    /// Completes a new object, after the steps that are common to all kinds.
    fn prepare_create(&self, kind: &KindInfo, object: &mut Value) {}

    /// Completes an update, after the fields that the endpoint does not write were taken from `old`.
    fn prepare_update(
        &self,
        kind: &KindInfo,
        new: &mut Value,
        old: &Value,
        subresource: &str,
        now: Timestamp,
    ) {
    }

    /// The error about the name of an object, if any.
    fn name_problem(&self, kind: &KindInfo, name: &str) -> Option<String> {
        names::path_segment(name)
    }

    /// Adds the errors of a new object, apart from those of its metadata.
    fn validate_create(&self, kind: &KindInfo, object: &Value, errors: &mut Vec<FieldError>) {}

    /// Adds the errors of an update, apart from those of the metadata, and may remove errors found there.
    fn validate_update(
        &self,
        kind: &KindInfo,
        new: &Value,
        old: &Value,
        subresource: &str,
        errors: &mut Vec<FieldError>,
    ) {
    }

    /// Warnings for the client that writes a valid object.
    fn warnings(
        &self,
        kind: &KindInfo,
        object: &Value,
        old: Option<&Value>,
        subresource: &str,
    ) -> Vec<String> {
        Vec::new()
    }

    /// Default grace period of a deletion in seconds.
    fn default_grace(&self, kind: &KindInfo, object: &Value) -> i64 {
        0
    }
}

/// No kind has a strategy: objects were validated elsewhere.
#[derive(Debug)]
pub struct NoStrategy;

impl Strategy for NoStrategy {}
