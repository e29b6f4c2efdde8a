//! What `tombolo up` shows of the application grid: units with their children and pods, where requests from each edge
//! are routed, and what does not match the grids (yet).

mod edges;
mod units;

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use kube::api::{ApiResource, DynamicObject, ListParams};
use kube::core::GroupVersionKind;
use kube::{Api, Client};
use serde_json::Value;
use tombolo_grid::labels::GRID_SELECTOR;

use super::table::Section;

pub(super) use edges::Edge;

/// The application grid at one moment.
#[derive(Debug, Default)]
pub(super) struct View {
    /// Units, then edges; empty without a grid.
    pub(super) sections: Vec<Section>,
    /// First thing that does not match the grids, as text.
    pub(super) difference: Option<String>,
}

/// Reads the API server, and the wrapper and hosts file of each edge.
pub(super) async fn view(client: &Client, edges: &[Edge<'_>]) -> View {
    read_view(client, edges).await.unwrap_or_else(|error| View {
        sections: Vec::new(),
        difference: Some(format!("cannot read the application grid: {error:#}")),
    })
}

async fn read_view(client: &Client, edges: &[Edge<'_>]) -> Result<View> {
    let Some(cluster) = ClusterSnapshot::read(client).await? else { return Ok(View::default()) };
    let (seen, of_edges) = edges::section(&cluster, edges).await?;
    let difference = units::difference(&cluster).or(of_edges);
    Ok(View { sections: vec![units::section(&cluster), seen], difference })
}

/// Objects of the API server that belong to grids.
struct ClusterSnapshot {
    /// Kind and object.
    grids: Vec<(&'static str, Value)>,
    /// Deployments, StatefulSets and Services with the label of a grid.
    children: Vec<Value>,
    /// Pods of the grids' namespaces.
    pods: Vec<Value>,
    nodes: Vec<Value>,
}

impl ClusterSnapshot {
    /// `None` if there is no grid.
    async fn read(client: &Client) -> Result<Option<Self>> {
        let mut grids = Vec::new();
        for kind in ["DeploymentGrid", "StatefulSetGrid", "ServiceGrid"] {
            let found = list(client, ("superedge.io", "v1", kind), None, "").await?;
            grids.extend(found.into_iter().map(|grid| (kind, grid)));
        }
        if grids.is_empty() {
            return Ok(None);
        }
        let mut children = Vec::new();
        for kind in [("apps", "v1", "Deployment"), ("apps", "v1", "StatefulSet"), ("", "v1", "Service")] {
            children.extend(list(client, kind, None, GRID_SELECTOR).await?);
        }
        let mut pods = Vec::new();
        let namespaces: BTreeSet<&str> =
            grids.iter().map(|(_, grid)| text(&grid["metadata"]["namespace"])).collect();
        for namespace in namespaces {
            pods.extend(list(client, ("", "v1", "Pod"), Some(namespace), "").await?);
        }
        let nodes = list(client, ("", "v1", "Node"), None, "").await?;
        Ok(Some(Self { grids, children, pods, nodes }))
    }

    /// The child of a grid that satisfies a condition.
    fn child(&self, grid: &Value, fits: impl Fn(&Value) -> bool) -> Option<&Value> {
        let is_owned =
            |child: &&Value| child["metadata"]["ownerReferences"][0]["uid"] == grid["metadata"]["uid"];
        self.children.iter().filter(is_owned).find(|child| fits(child))
    }

    /// The workload of a grid's unit.
    fn workload(&self, grid: &Value, unit: &str) -> Option<&Value> {
        let key = text(&grid["spec"]["gridUniqKey"]);
        self.child(grid, |child| child["spec"]["template"]["spec"]["nodeSelector"][key] == unit)
    }

    /// Pods of a Deployment or StatefulSet.
    fn pods_of(&self, workload: &Value) -> impl Iterator<Item = &Value> {
        let (namespace, name) = (&workload["metadata"]["namespace"], text(&workload["metadata"]["name"]));
        self.pods
            .iter()
            .filter(move |pod| pod["metadata"]["namespace"] == *namespace && workload_of(pod) == name)
    }
}

const SLICES: (&str, &str, &str) = ("discovery.k8s.io", "v1", "EndpointSlice");

/// Objects of a kind with a label; none if the kind is not defined.
async fn list(
    client: &Client,
    (group, version, kind): (&str, &str, &str),
    namespace: Option<&str>,
    label: &str,
) -> Result<Vec<Value>> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    let api: Api<DynamicObject> = match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    };
    match api.list(&ListParams::default().labels(label)).await {
        Ok(found) => found.items.into_iter().map(|object| Ok(serde_json::to_value(object)?)).collect(),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(Vec::new()),
        Err(error) => Err(error).with_context(|| format!("list {}", resource.plural)),
    }
}

/// Name of the Deployment or StatefulSet that a pod belongs to. The name of a ReplicaSet consists of its Deployment's
/// name and the hash in the pod's label.
fn workload_of(pod: &Value) -> &str {
    let owner = text(&pod["metadata"]["ownerReferences"][0]["name"]);
    let hash = text(&pod["metadata"]["labels"]["pod-template-hash"]);
    owner.strip_suffix(hash).and_then(|name| name.strip_suffix('-')).unwrap_or(owner)
}

/// A string value; empty for anything else.
fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn title(object: &Value) -> String {
    format!("{}/{}", text(&object["metadata"]["namespace"]), text(&object["metadata"]["name"]))
}
