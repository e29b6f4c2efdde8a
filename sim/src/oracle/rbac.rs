//! What RBAC allowed at a position of the history (Kubernetes, "Using RBAC Authorization"). Subjects and names are
//! compared literally; only verbs, groups and resources of a rule have wildcards.

use std::collections::BTreeSet;

use serde_json::Value;

use super::history::{History, RBAC};
use crate::observation::{HistoryPosition, ObjectId, Selection};

/// Group that cloudcore names in its reviews for connected nodes.
const EDGE_NODES: &str = "tombolo:edge-nodes";

/// Who asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Subject {
    user: String,
    groups: Vec<String>,
}

impl Subject {
    /// A node that is connected.
    #[must_use]
    pub(super) fn node(name: &str) -> Self {
        let groups = ["system:nodes", EDGE_NODES, "system:authenticated"].map(str::to_owned).to_vec();
        Self { user: format!("system:node:{name}"), groups }
    }

    /// Who follows a selection at a node.
    #[must_use]
    pub(super) fn follower(node: &str, account: Option<&str>) -> Self {
        account.map_or_else(|| Self::node(node), Self::account)
    }

    /// The account of a pod: `system:serviceaccount:NAMESPACE:NAME`.
    #[must_use]
    pub(super) fn account(user: &str) -> Self {
        let mut groups = vec!["system:authenticated".to_owned(), "system:serviceaccounts".to_owned()];
        if let Some(namespace) = user.split(':').nth(2) {
            groups.push(format!("system:serviceaccounts:{namespace}"));
        }
        Self { user: user.to_owned(), groups }
    }
}

/// What somebody wants to read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wish<'a> {
    /// `get`, `list` or `watch`.
    pub(super) verb: &'a str,
    /// The kind, as in [`ObjectId::resource`].
    pub(super) resource: &'a str,
    /// Namespace; empty for cluster-scoped objects and for all namespaces.
    pub(super) namespace: &'a str,
    /// Name; empty for a whole selection.
    pub(super) name: &'a str,
}

/// Whether the subject was allowed it at some time from a position until now.
#[must_use]
pub(super) fn allowed_sometime(
    history: &History,
    subject: &Subject,
    wish: Wish<'_>,
    since: HistoryPosition,
) -> bool {
    if allowed_at(history, subject, wish, history.now()) {
        return true;
    }
    changes_of_rights(history, since).into_iter().any(|position| allowed_at(history, subject, wish, position))
}

/// Whether the subject was allowed to list and watch a selection all the time from a position until now.
#[must_use]
pub(super) fn may_follow_since(
    history: &History,
    subject: &Subject,
    selection: &Selection,
    since: HistoryPosition,
) -> bool {
    let (resource, namespace) = (&*selection.resource, &*selection.namespace);
    changes_of_rights(history, since).into_iter().all(|position| {
        let wish = |verb| Wish { verb, resource, namespace, name: "" };
        ["list", "watch"].into_iter().all(|verb| allowed_at(history, subject, wish(verb), position))
    })
}

/// The position, and those after it at which roles or bindings were written.
fn changes_of_rights(history: &History, since: HistoryPosition) -> BTreeSet<HistoryPosition> {
    let mut positions = BTreeSet::from([since]);
    for kind in ["clusterrolebindings", "rolebindings", "clusterroles", "roles"] {
        for (_, changes) in history.of_kind(&format!("{kind}.{RBAC}"), "") {
            let later = changes.iter().map(|change| change.position).filter(|position| *position > since);
            positions.extend(later);
        }
    }
    positions
}

fn allowed_at(history: &History, subject: &Subject, wish: Wish<'_>, position: HistoryPosition) -> bool {
    let bindings = |kind: &str, namespace: &str| {
        let all: Vec<ObjectId> =
            history.of_kind(&format!("{kind}.{RBAC}"), namespace).map(|(id, _)| id.clone()).collect();
        all
    };
    let mut candidates = bindings("clusterrolebindings", "");
    if !wish.namespace.is_empty() {
        candidates.extend(bindings("rolebindings", wish.namespace));
    }
    candidates.iter().any(|binding| {
        let Some(body) = history.state(binding, position).and_then(|state| state.body.as_deref()) else {
            return false;
        };
        array(&body["subjects"]).any(|named| names(subject, named, &binding.namespace))
            && role(history, body, &binding.namespace, position)
                .is_some_and(|role| array(&role["rules"]).any(|rule| covers(rule, wish)))
    })
}

fn role<'h>(
    history: &'h History,
    binding: &Value,
    namespace: &str,
    position: HistoryPosition,
) -> Option<&'h Value> {
    let reference = &binding["roleRef"];
    let name = reference["name"].as_str()?;
    let id = match reference["kind"].as_str()? {
        "ClusterRole" => ObjectId::new(&format!("clusterroles.{RBAC}"), "", name),
        _ => ObjectId::new(&format!("roles.{RBAC}"), namespace, name),
    };
    history.state(&id, position)?.body.as_deref()
}

fn names(subject: &Subject, named: &Value, namespace: &str) -> bool {
    let name = named["name"].as_str().unwrap_or_default();
    match named["kind"].as_str() {
        Some("User") => subject.user == name,
        Some("Group") => subject.groups.iter().any(|group| group == name),
        Some("ServiceAccount") => {
            let namespace = named["namespace"].as_str().unwrap_or(namespace);
            subject.user == format!("system:serviceaccount:{namespace}:{name}")
        }
        _ => false,
    }
}

fn covers(rule: &Value, wish: Wish<'_>) -> bool {
    let has = |list: &str, wanted: &str| {
        array(&rule[list]).filter_map(Value::as_str).any(|item| item == "*" || item == wanted)
    };
    let (plural, group) = wish.resource.split_once('.').unwrap_or((wish.resource, ""));
    let mut names = array(&rule["resourceNames"]).filter_map(Value::as_str).peekable();
    let is_named = names.peek().is_none() || names.any(|name| name == wish.name && !name.is_empty());
    has("verbs", wish.verb) && has("apiGroups", group) && has("resources", plural) && is_named
}

fn array(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::testing::Api;
    use super::*;

    const LIST: Wish<'_> = Wish { verb: "list", resource: "services", namespace: "", name: "" };

    fn api(subject: &Value) -> Api {
        let mut api = Api::default();
        let rules = json!([{"verbs": ["list"], "apiGroups": [""], "resources": ["services"]}]);
        api.put("clusterroles.rbac.authorization.k8s.io//reader", "admin", json!({ "rules": rules }));
        let reference = json!({"kind": "ClusterRole", "name": "reader"});
        let body = json!({"roleRef": reference, "subjects": [subject]});
        api.put("clusterrolebindings.rbac.authorization.k8s.io//b", "admin", body);
        api
    }

    fn allowed(api: &Api, subject: &Subject, wish: Wish<'_>) -> bool {
        allowed_sometime(&api.history, subject, wish, api.now())
    }

    #[test]
    fn rights_come_from_bindings_of_users_groups_and_accounts() {
        let node = Subject::node("n");
        let group = api(&json!({"kind": "Group", "name": EDGE_NODES}));
        assert!(allowed(&group, &node, LIST));
        for wish in [
            Wish { verb: "watch", ..LIST },
            Wish { resource: "secrets", ..LIST },
            Wish { resource: "services.other", ..LIST },
        ] {
            assert!(!allowed(&group, &node, wish), "{wish:?}");
        }
        let account = api(&json!({"kind": "ServiceAccount", "namespace": "d", "name": "a"}));
        assert!(allowed(&account, &Subject::account("system:serviceaccount:d:a"), LIST));
        assert!(!allowed(&account, &Subject::account("system:serviceaccount:e:a"), LIST));
        assert!(!allowed(&api(&json!({"kind": "User", "name": "*"})), &node, LIST), "a name is no pattern");
    }

    #[test]
    fn a_right_that_ended_counts_from_before_its_end() {
        let mut api = api(&json!({"kind": "User", "name": "system:node:n"}));
        let granted = api.now();
        api.delete("clusterrolebindings.rbac.authorization.k8s.io//b");
        let node = Subject::node("n");
        assert!(allowed_sometime(&api.history, &node, LIST, granted));
        assert!(!allowed(&api, &node, LIST));
    }
}
