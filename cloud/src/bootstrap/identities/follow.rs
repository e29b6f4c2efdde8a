//! Follows the cluster: the records, and the UIDs of its Nodes.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Secret;
use kube::runtime::watcher::Event;
use serde_json::Value;
use tokio::sync::mpsc;
use tombolo_proto::NodeId;

use super::{Identities, SECRET_PREFIX, SHARDS};
use crate::bootstrap::join_tokens;
use crate::bootstrap::secrets::{OWN_LABEL, SecretData};
use crate::kube::{Kube, ObjectEvent, RawObject, WatchError, WatchSpec, resources, watch, watch_events};

/// Capacity of the event queue of the records.
const EVENTS_MAX: usize = 16;

/// Follows records and Nodes. Never returns.
pub(crate) async fn follow(identities: Arc<Identities>, kube: Kube, namespace: String) {
    futures::join!(follow_nodes(&identities, kube.clone()), follow_records(&identities, kube, namespace));
}

async fn follow_nodes(identities: &Identities, kube: Kube) {
    let failed = |error: &WatchError| {
        tracing::warn!(%error, "watch of Nodes for certificates failed; trying again");
    };
    let mut listed = HashMap::new();
    let mut events = std::pin::pin!(watch_events(kube, WatchSpec::all(resources::nodes()), failed));
    while let Some(event) = events.next().await {
        identities.node_event(event, &mut listed).await;
    }
}

async fn follow_records(identities: &Identities, kube: Kube, namespace: String) {
    let failed = |error: &WatchError| {
        tracing::warn!(%error, "watch of certificates in force failed; trying again");
    };
    let all = WatchSpec::all(resources::secrets());
    let spec = WatchSpec { namespace, label_selector: OWN_LABEL.to_owned(), ..all };
    let (out, mut events) = mpsc::channel(EVENTS_MAX);
    // Take the known versions before the API is asked for a list: the answer may be processed later, when newer writes
    // are known.
    let asked = |event| {
        let begins = matches!(event, ObjectEvent::RelistStart);
        (event, begins.then(|| identities.shards.versions()))
    };
    let taking = async {
        let mut listing = None;
        while let Some((event, asked)) = events.recv().await {
            match event {
                ObjectEvent::RelistStart => listing = asked,
                ObjectEvent::RelistEnd => listing = None,
                ObjectEvent::Applied(secret) => match secret.into_typed() {
                    Ok(secret) => identities.take(&secret, listing.as_ref()),
                    Err(error) => {
                        tracing::warn!(%error, "cannot read a Secret with records of certificates; its previous records stay in force");
                    }
                },
                // A record Secret was deleted as a whole. Keep what is known, so that no revoked certificate comes
                // back.
                ObjectEvent::Deleted(_) => {}
            }
        }
    };
    futures::join!(watch(kube, spec, out, asked, failed), taking);
}

/// What is known of a Node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::bootstrap) struct NodeFacts {
    pub(in crate::bootstrap) uid: String,
    /// Time of creation, in Unix seconds.
    pub(in crate::bootstrap) created: u64,
}

fn read(node: &RawObject) -> Option<(NodeId, NodeFacts)> {
    let text = |name: &str| node.value()["metadata"].get(name).and_then(Value::as_str);
    let created = text("creationTimestamp").and_then(|time| time.parse::<jiff::Timestamp>().ok());
    let created = created.map_or(0, |time| u64::try_from(time.as_second()).unwrap_or(0));
    Some((NodeId::parse(text("name")?).ok()?, NodeFacts { uid: text("uid")?.to_owned(), created }))
}

impl Identities {
    /// Takes in a Secret from a watch, or from a list that began when these versions were known.
    pub(crate) fn take(&self, secret: &Secret, listing: Option<&[u64; SHARDS]>) {
        let name = secret.metadata.name.as_deref().unwrap_or_default();
        if name == join_tokens::SECRET {
            self.tokens.store(secret.data.iter().flatten().count(), Ordering::Relaxed);
        }
        if !name.starts_with(SECRET_PREFIX) {
            return;
        }
        let version = secret.metadata.resource_version.as_deref().unwrap_or_default();
        let data: SecretData =
            secret.data.iter().flatten().map(|(key, value)| (key.clone(), value.0.clone())).collect();
        if self.shards.take(name, version, &data, listing) {
            self.changed.send_modify(|count| *count += 1);
        }
    }

    /// Processes an event of the watch of Nodes. `listed` collects the objects of the running list. Nodes that a new
    /// list lacks were deleted while the watch was interrupted.
    pub(in crate::bootstrap) async fn node_event(
        &self,
        event: Event<RawObject>,
        listed: &mut HashMap<NodeId, NodeFacts>,
    ) {
        let (changed, gone) = match event {
            Event::Init => {
                listed.clear();
                return;
            }
            Event::InitApply(node) => {
                listed.extend(read(&node));
                return;
            }
            Event::InitDone => (true, self.set_all(std::mem::take(listed))),
            Event::Apply(node) => {
                let Some((node, facts)) = read(&node) else { return };
                self.set(node, Some(facts))
            }
            Event::Delete(node) => {
                let Some((node, facts)) = read(&node) else { return };
                let (changed, mut gone) = self.set(node.clone(), None);
                // It may have been created and deleted without being seen.
                gone.push((node, facts));
                (changed, gone)
            }
        };
        for (node, facts) in &gone {
            self.node_gone(node, facts).await;
        }
        if changed {
            self.changed.send_modify(|count| *count += 1);
        }
    }

    /// Replaces the known Nodes. Returns those that no longer exist.
    fn set_all(&self, nodes: HashMap<NodeId, NodeFacts>) -> Vec<(NodeId, NodeFacts)> {
        let mut known = self.known_nodes.write();
        let mut gone = known.replace(nodes).unwrap_or_default();
        gone.retain(|node, facts| known.as_ref().and_then(|known| known.get(node)) != Some(facts));
        gone.into_iter().collect()
    }

    /// Sets the Node of a name. Returns whether this is a change, and the Node that the name had before.
    fn set(&self, node: NodeId, facts: Option<NodeFacts>) -> (bool, Vec<(NodeId, NodeFacts)>) {
        let mut known = self.known_nodes.write();
        let Some(known) = known.as_mut() else { return (false, Vec::new()) };
        if known.get(&node) == facts.as_ref() {
            return (false, Vec::new());
        }
        let former = match facts {
            Some(facts) => known.insert(node.clone(), facts),
            None => known.remove(&node),
        };
        (true, former.map(|gone| (node, gone)).into_iter().collect())
    }
}
