//! The parts of nodes that decide about units.

use std::collections::BTreeMap;

use crate::body::{BodyError, ObjectMetadata};
use crate::unit::unit_of;

/// Annotation that the other nodes of a site set when they have voted a node dead (SuperEdge's edge-health).
pub const UNHEALTHY: &str = "nodeunhealth";

/// The relevant parts of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Node {
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Whether its peers have voted it dead.
    pub unhealthy: bool,
}

/// Nodes by name.
pub type Nodes = BTreeMap<String, Node>;

impl Node {
    /// Reads a Node object.
    ///
    /// # Errors
    /// [`BodyError`] for text that is not an object with metadata.
    pub fn of(body: &[u8]) -> Result<Self, BodyError> {
        let ObjectMetadata { labels, annotations, .. } = ObjectMetadata::of(body)?;
        Ok(Self { labels, unhealthy: annotations.get(UNHEALTHY).is_some_and(|vote| vote == "yes") })
    }

    /// The unit of this node; none when it does not have the key or the value is empty.
    #[must_use]
    pub fn unit(&self, key: &str) -> Option<&str> {
        unit_of(key, &self.labels)
    }
}
