//! Finds the part of an old object that corresponds to a part of the new one: members of objects by name, items of
//! associative lists by key. Items of other lists and members of atomic objects correspond to nothing
//! (`CorrelatedObject` of k8s.io/apiserver).

use std::collections::HashMap;

use serde_json::Value;

use super::types::{ListShape, Name, Node, Shape, Topology};

/// The old member with this name.
pub(crate) fn member<'a>(node: &Node, old: Option<&'a Value>, name: &str) -> Option<&'a Value> {
    let atomic = match &node.shape {
        Shape::Struct(shape) => shape.atomic,
        Shape::Map { atomic, .. } => *atomic,
        _ => true,
    };
    old.filter(|_| !atomic)?.get(name)
}

/// Old items of a list, indexed by their keys. The author determines the length of a list, so no list is searched for
/// each item of another.
pub(crate) struct Items<'a> {
    keys: &'a [Name],
    /// The first item with each key.
    by_keys: HashMap<Vec<Option<&'a Value>>, &'a Value>,
}

impl<'a> Items<'a> {
    pub(crate) fn new(list: &'a ListShape, old: Option<&'a Value>) -> Self {
        let Topology::Map(keys) = &list.topology else { return Self { keys: &[], by_keys: HashMap::new() } };
        let mut by_keys = HashMap::new();
        for item in old.and_then(Value::as_array).into_iter().flatten() {
            by_keys.entry(values(keys, item)).or_insert(item);
        }
        Self { keys, by_keys }
    }

    /// The old item with the same keys.
    pub(crate) fn find(&self, item: &Value) -> Option<&'a Value> {
        self.by_keys.get(&values(self.keys, item)).copied()
    }
}

fn values<'v>(keys: &[Name], item: &'v Value) -> Vec<Option<&'v Value>> {
    keys.iter().map(|key| item.get(key.as_ref())).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::kinds::Kinds;
    use crate::schema::types::{SchemaPosition, Shape};

    fn item() -> impl Strategy<Value = Value> {
        let port = prop_oneof![Just(json!(1)), Just(json!(1.0)), Just(json!("1")), Just(Value::Null)];
        let named =
            (port, proptest::option::of("[ab]"), 0..3_u8).prop_map(
                |(port, protocol, other)| match protocol {
                    Some(protocol) => json!({"port": port, "protocol": protocol, "name": other}),
                    None => json!({"port": port, "name": other}),
                },
            );
        prop_oneof![named, Just(json!({})), Just(json!(7))]
    }

    fn ports<T>(test: impl FnOnce(&ListShape) -> T) -> T {
        let kinds = Kinds::builtin();
        let kind = kinds.by_kind("", "v1", "Service").expect("a built-in kind");
        let (spec, _) = SchemaPosition(Some(kind.schema().cursor())).child("spec");
        let (ports, _) = spec.child("ports");
        let Shape::List(list) = &ports.node().shape else { panic!("ports are a list") };
        test(list)
    }

    /// This would take an hour if all old items were searched for each item.
    #[test]
    fn large_lists_are_correlated() {
        let old: Value = (0..200_000).map(|port| json!({"port": port, "protocol": "TCP"})).collect();
        let found = ports(|list| {
            let before = Items::new(list, Some(&old));
            let items = old.as_array().into_iter().flatten();
            items.filter(|item| before.find(item).is_some_and(|same| same == *item)).count()
        });
        assert_eq!(found, 200_000);
    }

    proptest! {
        /// The reference result: all old items are searched for each item.
        #[test]
        fn an_old_item_is_the_first_with_the_same_keys(
            old in proptest::collection::vec(item(), 0..6),
            new in proptest::collection::vec(item(), 0..6),
        ) {
            ports(|list| {
            let Topology::Map(keys) = &list.topology else { panic!("they have keys") };
            let before = Value::from(old.clone());
            let items = Items::new(list, Some(&before));
            for item in &new {
                let same = |other: &&Value| keys.iter().all(|key| other.get(key.as_ref()) == item.get(key.as_ref()));
                prop_assert_eq!(items.find(item), old.iter().find(same));
            }
            Ok(())
            })?;
        }
    }
}
