//! Taking the endpoints of other units out of an object.

use std::borrow::Cow;

use crate::body::{BodyError, Edits};
use crate::endpoints::{Carrier, items, lists, node_of};
use crate::node::{Node, Nodes};
use crate::reach::TopologyKeys;

#[cfg(test)]
mod tests;

/// What is left of an object's endpoints.
#[derive(Debug, Clone)]
pub enum Verdict<'a> {
    /// All of them: the Service is not closed, or nobody uses the object.
    Whole,
    /// None: the Service is not known (yet), or cannot be understood.
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
    /// Those of the node `me` by the keys of a Service; a node that shares any of them is in.
    #[must_use]
    pub fn new(keys: &'a TopologyKeys, me: &'a str, nodes: &'a Nodes) -> Self {
        let units = |node: &'a Node| keys.iter().filter_map(|key| Some((key, node.unit(key)?))).collect();
        Self { own: nodes.get(me).map(units).unwrap_or_default(), me, nodes }
    }

    /// Whether an endpoint on a node is used. An endpoint without a node, on an unknown node or on one without a unit is
    /// in no unit, and neither is anything while this node is unknown. What the peers of this node say about its own
    /// health decides nothing here: its programs still reach each other.
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

/// The object with the endpoints that are left; everything else in it, and the order, is as it was. Lists that become
/// empty stay as empty lists. Readiness decides nothing.
///
/// # Errors
/// [`BodyError`] for text that is no such object. It must not be shown then: whom it leads to is not known.
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
