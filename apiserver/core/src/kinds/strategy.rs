//! What a built-in kind does that no table says, given to the kinds by whoever knows them: `tombolo-catalog` for a server
//! that stands for kube-apiserver, nobody for a copy of its objects.

use std::fmt::Debug;

use jiff::Timestamp;
use serde_json::{Map, Value};

use super::KindInfo;
use crate::field_error::FieldError;
use crate::names;

/// The strategies of kube-apiserver for all built-in kinds (`rest.RESTCreateStrategy` and its siblings). Custom kinds
/// have none: their definition says all about them. What is not given does nothing.
#[allow(unused_variables, reason = "the names of the parameters are their documentation")]
pub trait Strategy: Debug + Send + Sync {
    /// Puts defaults in.
    fn default(&self, kind: &KindInfo, object: &mut Value) {}

    /// The status of a new object, when there is one.
    fn initial_status(&self, kind: &KindInfo, object: &Map<String, Value>, now: Timestamp) -> Option<Value> {
        None
    }

    /// Completes a new object, after what every kind has in common.
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

    /// What is wrong with the name of an object.
    fn name_problem(&self, kind: &KindInfo, name: &str) -> Option<String> {
        names::path_segment(name)
    }

    /// Adds what is wrong with a new object, beside its metadata.
    fn validate_create(&self, kind: &KindInfo, object: &Value, errors: &mut Vec<FieldError>) {}

    /// Adds what is wrong with an update, beside the metadata, and may excuse what was found there.
    fn validate_update(
        &self,
        kind: &KindInfo,
        new: &Value,
        old: &Value,
        subresource: &str,
        errors: &mut Vec<FieldError>,
    ) {
    }

    /// What the writer of an object that is right should still be told.
    fn warnings(
        &self,
        kind: &KindInfo,
        object: &Value,
        old: Option<&Value>,
        subresource: &str,
    ) -> Vec<String> {
        Vec::new()
    }

    /// Seconds that a deletion waits when nobody says how long.
    fn default_grace(&self, kind: &KindInfo, object: &Value) -> i64 {
        0
    }
}

/// No kind does anything of its own: what is written was judged elsewhere.
#[derive(Debug)]
pub struct NoStrategy;

impl Strategy for NoStrategy {}
