//! Grids, their units, and the pods of each unit.

use serde_json::Value;

use super::super::table::{Line, Section};
use super::{ClusterSnapshot, text, title};

const HEADINGS: &[&str] = &["GRID", "UNIT", "CHILD", "READY", "PODS"];

/// One line for each unit of a workload's grid, and one for each Service.
pub(super) fn section(cluster: &ClusterSnapshot) -> Section {
    let lines = cluster.grids.iter().flat_map(|(kind, grid)| match *kind {
        "ServiceGrid" => vec![service(cluster, grid)],
        _ => units(cluster, kind, grid),
    });
    Section { headings: HEADINGS, lines: lines.collect() }
}

/// The first grid whose status reports a problem or nothing yet.
pub(super) fn difference(cluster: &ClusterSnapshot) -> Option<String> {
    cluster.grids.iter().find_map(|(kind, grid)| {
        let wanted = if *kind == "ServiceGrid" { "Synced" } else { "Ready" };
        let conditions = grid["status"]["conditions"].as_array().map_or(&[][..], Vec::as_slice);
        let condition = conditions.iter().find(|condition| condition["type"] == wanted);
        let title = format!("{kind} {}", title(grid));
        let Some(condition) = condition else { return Some(format!("{title} has not been reconciled yet")) };
        let is_current = condition["observedGeneration"] == grid["metadata"]["generation"];
        let is_true = is_current && condition["status"] == "True";
        (!is_true).then(|| format!("{title}: {}", text(&condition["message"])))
    })
}

fn units(cluster: &ClusterSnapshot, kind: &str, grid: &Value) -> Vec<Line> {
    let states = grid["status"]["states"].as_object();
    let unit = |(unit, state): (&String, &Value)| {
        let child = cluster.workload(grid, unit);
        let (name, ready) = child.map_or(("-", "-".to_owned()), |child| {
            let ready = child["status"]["readyReplicas"].as_u64().unwrap_or(0);
            let wanted = child["spec"]["replicas"].as_u64().unwrap_or(1);
            (text(&child["metadata"]["name"]), format!("{ready}/{wanted}"))
        });
        let pods = match state["error"]["message"].as_str() {
            Some(error) => error.to_owned(),
            None => pods(cluster, child),
        };
        line([format!("{kind} {}", title(grid)), unit.clone(), name.to_owned(), ready, pods])
    };
    states.into_iter().flatten().map(unit).collect()
}

/// `NODE ADDRESS` of each pod, or its phase if it has no address.
fn pods(cluster: &ClusterSnapshot, child: Option<&Value>) -> String {
    let pods = child.into_iter().flat_map(|child| cluster.pods_of(child));
    let mut shown: Vec<String> = pods
        .map(|pod| {
            let node = pod["spec"]["nodeName"].as_str().unwrap_or("unscheduled");
            let state = pod["status"]["podIP"].as_str().unwrap_or_else(|| text(&pod["status"]["phase"]));
            format!("{node} {state}")
        })
        .collect();
    shown.sort();
    if shown.is_empty() { "-".to_owned() } else { shown.join(", ") }
}

fn service(cluster: &ClusterSnapshot, grid: &Value) -> Line {
    let child = cluster.child(grid, |_| true);
    let name = child.map_or("-", |child| text(&child["metadata"]["name"]));
    let address = child.and_then(|child| child["spec"]["clusterIP"].as_str()).unwrap_or("-");
    let [unit, ready] = ["all", "-"].map(str::to_owned);
    line([
        format!("ServiceGrid {}", title(grid)),
        unit,
        name.to_owned(),
        ready,
        format!("cluster IP {address}"),
    ])
}

fn line(cells: [String; 5]) -> Line {
    let [grid, unit, child, ready, pods] = &cells;
    let sentence = format!("{grid}, unit {unit}: {child}, ready {ready}, {pods}");
    Line { cells: cells.into(), settled: sentence.clone(), sentence }
}
