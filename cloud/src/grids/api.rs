//! The API types of the three kinds of the application grid (docs/reference/superedge.md#grid-kinds).
//!
//! Templates are kept as written. The schema contains only the fields that a child requires, and nothing below a
//! template is pruned, so fields of later Kubernetes versions survive.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::object::HasSpec;
use kube::{CustomResource, CustomResourceExt, Resource, ResourceExt};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tombolo_grid::name::ChildKind;
use tombolo_grid::reconcile::{Grid, GridSpec};

/// A spec whose kind has the columns of every grid, with its own meaning of ready.
macro_rules! with_columns {
    (ready: $ready:tt, $(#[$attribute:meta])* $visibility:vis struct $name:ident $fields:tt) => {
        $(#[$attribute])*
        #[kube(
            printcolumn = r#"{"name": "Key", "type": "string", "jsonPath": ".spec.gridUniqKey", "description": "Node label whose values define the units"}"#,
            printcolumn = r#"{"name": "Units", "type": "integer", "jsonPath": ".status.units", "description": "Units that have nodes"}"#,
            printcolumn = $ready,
            printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#
        )]
        $visibility struct $name $fields
    };
}

/// The spec of a grid of workloads. kube derives one kind from one struct, so the fields are written here for both.
macro_rules! workload_grid_spec {
    ($(#[$attribute:meta])* $visibility:vis struct $name:ident { $(#[$key:meta])* key, $(#[$template:meta])* template }) => {
        with_columns! {
            ready: r#"{"name": "Ready", "type": "string", "jsonPath": ".status.ready", "description": "Units whose pods are all ready"}"#,
            $(#[$attribute])*
            #[serde(rename_all = "camelCase", default)]
            $visibility struct $name {
                $(#[$key])*
                #[schemars(length(min = 1))]
                pub grid_uniq_key: String,
                $(#[$template])*
                #[serde(skip_serializing_if = "Option::is_none")]
                pub template: Option<WorkloadTemplate>,
                /// Alternatives to `template`, by name.
                #[serde(skip_serializing_if = "Option::is_none")]
                pub template_pool: Option<BTreeMap<String, WorkloadTemplate>>,
                /// Name of the alternative that each unit uses, by unit.
                #[serde(skip_serializing_if = "Option::is_none")]
                pub templates: Option<BTreeMap<String, String>>,
                /// Template of units not in `templates`; `default` or empty means `template`.
                #[serde(skip_serializing_if = "Option::is_none")]
                pub default_template_name: Option<String>,
                /// Whether unused members of `templatePool` are removed.
                #[serde(skip_serializing_if = "Option::is_none")]
                pub auto_delete_unused_template: Option<bool>,
            }
        }
    };
}

workload_grid_spec! {
    /// One Deployment per unit.
    #[derive(CustomResource, JsonSchema, Debug, Clone, Default, Serialize, Deserialize)]
    #[kube(
        group = "superedge.io",
        version = "v1",
        kind = "DeploymentGrid",
        doc = "One Deployment per unit of nodes",
        namespaced,
        shortname = "dg",
        status = "GridStatus",
        validation = Rule::new("self.metadata.name.size() <= 63").message("the name becomes a label value of the children: at most 63 characters")
    )]
    pub struct DeploymentGridSpec {
        /// Node label whose values define the units: one Deployment runs on the nodes of each unit.
        key,
        /// Spec of the Deployments (apps/v1 `DeploymentSpec`).
        template
    }
}

workload_grid_spec! {
    /// One StatefulSet per unit.
    #[derive(CustomResource, JsonSchema, Debug, Clone, Default, Serialize, Deserialize)]
    #[kube(
        group = "superedge.io",
        version = "v1",
        kind = "StatefulSetGrid",
        doc = "One StatefulSet per unit of nodes",
        namespaced,
        shortname = "ssg",
        status = "GridStatus",
        validation = Rule::new("self.metadata.name.size() <= 50").message("the name of a unit's StatefulSet has at most 52 characters: at most 50 for the grid's name"),
        validation = Rule::new("self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')").message("names of StatefulSets are DNS labels: lower case letters, digits and '-'")
    )]
    pub struct StatefulSetGridSpec {
        /// Node label whose values define the units: one StatefulSet runs on the nodes of each unit.
        key,
        /// Spec of the StatefulSets (apps/v1 `StatefulSetSpec`).
        template
    }
}

with_columns! {
    ready: r#"{"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Synced\")].status", "description": "Whether the Service is in the desired state"}"#,
    /// One Service for all units, whose requests stay inside each unit.
    #[derive(CustomResource, JsonSchema, Debug, Clone, Default, Serialize, Deserialize)]
    #[kube(
        group = "superedge.io",
        version = "v1",
        kind = "ServiceGrid",
        doc = "One Service whose requests stay inside the unit that they come from",
        namespaced,
        shortname = "sg",
        status = "GridStatus",
        validation = Rule::new("self.metadata.name.size() <= 59").message("the name of the Service, NAME-svc, has at most 63 characters: at most 59 for the grid's name"),
        validation = Rule::new("self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')").message("the Service is called NAME-svc: lower case letters, digits and '-', beginning with a letter")
    )]
    #[serde(rename_all = "camelCase", default)]
    pub struct ServiceGridSpec {
        /// Node label whose values define the units: requests from a node reach only pods of its own unit.
        #[schemars(length(min = 1))]
        pub grid_uniq_key: String,
        /// Spec of the Service (core/v1 `ServiceSpec`).
        #[serde(skip_serializing_if = "Option::is_none")]
        pub template: Option<ServiceTemplate>,
    }
}

/// Spec of a workload, as it is written.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct WorkloadTemplate(pub Value);

/// Spec of a Service, as it is written.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ServiceTemplate(pub Value);

/// Status of a grid: `states` per unit and `conditions`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct GridStatus(pub Value);

/// The field without which a grid does nothing.
const KEY: &str = "gridUniqKey";

/// Keeps what it does not name.
const OPEN: &str = "x-kubernetes-preserve-unknown-fields";

/// A name and a schema for a type that is kept as it is written.
macro_rules! written {
    ($type:ident, $schema:expr) => {
        impl JsonSchema for $type {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> Cow<'static, str> {
                stringify!($type).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                $schema
            }
        }
    };
}

written!(
    WorkloadTemplate,
    json_schema!({
        "type": "object",
        OPEN: true,
        "required": ["selector", "template"],
        "properties": {
            "selector": {"type": "object", OPEN: true},
            "template": {"type": "object", OPEN: true, "properties": {
                "metadata": metadata(),
                "spec": {"type": "object", OPEN: true, "required": ["containers"], "properties": {
                    "containers": {"type": "array", "items": {
                        "type": "object", OPEN: true, "required": ["name"], "properties": {"name": {"type": "string"}},
                    }},
                }},
            }},
            "volumeClaimTemplates": {"type": "array", "items": {
                "type": "object", OPEN: true, "properties": {"metadata": metadata()},
            }},
        },
    })
);

written!(
    ServiceTemplate,
    json_schema!({
        "type": "object",
        OPEN: true,
        "properties": {
            "ports": {"type": "array", "items": {
                "type": "object", OPEN: true, "required": ["port"],
                "properties": {"port": {"type": "integer", "format": "int32", "minimum": 1, "maximum": 65535}},
            }},
        },
    })
);

written!(
    GridStatus,
    json_schema!({
        "type": "object",
        OPEN: true,
        "properties": {
            "states": {
                "description": "Status and errors of each unit's workload. With many units, only the first unready ones are listed.",
                "type": "object",
                "additionalProperties": {"type": "object", OPEN: true},
            },
            "statesOmitted": {"description": "Number of units that are not in states.", "type": "integer", "format": "int32"},
            "owned": {
                "description": "Units whose StatefulSet belongs to this grid: nodes resolve the pods of these units by uniform names.",
                "type": "array",
                "items": {"type": "string"},
            },
            "ownedOmitted": {"description": "Number of such units that are not in owned.", "type": "integer", "format": "int32"},
            "units": {"description": "Number of units that have nodes.", "type": "integer", "format": "int32"},
            "ready": {"description": "Units whose pods are all ready, out of all units.", "type": "string"},
            "observedGeneration": {"type": "integer", "format": "int64"},
            "conditions": {"type": "array", "items": {"type": "object", OPEN: true}},
        },
    })
);

fn metadata() -> Value {
    let texts = json!({"type": "object", "additionalProperties": {"type": "string"}});
    json!({"type": "object", OPEN: true, "properties": {"labels": texts, "annotations": texts}})
}

/// A kind of grid.
pub trait GridKind:
    Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
    + CustomResourceExt
    + Clone
    + fmt::Debug
    + DeserializeOwned
    + Send
    + Sync
    + 'static
{
    /// The kind of its children.
    const CHILD: ChildKind;

    /// `spec`, for the planner.
    fn grid_spec(&self) -> GridSpec;

    /// The stored `status`.
    fn stored_status(&self) -> Value;

    /// Removes the status, and everything in `spec` except the key.
    fn leave_out_templates(&mut self);

    /// Reduces a grid to what is kept between two passes: its identity, and the node label that concerns it. Everything
    /// else is read when there is something to do.
    fn slim(&mut self) {
        let kept = std::mem::take(self.meta_mut());
        *self.meta_mut() = ObjectMeta {
            name: kept.name,
            namespace: kept.namespace,
            uid: kept.uid,
            resource_version: kept.resource_version,
            generation: kept.generation,
            deletion_timestamp: kept.deletion_timestamp,
            ..ObjectMeta::default()
        };
        self.leave_out_templates();
    }

    /// Whether unused members of the pool are to be removed.
    fn removes_unused(&self) -> bool {
        false
    }

    /// The grid as the planner sees it.
    fn grid(&self) -> Grid {
        let meta = self.meta();
        Grid {
            kind: Self::CHILD,
            namespace: self.namespace().unwrap_or_default(),
            name: self.name_any(),
            uid: self.uid().unwrap_or_default(),
            generation: meta.generation.unwrap_or_default(),
            labels: self.labels().clone(),
            annotations: self.annotations().clone(),
            deleting: meta.deletion_timestamp.is_some(),
            spec: self.grid_spec(),
        }
    }
}

/// Longest possible label key: a prefix of 253 bytes, `/`, and a name of 63.
const KEY_LEN_MAX: usize = 317;

/// The key, or empty text if it is longer than any label key.
fn short_key(mut key: String) -> String {
    if key.len() > KEY_LEN_MAX {
        key = String::new();
    }
    key.shrink_to_fit();
    key
}

/// The two kinds with selectable templates differ only in their names.
macro_rules! workload_grid {
    ($kind:ident, $child:expr) => {
        impl GridKind for $kind {
            const CHILD: ChildKind = $child;

            fn grid_spec(&self) -> GridSpec {
                let spec = self.spec();
                let pool = spec.template_pool.iter().flatten();
                GridSpec {
                    key: spec.grid_uniq_key.clone(),
                    template: spec.template.clone().unwrap_or_default().0,
                    pool: pool.map(|(name, template)| (name.clone(), template.0.clone())).collect(),
                    templates: spec.templates.clone().unwrap_or_default(),
                    default_name: spec.default_template_name.clone().unwrap_or_default(),
                }
            }

            fn stored_status(&self) -> Value {
                self.status.as_ref().map_or(Value::Null, |status| status.0.clone())
            }

            fn leave_out_templates(&mut self) {
                let grid_uniq_key = short_key(std::mem::take(&mut self.spec.grid_uniq_key));
                self.spec = Default::default();
                self.spec.grid_uniq_key = grid_uniq_key;
                self.status = None;
            }

            fn removes_unused(&self) -> bool {
                self.spec().auto_delete_unused_template == Some(true)
            }
        }
    };
}

workload_grid!(DeploymentGrid, ChildKind::Deployment);
workload_grid!(StatefulSetGrid, ChildKind::StatefulSet);

impl GridKind for ServiceGrid {
    const CHILD: ChildKind = ChildKind::Service;

    fn grid_spec(&self) -> GridSpec {
        let spec = self.spec();
        GridSpec {
            key: spec.grid_uniq_key.clone(),
            template: spec.template.clone().unwrap_or_default().0,
            ..GridSpec::default()
        }
    }

    fn leave_out_templates(&mut self) {
        let grid_uniq_key = short_key(std::mem::take(&mut self.spec.grid_uniq_key));
        self.spec = ServiceGridSpec { grid_uniq_key, ..ServiceGridSpec::default() };
        self.status = None;
    }

    fn stored_status(&self) -> Value {
        self.status.as_ref().map_or(Value::Null, |status| status.0.clone())
    }
}

/// The definitions of the three kinds, as `deploy/crds` has them.
#[must_use]
pub fn definitions() -> [CustomResourceDefinition; 3] {
    [DeploymentGrid::crd(), StatefulSetGrid::crd(), ServiceGrid::crd()].map(|mut definition| {
        for version in &mut definition.spec.versions {
            let schema = version.schema.as_mut().and_then(|schema| schema.open_api_v3_schema.as_mut());
            let spec = schema.and_then(|schema| schema.properties.as_mut()?.get_mut("spec"));
            if let Some(spec) = spec {
                // Deserialization accepts a grid without a key, as older controllers stored it; the schema does not.
                spec.required = Some(vec![KEY.to_owned()]);
                let key = spec.properties.as_mut().and_then(|properties| properties.get_mut(KEY));
                if let Some(key) = key {
                    key.default = None;
                }
            }
        }
        definition
    })
}

#[cfg(test)]
mod tests;
