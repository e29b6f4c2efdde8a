//! Strategic merge of an object and a patch along the type of the object.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::directives::{self, Directive, PatchKey, RETAIN_KEYS};
use super::{PATCHED_LEN_MAX, PatchError};
use crate::gofmt;
use crate::schema::types::{ListMerge, SchemaPosition, Shape};

/// Applies `patch` to `old`; the result is an empty object when the patch deletes it. `again` counts the bytes of items
/// that the patch names repeatedly, once for each repetition. `old` is changed in place: a copy at each level would
/// copy the innermost values once per level.
pub(super) fn merge(
    position: SchemaPosition<'_>,
    old: Option<Value>,
    patch: &Value,
    again: &mut usize,
) -> Result<Value, PatchError> {
    let Value::Object(patch) = patch else { return Ok(directives::stripped(patch)) };
    match directives::directive(patch)? {
        Some(Directive::Delete) => return Ok(Value::Object(Map::new())),
        Some(Directive::Replace) => return Ok(directives::stripped(&Value::Object(patch.clone()))),
        None => {}
    }
    let mut out = match old {
        Some(Value::Object(old)) => old,
        _ => Map::new(),
    };
    let old = lists(position, &out, patch);
    retain(&mut out, patch)?;
    // Fields come before list directives, so that the lists are complete when the directives are applied.
    for (name, value) in patch {
        if let PatchKey::Field(name) = directives::key(name) {
            field(position, name, value, &mut out, again)?;
            let ordered = patch.contains_key(&directives::order_of(name));
            if let (false, Value::Array(items)) = (ordered, value) {
                // Without an explicit order, the order of the patch's items applies.
                order_items(position, name, items, &old, &mut out)?;
            }
        }
    }
    for (name, value) in patch {
        match directives::key(name) {
            PatchKey::DeleteFrom(name) => delete_from(name, value, &mut out),
            PatchKey::Order(name) => reorder(position, name, value, (&old, patch), &mut out)?,
            PatchKey::Field(_) | PatchKey::Own => {}
        }
    }
    Ok(Value::Object(out))
}

/// The lists that a patch reorders, as they were before it.
fn lists(
    position: SchemaPosition<'_>,
    old: &Map<String, Value>,
    patch: &Map<String, Value>,
) -> Map<String, Value> {
    let names = patch.keys().filter_map(|name| match directives::key(name) {
        PatchKey::Field(name) | PatchKey::Order(name) => Some(name),
        PatchKey::DeleteFrom(_) | PatchKey::Own => None,
    });
    let names = names.filter(|name| merges(position.child(name).0).is_some());
    let lists = names.filter_map(|name| Some((name, old.get(name).filter(|list| list.is_array())?)));
    lists.map(|(name, list)| (name.to_owned(), list.clone())).collect()
}

fn retain(out: &mut Map<String, Value>, patch: &Map<String, Value>) -> Result<(), PatchError> {
    let Some(keys) = patch.get(RETAIN_KEYS) else { return Ok(()) };
    let wrong = PatchError::Contradiction("invalid patch format of retainKeys");
    let Value::Array(keys) = keys else { return Err(wrong) };
    let keys: HashSet<&str> = keys.iter().filter_map(Value::as_str).collect();
    let known = |name: &str| keys.contains(name);
    if patch.keys().any(|name| matches!(directives::key(name), PatchKey::Field(_)) && !known(name)) {
        return Err(wrong);
    }
    out.retain(|name, _| known(name));
    Ok(())
}

fn field(
    position: SchemaPosition<'_>,
    name: &str,
    value: &Value,
    out: &mut Map<String, Value>,
    again: &mut usize,
) -> Result<(), PatchError> {
    let (child, _) = position.child(name);
    let merged = match (value, out.get_mut(name)) {
        (Value::Null, _) => {
            out.remove(name);
            return Ok(());
        }
        (Value::Object(_), Some(old @ Value::Object(_))) => merge(child, Some(old.take()), value, again)?,
        // Without an old object to change, any directive results in nothing.
        (Value::Object(patch), _) if patch.contains_key(directives::PATCH) => {
            out.remove(name);
            return Ok(());
        }
        (Value::Object(_), _) => merge(child, None, value, again)?,
        (Value::Array(items), old) => {
            let old = old.and_then(|old| old.as_array()).map_or(&[][..], Vec::as_slice);
            Value::Array(list(child, old, items, again)?)
        }
        (scalar, _) => scalar.clone(),
    };
    out.insert(name.to_owned(), merged);
    Ok(())
}

pub(super) fn merges(position: SchemaPosition<'_>) -> Option<ListMerge> {
    match &position.node().shape {
        Shape::List(list) => list.merge.clone(),
        _ => None,
    }
}

fn list(
    position: SchemaPosition<'_>,
    old: &[Value],
    patch: &[Value],
    again: &mut usize,
) -> Result<Vec<Value>, PatchError> {
    // One marker replaces the whole list.
    let replaces = patch.iter().any(is_marker);
    match merges(position) {
        Some(merge) if !replaces => match merge.key {
            Some(key) => objects(position.item(), old, patch, &key, again),
            None => Ok(scalars(old, patch)),
        },
        _ => match directives::stripped(&Value::Array(patch.to_vec())) {
            Value::Array(items) => Ok(items),
            _ => Ok(Vec::new()),
        },
    }
}

/// A list of scalars with strategy merge is a set.
pub(super) fn scalars(old: &[Value], patch: &[Value]) -> Vec<Value> {
    let mut has: HashSet<&Value> = old.iter().collect();
    let news = patch.iter().filter(|item| has.insert(item));
    old.iter().chain(news).cloned().collect()
}

/// Whether an item of a patch is the marker that replaces the list.
fn is_marker(item: &Value) -> bool {
    item.get(directives::PATCH).is_some_and(|directive| directive == "replace")
}

impl ListMerge {
    /// The identity of an item within its list.
    fn identity(&self, item: &Value) -> Result<String, PatchError> {
        match &self.key {
            Some(key) => identity(item, key),
            None => Ok(item.to_string()),
        }
    }
}

fn identity(item: &Value, key: &str) -> Result<String, PatchError> {
    match item.get(key) {
        Some(value) if !value.is_null() => Ok(value.to_string()),
        _ => Err(PatchError::MissingKey { item: gofmt::value(item), key: key.to_owned() }),
    }
}

/// Merges lists of objects with a merge key: each item of the patch changes the item with the same key.
fn objects(
    position: SchemaPosition<'_>,
    old: &[Value],
    patch: &[Value],
    key: &str,
    again: &mut usize,
) -> Result<Vec<Value>, PatchError> {
    let mut changed = HashSet::new();
    let mut out: Vec<Option<Value>> = old.iter().cloned().map(Some).collect();
    let mut index: HashMap<String, Vec<usize>> = HashMap::new();
    for (at, item) in old.iter().enumerate() {
        index.entry(identity(item, key)?).or_default().push(at);
    }
    for item in patch {
        let Value::Object(map) = item else {
            let lists = Value::Array(vec![old.to_vec().into(), patch.to_vec().into()]);
            return Err(PatchError::Unmergeable(format!(
                "list element types are not identical: {}",
                gofmt::value(&lists)
            )));
        };
        let directive = directives::item_directive(map)?;
        let identity = identity(item, key)?;
        if directive == Some(Directive::Delete) {
            for at in index.remove(&identity).unwrap_or_default() {
                out[at] = None;
            }
            continue;
        }
        let first = index.get(&identity).and_then(|found| found.first()).copied();
        match first {
            Some(at) => {
                // A short patch can name one large item repeatedly.
                if !changed.insert(at) {
                    super::count(again, out[at].as_ref(), PATCHED_LEN_MAX)?;
                }
                out[at] = Some(merge(position, out[at].take(), item, again)?);
            }
            None => {
                changed.insert(out.len());
                index.insert(identity, vec![out.len()]);
                out.push(Some(merge(position, None, item, again)?));
            }
        }
    }
    Ok(out.into_iter().flatten().collect())
}

pub(super) fn delete_from(name: &str, value: &Value, out: &mut Map<String, Value>) {
    // A value that is not a list deletes nothing, as in kube-apiserver.
    if let (Some(Value::Array(items)), Value::Array(gone)) = (out.get_mut(name), value) {
        let gone: HashSet<&Value> = gone.iter().collect();
        items.retain(|item| !gone.contains(item));
    }
}

/// Orders a merged list: listed items in the stated order, others relative to the items that they preceded before.
fn reorder(
    position: SchemaPosition<'_>,
    name: &str,
    order: &Value,
    (old, patch): (&Map<String, Value>, &Map<String, Value>),
    out: &mut Map<String, Value>,
) -> Result<(), PatchError> {
    let Value::Array(order) = order else {
        let found = gofmt::type_name(order);
        return Err(PatchError::Unmergeable(format!("expected a []interface {{}}, but received a {found}")));
    };
    let items = patch.get(name).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    if let Some(merge) = merges(position.child(name).0) {
        check_order(&merge, order, items)?;
    }
    order_items(position, name, order, old, out)
}

/// The items of the patch must be in the order that the patch states.
fn check_order(merge: &ListMerge, order: &[Value], items: &[Value]) -> Result<(), PatchError> {
    let mut stated = order.iter().map(|item| merge.identity(item));
    for item in items.iter().filter(|item| item.get(directives::PATCH).is_none()) {
        let own = merge.identity(item)?;
        let mut found = order.is_empty();
        for one in stated.by_ref() {
            if one? == own {
                found = true;
                break;
            }
        }
        if !found {
            let [items, order] = [items, order].map(|list| gofmt::value(&Value::Array(list.to_vec())));
            return Err(PatchError::Unmergeable(format!(
                "The order in patch list:\n{items}\n doesn't match $setElementOrder list:\n{order}\n"
            )));
        }
    }
    Ok(())
}

/// Orders a merged list by the items of another list, as far as it contains them.
fn order_items(
    position: SchemaPosition<'_>,
    name: &str,
    order: &[Value],
    old: &Map<String, Value>,
    out: &mut Map<String, Value>,
) -> Result<(), PatchError> {
    let (child, _) = position.child(name);
    let Some(merge) = merges(child) else { return Ok(()) };
    let Some(Value::Array(items)) = out.get_mut(name) else { return Ok(()) };
    let id = |item: &Value| merge.identity(item);
    let mut rank = HashMap::new();
    for (at, item) in order.iter().filter(|item| !is_marker(item)).enumerate() {
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

/// Inserts items that the order does not mention before the first listed item that followed them before.
fn interleave(listed: Vec<(usize, Option<usize>, Value)>, others: Vec<(Option<usize>, Value)>) -> Vec<Value> {
    let mut out = Vec::with_capacity(listed.len() + others.len());
    let mut others = others.into_iter().peekable();
    for (_, rank, item) in listed {
        while let (Some(rank), Some((Some(other), _))) = (rank, others.peek()) {
            if *other > rank {
                break;
            }
            out.extend(others.next().map(|(_, item)| item));
        }
        out.push(item);
    }
    out.extend(others.map(|(_, item)| item));
    out
}
