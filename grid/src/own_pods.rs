//! Addresses of this node's own pods. Their kubelet reports them here first. Without a cloud no other component learns
//! of them: no controller writes the address of a restarted pod into slices.

use std::borrow::Cow;
use std::collections::BTreeMap;

use core::net::IpAddr;

use serde::Deserialize;
use serde_json::Value;

use crate::body::{BodyError, Edits, ObjectMetadata, or_default, view};
use crate::endpoints::{Carrier, items, lists, node_of};

#[cfg(test)]
mod tests;

/// The pods of one node with their addresses. At most as many as are bound to the node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OwnPods {
    node: String,
    pods: BTreeMap<(String, String), OwnPod>,
}

/// Incarnation and addresses of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnPod {
    uid: String,
    addresses: Vec<IpAddr>,
}

impl OwnPod {
    /// Reads a Pod. Its status may have no address yet.
    ///
    /// # Errors
    /// [`BodyError`] for text that is not such an object.
    pub fn of(body: &[u8]) -> Result<Self, BodyError> {
        #[derive(Deserialize)]
        struct Pod {
            metadata: PodMetadata,
            #[serde(default, deserialize_with = "or_default")]
            status: Status,
        }
        #[derive(Deserialize)]
        struct PodMetadata {
            #[serde(default)]
            uid: String,
        }
        #[derive(Deserialize, Default)]
        struct Status {
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
        let pod: Pod = view(body)?;
        let all = pod.status.pod_ips.iter().map(|address| &address.ip).chain([&pod.status.pod_ip]);
        let mut addresses: Vec<IpAddr> = all.filter_map(|text| text.parse().ok()).collect();
        addresses.dedup();
        Ok(Self { uid: pod.metadata.uid, addresses })
    }
}

impl OwnPods {
    /// No pods yet, for the node with this name.
    #[must_use]
    pub fn new(node: &str) -> Self {
        Self { node: node.to_owned(), pods: BTreeMap::new() }
    }

    /// Name of the node.
    #[must_use]
    pub fn node(&self) -> &str {
        &self.node
    }

    /// Whether no pod with an address is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pods.is_empty()
    }

    /// Whether a pod has this address.
    #[must_use]
    pub fn has_address(&self, address: IpAddr) -> bool {
        self.pods.values().any(|pod| pod.addresses.contains(&address))
    }

    /// Sets a pod, or removes it; a pod without an address is removed as well. Returns whether that changes anything.
    pub fn set(&mut self, namespace: &str, name: &str, pod: Option<OwnPod>) -> bool {
        let key = (namespace.to_owned(), name.to_owned());
        let pod = pod.filter(|pod| !pod.addresses.is_empty());
        if self.pods.get(&key) == pod.as_ref() {
            return false;
        }
        match pod {
            Some(pod) => self.pods.insert(key, pod),
            None => self.pods.remove(&key),
        };
        true
    }

    /// The object with endpoints, with the current addresses of this node's pods; everything else in it is unchanged.
    /// An endpoint of another incarnation of a pod is unchanged, and so is one of a family in which the pod has no
    /// address.
    ///
    /// # Errors
    /// [`BodyError`] for text that is not such an object.
    pub fn relocate<'b>(&self, carrier: Carrier, body: &'b [u8]) -> Result<Cow<'b, [u8]>, BodyError> {
        if self.is_empty() {
            return Ok(Cow::Borrowed(body));
        }
        let namespace = ObjectMetadata::of(body)?.namespace;
        let mut edits = Edits::new(body);
        for list in lists(carrier, body)? {
            for endpoint in items(list)? {
                if node_of(endpoint)?.as_deref() != Some(self.node.as_str()) {
                    continue;
                }
                let mut moved: Value = serde_json::from_str(endpoint.get())?;
                if self.move_one(carrier, &namespace, &mut moved) {
                    edits.replace(endpoint, moved.to_string());
                }
            }
        }
        Ok(edits.apply_any())
    }

    /// Updates one endpoint. Returns whether its address changed.
    fn move_one(&self, carrier: Carrier, namespace: &str, endpoint: &mut Value) -> bool {
        let Some(pod) = self.pod_of(namespace, &endpoint["targetRef"]) else { return false };
        let field = match carrier {
            Carrier::EndpointSlice => endpoint.pointer_mut("/addresses/0"),
            Carrier::Endpoints => endpoint.get_mut("ip"),
        };
        let Some(field) = field else { return false };
        let Some(old) = field.as_str().and_then(|text| text.parse::<IpAddr>().ok()) else { return false };
        let same_family = |address: &&IpAddr| address.is_ipv4() == old.is_ipv4();
        match pod.addresses.iter().find(same_family) {
            Some(address) if *address != old => {
                *field = address.to_string().into();
                true
            }
            _ => false,
        }
    }

    fn pod_of(&self, namespace: &str, target: &Value) -> Option<&OwnPod> {
        let text = |name: &str| target[name].as_str().unwrap_or_default();
        let pod = self.pods.get(&(namespace.to_owned(), text("name").to_owned()))?;
        (text("kind") == "Pod" && text("uid") == pod.uid).then_some(pod)
    }
}
