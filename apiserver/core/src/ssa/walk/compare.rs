//! Differences between two values of one type.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::{Form, form, identify};
use crate::schema::types::{ListShape, SchemaPosition};
use crate::ssa::path::Element;
use crate::ssa::set::Set;

/// The fields that only the new value has, only the old one has, and those with different values.
#[derive(Debug, Default)]
pub(in crate::ssa) struct Comparison {
    pub(in crate::ssa) added: Set,
    pub(in crate::ssa) removed: Set,
    pub(in crate::ssa) modified: Set,
}

/// Compares two objects; an absent one has no fields. Their field ownership is not compared.
pub(in crate::ssa) fn compare(
    position: SchemaPosition<'_>,
    old: Option<&Value>,
    new: Option<&Value>,
) -> Comparison {
    let mut comparison = Comparison::default();
    let mut walk = Walk { out: &mut comparison, path: Vec::new() };
    walk.value(position, old, new);
    comparison
}

struct Walk<'a> {
    out: &'a mut Comparison,
    path: Vec<Element>,
}

impl Walk<'_> {
    fn value(&mut self, position: SchemaPosition<'_>, old: Option<&Value>, new: Option<&Value>) {
        match (old, new) {
            (None, None) => {}
            (Some(one), None) | (None, Some(one)) => {
                self.one_side(position, one, old, new);
            }
            (Some(before), Some(after)) => match (form(position, before), form(position, after)) {
                (Form::Map, Form::Map) => self.fields(position, before.as_object(), after.as_object()),
                (Form::List(list), Form::List(_)) => self.items(position, list, Some(before), Some(after)),
                (Form::Leaf, Form::Leaf) => {
                    if before != after {
                        self.out.modified.insert(&self.path);
                    }
                }
                // Null is an empty container, not an absent one.
                (Form::Map, _) if after.is_null() => self.fields(position, before.as_object(), None),
                (_, Form::Map) if before.is_null() => self.fields(position, None, after.as_object()),
                (Form::List(list), _) if after.is_null() => self.items(position, list, Some(before), None),
                (_, Form::List(list)) if before.is_null() => self.items(position, list, None, Some(after)),
                // The value changed its form: everything in the old one is removed, everything in the new one added.
                _ => {
                    self.value(position, Some(before), None);
                    self.value(position, None, Some(after));
                    self.out.modified.insert(&self.path);
                }
            },
        }
    }

    /// A value that exists on one side only: its parts, and the value itself.
    fn one_side(
        &mut self,
        position: SchemaPosition<'_>,
        value: &Value,
        old: Option<&Value>,
        new: Option<&Value>,
    ) {
        match form(position, value) {
            Form::Map => {
                self.fields(position, old.and_then(Value::as_object), new.and_then(Value::as_object));
            }
            Form::List(list) => self.items(position, list, old, new),
            Form::Leaf => {}
        }
        match old {
            None => self.out.added.insert(&self.path),
            Some(_) => self.out.removed.insert(&self.path),
        }
    }

    fn fields(
        &mut self,
        position: SchemaPosition<'_>,
        old: Option<&Map<String, Value>>,
        new: Option<&Map<String, Value>>,
    ) {
        let both_empty = old.is_none_or(Map::is_empty) && new.is_none_or(Map::is_empty);
        if both_empty {
            return;
        }
        let empty = Map::new();
        let (old, new) = (old.unwrap_or(&empty), new.unwrap_or(&empty));
        let only_new = new.keys().filter(|key| !old.contains_key(*key));
        let is_metadata = matches!(&*self.path, [Element::Field(name)] if name == "metadata");
        for key in old.keys().chain(only_new).filter(|key| !is_metadata || *key != "managedFields") {
            self.path.push(Element::field(key));
            self.value(position.child(key).0, old.get(key), new.get(key));
            self.path.pop();
        }
    }

    fn items(
        &mut self,
        position: SchemaPosition<'_>,
        list: &ListShape,
        old: Option<&Value>,
        new: Option<&Value>,
    ) {
        type Sides<'v> = (Vec<&'v Value>, Vec<&'v Value>);
        let mut sides: BTreeMap<Element, Sides<'_>> = BTreeMap::new();
        for (value, new_side) in [(old, false), (new, true)] {
            for item in value.and_then(Value::as_array).into_iter().flatten() {
                let Ok(element) = identify(position, list, item) else { continue };
                let slot = sides.entry(element).or_default();
                if new_side { slot.1.push(item) } else { slot.0.push(item) }
            }
        }
        for (element, (before, after)) in sides {
            self.path.push(element);
            match (before.as_slice(), after.as_slice()) {
                (before @ ([] | [_]), after @ ([] | [_])) => {
                    self.value(position.item(), before.first().copied(), after.first().copied());
                }
                (before @ [_, _, ..], after @ [_, _, ..]) => {
                    if before != after {
                        self.out.modified.insert(&self.path);
                    }
                }
                ([_, _, ..], after) => {
                    self.value(position.item(), None, after.first().copied());
                    self.out.removed.insert(&self.path);
                }
                (before, _) => {
                    self.value(position.item(), before.first().copied(), None);
                    self.out.added.insert(&self.path);
                }
            }
            self.path.pop();
        }
    }
}
