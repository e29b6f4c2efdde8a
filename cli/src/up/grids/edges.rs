//! Where requests from each edge are routed, as its wrapper shows it to kube-proxy, and the uniform names that it
//! knows.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result};
use kube::Client;
use serde_json::Value;

use super::super::table::{Line, Section};
use super::{ClusterSnapshot, SLICES, list, text, title, workload_of};

const HEADINGS: &[&str] = &["NODE", "ENDPOINTS", "UNIFORM NAMES"];

/// One edge agent.
pub(in super::super) struct Edge<'a> {
    pub(in super::super) node: &'a str,
    /// A client of its wrapper, if it has one.
    pub(in super::super) wrapper: Option<&'a Client>,
    /// Its hosts file.
    pub(in super::super) hosts: &'a Path,
}

/// Addresses, by Service or by uniform name.
type Addresses = BTreeMap<String, BTreeSet<String>>;

/// Actual or expected routing of one edge.
#[derive(PartialEq, Eq)]
struct Reached {
    services: Addresses,
    names: Addresses,
}

/// One line for each edge, and the first edge that routes wrongly.
pub(super) async fn section(
    cluster: &ClusterSnapshot,
    edges: &[Edge<'_>],
) -> Result<(Section, Option<String>)> {
    let mut lines = Vec::new();
    let mut difference = None;
    for edge in edges {
        let seen = Reached { services: endpoints(cluster, edge).await?, names: names(edge.hosts).await? };
        if difference.is_none() && seen != expected(cluster, edge.node) {
            difference = Some(format!("{} does not route to the pods of its unit yet", edge.node));
        }
        lines.push(line(edge.node, &seen));
    }
    Ok((Section { headings: HEADINGS, lines }, difference))
}

fn line(node: &str, seen: &Reached) -> Line {
    let shown = |all: &Addresses| {
        let each = all.iter().map(|(name, addresses)| {
            let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
            format!("{name} {}", if addresses.is_empty() { "none".to_owned() } else { addresses.join(" ") })
        });
        let all: Vec<String> = each.collect();
        if all.is_empty() { "-".to_owned() } else { all.join(", ") }
    };
    let (services, names) = (shown(&seen.services), shown(&seen.names));
    let sentence = format!("{node} routes to: {services}; uniform names: {names}");
    Line { cells: vec![node.to_owned(), services, names], settled: sentence.clone(), sentence }
}

/// Services of grids as the wrapper of an edge shows them.
async fn endpoints(cluster: &ClusterSnapshot, edge: &Edge<'_>) -> Result<Addresses> {
    let Some(wrapper) = edge.wrapper else { return Ok(Addresses::new()) };
    let slices =
        list(wrapper, SLICES, None, "").await.with_context(|| format!("wrapper of {}", edge.node))?;
    let all = services(cluster).map(|(_, service)| (title(service), ready(&slices, service)));
    Ok(all.collect())
}

/// The hosts file, by the first label of each name.
async fn names(file: &Path) -> Result<Addresses> {
    let lines = match tokio::fs::read_to_string(file).await {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        read => read.with_context(|| format!("cannot read {}", file.display()))?,
    };
    let mut names = Addresses::new();
    for (address, name) in lines.lines().filter_map(|line| line.split_once(' ')) {
        let name = name.split('.').next().unwrap_or(name);
        names.entry(name.to_owned()).or_default().insert(address.to_owned());
    }
    Ok(names)
}

/// ServiceGrids with their Services.
fn services(cluster: &ClusterSnapshot) -> impl Iterator<Item = (&Value, &Value)> {
    let grids = cluster.grids.iter().filter(|(kind, _)| *kind == "ServiceGrid");
    grids.filter_map(|(_, grid)| Some((grid, cluster.child(grid, |_| true)?)))
}

/// Addresses of a Service's ready endpoints.
fn ready(slices: &[Value], service: &Value) -> BTreeSet<String> {
    let of_service = |slice: &&Value| {
        slice["metadata"]["namespace"] == service["metadata"]["namespace"]
            && slice["metadata"]["labels"][tombolo_grid::endpoints::SERVICE_NAME]
                == service["metadata"]["name"]
    };
    let endpoints =
        slices.iter().filter(of_service).flat_map(|slice| slice["endpoints"].as_array()).flatten();
    let ready = endpoints.filter(|endpoint| endpoint["conditions"]["ready"] != false);
    let addresses = ready.flat_map(|endpoint| endpoint["addresses"].as_array()).flatten();
    addresses.filter_map(|address| address.as_str().map(str::to_owned)).collect()
}

/// Addresses of the ready pods that a Service selects on matching nodes. Uses the pods' own conditions, because
/// endpoints may be written later.
fn selected(cluster: &ClusterSnapshot, service: &Value, fits: impl Fn(&str) -> bool) -> BTreeSet<String> {
    let Some(selector) = service["spec"]["selector"].as_object().filter(|selector| !selector.is_empty())
    else {
        return BTreeSet::new();
    };
    let pods = cluster.pods.iter().filter(|pod| {
        let metadata = &pod["metadata"];
        metadata["namespace"] == service["metadata"]["namespace"]
            && selector.iter().all(|(label, value)| metadata["labels"][label] == *value)
            && takes_requests(pod, service)
            && fits(text(&pod["spec"]["nodeName"]))
    });
    pods.filter_map(|pod| pod["status"]["podIP"].as_str().map(str::to_owned)).collect()
}

fn takes_requests(pod: &Value, service: &Value) -> bool {
    let conditions = || pod["status"]["conditions"].as_array().into_iter().flatten();
    let is_ready = || {
        pod["metadata"]["deletionTimestamp"].is_null()
            && conditions().any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
    };
    service["spec"]["publishNotReadyAddresses"] == true || is_ready()
}

/// The expected routing of an edge, from the objects of the API server alone.
fn expected(cluster: &ClusterSnapshot, node: &str) -> Reached {
    let unit = |node: &str, key: &str| {
        let found = cluster.nodes.iter().find(|object| object["metadata"]["name"] == node);
        found.map_or("", |object| text(&object["metadata"]["labels"][key])).to_owned()
    };
    let services = services(cluster).map(|(grid, service)| {
        let key = text(&grid["spec"]["gridUniqKey"]);
        let own = unit(node, key);
        let is_near = |other: &str| !own.is_empty() && unit(other, key) == own;
        (title(service), selected(cluster, service, is_near))
    });
    let mut names = Addresses::new();
    for (_, grid) in cluster.grids.iter().filter(|(kind, _)| *kind == "StatefulSetGrid") {
        let own = unit(node, text(&grid["spec"]["gridUniqKey"]));
        let Some(set) = cluster.workload(grid, &own) else { continue };
        for pod in cluster.pods_of(set) {
            let ordinal = text(&pod["metadata"]["name"]).strip_prefix(workload_of(pod)).unwrap_or_default();
            let name = format!("{}{ordinal}", text(&grid["metadata"]["name"]));
            names.entry(name).or_default().extend(pod["status"]["podIP"].as_str().map(str::to_owned));
        }
    }
    Reached { services: services.collect(), names }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(name: &str, node: &str, address: &str, ready: &str) -> Value {
        json!({
            "metadata": {"name": name, "namespace": "shop", "labels": {"app": "web"}},
            "spec": {"nodeName": node},
            "status": {"podIP": address, "conditions": [{"type": "Ready", "status": ready}]},
        })
    }

    /// Endpoints are written after a pod is ready: an edge that shows one of two pods does not route correctly yet.
    #[test]
    fn edge_must_reach_every_ready_pod_of_its_unit() {
        let node = |name: &str, zone: &str| json!({"metadata": {"name": name, "labels": {"zone": zone}}});
        let grid = json!({"metadata": {"name": "web", "namespace": "shop", "uid": "g"}, "spec": {"gridUniqKey": "zone"}});
        let service = json!({
            "metadata": {"name": "web-svc", "namespace": "shop", "ownerReferences": [{"uid": "g"}]},
            "spec": {"selector": {"app": "web"}},
        });
        let pods = vec![
            pod("a", "n1", "10.0.0.1", "True"),
            pod("b", "n2", "10.0.0.2", "True"),
            pod("c", "n1", "10.0.0.3", "False"),
            pod("d", "n3", "10.0.0.4", "True"),
        ];
        let mut cluster = ClusterSnapshot {
            grids: vec![("ServiceGrid", grid)],
            children: vec![service],
            pods,
            nodes: vec![node("n1", "oslo"), node("n2", "oslo"), node("n3", "lisbon")],
        };
        let of = |cluster: &ClusterSnapshot| expected(cluster, "n1").services["shop/web-svc"].clone();
        assert_eq!(of(&cluster), ["10.0.0.1", "10.0.0.2"].map(str::to_owned).into());
        cluster.children[0]["spec"]["publishNotReadyAddresses"] = true.into();
        assert_eq!(of(&cluster), ["10.0.0.1", "10.0.0.2", "10.0.0.3"].map(str::to_owned).into());
    }
}
