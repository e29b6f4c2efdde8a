//! Where this node's own pods are, and whether they are ready. Their kubelet tells it here first, and without a cloud nobody
//! else hears of it: no controller writes into slices that a pod was started anew.

use std::borrow::Cow;
use std::collections::BTreeMap;

use core::net::IpAddr;

use serde::Deserialize;
use serde_json::Value;

use crate::body::{BodyError, Edits, Metadata, or_default, view};
use crate::endpoints::{Carrier, items, lists, node_of};
use crate::terms::Terms;

#[cfg(test)]
mod tests;

/// Label of an EndpointSlice: who keeps it.
const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";

/// Kubernetes' own controller of slices. What others mean by a ready endpoint is theirs to say: a leader, for example.
const CONTROLLER: &str = "endpointslice-controller.k8s.io";

/// The pods of one node. It holds as many as are bound to the node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OwnPods {
    node: String,
    pods: BTreeMap<(String, String), OwnPod>,
}

/// What of a pod its endpoints say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnPod {
    uid: String,
    addresses: Vec<IpAddr>,
    ready: bool,
    terminating: bool,
}

impl OwnPod {
    /// Reads a Pod. Its status may say no address yet, or none any more.
    ///
    /// # Errors
    /// [`BodyError`] for text that is no such object.
    pub fn of(body: &[u8]) -> Result<Self, BodyError> {
        #[derive(Deserialize)]
        struct Pod {
            metadata: Identity,
            #[serde(default, deserialize_with = "or_default")]
            status: Status,
        }
        #[derive(Deserialize)]
        struct Identity {
            #[serde(default)]
            uid: String,
            #[serde(default, rename = "deletionTimestamp", deserialize_with = "or_default")]
            deletion_timestamp: String,
        }
        #[derive(Deserialize, Default)]
        struct Status {
            #[serde(default, deserialize_with = "or_default")]
            conditions: Vec<Condition>,
            #[serde(default, rename = "podIP", deserialize_with = "or_default")]
            pod_ip: String,
            #[serde(default, rename = "podIPs", deserialize_with = "or_default")]
            pod_ips: Vec<Address>,
        }
        #[derive(Deserialize)]
        struct Address {
            #[serde(default)]
            ip: String,
        }
        #[derive(Deserialize)]
        struct Condition {
            #[serde(default, rename = "type")]
            kind: String,
            #[serde(default)]
            status: String,
        }
        let pod: Pod = view(body)?;
        let all = pod.status.pod_ips.iter().map(|address| &address.ip).chain([&pod.status.pod_ip]);
        let mut addresses: Vec<IpAddr> = all.filter_map(|text| text.parse().ok()).collect();
        addresses.dedup();
        let is_ready = |condition: &Condition| condition.kind == "Ready" && condition.status == "True";
        let ready = pod.status.conditions.iter().any(is_ready);
        let Identity { uid, deletion_timestamp } = pod.metadata;
        Ok(Self { uid, addresses, ready, terminating: !deletion_timestamp.is_empty() })
    }
}

impl OwnPods {
    /// None are known yet of the node with this name.
    #[must_use]
    pub fn new(node: &str) -> Self {
        Self { node: node.to_owned(), pods: BTreeMap::new() }
    }

    /// Name of the node.
    #[must_use]
    pub fn node(&self) -> &str {
        &self.node
    }

    /// Whether there is nothing to say.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pods.is_empty()
    }

    /// A pod is as given, or gone. Tells whether that says something else than before.
    pub fn set(&mut self, namespace: &str, name: &str, pod: Option<OwnPod>) -> bool {
        let key = (namespace.to_owned(), name.to_owned());
        if self.pods.get(&key) == pod.as_ref() {
            return false;
        }
        match pod {
            Some(pod) => self.pods.insert(key, pod),
            None => self.pods.remove(&key),
        };
        true
    }

    /// The object with endpoints as this node's pods are now: at their addresses, and, in slices that Kubernetes' own
    /// controller keeps, with their conditions (by the rules of that controller; they need the `terms` of the Service).
    /// Everything else in it is as it was. An endpoint of another incarnation of a pod stays, and so does the address in a
    /// family in which the pod has none.
    ///
    /// # Errors
    /// [`BodyError`] for text that is no such object.
    pub fn freshen<'b>(
        &self,
        carrier: Carrier,
        body: &'b [u8],
        terms: Option<&Terms>,
    ) -> Result<Cow<'b, [u8]>, BodyError> {
        if self.is_empty() {
            return Ok(Cow::Borrowed(body));
        }
        let Metadata { namespace, labels, .. } = Metadata::of(body)?;
        let controlled = labels.get(MANAGED_BY).is_some_and(|manager| manager == CONTROLLER);
        let terms = terms.filter(|_| controlled && carrier == Carrier::EndpointSlice);
        let mut edits = Edits::new(body);
        for list in lists(carrier, body)? {
            for endpoint in items(list)? {
                if node_of(endpoint)?.as_deref() != Some(self.node.as_str()) {
                    continue;
                }
                let mut fresh: Value = serde_json::from_str(endpoint.get())?;
                let Some(pod) = self.pod_of(&namespace, &fresh["targetRef"]) else { continue };
                let moved = pod.locate(carrier, &mut fresh);
                if terms.is_some_and(|terms| pod.judge(terms, &mut fresh)) || moved {
                    edits.replace(endpoint, fresh.to_string());
                }
            }
        }
        Ok(edits.apply_any())
    }

    fn pod_of(&self, namespace: &str, target: &Value) -> Option<&OwnPod> {
        let text = |name: &str| target[name].as_str().unwrap_or_default();
        let pod = self.pods.get(&(namespace.to_owned(), text("name").to_owned()))?;
        (text("kind") == "Pod" && text("uid") == pod.uid).then_some(pod)
    }
}

impl OwnPod {
    /// Sets the address of an endpoint; tells whether it was another one.
    fn locate(&self, carrier: Carrier, endpoint: &mut Value) -> bool {
        let place = match carrier {
            Carrier::EndpointSlice => endpoint.pointer_mut("/addresses/0"),
            Carrier::Endpoints => endpoint.get_mut("ip"),
        };
        let Some(place) = place else { return false };
        let Some(old) = place.as_str().and_then(|text| text.parse::<IpAddr>().ok()) else { return false };
        let same_family = |address: &&IpAddr| address.is_ipv4() == old.is_ipv4();
        match self.addresses.iter().find(same_family) {
            Some(address) if *address != old => {
                *place = address.to_string().into();
                true
            }
            _ => false,
        }
    }

    /// Sets the conditions of an endpoint; tells whether they were others. A pod that ends is not ready, whatever its
    /// probes say, but may still serve (KEP-1672).
    fn judge(&self, terms: &Terms, endpoint: &mut Value) -> bool {
        let ready = terms.publishes_unready || (self.ready && !self.terminating);
        let judged = [("ready", ready), ("serving", self.ready), ("terminating", self.terminating)];
        let Some(conditions) = endpoint.get_mut("conditions").and_then(Value::as_object_mut) else {
            return false;
        };
        judged.into_iter().fold(false, |changed, (name, is)| {
            changed | (conditions.insert(name.to_owned(), is.into()) != Some(is.into()))
        })
    }
}
