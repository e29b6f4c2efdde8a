//! Uniqueness in lists of type set and map.

use std::collections::HashSet;

use serde_json::{Map, Value};

use crate::field_error::{CAUSES_MAX, FieldError};
use crate::schema::types::{ListShape, Topology};

/// Reports duplicate items of a set and duplicate keys of an associative list.
pub(super) fn unique(list: &ListShape, items: &[Value], path: &str, errors: &mut Vec<FieldError>) {
    let mut seen = HashSet::new();
    for (index, item) in items.iter().enumerate() {
        let identity = match &list.topology {
            Topology::Atomic => return,
            Topology::Set => item.clone(),
            Topology::Map(keys) => {
                let Value::Object(map) = item else { continue };
                let pick = |key: &str| map.get(key).map(|value| (key.to_owned(), value.clone()));
                Value::Object(keys.iter().filter_map(|key| pick(key)).collect::<Map<_, _>>())
            }
        };
        // The members of objects are sorted, so equal values have equal texts.
        if !seen.insert(identity.to_string()) && errors.len() < CAUSES_MAX {
            errors.push(FieldError::duplicate(format!("{path}[{index}]"), identity));
        }
    }
}
