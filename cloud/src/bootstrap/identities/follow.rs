//! Keeping up with the cluster: the records, and the UIDs of its Nodes.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Secret;
use kube::api::Api;
use kube::runtime::watcher::{self, Event};
use serde_json::Value;
use tombolo_proto::NodeId;
use tombolo_runtime::{Backoff, BackoffConfig};

use super::{Identities, SECRET_PREFIX, SHARDS};
use crate::bootstrap::secrets::{OWN_LABEL, SecretData};
use crate::bootstrap::tokens;
use crate::kube::{RawObject, WatchSpec, resources};

/// Follows records and Nodes for ever.
pub(crate) async fn follow(identities: Arc<Identities>, client: kube::Client, namespace: String) {
    let nodes = follow_nodes(&identities, WatchSpec::all(resources::nodes()).api(client.clone()));
    let records = follow_records(&identities, Api::namespaced(client, &namespace));
    futures::join!(nodes, records);
}

fn backoff() -> Backoff {
    Backoff::new(BackoffConfig {
        first: std::time::Duration::from_millis(200),
        max: std::time::Duration::from_secs(30),
        ..BackoffConfig::default()
    })
}

async fn follow_nodes(identities: &Identities, nodes: Api<RawObject>) {
    let mut backoff = backoff();
    let mut listed = HashMap::new();
    let mut stream = std::pin::pin!(watcher::watcher(nodes, watcher::Config::default()));
    while let Some(event) = stream.next().await {
        match event {
            Ok(event) => {
                if !matches!(event, Event::Init) {
                    backoff.reset();
                }
                identities.node_event(event, &mut listed).await;
            }
            Err(error) => {
                tracing::warn!(%error, "watch of Nodes for certificates failed; trying again");
                let wait = backoff.next_delay(&mut rand::rng());
                tokio::time::sleep(wait).await;
            }
        }
    }
}

async fn follow_records(identities: &Identities, secrets: Api<Secret>) {
    let mut backoff = backoff();
    let settings = watcher::Config::default().labels(OWN_LABEL);
    let mut listing = None;
    let mut stream = std::pin::pin!(watcher::watcher(secrets, settings));
    while let Some(event) = stream.next().await {
        let secret = match event {
            Ok(Event::Init) => {
                listing = Some(identities.shelf.versions());
                continue;
            }
            Ok(Event::InitDone) => {
                listing = None;
                backoff.reset();
                continue;
            }
            Ok(Event::Apply(secret) | Event::InitApply(secret)) => secret,
            // A record that was deleted whole: what is known stays, so that nothing that was revoked comes back.
            Ok(Event::Delete(_)) => continue,
            Err(error) => {
                tracing::warn!(%error, "watch of certificates in force failed; trying again");
                let wait = backoff.next_delay(&mut rand::rng());
                tokio::time::sleep(wait).await;
                continue;
            }
        };
        identities.take(&secret, listing.as_ref());
    }
}

impl Identities {
    /// Takes a Secret that a watch tells, or a list that began when these versions were known.
    pub(crate) fn take(&self, secret: &Secret, listing: Option<&[u64; SHARDS]>) {
        let name = secret.metadata.name.as_deref().unwrap_or_default();
        if name == tokens::SECRET {
            self.tokens.store(secret.data.iter().flatten().count(), Ordering::Relaxed);
        }
        if !name.starts_with(SECRET_PREFIX) {
            return;
        }
        let version = secret.metadata.resource_version.as_deref().unwrap_or_default();
        let data: SecretData =
            secret.data.iter().flatten().map(|(key, value)| (key.clone(), value.0.clone())).collect();
        if self.shelf.take(name, version, &data, listing) {
            self.changed.send_modify(|count| *count += 1);
        }
    }

    async fn node_event(&self, event: Event<RawObject>, listed: &mut HashMap<NodeId, String>) {
        let read = |node: &RawObject| {
            let text = |name: &str| node.value()["metadata"].get(name).and_then(Value::as_str);
            let created = text("creationTimestamp").and_then(|time| time.parse::<jiff::Timestamp>().ok());
            let created = created.map_or(0, |time| u64::try_from(time.as_second()).unwrap_or(0));
            Some((NodeId::parse(text("name")?).ok()?, text("uid")?.to_owned(), created))
        };
        let mut gone = None;
        let changed = match event {
            Event::Init => {
                listed.clear();
                false
            }
            Event::InitApply(node) => {
                listed.extend(read(&node).map(|(id, uid, _)| (id, uid)));
                false
            }
            Event::InitDone => {
                *self.uids.write() = Some(std::mem::take(listed));
                true
            }
            Event::Apply(node) => read(&node).is_some_and(|(id, uid, _)| self.set_uid(id, Some(uid))),
            Event::Delete(node) => {
                gone = read(&node);
                gone.clone().is_some_and(|(id, ..)| self.set_uid(id, None))
            }
        };
        if let Some((node, uid, created)) = gone {
            self.node_gone(&node, &uid, created).await;
        }
        if changed {
            self.changed.send_modify(|count| *count += 1);
        }
    }

    pub(super) fn set_uid(&self, node: NodeId, uid: Option<String>) -> bool {
        let mut uids = self.uids.write();
        let Some(uids) = uids.as_mut() else { return false };
        match uid {
            Some(uid) if uids.get(&node) == Some(&uid) => false,
            Some(uid) => {
                uids.insert(node, uid);
                true
            }
            None => uids.remove(&node).is_some(),
        }
    }

    /// A Node that was deleted before it was bound takes its certificate along.
    async fn node_gone(&self, node: &NodeId, uid: &str, created: u64) {
        let open = |entry: &super::Entry| entry.after_deletion(uid, created).is_some();
        if !self.shelf.get(node).is_some_and(|entry| open(&entry)) {
            return;
        }
        let ended = self
            .change(node, |entry| {
                Ok::<_, super::Denied>(entry.and_then(|entry| entry.after_deletion(uid, created)))
            })
            .await;
        if let Err(error) = ended {
            tracing::warn!(%node, %error, "the certificate of a deleted Node could not be ended");
        }
    }
}
