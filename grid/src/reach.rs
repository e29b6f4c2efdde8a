//! Which endpoints a Service lets a node use.

use std::collections::BTreeMap;

use crate::body::{BodyError, Metadata};
use crate::labels::GRID_SELECTOR;

/// Annotation of a Service that keeps requests inside the unit: a JSON array of grid keys.
pub const TOPOLOGY_KEYS: &str = "topologyKeys";

/// Which endpoints a node may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reach {
    /// All of them.
    Everywhere,
    /// Those on nodes that share a unit with it, by one of these keys.
    Units(Vec<String>),
    /// None: the Service belongs to a grid, and its annotation cannot be read.
    Nowhere,
}

impl Reach {
    /// Reads a Service object.
    ///
    /// # Errors
    /// [`BodyError`] for text that is no object with metadata.
    pub fn of(body: &[u8]) -> Result<Self, BodyError> {
        let metadata = Metadata::of(body)?;
        Ok(Self::said_by(&metadata.labels, &metadata.annotations))
    }

    /// What labels and annotations of a Service say. An annotation that cannot be read closes the Services of grids, and
    /// means nothing on others: there it may be somebody else's (docs/reference/superedge.md#pruning).
    #[must_use]
    pub fn said_by(labels: &BTreeMap<String, String>, annotations: &BTreeMap<String, String>) -> Self {
        let Some(text) = annotations.get(TOPOLOGY_KEYS) else { return Self::Everywhere };
        match serde_json::from_str::<Vec<String>>(text) {
            Ok(keys) if keys.is_empty() => Self::Everywhere,
            Ok(keys) => Self::Units(keys),
            Err(_) if labels.contains_key(GRID_SELECTOR) => Self::Nowhere,
            Err(_) => Self::Everywhere,
        }
    }
}
