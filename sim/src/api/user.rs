//! Who asks, and for what.

use std::collections::BTreeSet;

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
    pub(super) fn claims_node(&self) -> bool {
        self.name.starts_with("system:node:")
    }

    /// The node whose identity this is.
    #[must_use]
    pub fn node(&self) -> Option<&str> {
        let node = self.name.strip_prefix("system:node:")?;
        self.groups.contains("system:nodes").then_some(node)
    }
}

/// The name and user of a client.
#[derive(Debug, Clone)]
pub(super) struct ClientIdentity {
    pub(super) name: String,
    pub(super) user: ApiUser,
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
