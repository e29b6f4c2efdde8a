//! Changes at each place of an object, one at a time.

use std::fmt;

use serde_json::{Value, json};

/// How many items of a list are changed.
const ITEMS: usize = 3;

/// The kinds of changes, as the lists of differences name them.
const ABSENT: &str = "absent";
const EMPTY: &str = "empty";
const BAD: &str = "bad";
const LONG: &str = "long";
const ZERO: &str = "zero";
const NEGATIVE: &str = "negative";
const HUGE: &str = "huge";
const FLIPPED: &str = "flipped";
const DOUBLED: &str = "doubled";

/// A change at one place.
#[derive(Debug)]
pub(super) struct Change {
    /// The field in the API's notation, such as `spec.ports[0].name`.
    pub(super) path: String,
    pub(super) what: &'static str,
}

impl fmt::Display for Change {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} {}", self.path, self.what)
    }
}

/// Every change of an object, with the changed object. Metadata is the same for all kinds, so only that of pods is
/// changed.
pub(super) fn changes(object: &Value) -> Vec<(Change, Value)> {
    let metadata = object["spec"].get("containers").is_some();
    let mut pointers = Vec::new();
    for (name, member) in object.as_object().expect("a manifest is an object") {
        if metadata || name != "metadata" {
            walk(format!("/{}", escaped(name)), name.clone(), member, &mut pointers);
        }
    }
    let changed = |(pointer, path, value): &(String, String, Value)| {
        let of_value = |(what, changed): (&'static str, Option<Value>)| {
            let mut object = object.clone();
            put(&mut object, pointer, changed);
            (Change { path: path.clone(), what }, object)
        };
        replacements(value).into_iter().map(of_value).collect::<Vec<_>>()
    };
    pointers.iter().flat_map(changed).collect()
}

/// JSON pointer, path and value of every place.
fn walk(pointer: String, path: String, value: &Value, found: &mut Vec<(String, String, Value)>) {
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                walk(format!("{pointer}/{}", escaped(name)), format!("{path}.{name}"), member, found);
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().take(ITEMS).enumerate() {
                walk(format!("{pointer}/{index}"), format!("{path}[{index}]"), item, found);
            }
        }
        _ => {}
    }
    found.push((pointer, path, value.clone()));
}

fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

/// Replacements for a value; none means removal.
fn replacements(value: &Value) -> Vec<(&'static str, Option<Value>)> {
    let mut all = vec![(ABSENT, None)];
    let mut add = |what, value| all.push((what, Some(value)));
    match value {
        Value::Bool(value) => add(FLIPPED, json!(!value)),
        Value::Number(_) => {
            add(ZERO, json!(0));
            add(NEGATIVE, json!(-1));
            add(HUGE, json!(i32::MAX));
        }
        Value::String(_) => {
            add(EMPTY, json!(""));
            add(BAD, json!("Bad_Value!"));
            add(LONG, json!("x".repeat(300)));
        }
        Value::Array(items) => {
            add(EMPTY, json!([]));
            if let Some(first) = items.first() {
                add(DOUBLED, items.iter().chain([first]).cloned().collect());
            }
        }
        Value::Object(_) => add(EMPTY, json!({})),
        Value::Null => {}
    }
    all
}

fn put(object: &mut Value, pointer: &str, changed: Option<Value>) {
    let Some(changed) = changed else { return remove(object, pointer) };
    *object.pointer_mut(pointer).expect("the path does not exist") = changed;
}

fn remove(object: &mut Value, pointer: &str) {
    let (parent, last) = pointer.rsplit_once('/').expect("a path must have a parent");
    match object.pointer_mut(parent).expect("the parent does not exist") {
        Value::Array(items) => {
            items.remove(last.parse().expect("an item must have an index"));
        }
        Value::Object(members) => {
            members.remove(&last.replace("~1", "/").replace("~0", "~"));
        }
        _ => unreachable!("a place must be in a list or an object"),
    }
}
