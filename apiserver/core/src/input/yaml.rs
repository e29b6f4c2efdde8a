//! Parses YAML to JSON values and finds duplicate keys.

use std::collections::HashSet;
use std::fmt;

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use serde_saphyr::budget::BudgetBreach;
use serde_saphyr::options::DuplicateKeyPolicy;
use serde_saphyr::{Error, Spanned};

use super::DEPTH_MAX;
use crate::schema::decode::STRICT_ERRORS_MAX;
use crate::tree::YAML_NODES_MAX;

/// The value of a YAML document. The second part lists the duplicate keys, each with the line of its value; the last
/// value wins.
pub(super) fn parse(text: &str) -> Result<(Value, Vec<String>), String> {
    let options = serde_saphyr::options! {
        with_snippet: false,
        duplicate_keys: DuplicateKeyPolicy::LastWins,
        budget: serde_saphyr::budget! { max_depth: DEPTH_MAX, max_nodes: YAML_NODES_MAX },
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: YAML_NODES_MAX },
    };
    let node: Node = serde_saphyr::from_str_with_options(text, options).map_err(|error| refusal(&error))?;
    let mut twice = Vec::new();
    Ok((node.into_value(&mut twice), twice))
}

/// Kubernetes clients send JSON, even in apply patches that they label as YAML, and JSON has no limit of nodes.
fn refusal(error: &Error) -> String {
    match error {
        Error::Budget { breach: BudgetBreach::Nodes { .. }, .. } => {
            format!("it has more than {YAML_NODES_MAX} names and values: send it as JSON")
        }
        error => error.to_string(),
    }
}

/// A node with the positions of its values.
enum Node {
    Scalar(Value),
    List(Vec<Self>),
    Map(Vec<(String, Spanned<Self>)>),
}

impl Node {
    fn into_value(self, twice: &mut Vec<String>) -> Value {
        match self {
            Self::Scalar(value) => value,
            Self::List(items) => items.into_iter().map(|item| item.into_value(twice)).collect(),
            Self::Map(entries) => {
                let mut map = Map::new();
                let mut seen: HashSet<String> = HashSet::new();
                for (key, node) in entries {
                    let value = node.value.into_value(twice);
                    if !seen.insert(key.clone()) && twice.len() < STRICT_ERRORS_MAX {
                        let line = node.referenced.line();
                        twice.push(format!("line {line}: key {key:?} already set in map"));
                    }
                    map.insert(key, value);
                }
                Value::Object(map)
            }
        }
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a YAML node")
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Node, E> {
        Ok(Node::Scalar(Value::Bool(value)))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Node, E> {
        Ok(Node::Scalar(value.into()))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Node, E> {
        Ok(Node::Scalar(value.into()))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Node, E> {
        let number = Number::from_f64(value).ok_or_else(|| E::custom("number out of range"))?;
        Ok(Node::Scalar(Value::Number(number)))
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Node, E> {
        Ok(Node::Scalar(value.into()))
    }

    fn visit_string<E: de::Error>(self, value: String) -> Result<Node, E> {
        Ok(Node::Scalar(value.into()))
    }

    fn visit_unit<E: de::Error>(self) -> Result<Node, E> {
        Ok(Node::Scalar(Value::Null))
    }

    fn visit_none<E: de::Error>(self) -> Result<Node, E> {
        Ok(Node::Scalar(Value::Null))
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Node, D::Error> {
        Node::deserialize(deserializer)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Node, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element()? {
            items.push(item);
        }
        Ok(Node::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Node, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = access.next_entry()? {
            entries.push(entry);
        }
        Ok(Node::Map(entries))
    }
}
