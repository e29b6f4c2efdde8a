//! Strategic merge: an object and a patch walked beside their type.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::PatchError;
use super::directives::{self, Directive, Key, RETAIN_KEYS};
use crate::schema::types::{ListMerge, Place, Shape};

/// The object that `patch` makes of `old`; null when the patch deletes it.
pub(super) fn merge(place: Place<'_>, old: Option<&Value>, patch: &Value) -> Result<Value, PatchError> {
    let Value::Object(patch) = patch else { return Ok(directives::stripped(patch)) };
    match directives::directive(patch)? {
        Some(Directive::Delete) => return Ok(Value::Object(Map::new())),
        Some(Directive::Replace) => return Ok(directives::stripped(&Value::Object(patch.clone()))),
        Some(Directive::Merge) | None => {}
    }
    let empty = Map::new();
    let old = old.and_then(Value::as_object).unwrap_or(&empty);
    let mut out = old.clone();
    retain(&mut out, patch)?;
    // Fields before directives about lists, so that the lists they speak of are complete.
    for (name, value) in patch {
        if let Key::Field(name) = directives::key(name) {
            field(place, name, value, &mut out)?;
        }
    }
    for (name, value) in patch {
        match directives::key(name) {
            Key::DeleteFrom(name) => delete_from(name, value, &mut out)?,
            Key::Order(name) => reorder(place, name, value, old, &mut out)?,
            Key::Field(_) | Key::Own => {}
        }
    }
    Ok(Value::Object(out))
}

fn retain(out: &mut Map<String, Value>, patch: &Map<String, Value>) -> Result<(), PatchError> {
    let Some(keys) = patch.get(RETAIN_KEYS) else { return Ok(()) };
    let keys = directives::list(keys, RETAIN_KEYS)?;
    let known = |name: &str| keys.iter().any(|key| key == name);
    if let Some(name) =
        patch.keys().find(|name| matches!(directives::key(name), Key::Field(_)) && !known(name))
    {
        return Err(PatchError::Malformed(format!(
            "{RETAIN_KEYS} does not list the field {name} of the patch"
        )));
    }
    out.retain(|name, _| known(name));
    Ok(())
}

fn field(
    place: Place<'_>,
    name: &str,
    value: &Value,
    out: &mut Map<String, Value>,
) -> Result<(), PatchError> {
    let (child, _) = place.child(name);
    let merged = match (value, out.get(name)) {
        (Value::Null, _) => {
            out.remove(name);
            return Ok(());
        }
        (Value::Object(patch), old) => {
            if directives::directive(patch)? == Some(Directive::Delete) {
                out.remove(name);
                return Ok(());
            }
            merge(child, old.filter(|old| old.is_object()), value)?
        }
        (Value::Array(items), old) => {
            let old = old.and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
            Value::Array(list(child, old, items)?)
        }
        (scalar, _) => scalar.clone(),
    };
    out.insert(name.to_owned(), merged);
    Ok(())
}

fn merges(place: Place<'_>) -> Option<ListMerge> {
    match &place.node().shape {
        Shape::List(list) => list.merge.clone(),
        _ => None,
    }
}

fn list(place: Place<'_>, old: &[Value], patch: &[Value]) -> Result<Vec<Value>, PatchError> {
    // One marker in the list replaces it as a whole.
    let replaces = patch.iter().any(|item| {
        item.as_object().is_some_and(|map| map.get(directives::PATCH).is_some_and(|value| value == "replace"))
    });
    match merges(place) {
        Some(merge) if !replaces => match merge.key {
            Some(key) => objects(place.item(), old, patch, &key),
            None => Ok(scalars(old, patch)),
        },
        _ => match directives::stripped(&Value::Array(patch.to_vec())) {
            Value::Array(items) => Ok(items),
            _ => Ok(Vec::new()),
        },
    }
}

/// A list of scalars with strategy merge is a set.
fn scalars(old: &[Value], patch: &[Value]) -> Vec<Value> {
    let mut out = old.to_vec();
    for item in patch {
        if !out.contains(item) {
            out.push(item.clone());
        }
    }
    out
}

fn identity(item: &Value, key: &str) -> Result<String, PatchError> {
    match item.get(key) {
        Some(value) if !value.is_null() => Ok(value.to_string()),
        _ => Err(PatchError::MissingKey { item: item.to_string(), key: key.to_owned() }),
    }
}

/// A list of objects with a merge key: each item of the patch changes the item with the same key.
fn objects(place: Place<'_>, old: &[Value], patch: &[Value], key: &str) -> Result<Vec<Value>, PatchError> {
    let mut out: Vec<Option<Value>> = old.iter().cloned().map(Some).collect();
    let mut index: HashMap<String, Vec<usize>> = HashMap::new();
    for (at, item) in old.iter().enumerate() {
        index.entry(identity(item, key)?).or_default().push(at);
    }
    for item in patch {
        let Value::Object(map) = item else {
            return Err(PatchError::Malformed(format!(
                "an item of a list with merge key {key} is no object"
            )));
        };
        let directive = directives::directive(map)?;
        let identity = identity(item, key)?;
        let found = index.get(&identity).cloned().unwrap_or_default();
        if directive == Some(Directive::Delete) {
            for at in found {
                out[at] = None;
            }
            index.remove(&identity);
            continue;
        }
        match found.first() {
            Some(at) => out[*at] = Some(merge(place, out[*at].as_ref(), item)?),
            None => {
                index.insert(identity, vec![out.len()]);
                out.push(Some(merge(place, None, item)?));
            }
        }
    }
    Ok(out.into_iter().flatten().collect())
}

fn delete_from(name: &str, value: &Value, out: &mut Map<String, Value>) -> Result<(), PatchError> {
    let gone = directives::list(value, "a list of values to delete")?;
    if let Some(Value::Array(items)) = out.get_mut(name) {
        items.retain(|item| !gone.contains(item));
    }
    Ok(())
}

/// Orders a merged list: listed items as listed, others keep their place relative to what they followed before.
fn reorder(
    place: Place<'_>,
    name: &str,
    order: &Value,
    old: &Map<String, Value>,
    out: &mut Map<String, Value>,
) -> Result<(), PatchError> {
    let order = directives::list(order, "an element order")?;
    let (child, _) = place.child(name);
    let Some(ListMerge { key }) = merges(child) else { return Ok(()) };
    let Some(Value::Array(items)) = out.get_mut(name) else { return Ok(()) };
    let id = |item: &Value| match &key {
        Some(key) => identity(item, key),
        None => Ok(item.to_string()),
    };
    let mut rank = HashMap::new();
    for (at, item) in order.iter().enumerate() {
        rank.entry(id(item)?).or_insert(at);
    }
    let mut before = HashMap::new();
    for (at, item) in old.get(name).and_then(Value::as_array).into_iter().flatten().enumerate() {
        before.entry(id(item)?).or_insert(at);
    }
    let mut listed = Vec::new();
    let mut others = Vec::new();
    for item in std::mem::take(items) {
        let id = id(&item)?;
        match rank.get(&id) {
            Some(rank) => listed.push((*rank, before.get(&id).copied(), item)),
            None => others.push((before.get(&id).copied(), item)),
        }
    }
    listed.sort_by_key(|(rank, ..)| *rank);
    *items = interleave(listed, others);
    Ok(())
}

/// Puts items that the order does not mention in front of the first listed item that came after them before.
fn interleave(listed: Vec<(usize, Option<usize>, Value)>, others: Vec<(Option<usize>, Value)>) -> Vec<Value> {
    let mut out = Vec::with_capacity(listed.len() + others.len());
    let mut others = others.into_iter().peekable();
    for (_, place, item) in listed {
        while let (Some(place), Some((Some(other), _))) = (place, others.peek()) {
            if *other > place {
                break;
            }
            out.extend(others.next().map(|(_, item)| item));
        }
        out.push(item);
    }
    out.extend(others.map(|(_, item)| item));
    out
}
