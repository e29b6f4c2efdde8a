//! The strategies of all built-in kinds, in the form that the core calls.

use jiff::Timestamp;
use serde_json::{Map, Value};
use tombolo_apicore::field_error::FieldError;
use tombolo_apicore::kinds::KindInfo;
use tombolo_apicore::kinds::strategy::Strategy;

use crate::{defaults, prepare, validate};

/// The behaviour of kube-apiserver for its own kinds.
#[derive(Debug)]
pub(crate) struct Builtin;

impl Strategy for Builtin {
    fn default(&self, kind: &KindInfo, object: &mut Value) {
        defaults::default(kind, object);
    }

    fn initial_status(&self, kind: &KindInfo, object: &Map<String, Value>, now: Timestamp) -> Option<Value> {
        prepare::initial(kind.group_kind(), object, now)
    }

    fn prepare_create(&self, kind: &KindInfo, object: &mut Value) {
        prepare::create(kind, object);
    }

    fn prepare_update(
        &self,
        kind: &KindInfo,
        new: &mut Value,
        old: &Value,
        subresource: &str,
        now: Timestamp,
    ) {
        prepare::update(kind, new, old, subresource, now);
    }

    fn name_problem(&self, kind: &KindInfo, name: &str) -> Option<String> {
        validate::name_problem(kind, name)
    }

    fn validate_create(&self, kind: &KindInfo, object: &Value, errors: &mut Vec<FieldError>) {
        validate::create(kind, object, errors);
    }

    fn validate_update(
        &self,
        kind: &KindInfo,
        new: &Value,
        old: &Value,
        subresource: &str,
        errors: &mut Vec<FieldError>,
    ) {
        validate::update(kind, new, old, subresource, errors);
    }

    fn warnings(
        &self,
        kind: &KindInfo,
        object: &Value,
        old: Option<&Value>,
        subresource: &str,
    ) -> Vec<String> {
        validate::warnings::of(kind, object, old, subresource)
    }

    fn default_grace(&self, kind: &KindInfo, object: &Value) -> i64 {
        prepare::default_grace(kind, object)
    }
}
