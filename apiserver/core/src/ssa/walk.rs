//! Walks over values along their types: the fields of a value, differences, merges.

mod compare;
mod merge;
mod remove;

use std::collections::HashMap;

use serde_json::{Map, Value};

pub(super) use self::compare::compare;
pub(super) use self::merge::merge;
pub(super) use self::remove::remove;
use super::path::Element;
use super::set::Set;
use crate::gofmt;
use crate::schema::types::{ListShape, Presence, Rest, SchemaPosition, Shape, StringKind, Topology};

/// How a value is treated: as a whole, or in parts.
pub(super) enum Form<'a> {
    Leaf,
    Map,
    List(&'a ListShape),
}

/// The form of a value in a type. A value that does not fit its type is a leaf.
pub(super) fn form<'a>(position: SchemaPosition<'a>, value: &Value) -> Form<'a> {
    match (&position.node().shape, value) {
        (Shape::Any { atomic: false }, Value::Object(_)) => Form::Map,
        (Shape::Struct(shape), Value::Object(_)) if !shape.atomic => Form::Map,
        (Shape::Map { atomic: false, .. }, Value::Object(_)) => Form::Map,
        (Shape::List(list), Value::Array(_)) if !matches!(list.topology, Topology::Atomic) => {
            Form::List(list)
        }
        _ => Form::Leaf,
    }
}

/// The element that identifies an item of a set or an associative list.
pub(super) fn identify(
    position: SchemaPosition<'_>,
    list: &ListShape,
    item: &Value,
) -> Result<Element, String> {
    let Topology::Map(keys) = &list.topology else {
        return match item {
            Value::Object(_) => {
                Err("associative list without keys has an element that's a map type".to_owned())
            }
            Value::Array(_) => Err("not supported: associative list with lists as elements".to_owned()),
            Value::Null => {
                Err("associative list without keys has an element that's an explicit null".to_owned())
            }
            scalar => Ok(Element::Item(scalar.to_string())),
        };
    };
    let Value::Object(map) = item else {
        let odd = if item.is_null() { "a null element" } else { "non-map elements" };
        return Err(format!("associative list with keys may not have {odd}"));
    };
    let mut found = Map::new();
    for key in keys {
        let given = map.get(key.as_ref()).filter(|value| !value.is_null()).cloned();
        if let Some(value) = given.or_else(|| key_default(position.item(), key)) {
            found.insert(key.to_string(), value);
        }
    }
    if found.is_empty() {
        let names: Vec<String> = keys.iter().map(|key| format!("{key:?}")).collect();
        return Err(format!(
            "associative list with keys has an element that omits all key fields {} (and doesn't have default \
             values for any key fields)",
            names.join(", ")
        ));
    }
    Ok(Element::Keys(Value::Object(found).to_string()))
}

/// The default of a key field: from the table of facts, from a structural schema, or the zero value that the Go
/// encoder always writes, which is the default in the OpenAPI of built-in types.
fn key_default(item: SchemaPosition<'_>, key: &str) -> Option<Value> {
    let Shape::Struct(shape) = &item.node().shape else { return None };
    let field = shape.field(key)?;
    let node = item.child(key).0.node();
    let stated = field.default.as_ref().and_then(|json| serde_json::from_str(json).ok());
    let zero = match (field.presence, &node.shape) {
        (Presence::Emit, Shape::String(_)) => Some(Value::from("")),
        (Presence::Emit, Shape::Integer { .. }) => Some(Value::from(0)),
        _ => None,
    };
    stated.or_else(|| node.default.as_deref().cloned()).or(zero)
}

/// The fields that a value contains.
pub(super) fn to_set(position: SchemaPosition<'_>, value: &Value) -> Set {
    let mut set = Set::default();
    collect(position, value, &mut Vec::new(), &mut set);
    set
}

fn collect(position: SchemaPosition<'_>, value: &Value, path: &mut Vec<Element>, set: &mut Set) {
    match (form(position, value), value) {
        (Form::Map, Value::Object(map)) => {
            for (key, item) in map {
                let (child, declared) = position.child(key);
                path.push(Element::field(key));
                collect(child, item, path, set);
                let empty = item.is_null() || item.as_object().is_some_and(Map::is_empty);
                if empty || !declared {
                    set.insert(path);
                }
                path.pop();
            }
        }
        (Form::List(list), Value::Array(items)) => {
            let mut counts: HashMap<Element, usize> = HashMap::new();
            let elements: Vec<Option<Element>> =
                items.iter().map(|item| identify(position, list, item).ok()).collect();
            for element in elements.iter().flatten() {
                *counts.entry(element.clone()).or_default() += 1;
            }
            for (item, element) in items.iter().zip(elements) {
                let Some(element) = element else { continue };
                let single = counts.get(&element) == Some(&1);
                path.push(element);
                set.insert(path);
                // Duplicate items are owned as a whole.
                if single {
                    collect(position.item(), item, path, set);
                }
                path.pop();
            }
        }
        _ => set.insert(path),
    }
}

/// Checks that an applied configuration contains only fields of the type, and no duplicate items.
pub(super) fn validate(position: SchemaPosition<'_>, value: &Value) -> Result<(), String> {
    check(position, value, "")
}

fn check(position: SchemaPosition<'_>, value: &Value, path: &str) -> Result<(), String> {
    match (&position.node().shape, value) {
        (Shape::Struct(shape), Value::Object(map)) => {
            for (key, item) in map {
                let (child, declared) = position.child(key);
                let typed = matches!(key.as_str(), "apiVersion" | "kind") && shape.embedded;
                if !declared && !typed && shape.rest == Rest::Pruned {
                    return Err(format!("{path}.{key}: field not declared in schema"));
                }
                check(child, item, &format!("{path}.{key}"))?;
            }
            Ok(())
        }
        (Shape::Map { .. }, Value::Object(map)) => map
            .iter()
            .try_for_each(|(key, item)| check(position.child(key).0, item, &format!("{path}.{key}"))),
        (Shape::List(list), Value::Array(items)) => {
            let mut seen = std::collections::HashSet::new();
            for (index, item) in items.iter().enumerate() {
                if matches!(list.topology, Topology::Atomic) {
                    check(position.item(), item, &format!("{path}[{index}]"))?;
                    continue;
                }
                let element = identify(position, list, item)
                    .map_err(|problem| format!("{path}: element {index}: {problem}"))?;
                let below = format!("{path}{element}");
                if !seen.insert(element.clone()) {
                    return Err(format!("{path}: duplicate entries for key {element}"));
                }
                check(position.item(), item, &below)?;
            }
            Ok(())
        }
        (Shape::Struct(_) | Shape::Map { .. }, other) if !other.is_null() => {
            Err(format!("{path}: expected map, got {}", shown(other)))
        }
        (Shape::List(_), other) if !other.is_null() => {
            Err(format!("{path}: expected list, got {}", shown(other)))
        }
        (shape, scalar) => check_scalar(shape, scalar).map_err(|problem| format!("{path}: {problem}")),
    }
}

/// Whether a value has the declared scalar type. Times and values of several types accept any scalar.
fn check_scalar(shape: &Shape, value: &Value) -> Result<(), String> {
    let whole = value.is_array() || value.is_object();
    match shape {
        _ if value.is_null() => Ok(()),
        Shape::String(StringKind::Plain | StringKind::Bytes) if !value.is_string() => {
            let text = gofmt::syntax(value);
            Err(format!("expected string, got &value.valueUnstructured{{Value:{text}}}"))
        }
        Shape::Integer { .. } | Shape::Number if !value.is_number() => {
            Err(format!("expected numeric (int or float), got {}", gofmt::type_name(value)))
        }
        Shape::Bool if !value.is_boolean() => Err(format!("expected boolean, got {}", shown(value))),
        Shape::String(_) | Shape::IntOrString | Shape::Quantity if whole => {
            Err(format!("expected any scalar, got {}", shown(value)))
        }
        _ => Ok(()),
    }
}

/// A value in a message, as Go's `%v` shows the pointer to it.
fn shown(value: &Value) -> String {
    format!("&{{{}}}", gofmt::value(value))
}
