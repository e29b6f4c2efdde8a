//! The node authorizer: a node may read the objects that its pods need and write its own objects (Kubernetes 1.36, with
//! `AuthorizeNodeWithSelectors`). The NodeRestriction admission plugin checks the content of writes.

use tombolo_apicore::auth::{Attributes, Decision};
use tombolo_apicore::selector::field::FieldSelector;

use super::graph::Graph;
use super::references::RefKind;
use super::rules::Rule;
use crate::nodes::{LEASE_NAMESPACE, node_of};

/// Decides for nodes; has no opinion on other users. `rules` are those of the ClusterRole `system:node`. They apply to
/// resources whose objects do not belong to nodes.
pub(crate) fn authorize(graph: &Graph, rules: &[Rule], asked: &Attributes) -> Decision {
    let Some(node) = node_of(&asked.identity) else { return none("") };
    if node.is_empty() {
        return none(&format!("unknown node for user {:?}", asked.identity.user));
    }
    let request = NodeRequest { graph, node, asked };
    if asked.is_resource
        && let Some(decision) = request.subdivided()
    {
        return decision;
    }
    if rules.iter().any(|rule| rule.allows(asked)) { Decision::Allow } else { none("") }
}

struct NodeRequest<'a> {
    graph: &'a Graph,
    node: &'a str,
    asked: &'a Attributes,
}

impl NodeRequest<'_> {
    /// The decision on a resource whose objects belong to nodes; `None` for other resources.
    fn subdivided(&self) -> Option<Decision> {
        let asked = self.asked;
        Some(match (asked.group.as_str(), asked.resource.as_str()) {
            ("", "secrets") => self.read_namespaced(RefKind::Secret),
            ("", "configmaps") => self.read_namespaced(RefKind::ConfigMap),
            ("", "persistentvolumeclaims") if asked.subresource == "status" => self.claim_status(),
            ("", "persistentvolumeclaims") => self.get_only(|| self.refers(RefKind::Claim)),
            ("", "persistentvolumes") => {
                self.get_only(|| self.is_clusterwide() && self.graph.mounts(self.node, &asked.name))
            }
            ("resource.k8s.io", "resourceclaims") => self.get_only(|| self.refers(RefKind::ResourceClaim)),
            ("storage.k8s.io", "volumeattachments") => {
                self.get_only(|| self.is_clusterwide() && self.graph.attaches(self.node, &asked.name))
            }
            ("", "serviceaccounts") => self.service_account(),
            ("coordination.k8s.io", "leases") => self.lease(),
            ("storage.k8s.io", "csinodes") => self.csi_node(),
            ("resource.k8s.io", "resourceslices") => self.slice(),
            ("", "nodes") => self.own_node(),
            ("", "pods") => self.pod(),
            ("certificates.k8s.io", "podcertificaterequests") => none(""),
            _ => return None,
        })
    }

    fn verb(&self) -> &str {
        &self.asked.verb
    }

    fn refers(&self, kind: RefKind) -> bool {
        self.graph.refers(self.node, kind, &self.asked.namespace, &self.asked.name)
    }

    /// Whether the request has no namespace. A request with a namespace cannot mean a cluster-scoped object.
    fn is_clusterwide(&self) -> bool {
        self.asked.namespace.is_empty()
    }

    fn related(&self, related: impl FnOnce() -> bool) -> Decision {
        if self.asked.name.is_empty() {
            return none("No Object name found");
        }
        if related() {
            return Decision::Allow;
        }
        none(&format!("no relationship found between node '{}' and this object", self.node))
    }

    fn get_only(&self, related: impl FnOnce() -> bool) -> Decision {
        if self.verb() != "get" {
            return none("can only get individual resources of this type");
        }
        if !self.asked.subresource.is_empty() {
            return none("cannot get subresource");
        }
        self.related(related)
    }

    fn read_namespaced(&self, kind: RefKind) -> Decision {
        if !matches!(self.verb(), "get" | "list" | "watch") {
            return none("can only read resources of this type");
        }
        if !self.asked.subresource.is_empty() {
            return none("cannot read subresource");
        }
        if self.asked.namespace.is_empty() {
            return none("can only read namespaced object of this type");
        }
        self.related(|| self.refers(kind))
    }

    fn claim_status(&self) -> Decision {
        if !matches!(self.verb(), "update" | "patch") {
            return none("can only get/update/patch this type");
        }
        self.related(|| self.refers(RefKind::Claim))
    }

    fn service_account(&self) -> Decision {
        if self.verb() == "get" && self.asked.subresource.is_empty() {
            return self.read_namespaced(RefKind::ServiceAccount);
        }
        if self.verb() != "create" || self.asked.name.is_empty() {
            return none("can only create tokens for individual service accounts");
        }
        if self.asked.subresource != "token" {
            return none("can only create token subresource of serviceaccount");
        }
        self.related(|| self.refers(RefKind::ServiceAccount))
    }

    /// Whether the object has the node's name. A create request has no name yet; NodeRestriction checks the name in the
    /// object.
    fn named_like_the_node(&self) -> bool {
        self.verb() == "create" || self.asked.name == self.node
    }

    fn lease(&self) -> Decision {
        if !matches!(self.verb(), "get" | "create" | "update" | "patch" | "delete") {
            return none("can only get, create, update, patch, or delete a node lease");
        }
        if self.asked.namespace != LEASE_NAMESPACE {
            return none(&format!("can only access leases in the {LEASE_NAMESPACE:?} system namespace"));
        }
        if !self.named_like_the_node() {
            return none("can only access node lease with the same name as the requesting node");
        }
        Decision::Allow
    }

    fn csi_node(&self) -> Decision {
        if !matches!(self.verb(), "get" | "create" | "update" | "patch" | "delete") {
            return none("can only get, create, update, patch, or delete a CSINode");
        }
        if !self.asked.subresource.is_empty() {
            return none("cannot authorize CSINode subresources");
        }
        if !self.named_like_the_node() {
            return none("can only access CSINode with the same name as the requesting node");
        }
        Decision::Allow
    }

    fn slice(&self) -> Decision {
        if !self.asked.subresource.is_empty() {
            return none("cannot authorize ResourceSlice subresources");
        }
        match self.verb() {
            "create" => Decision::Allow,
            "get" | "update" | "patch" | "delete" => {
                self.related(|| self.is_clusterwide() && self.graph.publishes(self.node, &self.asked.name))
            }
            "watch" | "list" | "deletecollection" if self.selects_own_node() => Decision::Allow,
            "watch" | "list" | "deletecollection" => {
                none("can only list/watch/deletecollection resourceslices with nodeName field selector")
            }
            _ => none(concat!(
                "only the following verbs are allowed for a ResourceSlice: ",
                "get, watch, list, create, update, patch, delete, deletecollection"
            )),
        }
    }

    fn own_node(&self) -> Decision {
        match (self.asked.subresource.as_str(), self.verb()) {
            ("", "create" | "update" | "patch") | ("status", "update" | "patch") => Decision::Allow,
            ("", "get" | "list" | "watch") => match self.asked.name.as_str() {
                own if own == self.node => Decision::Allow,
                "" => none(&format!("node '{}' cannot read all nodes, only its own Node object", self.node)),
                other => {
                    none(&format!("node '{}' cannot read '{other}', only its own Node object", self.node))
                }
            },
            _ => none(""),
        }
    }

    fn pod(&self) -> Decision {
        let runs = || self.graph.runs(self.node, &self.asked.namespace, &self.asked.name);
        match (self.asked.subresource.as_str(), self.verb()) {
            ("", "get") => self.get_only(runs),
            ("", "list" | "watch") if self.selects_own_node() => Decision::Allow,
            ("", "list" | "watch") if !self.asked.name.is_empty() => self.related(runs),
            ("", "list" | "watch") => none("can only list/watch pods with spec.nodeName field selector"),
            ("", "create" | "delete") | ("status", "update" | "patch") | ("eviction", "create") => {
                Decision::Allow
            }
            _ => none(""),
        }
    }

    /// Whether the field selector selects only pods on the node. An invalid selector counts as not selecting them.
    fn selects_own_node(&self) -> bool {
        let selector = FieldSelector::parse(&self.asked.field_selector).unwrap_or_default();
        selector.requires("spec.nodeName", self.node)
    }
}

fn none(reason: &str) -> Decision {
    Decision::NoOpinion(reason.to_owned())
}

#[cfg(test)]
mod tests;
