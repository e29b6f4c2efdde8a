//! Authorization: administrators, the node authorizer and RBAC. Their indexes are updated before a change becomes
//! visible, so a decision never lags behind the stored objects.

pub(super) mod escalation;
pub(super) mod graph;
pub(super) mod node;
pub(super) mod rbac;
pub(super) mod references;
pub(super) mod review;
pub(super) mod rules;

use std::sync::Arc;

use futures::future::BoxFuture;
use parking_lot::RwLock;
use serde_json::Value;
use tombolo_apicore::auth::{Attributes, Authorizer, Decision, Identity};
use tombolo_apicore::store::Stored;

use self::graph::Graph;
use self::rbac::Rbac;
use self::rules::Rule;

/// Group whose members may always do everything.
const MASTERS: &str = "system:masters";

/// The data for authorization decisions. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Authorization {
    shared: Arc<AuthorizationInner>,
}

#[derive(Debug)]
struct AuthorizationInner {
    rbac: RwLock<Rbac>,
    graph: RwLock<Graph>,
    node_rules: Vec<Rule>,
}

impl Authorization {
    /// Starts without objects. `node_rules` are the rules that every node has, whatever is stored.
    pub(super) fn new(node_rules: Vec<Rule>) -> Self {
        let shared = AuthorizationInner { rbac: RwLock::default(), graph: RwLock::default(), node_rules };
        Self { shared: Arc::new(shared) }
    }

    /// Applies a change: an object as it is now stored, or its removal.
    pub(super) fn apply(&self, stored: &Stored, deleted: bool) {
        let resource = stored.key.resource();
        let (namespace, name) = (stored.key.namespace(), stored.key.name());
        let value =
            || -> Option<Value> { if deleted { None } else { serde_json::from_slice(&stored.body()).ok() } };
        match (&*resource.group, &*resource.name) {
            (rbac::GROUP, plural) => {
                self.shared.rbac.write().apply(plural, namespace, name, value().as_ref());
            }
            (
                "" | "storage.k8s.io" | "resource.k8s.io",
                plural @ ("pods" | "persistentvolumes" | "volumeattachments" | "resourceslices"),
            ) => {
                let value = value();
                self.shared.graph.write().apply(plural, namespace, name, value.as_ref());
            }
            _ => {}
        }
    }

    /// Decides without waiting.
    pub(super) fn decide(&self, asked: &Attributes) -> Decision {
        if asked.identity.in_group(MASTERS) {
            return Decision::Allow;
        }
        let by_node = node::authorize(&self.shared.graph.read(), &self.shared.node_rules, asked);
        let Decision::NoOpinion(node_reason) = by_node else { return by_node };
        match self.shared.rbac.read().authorize(asked) {
            Decision::NoOpinion(reason) => {
                let reasons: Vec<String> =
                    [node_reason, reason].into_iter().filter(|r| !r.is_empty()).collect();
                Decision::NoOpinion(reasons.join("\n"))
            }
            decided => decided,
        }
    }

    /// Whether an identity may do everything.
    pub(super) fn is_master(&self, identity: &Identity) -> bool {
        identity.in_group(MASTERS)
    }

    /// The rules that bindings grant to an identity in a namespace, including cluster-wide ones. With an empty
    /// `namespace`, only the cluster-wide ones.
    pub(super) fn granted_to(&self, identity: &Identity, namespace: &str) -> Vec<Rule> {
        self.shared.rbac.read().rules_of(identity, namespace)
    }

    /// The rules of a Role, or of a ClusterRole where `namespace` is empty.
    pub(super) fn rules_of_role(&self, namespace: &str, name: &str) -> Option<Arc<[Rule]>> {
        self.shared.rbac.read().role(namespace, name)
    }

    /// The rules that an identity has in a namespace, and why the list may be incomplete.
    fn rules_of(&self, identity: &Identity, namespace: &str) -> (Vec<Rule>, Option<&'static str>) {
        let rules = self.shared.rbac.read().rules_of(identity, namespace);
        let node = crate::nodes::node_of(identity).is_some();
        (rules, node.then_some("node authorizer does not support user rule resolution"))
    }
}

impl tombolo_cel::Authorize for Authorization {
    fn decide(&self, asked: &Attributes) -> Decision {
        Self::decide(self, asked)
    }
}

impl Authorizer for Authorization {
    fn authorize<'a>(&'a self, asked: &'a Attributes) -> BoxFuture<'a, Decision> {
        Box::pin(std::future::ready(self.decide(asked)))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tombolo_apicore::store::Revision;
    use tombolo_proto::ids::Uid;
    use tombolo_proto::object::{ObjectKey, Resource};

    use super::*;

    fn stored(resource: &Resource, name: &str, body: &Value) -> Stored {
        let key = ObjectKey::new(resource.clone(), "", name);
        Stored::new(key, Uid::parse("u").unwrap(), Revision(1), body.to_string().into())
    }

    #[test]
    fn node_access_lasts_from_storage_to_deletion_of_its_objects() {
        let authorization = Authorization::new(Vec::new());
        for (group, plural) in
            [("resource.k8s.io", "resourceslices"), ("storage.k8s.io", "volumeattachments")]
        {
            let asked = Attributes {
                identity: Identity::new("system:node:a", &[crate::nodes::NODES_GROUP]),
                verb: "get".into(),
                group: group.into(),
                resource: plural.into(),
                name: "one".into(),
                is_resource: true,
                ..Attributes::default()
            };
            let object =
                stored(&Resource::new(group, "v1", plural), "one", &json!({"spec": {"nodeName": "a"}}));
            assert_ne!(authorization.decide(&asked), Decision::Allow, "{plural}");
            authorization.apply(&object, false);
            assert_eq!(authorization.decide(&asked), Decision::Allow, "{plural}");
            authorization.apply(&object, true);
            assert_ne!(authorization.decide(&asked), Decision::Allow, "{plural}");
        }
    }

    #[test]
    fn only_administrators_need_no_rules() {
        let authorization = Authorization::new(Vec::new());
        // All users are bound to a role for probes, which allows nothing else.
        let mut asked = Attributes { verb: "delete".into(), path: "/readyz".into(), ..Attributes::default() };
        assert_ne!(authorization.decide(&asked), Decision::Allow);
        asked.identity = Identity::new("admin", &[MASTERS]);
        assert_eq!(authorization.decide(&asked), Decision::Allow);
    }
}
