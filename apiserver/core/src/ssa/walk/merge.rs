//! Merges an applied configuration into the stored object.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::{Form, form, identify};
use crate::schema::types::{ListShape, SchemaPosition};
use crate::ssa::path::Element;

/// Merges everything in `applied` into `live`.
pub(in crate::ssa) fn merge(
    position: SchemaPosition<'_>,
    live: Option<&Value>,
    applied: &Value,
) -> Result<Value, String> {
    let Some(live) = live else { return Ok(applied.clone()) };
    if applied.is_null() && has_parts(position, live) {
        // Null is an empty container: the fields of others in it stay.
        return Ok(live.clone());
    }
    match (form(position, live), form(position, applied)) {
        (Form::Map, Form::Map) => match (live, applied) {
            (Value::Object(live), Value::Object(applied)) => fields(position, live, applied),
            _ => Ok(applied.clone()),
        },
        (Form::List(list), Form::List(_)) => match (live, applied) {
            (Value::Array(live), Value::Array(applied)) => items(position, list, live, applied),
            _ => Ok(applied.clone()),
        },
        _ => Ok(applied.clone()),
    }
}

/// Whether a value is merged in parts and has some.
fn has_parts(position: SchemaPosition<'_>, value: &Value) -> bool {
    match form(position, value) {
        Form::Map => value.as_object().is_some_and(|map| !map.is_empty()),
        Form::List(_) => value.as_array().is_some_and(|items| !items.is_empty()),
        Form::Leaf => false,
    }
}

fn fields(
    position: SchemaPosition<'_>,
    live: &Map<String, Value>,
    applied: &Map<String, Value>,
) -> Result<Value, String> {
    // Copying everything at each level would copy the innermost values once per level.
    let others = live.iter().filter(|(key, _)| !applied.contains_key(*key));
    let mut out: Map<String, Value> = others.map(|(key, value)| (key.clone(), value.clone())).collect();
    for (key, value) in applied {
        let merged = merge(position.child(key).0, live.get(key), value)?;
        out.insert(key.clone(), merged);
    }
    Ok(Value::Object(out))
}

/// Items of both lists: shared ones in the order of the configuration, others at their old positions.
fn items(
    position: SchemaPosition<'_>,
    list: &ListShape,
    live: &[Value],
    applied: &[Value],
) -> Result<Value, String> {
    let left = index(position, list, live)?;
    let right = index(position, list, applied)?;
    let mut by_left: BTreeMap<&Element, Option<&Value>> = BTreeMap::new();
    for (element, item) in &left {
        // Duplicate items are not merged: the configuration replaces them.
        by_left.entry(element).and_modify(|slot| *slot = None).or_insert(Some(item));
    }
    let by_right: BTreeMap<&Element, &Value> = right.iter().map(|(element, item)| (element, *item)).collect();
    let mut shared = right.iter().map(|(element, _)| element).filter(|e| by_left.contains_key(e)).peekable();
    let mut merged: BTreeSet<&Element> = BTreeSet::new();
    let mut out = Vec::with_capacity(left.len().max(right.len()));
    let (mut l, mut r) = (0, 0);
    while l < left.len() || r < right.len() {
        if let (Some((on_left, _)), Some((on_right, item))) = (left.get(l), right.get(r)) {
            if on_left == on_right {
                merged.insert(on_right);
                out.push(merge(position.item(), by_left.get(on_left).copied().flatten(), item)?);
                (l, r) = (l + 1, r + 1);
                shared.next();
                continue;
            }
            if by_right.contains_key(on_left) && shared.peek().is_some_and(|next| *next != on_left) {
                // A shared item, which is placed in the order of the configuration.
                l += 1;
                continue;
            }
        }
        if let Some((on_left, item)) = left.get(l) {
            if !by_right.contains_key(on_left) {
                out.push((*item).clone());
                l += 1;
                continue;
            }
            if merged.contains(on_left) {
                l += 1;
            }
        }
        if let Some((on_right, item)) = right.get(r) {
            merged.insert(on_right);
            out.push(merge(position.item(), by_left.get(on_right).copied().flatten(), item)?);
            r += 1;
            if shared.peek().is_some_and(|next| *next == on_right) {
                shared.next();
            }
        }
    }
    Ok(Value::Array(out))
}

fn index<'v>(
    position: SchemaPosition<'_>,
    list: &ListShape,
    items: &'v [Value],
) -> Result<Vec<(Element, &'v Value)>, String> {
    items.iter().map(|item| Ok((identify(position, list, item)?, item))).collect()
}
