//! Who may do what: a table of grants, the stored roles, and for nodes the Node authorizer
//! (docs/reference/kubernetes.md#node-authorizer).

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::Value;

use super::kinds::KindKey;
use super::object::{self, text};
use super::rbac;
use super::references::{Referenced, references};
use super::selectors::fixed_field;
use super::storage::ObjectStorage;

/// The group that may do everything.
pub(super) const MASTERS: &str = "system:masters";

/// An authenticated user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiUser {
    /// Name.
    pub name: String,
    /// Groups.
    pub groups: BTreeSet<String>,
    /// UID; empty for most.
    pub uid: String,
}

impl ApiUser {
    /// A user with the groups that its name implies.
    #[must_use]
    pub fn named(name: &str) -> Self {
        let mut groups = BTreeSet::from(["system:authenticated".to_owned()]);
        if name.starts_with("system:node:") {
            groups.insert("system:nodes".to_owned());
        }
        if let Some((namespace, _)) =
            name.strip_prefix("system:serviceaccount:").and_then(|rest| rest.split_once(':'))
        {
            groups.insert("system:serviceaccounts".to_owned());
            groups.insert(format!("system:serviceaccounts:{namespace}"));
        }
        Self { name: name.to_owned(), groups, uid: String::new() }
    }

    /// Whether this is the name of a node. Without the group of nodes it has no rights.
    fn claims_node(&self) -> bool {
        self.name.starts_with("system:node:")
    }

    /// The node whose identity this is.
    #[must_use]
    pub fn node(&self) -> Option<&str> {
        let node = self.name.strip_prefix("system:node:")?;
        self.groups.contains("system:nodes").then_some(node)
    }
}

/// Rights that a user or group has. A part that is `*` covers everything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RightsGrant {
    /// Name of a user or of a group.
    pub to: String,
    /// Verbs.
    pub verbs: Vec<String>,
    /// API groups.
    pub groups: Vec<String>,
    /// Plurals, with the subresource if there is one: `pods/status`.
    pub resources: Vec<String>,
    /// The only namespace; none for all and for objects of the cluster.
    pub namespace: Option<String>,
    /// The only names; empty for all.
    pub names: Vec<String>,
}

impl RightsGrant {
    /// A grant for all objects of some kinds.
    #[must_use]
    pub fn new(to: &str, verbs: &[&str], groups: &[&str], resources: &[&str]) -> Self {
        let texts = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect();
        Self {
            to: to.to_owned(),
            verbs: texts(verbs),
            groups: texts(groups),
            resources: texts(resources),
            namespace: None,
            names: Vec::new(),
        }
    }

    /// The same in one namespace.
    #[must_use]
    pub fn within(mut self, namespace: &str) -> Self {
        self.namespace = Some(namespace.to_owned());
        self
    }

    /// The same for these names.
    #[must_use]
    pub fn named(mut self, names: &[&str]) -> Self {
        self.names = names.iter().map(|name| (*name).to_owned()).collect();
        self
    }

    fn covers(&self, asked: &AskedRight) -> bool {
        let one_of = |list: &[String], value: &str| list.iter().any(|one| one == "*" || one == value);
        one_of(&self.verbs, &asked.verb)
            && one_of(&self.groups, &asked.group)
            && one_of(&self.resources, &asked.qualified())
            && self.namespace.as_ref().is_none_or(|namespace| *namespace == asked.namespace)
            && (self.names.is_empty() || self.names.contains(&asked.name))
    }
}

/// What everybody may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RightsTable {
    /// Whether every user that a client was made for may do everything, unless it is a node.
    pub open: bool,
    /// The grants.
    pub grants: Vec<RightsGrant>,
}

impl Default for RightsTable {
    /// All clients but nodes may do everything.
    fn default() -> Self {
        Self { open: true, grants: Vec::new() }
    }
}

/// What somebody wants to do, as in the `resourceAttributes` of a SubjectAccessReview.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AskedRight {
    /// Verb.
    pub verb: String,
    /// API group.
    pub group: String,
    /// Plural.
    pub resource: String,
    /// Subresource.
    pub subresource: String,
    /// Namespace; empty for all and for the cluster.
    pub namespace: String,
    /// Name; empty for all.
    pub name: String,
    /// Field selector of a list or watch.
    pub field_selector: String,
}

impl AskedRight {
    pub(super) fn qualified(&self) -> String {
        match self.subresource.as_str() {
            "" => self.resource.clone(),
            below => format!("{}/{below}", self.resource),
        }
    }

    /// The refusal, without what precedes it in a message.
    pub(super) fn refusal(&self, user: &str, reason: &str) -> String {
        let place = match self.namespace.as_str() {
            "" => "at the cluster scope".to_owned(),
            namespace => format!("in the namespace {namespace:?}"),
        };
        let reason = if reason.is_empty() { String::new() } else { format!(": {reason}") };
        format!(
            "User {user:?} cannot {} resource {:?} in API group {:?} {place}{reason}",
            self.verb,
            self.qualified(),
            self.group
        )
    }
}

/// What the authorizers look at.
#[derive(Clone, Copy)]
pub(super) struct RightsView<'a> {
    pub(super) table: &'a RightsTable,
    pub(super) storage: &'a ObjectStorage,
    /// Users that clients were made for.
    pub(super) clients: &'a BTreeSet<String>,
    /// Time since the model began.
    pub(super) now: Duration,
    /// How much later the Node authorizer learns of bound pods.
    pub(super) lag: Duration,
}

impl RightsView<'_> {
    /// Whether a user may do something.
    ///
    /// # Errors
    /// The reason of the Node authorizer, which is empty for others.
    pub(super) fn check(&self, user: &ApiUser, asked: &AskedRight) -> Result<(), String> {
        let granted = |grant: &RightsGrant| grant.to == user.name || user.groups.contains(&grant.to);
        let by_table = self.table.grants.iter().any(|grant| granted(grant) && grant.covers(asked));
        let is_master = user.groups.contains(MASTERS);
        if is_master || by_table || is_basic(asked) || rbac::allows(self.storage, user, asked) {
            return Ok(());
        }
        match user.node() {
            Some(node) => self.check_node(node, asked),
            None if self.table.open && self.clients.contains(&user.name) && !user.claims_node() => Ok(()),
            None => Err(String::new()),
        }
    }

    fn check_node(&self, node: &str, asked: &AskedRight) -> Result<(), String> {
        let refused = |why: &str| Err(why.to_owned());
        match (asked.group.as_str(), asked.resource.as_str()) {
            ("", "configmaps" | "secrets" | "persistentvolumeclaims" | "persistentvolumes")
            | ("resource.k8s.io", "resourceclaims") => self.check_referenced(node, asked),
            ("", "serviceaccounts") => match (asked.subresource.as_str(), asked.verb.as_str()) {
                ("token", "create") | ("", "get") => self.check_referenced(node, asked),
                _ => refused("can only create tokens for individual service accounts"),
            },
            ("storage.k8s.io", "volumeattachments") => self.check_attachment(node, asked),
            ("", "nodes") => check_node_object(node, asked),
            ("", "pods") => self.check_pod(node, asked),
            ("coordination.k8s.io", "leases") => check_own(node, asked, "kube-node-lease"),
            ("storage.k8s.io", "csinodes") => check_own(node, asked, ""),
            ("resource.k8s.io", "resourceslices") => {
                let of_own = fixed_field(&asked.field_selector, "spec.nodeName").as_deref() == Some(node);
                let collection = matches!(asked.verb.as_str(), "list" | "watch" | "deletecollection");
                if collection && !of_own {
                    return refused(
                        "can only list/watch/deletecollection resourceslices with spec.nodeName field selector",
                    );
                }
                Ok(())
            }
            _ if is_rule_of_nodes(asked) => Ok(()),
            _ => refused(""),
        }
    }

    fn check_referenced(&self, node: &str, asked: &AskedRight) -> Result<(), String> {
        let by_name =
            !asked.name.is_empty() && matches!(asked.verb.as_str(), "get" | "list" | "watch" | "create");
        if !by_name {
            return Err("No Object name found".to_owned());
        }
        let wanted = Referenced::new(&asked.resource, &asked.namespace, &asked.name);
        let none = || format!("no relationship found between node '{node}' and this object");
        let pods = self.pods_of(node);
        pods.iter().any(|pod| references(self.storage, pod).contains(&wanted)).then_some(()).ok_or_else(none)
    }

    /// The pods that are bound to a node, as far as the authorizer knows.
    fn pods_of<'s>(&'s self, node: &str) -> Vec<&'s Value> {
        let pods = self.storage.all(&KindKey::new("", "pods")).map(|(_, pod)| &**pod);
        let is_known = |pod: &Value| {
            let bound = self.storage.bound_at(object::uid(pod));
            bound.is_some_and(|bound| bound + self.lag <= self.now)
        };
        pods.filter(|pod| text(pod, "/spec/nodeName") == node && is_known(pod)).collect()
    }

    fn check_attachment(&self, node: &str, asked: &AskedRight) -> Result<(), String> {
        let kind = KindKey::new("storage.k8s.io", "volumeattachments");
        let found = self.storage.get(&kind, &asked.name);
        match found {
            Some(one) if asked.verb == "get" && text(one, "/spec/nodeName") == node => Ok(()),
            _ => Err(format!("no relationship found between node '{node}' and this object")),
        }
    }

    fn check_pod(&self, node: &str, asked: &AskedRight) -> Result<(), String> {
        match (asked.verb.as_str(), asked.subresource.as_str()) {
            ("get", "") => {
                let mut pods = self.pods_of(node).into_iter();
                let is_it = |pod: &Value| {
                    object::name(pod) == asked.name && object::namespace(pod) == asked.namespace
                };
                let none = || format!("no relationship found between node '{node}' and this object");
                pods.any(is_it).then_some(()).ok_or_else(none)
            }
            ("list" | "watch", "") => {
                let of_own = fixed_field(&asked.field_selector, "spec.nodeName").as_deref() == Some(node);
                let why = "can only list/watch pods with spec.nodeName field selector";
                of_own.then_some(()).ok_or_else(|| why.to_owned())
            }
            ("create" | "delete", "") | ("update" | "patch" | "get", "status") | ("create", "eviction") => {
                Ok(())
            }
            _ => Err(String::new()),
        }
    }
}

fn check_node_object(node: &str, asked: &AskedRight) -> Result<(), String> {
    match (asked.verb.as_str(), asked.subresource.as_str()) {
        ("create" | "update" | "patch", "") | ("update" | "patch", "status") => Ok(()),
        ("get" | "list" | "watch", "" | "status") if asked.name == node => Ok(()),
        ("get" | "list" | "watch", _) => {
            let what = if asked.name.is_empty() { "all nodes" } else { &format!("'{}'", asked.name) };
            Err(format!("node '{node}' cannot read {what}, only its own Node object"))
        }
        _ => Err(String::new()),
    }
}

fn check_own(node: &str, asked: &AskedRight, namespace: &str) -> Result<(), String> {
    if asked.namespace != namespace {
        return Err(format!(
            "can only access node lease with the same name as the requesting node in {namespace}"
        ));
    }
    match asked.verb.as_str() {
        // The name of a new object is checked by NodeRestriction.
        "create" => Ok(()),
        "get" | "update" | "patch" | "delete" if asked.name == node => Ok(()),
        _ => Err("can only access node lease with the same name as the requesting node".to_owned()),
    }
}

/// Rights of all nodes that do not depend on their pods.
fn is_rule_of_nodes(asked: &AskedRight) -> bool {
    let verb = asked.verb.as_str();
    let reads = matches!(verb, "get" | "list" | "watch");
    match (asked.group.as_str(), asked.resource.as_str()) {
        ("authentication.k8s.io", "tokenreviews")
        | ("authorization.k8s.io", "subjectaccessreviews" | "localsubjectaccessreviews") => verb == "create",
        ("", "services") | ("node.k8s.io", "runtimeclasses") | ("storage.k8s.io", "csidrivers") => reads,
        ("" | "events.k8s.io", "events") => matches!(verb, "create" | "update" | "patch"),
        ("certificates.k8s.io", "certificatesigningrequests") => reads || verb == "create",
        _ => false,
    }
}

/// Rights of every authenticated user (`system:basic-user`).
fn is_basic(asked: &AskedRight) -> bool {
    let about_oneself = ["selfsubjectreviews", "selfsubjectaccessreviews", "selfsubjectrulesreviews"];
    asked.verb == "create" && about_oneself.contains(&asked.resource.as_str())
}

#[cfg(test)]
mod tests;
