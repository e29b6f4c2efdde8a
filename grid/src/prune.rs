//! Removes the endpoints of other units from an object.

use std::borrow::Cow;

use crate::body::{BodyError, Edits};
use crate::endpoints::{Carrier, items, lists, node_of};
use crate::node::{Node, Nodes};
use crate::reach::TopologyKeys;

#[cfg(test)]
mod tests;

/// Which of an object's endpoints are kept.
#[derive(Debug, Clone)]
pub enum Verdict<'a> {
    /// All of them: the Service is not closed, or no client uses the object.
    Whole,
    /// None: the Service is not known (yet), or cannot be read.
    Nothing,
    /// Those of this node's units.
    Units(Units<'a>),
}

/// The units of one node that let it use a Service.
#[derive(Debug, Clone)]
pub struct Units<'a> {
    /// Key and value of each.
    own: Vec<(&'a str, &'a str)>,
    me: &'a str,
    nodes: &'a Nodes,
}

impl<'a> Units<'a> {
    /// Those of the node `me` for the keys of a Service; a node that shares any of them belongs to them.
    #[must_use]
    pub fn new(keys: &'a TopologyKeys, me: &'a str, nodes: &'a Nodes) -> Self {
        let units = |node: &'a Node| keys.iter().filter_map(|key| Some((key, node.unit(key)?))).collect();
        Self { own: nodes.get(me).map(units).unwrap_or_default(), me, nodes }
    }

    /// Whether an endpoint on a node is used. An endpoint without a node, on an unknown node or on one without a unit
    /// is in no unit, and while this node is unknown, no endpoint is in its units. The vote of other nodes on this
    /// node's own health has no effect here: its programs still reach each other.
    #[must_use]
    pub fn has(&self, node: Option<&str>) -> bool {
        let Some(name) = node.filter(|_| !self.own.is_empty()) else { return false };
        let Some(other) = self.nodes.get(name) else { return false };
        if other.unhealthy && name != self.me {
            return false;
        }
        self.own.iter().any(|(key, unit)| other.unit(key) == Some(*unit))
    }
}

impl Verdict<'_> {
    fn keeps(&self, node: Option<&str>) -> bool {
        match self {
            Self::Whole => true,
            Self::Nothing => false,
            Self::Units(units) => units.has(node),
        }
    }
}

/// The object with the endpoints that are kept; everything else in it, including the order, is unchanged. Lists that
/// become empty are kept as empty lists. Readiness has no effect.
///
/// # Errors
/// [`BodyError`] for text that is not such an object. It must not be shown then: it is not known which nodes its
/// endpoints are on.
pub fn prune<'b>(
    carrier: Carrier,
    body: &'b [u8],
    verdict: &Verdict<'_>,
) -> Result<Cow<'b, [u8]>, BodyError> {
    if matches!(verdict, Verdict::Whole) {
        return Ok(Cow::Borrowed(body));
    }
    let mut edits = Edits::new(body);
    for list in lists(carrier, body)? {
        let all = items(list)?;
        let mut kept = Vec::with_capacity(all.len());
        for endpoint in &all {
            if verdict.keeps(node_of(endpoint)?.as_deref()) {
                kept.push(endpoint.get());
            }
        }
        if kept.len() < all.len() {
            edits.replace(list, format!("[{}]", kept.join(",")));
        }
    }
    Ok(edits.apply_any())
}
