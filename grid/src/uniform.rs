//! The pods that a unit knows by uniform names: from StatefulSetGrids, their Services and the EndpointSlices of those.
//!
//! A node may not read the pods of other nodes, nor StatefulSets. The slices of the grid's Service name each pod with its
//! addresses and its node, and the grid says which pods are of this unit. That a pod has the name of one of the grid's is
//! not enough: another StatefulSet may have taken the name. The grid's controller, which sees whose the StatefulSets are,
//! names in `status.owned` the units whose StatefulSet is the grid's own; a unit that it does not name has no uniform names.
//! Of such a set the pods have the ordinals that the unit's template gives it: one beyond them is not the set's.

use std::collections::{BTreeMap, BTreeSet};

use core::net::IpAddr;
use core::ops::Range;

use serde::Deserialize;
use serde_json::Value;

use crate::body::{BodyError, Metadata, or_default, view};
use crate::hosts::Names;
use crate::labels::GRID_KEY;
use crate::name::{ChildKind, child_name, key_label_value, ordinal, uniform_name};
use crate::node::Nodes;
use crate::template::choose_template;

#[cfg(test)]
mod tests;

/// What of a StatefulSetGrid decides about names.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct StatefulSetGrid {
    /// Namespace and name.
    pub metadata: Metadata,
    #[serde(default, deserialize_with = "or_default")]
    spec: Spec,
    #[serde(default, deserialize_with = "or_default")]
    status: Status,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
struct Status {
    /// Units whose StatefulSet belongs to the grid.
    #[serde(default, deserialize_with = "or_default")]
    owned: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    #[serde(default)]
    grid_uniq_key: String,
    #[serde(default, deserialize_with = "or_default")]
    template: Template,
    #[serde(default, deserialize_with = "or_default")]
    template_pool: BTreeMap<String, Template>,
    #[serde(default, deserialize_with = "or_default")]
    templates: BTreeMap<String, String>,
    #[serde(default)]
    default_template_name: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Template {
    #[serde(default)]
    service_name: String,
    /// Of any form: what is no number says nothing.
    #[serde(default)]
    replicas: Value,
    #[serde(default)]
    ordinals: Value,
}

impl Template {
    /// The ordinals of the pods that a set of this template has; none where something else than the template scales it.
    fn ordinals(&self) -> Option<Range<u64>> {
        let start = self.ordinals["start"].as_u64().unwrap_or_default();
        Some(start..start.saturating_add(self.replicas.as_u64()?))
    }
}

/// One pod behind a Service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodAddress {
    /// Name of the pod.
    pub pod: String,
    /// Name of its node.
    pub node: String,
    /// Its addresses of one family.
    pub addresses: Vec<IpAddr>,
    /// Whether it is being deleted.
    pub terminating: bool,
}

impl StatefulSetGrid {
    /// Reads a StatefulSetGrid.
    ///
    /// # Errors
    /// [`BodyError`] for text that is no such object.
    pub fn of(body: &[u8]) -> Result<Self, BodyError> {
        view(body)
    }

    /// The grid's key.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.spec.grid_uniq_key
    }

    /// Name of the Service that governs the pods of a unit; none when the unit has no template.
    #[must_use]
    pub fn service_name(&self, unit: &str) -> Option<&str> {
        self.template(unit).map(|template| template.service_name.as_str()).filter(|name| !name.is_empty())
    }

    fn template(&self, unit: &str) -> Option<&Template> {
        let Spec { template, template_pool, templates, default_template_name, .. } = &self.spec;
        let chosen = choose_template(unit, templates, default_template_name, template_pool).ok()?;
        Some(chosen.unwrap_or(template))
    }

    /// Whether the StatefulSet of a unit belongs to the grid, as its controller has seen it.
    #[must_use]
    pub fn owns(&self, unit: &str) -> bool {
        self.status.owned.iter().any(|owned| owned == unit)
    }

    /// Forgets of the units whose StatefulSets belong to the grid all but one: a node asks about its own alone.
    #[must_use]
    pub fn seen_from(mut self, unit: Option<&str>) -> Self {
        self.status.owned.retain(|owned| unit == Some(owned));
        self.status.owned.shrink_to_fit();
        self
    }

    /// The names by which node `me` knows the pods of its unit. `service` is the metadata of the Service
    /// [`Self::service_name`], `pods` what its slices hold. None when the node is in no unit, or names are withheld
    /// because the unit's StatefulSet is not the grid's, or the Service is missing or not of a grid with this key.
    ///
    /// A name that is also the name of a real pod of the Service is withheld: that pod has it already.
    #[must_use]
    pub fn names(
        &self,
        me: &str,
        nodes: &Nodes,
        service: Option<&Metadata>,
        pods: &[PodAddress],
    ) -> Option<Names> {
        let key = self.key();
        let unit = nodes.get(me)?.unit(key)?;
        let (grid, service) = (&self.metadata.name, service?);
        let of_grid = service.labels.get(GRID_KEY).is_some_and(|label| *label == key_label_value(key));
        if !of_grid
            || !self.owns(unit)
            || service.namespace != self.metadata.namespace
            || self.service_name(unit)? != service.name
        {
            return None;
        }
        let set = child_name(ChildKind::StatefulSet, grid, unit).ok()?;
        let ordinals = self.template(unit)?.ordinals();
        let in_set = |pod: &PodAddress| {
            let place = ordinal(&set, &pod.pod);
            ordinals.as_ref().is_none_or(|ordinals| place.is_some_and(|place| ordinals.contains(&place)))
        };
        let in_unit = |pod: &&PodAddress| {
            nodes.get(&pod.node).and_then(|node| node.unit(key)) == Some(unit) && in_set(pod)
        };
        let mut found: BTreeMap<String, Vec<&PodAddress>> = BTreeMap::new();
        for pod in pods.iter().filter(in_unit) {
            if let Some(name) = uniform_name(grid, unit, &set, &pod.pod) {
                found.entry(name).or_default().push(pod);
            }
        }
        let taken: BTreeSet<&str> = pods.iter().map(|pod| pod.pod.as_str()).collect();
        found.retain(|name, _| !taken.contains(name.as_str()));
        let addresses = found.into_iter().map(|(name, pods)| (name, newest(&pods))).collect();
        Some(Names { service: service.name.clone(), addresses })
    }
}

/// The addresses of one name. A pod that goes is left out once its successor is there.
fn newest(pods: &[&PodAddress]) -> BTreeSet<IpAddr> {
    let successor = pods.iter().any(|pod| !pod.terminating);
    let shown = pods.iter().filter(|pod| !(successor && pod.terminating));
    shown.flat_map(|pod| pod.addresses.iter().copied()).collect()
}

/// The pods in an EndpointSlice, ready or not. Endpoints that are no pods on a node, and addresses that are no IP
/// addresses, are left out.
///
/// # Errors
/// [`BodyError`] for text that is no such object.
pub fn pod_addresses(slice: &[u8]) -> Result<Vec<PodAddress>, BodyError> {
    #[derive(Deserialize)]
    struct Slice {
        #[serde(default, deserialize_with = "or_default")]
        endpoints: Vec<Endpoint>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Endpoint {
        #[serde(default, deserialize_with = "or_default")]
        addresses: Vec<String>,
        #[serde(default, deserialize_with = "or_default")]
        node_name: String,
        #[serde(default, deserialize_with = "or_default")]
        target_ref: Target,
        #[serde(default, deserialize_with = "or_default")]
        conditions: Conditions,
    }
    #[derive(Deserialize, Default)]
    struct Target {
        #[serde(default)]
        kind: String,
        #[serde(default)]
        name: String,
    }
    #[derive(Deserialize, Default)]
    struct Conditions {
        #[serde(default, deserialize_with = "or_default")]
        terminating: bool,
    }
    let slice: Slice = view(slice)?;
    let pods =
        slice.endpoints.into_iter().filter(|one| one.target_ref.kind == "Pod" && !one.node_name.is_empty());
    Ok(pods
        .map(|one| PodAddress {
            pod: one.target_ref.name,
            node: one.node_name,
            addresses: one.addresses.iter().filter_map(|address| address.parse().ok()).collect(),
            terminating: one.conditions.terminating,
        })
        .collect())
}
