//! Nodes: what of them decides about units.

use std::collections::BTreeMap;

use crate::body::{BodyError, Metadata};
use crate::unit::unit_of;

/// Annotation by which the nodes of a site say that they have voted one of them dead (SuperEdge's edge-health).
pub const UNHEALTHY: &str = "nodeunhealth";

/// What of a node decides.
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
    /// [`BodyError`] for text that is no object with metadata.
    pub fn of(body: &[u8]) -> Result<Self, BodyError> {
        let Metadata { labels, annotations, .. } = Metadata::of(body)?;
        Ok(Self { labels, unhealthy: annotations.get(UNHEALTHY).is_some_and(|vote| vote == "yes") })
    }

    /// The unit of this node; none when it lacks the key or the value is empty.
    #[must_use]
    pub fn unit(&self, key: &str) -> Option<&str> {
        unit_of(key, &self.labels)
    }
}
