//! The pods that a unit knows by uniform names, from StatefulSetGrids, their Services and the EndpointSlices of those.
//!
//! A node may not read the pods of other nodes, nor StatefulSets. The slices of the grid's Service contain each pod's
//! name, addresses and node, and the grid determines which pods are in this unit. A matching pod name is not enough:
//! another StatefulSet may have the name of the grid's. The grid's controller, which sees the owners of StatefulSets,
//! lists in `status.owned` the units whose StatefulSet is the grid's own; a unit that is not listed has no uniform
//! names. The set's pods have the ordinals that the unit's template gives it: a pod with another ordinal does not
//! belong to the set.

use std::collections::{BTreeMap, BTreeSet};

use core::net::IpAddr;
use core::ops::Range;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::body::{BodyError, ObjectMetadata, has, member, or_default, view};
use crate::hosts::{GridName, Names};
use crate::labels::GRID_KEY;
use crate::name::{ChildKind, child_name, key_label_value, ordinal, uniform_name};
use crate::node::Nodes;
use crate::template::OWN_TEMPLATE;

#[cfg(test)]
mod tests;

/// The parts of a StatefulSetGrid that decide about the names on a node; those about other units are not kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatefulSetGrid {
    /// Namespace and name.
    pub name: GridName,
    key: Box<str>,
    /// The template of the node's unit; none when the unit has none.
    template: Option<Template>,
    /// Whether the StatefulSet of that unit belongs to the grid.
    is_owned: bool,
}

/// The parts of a template that decide about names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Template {
    service_name: Box<str>,
    /// None when the set is scaled by something other than the template.
    replicas: Option<u32>,
    /// The first ordinal.
    start: u32,
}

#[derive(Deserialize)]
struct Object<'a> {
    #[serde(default)]
    metadata: ObjectMetadata,
    #[serde(borrow, default, deserialize_with = "or_default")]
    spec: Spec<'a>,
    #[serde(borrow, default, deserialize_with = "or_default")]
    status: Status<'a>,
}

#[derive(Default, Deserialize)]
struct Status<'a> {
    /// Units whose StatefulSet belongs to the grid.
    #[serde(borrow, default)]
    owned: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec<'a> {
    #[serde(default)]
    grid_uniq_key: String,
    #[serde(borrow, default)]
    template: Option<&'a RawValue>,
    #[serde(borrow, default)]
    template_pool: Option<&'a RawValue>,
    #[serde(borrow, default)]
    templates: Option<&'a RawValue>,
    #[serde(default)]
    default_template_name: String,
}

impl Spec<'_> {
    /// The template of a unit, chosen as [`crate::choose_template`] does.
    fn template(&self, unit: &str) -> Result<Option<Template>, BodyError> {
        let named = self.templates.map(|names| member::<String>(names, unit)).transpose()?.flatten();
        let name = named.as_deref().unwrap_or(&self.default_template_name);
        if name.is_empty() || name == OWN_TEMPLATE {
            return self.template.map_or(Ok(Some(Template::default())), |text| Template::of(text).map(Some));
        }
        let text = self.template_pool.map(|pool| member::<&RawValue>(pool, name)).transpose()?.flatten();
        text.map(Template::of).transpose()
    }
}

impl Template {
    fn of(text: &RawValue) -> Result<Self, BodyError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct SpecView<'a> {
            #[serde(default)]
            service_name: String,
            #[serde(borrow, default)]
            replicas: Option<&'a RawValue>,
            #[serde(borrow, default)]
            ordinals: Option<&'a RawValue>,
        }
        #[derive(Default, Deserialize)]
        struct Ordinals<'a> {
            #[serde(borrow, default)]
            start: Option<&'a RawValue>,
        }
        let SpecView { service_name, replicas, ordinals } = view(text.get().as_bytes())?;
        let ordinals = ordinals.and_then(|ordinals| view::<Ordinals<'_>>(ordinals.get().as_bytes()).ok());
        Ok(Self {
            service_name: service_name.into(),
            replicas: count(replicas),
            start: count(ordinals.unwrap_or_default().start).unwrap_or_default(),
        })
    }

    /// The ordinals of the pods of a set with this template; none when the set is scaled by something other than the
    /// template.
    fn ordinals(&self) -> Option<Range<u64>> {
        let start = u64::from(self.start);
        Some(start..start + u64::from(self.replicas?))
    }
}

/// A count in any JSON form; a value that is not a valid Kubernetes count is ignored.
fn count(text: Option<&RawValue>) -> Option<u32> {
    let count: i32 = serde_json::from_str(text?.get()).ok()?;
    u32::try_from(count).ok()
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
    /// Reads a StatefulSetGrid for a node. `unit` gives the node's unit for a key, if it has one.
    ///
    /// # Errors
    /// [`BodyError`] for text that is not such an object.
    pub fn of<'u>(body: &[u8], unit: impl FnOnce(&str) -> Option<&'u str>) -> Result<Self, BodyError> {
        let Object { metadata, spec, status } = view(body)?;
        let unit = unit(&spec.grid_uniq_key);
        let template = unit.map(|unit| spec.template(unit)).transpose()?.flatten();
        let is_owned = unit.zip(status.owned).map(|(unit, owned)| has(owned, unit)).transpose()?;
        let name = GridName { namespace: metadata.namespace, name: metadata.name };
        Ok(Self { name, key: spec.grid_uniq_key.into(), template, is_owned: is_owned.unwrap_or_default() })
    }

    /// The grid's key.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Name of the Service that governs the pods of the node's unit; none when the unit has no template.
    #[must_use]
    pub fn service_name(&self) -> Option<&str> {
        self.template.as_ref().map(|template| &*template.service_name).filter(|name| !name.is_empty())
    }

    /// The names by which node `me`, for which the grid was read, knows the pods of its unit. `service` is the
    /// metadata of the Service [`Self::service_name`], `pods` the contents of its slices. None when the node is in no
    /// unit, or names are withheld because the unit's StatefulSet is not the grid's, or the Service is missing or not
    /// of a grid with this key.
    ///
    /// A name that is also the name of a real pod of the Service is withheld, because that pod already has it.
    #[must_use]
    pub fn names(
        &self,
        me: &str,
        nodes: &Nodes,
        service: Option<&ObjectMetadata>,
        pods: &[PodAddress],
    ) -> Option<Names> {
        let key = self.key();
        let unit = nodes.get(me)?.unit(key)?;
        let (grid, service) = (&self.name.name, service?);
        let of_grid = service.labels.get(GRID_KEY).is_some_and(|label| *label == key_label_value(key));
        if !of_grid
            || !self.is_owned
            || service.namespace != self.name.namespace
            || self.service_name()? != service.name
        {
            return None;
        }
        let set = child_name(ChildKind::StatefulSet, grid, unit).ok()?;
        let ordinals = self.template.as_ref()?.ordinals();
        let in_set = |pod: &PodAddress| {
            let number = ordinal(&set, &pod.pod);
            ordinals.as_ref().is_none_or(|ordinals| number.is_some_and(|number| ordinals.contains(&number)))
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

/// The addresses of one name. A terminating pod is left out once its successor exists.
fn newest(pods: &[&PodAddress]) -> BTreeSet<IpAddr> {
    let successor = pods.iter().any(|pod| !pod.terminating);
    let shown = pods.iter().filter(|pod| !(successor && pod.terminating));
    shown.flat_map(|pod| pod.addresses.iter().copied()).collect()
}

/// The pods in an EndpointSlice, ready or not. Endpoints that are not pods on a node, and addresses that are not IP
/// addresses, are left out.
///
/// # Errors
/// [`BodyError`] for text that is not such an object.
pub fn pod_addresses(slice: &[u8]) -> Result<Vec<PodAddress>, BodyError> {
    #[derive(Deserialize)]
    struct PodSlice {
        #[serde(default, deserialize_with = "or_default")]
        endpoints: Vec<PodEndpoint>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct PodEndpoint {
        #[serde(default, deserialize_with = "or_default")]
        addresses: Vec<String>,
        #[serde(default, deserialize_with = "or_default")]
        node_name: String,
        #[serde(default, deserialize_with = "or_default")]
        target_ref: PodTarget,
        #[serde(default, deserialize_with = "or_default")]
        conditions: Conditions,
    }
    #[derive(Deserialize, Default)]
    struct PodTarget {
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
    let slice: PodSlice = view(slice)?;
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
