//! The kinds that cloudcore pushes.

use tombolo_proto::object::{ObjectKey, Resource};

use super::trim::{self, Trimmed};
use crate::kube::{ObjectError, RawObject, resources};

/// The kinds that cloudcore pushes unasked. Closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Nodes.
    Node = 0,
    /// Pods.
    Pod = 1,
    /// ConfigMaps.
    ConfigMap = 2,
    /// Secrets.
    Secret = 3,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 4] = [Self::Node, Self::Pod, Self::ConfigMap, Self::Secret];

    /// Group, version, plural.
    #[must_use]
    pub fn resource(self) -> Resource {
        match self {
            Self::Node => resources::nodes(),
            Self::Pod => resources::pods(),
            Self::ConfigMap => resources::configmaps(),
            Self::Secret => resources::secrets(),
        }
    }

    /// Name of the kind.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Node => "Node",
            Self::Pod => "Pod",
            Self::ConfigMap => "ConfigMap",
            Self::Secret => "Secret",
        }
    }

    /// The kind of a key, if cloudcore pushes that kind unasked.
    #[must_use]
    pub fn of(key: &ObjectKey) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.resource() == *key.resource())
    }

    /// An object of this kind, trimmed for sending.
    ///
    /// # Errors
    /// As [`trim::trim`].
    pub(super) fn trimmed(self, raw: RawObject) -> Result<Trimmed, ObjectError> {
        trim::trim(&self.resource(), self.name(), raw)
    }
}
