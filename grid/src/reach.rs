//! Determines which endpoints a Service lets a node use.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserializer, Error as _, SeqAccess, Visitor};

use crate::body::{BodyError, ObjectMetadata};
use crate::labels::{GRID_SELECTOR, TOPOLOGY_KEYS};
use crate::unit::check_key;

#[cfg(test)]
mod tests;

/// Most keys of one Service, as in the field of this name that Kubernetes had.
pub const KEYS_MAX: usize = 16;

/// Wildcard, allowed only as the last key, as in that field. No node has such a label.
const ANY: &str = "*";

/// Separator that no label key contains.
const BETWEEN: char = ',';

/// Which endpoints a node may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reach {
    /// All of them.
    Everywhere,
    /// Those on nodes that share a unit with it for one of these keys.
    Units(TopologyKeys),
    /// None: the Service belongs to a grid, and its annotation cannot be read.
    Nowhere,
}

impl Reach {
    /// Reads a Service object.
    ///
    /// # Errors
    /// [`BodyError`] for text that is not an object with metadata.
    pub fn of(body: &[u8]) -> Result<Self, BodyError> {
        let metadata = ObjectMetadata::of(body)?;
        Ok(Self::said_by(&metadata.labels, &metadata.annotations))
    }

    /// Reads labels and annotations of a Service. An annotation that cannot be read closes the Services of grids, and
    /// is ignored on others, where it may belong to another tool (docs/reference/superedge.md#pruning).
    #[must_use]
    pub fn said_by(labels: &BTreeMap<String, String>, annotations: &BTreeMap<String, String>) -> Self {
        let Some(text) = annotations.get(TOPOLOGY_KEYS) else { return Self::Everywhere };
        match TopologyKeys::read(text) {
            Ok(None) => Self::Everywhere,
            Ok(Some(keys)) => Self::Units(keys),
            Err(_) if labels.contains_key(GRID_SELECTOR) => Self::Nowhere,
            Err(_) => Self::Everywhere,
        }
    }
}

/// The keys that close a Service, at least one. They are stored as one text, because there may be as many as there are
/// Services.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopologyKeys(Box<str>);

impl TopologyKeys {
    /// The keys, in their order.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.split(BETWEEN)
    }

    /// Reads a JSON array; none when it is empty. Reading stops at the first invalid item.
    fn read(text: &str) -> Result<Option<Self>, serde_json::Error> {
        let mut reader = serde_json::Deserializer::from_str(text);
        let keys = reader.deserialize_seq(LabelKeysVisitor)?;
        reader.end()?;
        let separator = BETWEEN.to_string();
        Ok(Some(keys).filter(|keys| !keys.is_empty()).map(|keys| Self(keys.join(&separator).into())))
    }
}

struct LabelKeysVisitor;

impl<'de> Visitor<'de> for LabelKeysVisitor {
    type Value = Vec<String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at most {KEYS_MAX} label keys without repetitions")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        let mut keys: Vec<String> = Vec::new();
        while let Some(key) = items.next_element::<String>()? {
            let is_last = keys.len() == KEYS_MAX || keys.last().is_some_and(|last| last == ANY);
            if is_last || keys.contains(&key) || (key != ANY && check_key(&key).is_err()) {
                return Err(A::Error::custom("an item that is not allowed here"));
            }
            keys.push(key);
        }
        Ok(keys)
    }
}
