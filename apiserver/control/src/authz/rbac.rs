//! Roles, ClusterRoles and their bindings, indexed for decisions.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;
use tombolo_apicore::auth::{Attributes, Decision, Identity};

use super::rules::Rule;

/// API group of the kinds that this index reads.
pub(crate) const GROUP: &str = "rbac.authorization.k8s.io";

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
struct RbacSubject {
    kind: String,
    name: String,
    #[serde(default)]
    namespace: String,
}

impl RbacSubject {
    /// Whether the subject is this identity. Names are compared literally, not as patterns. A ServiceAccount without a
    /// namespace gets `namespace`, that of the binding; in a cluster-wide binding it matches nothing.
    fn is(&self, identity: &Identity, namespace: &str) -> bool {
        match self.kind.as_str() {
            "User" => self.name == identity.user,
            "Group" => identity.in_group(&self.name),
            "ServiceAccount" => {
                let namespace = if self.namespace.is_empty() { namespace } else { &self.namespace };
                let user = identity.user.strip_prefix("system:serviceaccount:");
                !namespace.is_empty()
                    && user.and_then(|user| user.split_once(':')) == Some((namespace, self.name.as_str()))
            }
            _ => false,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Binding {
    /// Whether it refers to a ClusterRole; otherwise it refers to a Role in the binding's namespace.
    cluster_role: bool,
    role: String,
    subjects: Vec<RbacSubject>,
}

impl Binding {
    fn parse(object: &Value) -> Option<Self> {
        let reference = object.get("roleRef")?;
        let subjects =
            object.get("subjects").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        Some(Self {
            cluster_role: reference.get("kind")?.as_str()? == "ClusterRole",
            role: reference.get("name")?.as_str()?.to_owned(),
            subjects: subjects.iter().filter_map(|s| RbacSubject::deserialize(s).ok()).collect(),
        })
    }
}

impl Binding {
    /// The namespace of its role, where `namespace` is that of the binding: empty for a ClusterRole.
    fn home<'a>(&self, namespace: &'a str) -> Option<&'a str> {
        match self.cluster_role {
            true => Some(""),
            false => Some(namespace).filter(|namespace| !namespace.is_empty()),
        }
    }
}

/// Objects by namespace and name; the namespace of cluster-wide objects is empty.
type ByNamespace<T> = HashMap<String, BTreeMap<String, T>>;

/// The stored roles and bindings. Grows only with the stored RBAC objects.
#[derive(Debug, Default)]
pub(crate) struct Rbac {
    roles: ByNamespace<Arc<[Rule]>>,
    bindings: ByNamespace<Binding>,
}

impl Rbac {
    /// Applies the current state of an RBAC object; `None` when it was removed. Other resources are ignored.
    pub(crate) fn apply(&mut self, resource: &str, namespace: &str, name: &str, object: Option<&Value>) {
        match resource {
            "roles" | "clusterroles" => {
                set(&mut self.roles, namespace, name, object.map(|o| Rule::all_of(o).into()));
            }
            "rolebindings" | "clusterrolebindings" => {
                set(&mut self.bindings, namespace, name, object.and_then(Binding::parse));
            }
            _ => {}
        }
    }

    /// Decides by the rules. RBAC never denies: it allows or has no opinion.
    pub(crate) fn authorize(&self, asked: &Attributes) -> Decision {
        let mut missing = Vec::new();
        let namespaces = if asked.namespace.is_empty() { &[""][..] } else { &["", asked.namespace.as_str()] };
        for namespace in namespaces {
            for (binding, rules) in self.granted(&asked.identity, namespace) {
                match rules {
                    Some(rules) if rules.iter().any(|rule| rule.allows(asked)) => return Decision::Allow,
                    Some(_) => {}
                    None => missing.push(missing_role(binding)),
                }
            }
        }
        let reason = if missing.is_empty() { String::new() } else { format!("RBAC: {}", missing.join(", ")) };
        Decision::NoOpinion(reason)
    }

    /// All rules that an identity has in a namespace, including cluster-wide ones.
    pub(crate) fn rules_of(&self, identity: &Identity, namespace: &str) -> Vec<Rule> {
        let namespaces = if namespace.is_empty() { vec![""] } else { vec!["", namespace] };
        let granted = namespaces.into_iter().flat_map(|namespace| self.granted(identity, namespace));
        granted.filter_map(|(_, rules)| rules).flat_map(|rules| rules.iter().cloned()).collect()
    }

    /// The rules of a Role, or of a ClusterRole where `namespace` is empty.
    pub(crate) fn role(&self, namespace: &str, name: &str) -> Option<Arc<[Rule]>> {
        self.roles.get(namespace)?.get(name).map(Arc::clone)
    }

    fn granted<'a>(
        &'a self,
        identity: &'a Identity,
        namespace: &'a str,
    ) -> impl Iterator<Item = (&'a Binding, Option<&'a Arc<[Rule]>>)> + 'a {
        let bindings = self.bindings.get(namespace).into_iter().flat_map(BTreeMap::values);
        bindings.filter(move |b| b.subjects.iter().any(|s| s.is(identity, namespace))).map(move |binding| {
            let role = || self.roles.get(binding.home(namespace)?)?.get(&binding.role);
            (binding, role())
        })
    }
}

fn missing_role(binding: &Binding) -> String {
    let kind = if binding.cluster_role { "clusterrole" } else { "role" };
    format!("{kind}.{GROUP} {:?} not found", binding.role)
}

fn set<T>(index: &mut ByNamespace<T>, namespace: &str, name: &str, value: Option<T>) {
    if let Some(value) = value {
        index.entry(namespace.to_owned()).or_default().insert(name.to_owned(), value);
    } else if let Some(names) = index.get_mut(namespace) {
        names.remove(name);
        if names.is_empty() {
            index.remove(namespace);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn asked(user: &str, groups: &[&str], namespace: &str, resource: &str) -> Attributes {
        Attributes {
            identity: Identity::new(user, groups),
            verb: "get".into(),
            resource: resource.into(),
            namespace: namespace.into(),
            is_resource: true,
            ..Attributes::default()
        }
    }

    fn index() -> Rbac {
        let mut rbac = Rbac::default();
        let role = |resource: &str| json!({"rules": [{"verbs": ["get"], "apiGroups": [""], "resources": [resource]}]});
        rbac.apply("clusterroles", "", "pod-reader", Some(&role("pods")));
        rbac.apply("roles", "shop", "secret-reader", Some(&role("secrets")));
        let bind = |kind: &str, role: &str, subjects: Value| json!({"roleRef": {"kind": kind, "name": role}, "subjects": subjects});
        let everywhere = bind("ClusterRole", "pod-reader", json!([{"kind": "Group", "name": "readers"}]));
        rbac.apply("clusterrolebindings", "", "everywhere", Some(&everywhere));
        let account = bind("ClusterRole", "pod-reader", json!([{"kind": "ServiceAccount", "name": "till"}]));
        rbac.apply("rolebindings", "shop", "account", Some(&account));
        let user = bind("Role", "secret-reader", json!([{"kind": "User", "name": "jane"}]));
        rbac.apply("rolebindings", "shop", "user", Some(&user));
        let dangling = bind("Role", "gone", json!([{"kind": "User", "name": "joe"}]));
        rbac.apply("rolebindings", "shop", "dangling", Some(&dangling));
        rbac
    }

    #[test]
    fn bindings_grant_where_they_are() {
        let rbac = index();
        let allow = |asked: Attributes| rbac.authorize(&asked) == Decision::Allow;
        assert!(allow(asked("x", &["readers"], "", "pods")));
        assert!(allow(asked("x", &["readers"], "shop", "pods")));
        assert!(!allow(asked("x", &["readers"], "shop", "secrets")));
        assert!(allow(asked("system:serviceaccount:shop:till", &[], "shop", "pods")));
        assert!(!allow(asked("system:serviceaccount:shop:till", &[], "home", "pods")));
        assert!(!allow(asked("system:serviceaccount:home:till", &[], "shop", "pods")));
        assert!(allow(asked("jane", &[], "shop", "secrets")));
        assert!(!allow(asked("jane", &[], "", "secrets")));
    }

    #[test]
    fn subjects_are_names_and_never_patterns() {
        let mut rbac = Rbac::default();
        let role = json!({"rules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}]});
        rbac.apply("clusterroles", "", "everything", Some(&role));
        for kind in ["User", "Group", "ServiceAccount"] {
            for name in ["*", "j*", "system:*", "system:serviceaccounts:*"] {
                let subjects = json!([{"kind": kind, "name": name, "namespace": "*"}]);
                let binding =
                    json!({"roleRef": {"kind": "ClusterRole", "name": "everything"}, "subjects": subjects});
                rbac.apply("clusterrolebindings", "", "x", Some(&binding));
                for user in ["system:anonymous", "jane", "system:serviceaccount:shop:till"] {
                    let groups = ["system:unauthenticated", "system:serviceaccounts:shop"];
                    let decision = rbac.authorize(&asked(user, &groups, "", "secrets"));
                    assert_ne!(decision, Decision::Allow, "{kind} {name} is {user}");
                }
            }
        }
        // A user may have this name.
        let star = json!({"roleRef": {"kind": "ClusterRole", "name": "everything"}, "subjects": [{"kind": "User", "name": "*"}]});
        rbac.apply("clusterrolebindings", "", "x", Some(&star));
        assert_eq!(rbac.authorize(&asked("*", &[], "", "secrets")), Decision::Allow);
    }

    #[test]
    fn a_cluster_wide_binding_finds_no_namespaced_role_and_no_account_without_namespace() {
        let mut rbac = index();
        let role = json!({"rules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}]});
        rbac.apply("clusterroles", "", "r", Some(&role));
        let bind = |kind: &str, subject: Value| json!({"roleRef": {"kind": kind, "name": "r"}, "subjects": [subject]});
        rbac.apply(
            "clusterrolebindings",
            "",
            "x",
            Some(&bind("Role", json!({"kind": "User", "name": "joe"}))),
        );
        assert_ne!(rbac.authorize(&asked("joe", &[], "", "secrets")), Decision::Allow);
        let account = json!({"kind": "ServiceAccount", "name": "till"});
        rbac.apply("clusterrolebindings", "", "x", Some(&bind("ClusterRole", account)));
        assert_ne!(
            rbac.authorize(&asked("system:serviceaccount::till", &[], "", "secrets")),
            Decision::Allow
        );
    }

    #[test]
    fn a_missing_role_is_named_in_the_reason() {
        let Decision::NoOpinion(reason) = index().authorize(&asked("joe", &[], "shop", "pods")) else {
            panic!()
        };
        assert_eq!(reason, r#"RBAC: role.rbac.authorization.k8s.io "gone" not found"#);
    }

    #[test]
    fn deleted_binding_grants_no_rights() {
        let mut rbac = index();
        rbac.apply("clusterrolebindings", "", "everywhere", None);
        assert_ne!(rbac.authorize(&asked("x", &["readers"], "", "pods")), Decision::Allow);
    }
}
