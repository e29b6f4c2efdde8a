//! Which objects a subscription follows.

use tombolo_proto::object::Resource;

/// The objects that a subscription follows.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Selection {
    /// The resource, with the version in which it is followed.
    pub resource: Resource,
    /// One namespace, or all when empty.
    pub namespace: String,
    /// Label selector in the query form; empty for all.
    pub label_selector: String,
    /// Field selector in the query form; empty for all.
    pub field_selector: String,
    /// Whether it is followed in the name of callers and not of this node. Then only callers whose rights the cluster
    /// has confirmed may read the copy.
    pub borrowed: bool,
}

impl Selection {
    /// All objects of a resource, as far as this node may read them.
    #[must_use]
    pub fn all(resource: Resource) -> Self {
        let [namespace, label_selector, field_selector] = Default::default();
        Self { resource, namespace, label_selector, field_selector, borrowed: false }
    }

    /// Whether this selection contains the other one and may be read instead of it. Callers with the right may also
    /// read what this node follows in its own name, but this node itself must not read what it follows for callers.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        let namespaces = self.namespace.is_empty() || self.namespace == other.namespace;
        let wider = |own: &str, others: &str| own.is_empty() || own == others;
        self.resource == other.resource
            && self.borrowed <= other.borrowed
            && namespaces
            && wider(&self.label_selector, &other.label_selector)
            && wider(&self.field_selector, &other.field_selector)
    }
}
