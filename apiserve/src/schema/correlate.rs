//! Which part of an old object corresponds to a part of the new one: members of objects by name, items of associative
//! lists by key. Items of other lists and members of atomic objects correspond to nothing
//! (`CorrelatedObject` of k8s.io/apiserver).

use serde_json::Value;

use super::types::{ListShape, Node, Shape, Topology};

/// The old member of this name.
pub(crate) fn member<'a>(node: &Node, old: Option<&'a Value>, name: &str) -> Option<&'a Value> {
    let atomic = match &node.shape {
        Shape::Struct(shape) => shape.atomic,
        Shape::Map { atomic, .. } => *atomic,
        _ => true,
    };
    old.filter(|_| !atomic)?.get(name)
}

/// The old item that has the same keys.
pub(crate) fn item<'a>(list: &ListShape, old: Option<&'a Value>, item: &Value) -> Option<&'a Value> {
    let Topology::Map(keys) = &list.topology else { return None };
    old?.as_array()?
        .iter()
        .find(|other| keys.iter().all(|key| other.get(key.as_ref()) == item.get(key.as_ref())))
}
