//! Sets of field paths, as trees.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::path::Element;
use crate::kinds::rules::Fields;
use crate::schema::types::{SchemaPosition, Shape};

/// A set of paths. A path is a member if its last element is in `members` of the node that its other elements lead to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Set {
    members: BTreeSet<Element>,
    children: BTreeMap<Element, Self>,
}

impl Set {
    pub(super) fn is_empty(&self) -> bool {
        self.members.is_empty() && self.children.values().all(Self::is_empty)
    }

    /// Adds a path; the empty path is no field and is ignored.
    pub(super) fn insert(&mut self, path: &[Element]) {
        match path {
            [] => {}
            [last] => {
                self.members.insert(last.clone());
            }
            [first, rest @ ..] => self.children.entry(first.clone()).or_default().insert(rest),
        }
    }

    pub(super) fn has(&self, element: &Element) -> bool {
        self.members.contains(element)
    }

    /// The part below an element, when it is not empty.
    pub(super) fn below(&self, element: &Element) -> Option<&Self> {
        self.children.get(element).filter(|child| !child.is_empty())
    }

    /// Adds all paths of another set.
    pub(super) fn union(mut self, other: Self) -> Self {
        self.members.extend(other.members);
        for (element, child) in other.children {
            let slot = self.children.entry(element).or_default();
            *slot = std::mem::take(slot).union(child);
        }
        self
    }

    pub(super) fn intersection(&self, other: &Self) -> Self {
        let members = self.members.intersection(&other.members).cloned().collect();
        let mut children = BTreeMap::new();
        for (element, child) in &self.children {
            if let Some(other) = other.children.get(element) {
                let both = child.intersection(other);
                if !both.is_empty() {
                    children.insert(element.clone(), both);
                }
            }
        }
        Self { members, children }
    }

    /// Removes the paths of another set.
    pub(super) fn difference(mut self, other: &Self) -> Self {
        self.members.retain(|member| !other.members.contains(member));
        self.children.retain(|element, child| {
            if let Some(other) = other.children.get(element) {
                *child = std::mem::take(child).difference(other);
            }
            !child.is_empty()
        });
        self
    }

    /// Keeps only fields that can be owned through an endpoint.
    pub(super) fn within(self, owned: &Fields) -> Self {
        match owned {
            Fields::All => self,
            Fields::But(paths) => paths.iter().fold(self, |set, path| set.without(path.names())),
            Fields::Only(paths) => {
                paths.iter().fold(Self::default(), |set, path| set.union(self.part(path.names())))
            }
        }
    }

    /// Removes a field and everything below it.
    fn without(mut self, names: &[Box<str>]) -> Self {
        let Some((first, rest)) = names.split_first() else { return self };
        let element = Element::field(first);
        if rest.is_empty() {
            self.members.remove(&element);
            self.children.remove(&element);
        } else if let Some(child) = self.children.remove(&element) {
            let child = child.without(rest);
            if !child.is_empty() {
                self.children.insert(element, child);
            }
        }
        self
    }

    /// Keeps only a field and everything below it.
    fn part(&self, names: &[Box<str>]) -> Self {
        let Some((first, rest)) = names.split_first() else { return self.clone() };
        let element = Element::field(first);
        let mut out = Self::default();
        if rest.is_empty() && self.members.contains(&element) {
            out.members.insert(element.clone());
        }
        let child = self.children.get(&element).map(|child| child.part(rest));
        if let Some(child) = child.filter(|child| !child.is_empty()) {
            out.children.insert(element, child);
        }
        out
    }

    /// Adds the declared fields on the paths of members as members: a struct is removed when all its members are.
    pub(super) fn with_named_fields(&self, position: SchemaPosition<'_>) -> Self {
        let mut out = Self { members: self.members.clone(), children: BTreeMap::new() };
        for (element, child) in &self.children {
            let below = match element {
                Element::Field(name) => {
                    let (below, declared) = position.child(name);
                    let declared = declared && matches!(position.node().shape, Shape::Struct(_));
                    if declared {
                        out.members.insert(element.clone());
                    }
                    below
                }
                _ => position.item(),
            };
            out.children.insert(element.clone(), child.with_named_fields(below));
        }
        out
    }

    /// Calls `visit` with every path, in order.
    pub(super) fn paths(&self, visit: &mut impl FnMut(&[Element])) {
        let mut path = Vec::new();
        self.walk(&mut path, visit);
    }

    fn walk(&self, path: &mut Vec<Element>, visit: &mut impl FnMut(&[Element])) {
        for member in &self.members {
            path.push(member.clone());
            visit(path);
            path.pop();
        }
        for (element, child) in &self.children {
            path.push(element.clone());
            child.walk(path, visit);
            path.pop();
        }
    }

    /// Encodes the set as FieldsV1.
    pub(super) fn encode(&self) -> Value {
        let mut map = Map::new();
        for member in &self.members {
            map.insert(member.encode(), Value::Object(Map::new()));
        }
        for (element, child) in &self.children {
            if child.is_empty() {
                continue;
            }
            let mut below = child.encode();
            if let Value::Object(below) = &mut below
                && self.members.contains(element)
            {
                below.insert(".".to_owned(), Value::Object(Map::new()));
            }
            map.insert(element.encode(), below);
        }
        Value::Object(map)
    }

    /// Parses FieldsV1; `None` when it is malformed.
    pub(super) fn decode(value: &Value) -> Option<Self> {
        let mut out = Self::default();
        for (key, below) in value.as_object()? {
            if key == "." {
                continue;
            }
            let element = Element::decode(key)?;
            let map = below.as_object()?;
            if map.is_empty() || map.contains_key(".") {
                out.members.insert(element.clone());
            }
            let child = Self::decode(below)?;
            if !child.is_empty() {
                out.children.insert(element, child);
            }
        }
        Some(out)
    }
}
