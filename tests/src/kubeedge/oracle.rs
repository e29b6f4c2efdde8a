//! The expected rows, read from the API server. The oracle does not use the hub's index, sessions or ledger.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::{ConfigMap, Node, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DynamicObject, ListParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tombolo_cli::synced::{self, Holdings};
use tombolo_testkit::wait_for;

use super::{KubeEdgeNode, Store};
use crate::world::{DEADLINE, World};

/// Types of rows that the cloud updates, with their kinds.
const PUSHED: [(&str, &str); 3] = [("pod", "Pod"), ("configmap", "ConfigMap"), ("secret", "Secret")];

/// Waits until rows and API server agree.
pub(super) async fn converges(node: &KubeEdgeNode, world: &World) {
    wait_for(&format!("{} to hold what it should", node.name), DEADLINE, || async {
        match difference(node, world).await {
            Ok(None) => Ok(()),
            Ok(Some(difference)) => {
                Err(format!("{difference}; rows, connection: {:?}", node.look(|store| owned(store))))
            }
            Err(error) => Err(format!("{error:#}")),
        }
    })
    .await;
    node.look(|store| {
        assert!(store.harms.is_empty(), "{:#?}", store.harms);
        assert!(store.unanswered.is_empty(), "requests without an answer: {:?}", store.unanswered);
        assert_eq!(store.dropped, 0, "a KubeEdge edge's queue dropped messages");
    });
}

fn owned(store: &Store) -> String {
    format!("{:?}", store.describe())
}

/// Describes the first difference.
async fn difference(node: &KubeEdgeNode, world: &World) -> Result<Option<String>> {
    let client = world.client().await?;
    let mut expected = synced::expected(&client, &node.name).await?;
    let versions = versions(&client).await?;
    if let Some(object) = Api::<Node>::all(client).get_opt(&node.name).await? {
        let object = serde_json::to_value(object)?;
        expected.insert(format!("Node {}", node.name), node_view(&object));
    }
    let held = node.look(|store| holdings(store, &node.name))?;
    let other_version = || node.look(|store| other_version(store, &versions));
    Ok(synced::difference(&expected, &held).or_else(other_version))
}

/// resourceVersions of all ConfigMaps and Secrets, by the path of their rows. A pod's row has an older version when
/// nothing has changed that its node acts on.
async fn versions(client: &Client) -> Result<BTreeMap<String, Option<String>>> {
    let mut versions = BTreeMap::new();
    let mut add = |kind: &str, metadata: ObjectMeta| {
        let (namespace, name) = (metadata.namespace.unwrap_or_default(), metadata.name.unwrap_or_default());
        versions.insert(format!("{namespace}/{kind}/{name}"), metadata.resource_version);
    };
    for map in Api::<ConfigMap>::all(client.clone()).list(&ListParams::default()).await? {
        add("configmap", map.metadata);
    }
    for secret in Api::<Secret>::all(client.clone()).list(&ListParams::default()).await? {
        add("secret", secret.metadata);
    }
    Ok(versions)
}

/// Describes a row with another version than its object.
fn other_version(store: &Store, versions: &BTreeMap<String, Option<String>>) -> Option<String> {
    let rows = ["configmap", "secret"].into_iter().flat_map(|kind| store.of_kind(kind));
    let mut kept = rows.filter(|(_, row)| row["metadata"]["uid"].is_string());
    kept.find_map(|(path, row)| {
        let (held, stored) = (row["metadata"]["resourceVersion"].as_str(), versions.get(path)?.as_deref());
        (held != stored).then(|| format!("{path} has version {held:?}, and its object {stored:?}"))
    })
}

/// The rows in the form of the oracle.
fn holdings(store: &Store, node: &str) -> Result<Holdings> {
    let mut holdings = Holdings::new();
    for (kind, name) in PUSHED {
        // An empty object replaces an object that does not exist and that no pod needs; it has no uid.
        for (path, row) in store.of_kind(kind).filter(|(_, row)| row["metadata"]["uid"].is_string()) {
            let object: DynamicObject =
                serde_json::from_value(row.clone()).with_context(|| format!("{path} is {row}"))?;
            synced::hold(&mut holdings, name, &object).with_context(|| format!("{path} is {row}"))?;
        }
    }
    if let Some(row) = store.row(&format!("null/node/{node}")) {
        holdings.insert(format!("Node {node}"), node_view(row));
    }
    Ok(holdings)
}

/// The parts of a Node that the edge uses: names, what may run on it, and what the volume manager reads from its
/// status.
fn node_view(node: &Value) -> Value {
    let (metadata, status) = (&node["metadata"], &node["status"]);
    json!({"uid": metadata["uid"], "labels": metadata["labels"], "annotations": metadata["annotations"],
        "spec": node["spec"], "capacity": status["capacity"], "allocatable": status["allocatable"],
        "attached": status["volumesAttached"]})
}
