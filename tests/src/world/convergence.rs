//! Whether a node holds what it should: content, UIDs, statuses and versions; and fences, for statements that something
//! does not arrive.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Result;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tombolo_cli::synced;
use tombolo_replay::without_empty;
use tombolo_testkit::wait_for_value;

use super::objects::Objects;
use super::{DEADLINE, World, tail};

/// A version of an object that a node holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ObservedVersion {
    uid: Option<String>,
    /// resourceVersion in the cluster, and at the edge, which counts its own.
    cluster: Option<String>,
    edge: Option<String>,
}

/// The ConfigMaps and Secrets that a node holds, by kind, namespace and name. Pods are left out, because their node
/// writes them too.
pub(super) type Versions = BTreeMap<String, ObservedVersion>;

/// Numbers for fences.
static FENCES: AtomicU64 = AtomicU64::new(1);

impl World {
    /// Waits until a node's local API lists exactly what the API server says that the node should hold, with the same
    /// UIDs, content and statuses. Returns the objects that the edge has stored again since the last call for this node
    /// although their versions in the cluster are the same.
    ///
    /// # Panics
    /// When this does not happen within [`DEADLINE`]; the message contains the first difference and the agent's last
    /// log lines.
    pub async fn converges(&self, node: &str) -> Vec<String> {
        let check = || async {
            let answer = self.compared(node).await;
            answer.map_err(|difference| format!("{difference}\n{}", tail(&self.edge_log(node))))
        };
        let held = wait_for_value(&format!("{node} to hold what it should"), DEADLINE, check).await;
        let again = self.converged.lock().get(node).map(|before| stored_again(before, &held));
        self.converged.lock().insert(node.to_owned(), held);
        again.unwrap_or_default()
    }

    /// First difference between what a node should hold and what it lists.
    ///
    /// # Errors
    /// When one of the two does not answer.
    pub async fn difference(&self, node: &str) -> Result<Option<String>> {
        let expected = synced::expected(&self.client().await?, node).await?;
        let listed = synced::listed(&self.edge_client(node).await?).await?;
        Ok(synced::difference(&expected, &listed))
    }

    /// The versions that a node holds; the first difference if it does not hold what it should.
    async fn compared(&self, node: &str) -> Result<Versions, String> {
        if let Some(difference) = self.difference(node).await.map_err(|error| format!("{error:#}"))? {
            return Err(difference);
        }
        let cluster = self.client().await.map_err(|error| format!("{error:#}"))?;
        let edge = self.edge_client(node).await.map_err(|error| format!("{error:#}"))?;
        let (pods, at_edge) = (all::<Pod>(&cluster).await?, all::<Pod>(&edge).await?);
        for (name, pod) in at_edge {
            let (here, there) = (status(Some(&pod)), status(pods.get(&name)));
            if here != there {
                return Err(format!("pod {name}: status {here}, in the cluster {there}"));
            }
        }
        let mut held = versions::<ConfigMap>(&cluster, &edge).await?;
        held.extend(versions::<Secret>(&cluster, &edge).await?);
        let administrator = self.edge_administrator(node).await.map_err(|error| format!("{error:#}"))?;
        newest::<ConfigMap>(&edge, &administrator).await?;
        newest::<Secret>(&edge, &administrator).await?;
        Ok(held)
    }

    /// Waits until changes that are made now have reached a node: of a pod, and of a ConfigMap and a Secret to which
    /// it refers. cloudcore watches each kind in order, so changes of these kinds that were made before have reached
    /// the node by then, or never will.
    ///
    /// # Panics
    /// When the changes do not arrive within [`DEADLINE`].
    pub async fn fence(&self, objects: &Objects, node: &str) {
        let name = format!("fence-{node}");
        // A pod has a volume for each, and these are named after them.
        let secret = secret_of(&name);
        let here = objects.seen_by(self.edge_client(node).await.expect("the agent's kubeconfig"));
        // The keys that wait for a node have no order, so the last of them may arrive after the first fence.
        for _ in 0..2 {
            let value = FENCES.fetch_add(1, Ordering::Relaxed).to_string();
            objects.config_map(&name, &value).await.expect("a ConfigMap");
            objects.secret(&secret, &value).await.expect("a Secret");
            if objects.pods().get_opt(&name).await.expect("an answer").is_none() {
                objects.accepted_pod(&name, node, &[&name], &[&secret]).await;
            }
            let label = Patch::Merge(json!({"metadata": {"labels": {"fence": value}}}));
            objects.pods().patch(&name, &PatchParams::default(), &label).await.expect("a label");
            wait_for_value(&format!("the fence of {node}"), DEADLINE, || arrives(&here, &name, &value)).await;
        }
    }
}

/// All objects of a kind, by kind, namespace and name.
async fn all<T>(client: &Client) -> Result<BTreeMap<String, T>, String>
where
    T: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let list = Api::<T>::all(client.clone()).list(&ListParams::default()).await;
    let named = |object: T| {
        let (namespace, name) = (object.meta().namespace.as_deref(), object.meta().name.as_deref());
        let (namespace, name) = (namespace.unwrap_or_default(), name.unwrap_or_default());
        (format!("{} {namespace}/{name}", T::kind(&())), object)
    };
    Ok(list.map_err(|error| error.to_string())?.items.into_iter().map(named).collect())
}

/// The status of a pod without empty members. An API server adds these to what a node reports, and a node is not sent
/// its own report.
fn status(pod: Option<&Pod>) -> Value {
    let status = pod.and_then(|pod| pod.status.as_ref()).map(|status| json!(status));
    status.map(without_empty).unwrap_or_default()
}

/// The versions of all objects of a kind that an edge holds.
async fn versions<T>(cluster: &Client, edge: &Client) -> Result<Versions, String>
where
    T: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let (there, here) = (all::<T>(cluster).await?, all::<T>(edge).await?);
    let version = |(name, object): (String, T)| {
        let cluster = there.get(&name).and_then(|object| object.meta().resource_version.clone());
        let (uid, edge) = (object.meta().uid.clone(), object.meta().resource_version.clone());
        (name, ObservedVersion { uid, cluster, edge })
    };
    Ok(here.into_iter().map(version).collect())
}

/// Checks that the objects of a kind that an edge holds have the cluster's newest resourceVersions there. The edge shows
/// versions of its own, and passes the cluster's on with a write that is based on one of these: the API server refuses
/// such a write when that version is not the newest.
async fn newest<T>(edge: &Client, administrator: &Client) -> Result<(), String>
where
    T: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + DeserializeOwned
        + Serialize,
{
    let unchanged = PostParams { dry_run: true, ..PostParams::default() };
    for (what, object) in all::<T>(edge).await? {
        let (namespace, name) = (object.meta().namespace.as_deref(), object.meta().name.as_deref());
        let objects = Api::<T>::namespaced(administrator.clone(), namespace.unwrap_or_default());
        let written = objects.replace(name.unwrap_or_default(), &unchanged, &object).await;
        written.map_err(|error| format!("{what} has an old version: {error}"))?;
    }
    Ok(())
}

/// The name of the Secret of a fence.
fn secret_of(fence: &str) -> String {
    format!("{fence}-secret")
}

/// Whether all objects of a fence have this value.
async fn arrives(here: &Objects, name: &str, value: &str) -> Result<(), String> {
    let refused = |error: kube::Error| error.to_string();
    let pod = here.pods().get_opt(name).await.map_err(refused)?;
    let map = here.config_maps().get_opt(name).await.map_err(refused)?;
    let secret = here.secrets().get_opt(&secret_of(name)).await.map_err(refused)?;
    let label = pod.and_then(|pod| pod.metadata.labels?.remove("fence"));
    let text = map.and_then(|map| map.data?.remove("value"));
    let hidden = secret.and_then(|secret| String::from_utf8(secret.data?.remove("value")?.0).ok());
    let found = [label, text, hidden];
    if found.iter().all(|found| found.as_deref() == Some(value)) { Ok(()) } else { Err(format!("{found:?}")) }
}

/// Objects of which the edge has another version than before, and the cluster the same.
fn stored_again(before: &Versions, now: &Versions) -> Vec<String> {
    let again = now.iter().filter(|(name, now)| {
        before.get(*name).is_some_and(|before| {
            (&before.uid, &before.cluster) == (&now.uid, &now.cluster) && before.edge != now.edge
        })
    });
    again.map(|(name, _)| name.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unchanged_rewrites_are_named() {
        let version = |uid: &str, cluster: &str, edge: &str| ObservedVersion {
            uid: Some(uid.to_owned()),
            cluster: Some(cluster.to_owned()),
            edge: Some(edge.to_owned()),
        };
        let held = |version: ObservedVersion| Versions::from([("Secret a/b".to_owned(), version)]);
        let before = held(version("u", "5", "1"));
        assert_eq!(stored_again(&before, &held(version("u", "5", "2"))), ["Secret a/b"]);
        for other in [version("u", "5", "1"), version("u", "6", "2"), version("v", "5", "2")] {
            assert!(stored_again(&before, &held(other)).is_empty());
        }
        assert!(stored_again(&Versions::new(), &before).is_empty(), "it is new");
    }
}
