//! Strategic merge patches (`k8s.io/apimachinery/pkg/util/strategicpatch`).

use serde_json::{Map, Value};

use super::shapes::{FieldShapes, ListShape, key_of};

const DIRECTIVE: &str = "$patch";
const RETAIN: &str = "$retainKeys";
const ORDER: &str = "$setElementOrder/";
const DELETE_FROM: &str = "$deleteFromPrimitiveList/";

/// Applies a patch to an object of a built-in kind.
///
/// # Errors
/// What is wrong with the patch.
pub(super) fn apply(object: &mut Value, patch: &Value) -> Result<(), String> {
    let Value::Object(patch) = patch else { return Err("the patch is not an object".to_owned()) };
    merge(object, patch, &mut Vec::new())
}

const SHAPES: FieldShapes = FieldShapes { built_in: true };

fn merge<'p>(
    live: &mut Value,
    patch: &'p Map<String, Value>,
    names: &mut Vec<&'p str>,
) -> Result<(), String> {
    match patch.get(DIRECTIVE).and_then(Value::as_str) {
        None => {}
        Some("replace") => {
            *live = Value::Object(without_directives(patch));
            return Ok(());
        }
        Some("delete") => {
            *live = Value::Object(Map::new());
            return Ok(());
        }
        Some("merge") => {}
        Some(other) => return Err(format!("unknown patch type found: {other}")),
    }
    if !live.is_object() {
        *live = Value::Object(Map::new());
    }
    let Some(members) = live.as_object_mut() else { return Ok(()) };
    if let Some(retained) = patch.get(RETAIN).and_then(Value::as_array) {
        members.retain(|name, _| retained.iter().any(|one| one == name));
    }
    for (name, list) in patch {
        let Some(name) = name.strip_prefix(DELETE_FROM) else { continue };
        let gone = list.as_array().map_or(&[][..], Vec::as_slice);
        if let Some(items) = members.get_mut(name).and_then(Value::as_array_mut) {
            items.retain(|item| !gone.contains(item));
        }
    }
    for (name, value) in patch.iter().filter(|(name, _)| !name.starts_with('$')) {
        names.push(name);
        merge_member(members, (name, value), names)?;
        names.pop();
    }
    for (name, order) in patch {
        let Some(name) = name.strip_prefix(ORDER) else { continue };
        names.push(name);
        if let Some(items) = members.get_mut(name).and_then(Value::as_array_mut) {
            sort(items, order, SHAPES.strategic_list(names));
        }
        names.pop();
    }
    Ok(())
}

fn merge_member<'p>(
    members: &mut Map<String, Value>,
    (name, value): (&str, &'p Value),
    names: &mut Vec<&'p str>,
) -> Result<(), String> {
    match value {
        Value::Null => drop(members.remove(name)),
        Value::Object(patch) => {
            let slot = members.entry(name.to_owned()).or_insert(Value::Null);
            merge(slot, patch, names)?;
        }
        Value::Array(items) => {
            let shape = SHAPES.strategic_list(names);
            let live = members.get(name).and_then(Value::as_array).cloned();
            let merged = merge_list(live.unwrap_or_default(), items, shape, names)?;
            members.insert(name.to_owned(), Value::Array(merged));
        }
        scalar => drop(members.insert(name.to_owned(), scalar.clone())),
    }
    Ok(())
}

fn merge_list<'p>(
    mut live: Vec<Value>,
    patch: &'p [Value],
    shape: ListShape,
    names: &mut Vec<&'p str>,
) -> Result<Vec<Value>, String> {
    match shape {
        ListShape::Whole => Ok(patch.to_vec()),
        ListShape::Set => {
            let order = live.clone();
            for item in patch {
                if !live.contains(item) {
                    live.push(item.clone());
                }
            }
            Ok(ordered(live, patch, &order, shape))
        }
        ListShape::Keyed(keys) => {
            let replaces = patch.iter().any(|item| item[DIRECTIVE] == "replace");
            if replaces {
                let items = patch.iter().filter_map(Value::as_object).map(without_directives);
                return Ok(items.filter(|item| !item.is_empty()).map(Value::Object).collect());
            }
            let order = live.clone();
            for item in patch {
                merge_item(&mut live, item, keys, names)?;
            }
            Ok(ordered(live, patch, &order, shape))
        }
    }
}

fn merge_item<'p>(
    live: &mut Vec<Value>,
    item: &'p Value,
    keys: &[&str],
    names: &mut Vec<&'p str>,
) -> Result<(), String> {
    let key = key_of(item, keys);
    let Some(patch) = item.as_object() else { return Err("an item of the list is no object".to_owned()) };
    if key.as_object().is_none_or(Map::is_empty) {
        return Err(format!("map: {item} does not contain declared merge key: {}", keys.join(",")));
    }
    let at = live.iter().position(|one| key_of(one, keys) == key);
    match (item[DIRECTIVE].as_str(), at) {
        (Some("delete"), Some(at)) => drop(live.remove(at)),
        (Some("delete"), None) => {}
        (_, Some(at)) => merge(&mut live[at], patch, names)?,
        (_, None) => {
            let mut added = Value::Null;
            merge(&mut added, patch, names)?;
            live.push(added);
        }
    }
    Ok(())
}

/// The order of a merged list: items of the patch come in its order, the others in theirs, and one that is in both
/// comes before or after its neighbour as it did before.
fn ordered(merged: Vec<Value>, patch: &[Value], before: &[Value], shape: ListShape) -> Vec<Value> {
    let is_same = |one: &Value, other: &Value| match shape {
        ListShape::Keyed(keys) => key_of(one, keys) == key_of(other, keys),
        ListShape::Set | ListShape::Whole => one == other,
    };
    let place = |list: &[Value], item: &Value| list.iter().position(|one| is_same(one, item));
    let (mut stated, others): (Vec<Value>, Vec<Value>) =
        merged.into_iter().partition(|item| place(patch, item).is_some());
    stated.sort_by_key(|item| place(patch, item));
    let (mut all, mut others) = (Vec::new(), others.into_iter().peekable());
    for item in stated {
        let at = place(before, &item);
        while let Some(other) = others.peek() {
            let precedes = place(before, other).zip(at).is_some_and(|(other, at)| other < at);
            if !precedes {
                break;
            }
            all.extend(others.next());
        }
        all.push(item);
    }
    all.extend(others);
    all
}

/// Puts items into the order that a patch states; the others stay behind them.
fn sort(items: &mut [Value], order: &Value, shape: ListShape) {
    let Some(order) = order.as_array() else { return };
    let place = |item: &Value| {
        let found = order.iter().position(|wanted| match shape {
            ListShape::Keyed(keys) => key_of(wanted, keys) == key_of(item, keys),
            ListShape::Set | ListShape::Whole => wanted == item,
        });
        found.unwrap_or(usize::MAX)
    };
    items.sort_by_key(place);
}

fn without_directives(patch: &Map<String, Value>) -> Map<String, Value> {
    patch
        .iter()
        .filter(|(name, value)| !name.starts_with('$') && !value.is_null())
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn patched(mut object: Value, patch: &Value) -> Value {
        apply(&mut object, patch).expect("a patch");
        object
    }

    #[test]
    fn conditions_and_addresses_merge_by_type_and_other_lists_are_replaced() {
        let node = json!({"status": {
            "conditions": [{"type": "Ready", "status": "False"}, {"type": "DiskPressure", "status": "False"}],
            "addresses": [{"type": "InternalIP", "address": "1"}], "images": [{"names": ["a"]}], "phase": "x",
        }});
        let patch = json!({"status": {
            "conditions": [{"type": "Ready", "status": "True", "reason": "r"}],
            "addresses": [{"type": "Hostname", "address": "n"}], "images": [], "phase": null,
        }});
        assert_eq!(
            patched(node, &patch),
            json!({"status": {
                "conditions": [
                    {"type": "Ready", "status": "True", "reason": "r"}, {"type": "DiskPressure", "status": "False"},
                ],
                "addresses": [{"type": "Hostname", "address": "n"}, {"type": "InternalIP", "address": "1"}],
                "images": [],
            }})
        );
    }

    #[test]
    fn directives_replace_delete_and_order() {
        let pod = json!({"metadata": {"finalizers": ["a", "b"]}, "spec": {
            "containers": [{"name": "a", "image": "1"}, {"name": "b"}], "volumes": [{"name": "v", "emptyDir": {}}]}});
        let patch = json!({
            "metadata": {"$deleteFromPrimitiveList/finalizers": ["a"], "finalizers": ["c"]},
            "spec": {
                "$setElementOrder/containers": [{"name": "c"}, {"name": "a"}],
                "containers": [{"name": "b", "$patch": "delete"}, {"name": "c"}, {"name": "a", "image": "2"}],
                "volumes": [{"name": "v", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/"}}],
            },
        });
        assert_eq!(
            patched(pod, &patch),
            json!({"metadata": {"finalizers": ["c", "b"]}, "spec": {
                "containers": [{"name": "c"}, {"name": "a", "image": "2"}],
                "volumes": [{"name": "v", "hostPath": {"path": "/"}}]}})
        );
        let replaced =
            patched(json!({"data": {"a": "1"}}), &json!({"data": {"$patch": "replace", "b": "2"}}));
        assert_eq!(replaced, json!({"data": {"b": "2"}}));
    }

    #[test]
    fn a_patch_without_keys_is_refused() {
        let mut node = json!({"status": {}});
        apply(&mut node, &json!({"status": {"conditions": [{"status": "True"}]}})).expect_err("no type");
        apply(&mut node, &json!({"spec": {"$patch": "odd"}})).expect_err("no such directive");
    }
}
