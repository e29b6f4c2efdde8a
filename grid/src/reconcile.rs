//! What a grid's controller has to do: determines the wanted children, and what happens to the existing ones
//! (docs/reference/superedge.md#children).

pub mod child;
pub mod drift;
pub mod manifest;
pub mod ownership;
pub mod plan;
pub mod status;
#[cfg(test)]
mod tests;
pub mod union;

use std::collections::BTreeMap;

use serde_json::Value;

use crate::name::ChildKind;

/// A grid as seen by its controller.
#[derive(Debug, Clone, PartialEq)]
pub struct Grid {
    /// Kind of its children.
    pub kind: ChildKind,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.generation`.
    pub generation: i64,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its annotations.
    pub annotations: BTreeMap<String, String>,
    /// Whether it has a deletion timestamp.
    pub deleting: bool,
    /// `spec`.
    pub spec: GridSpec,
}

/// `spec` of a grid. A ServiceGrid has a key and a template only.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct GridSpec {
    /// `gridUniqKey`: the node label whose values are the units.
    pub key: String,
    /// `template`: the spec of a Deployment, StatefulSet or Service.
    pub template: Value,
    /// `templatePool`: alternatives by name.
    pub pool: BTreeMap<String, Value>,
    /// `templates`: which alternative a unit uses.
    pub templates: BTreeMap<String, String>,
    /// `defaultTemplateName`: the alternative that the other units use.
    pub default_name: String,
}

impl ChildKind {
    /// Kind of the children.
    #[must_use]
    pub const fn kind(self) -> &'static str {
        match self {
            Self::Deployment => "Deployment",
            Self::StatefulSet => "StatefulSet",
            Self::Service => "Service",
        }
    }

    /// `apiVersion` of the children.
    #[must_use]
    pub const fn api_version(self) -> &'static str {
        match self {
            Self::Deployment | Self::StatefulSet => "apps/v1",
            Self::Service => "v1",
        }
    }

    /// Kind of the grid that creates them.
    #[must_use]
    pub const fn grid_kind(self) -> &'static str {
        match self {
            Self::Deployment => "DeploymentGrid",
            Self::StatefulSet => "StatefulSetGrid",
            Self::Service => "ServiceGrid",
        }
    }
}
