//! `tombolo up` with the manifest of the application grid: units, children, pods, and where each edge leads.

use std::collections::BTreeMap;
use std::path::Path;

use tombolo_testkit::{cluster_or_skip, wait_for};
use tombolo_tests::world::{DEADLINE, kubectl};

use crate::{Running, assert_one_line, choose_ports, tombolo};

const COMMAND: [&str; 4] = ["--edges", "6", "--controllers", "--simulate-pods"];

fn example() -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/grid.yaml").display().to_string()
}

/// The last line with the routes of each edge, by node name.
fn last_seen(log: &str) -> BTreeMap<String, String> {
    let lines = log.lines().filter_map(|line| line.split_once(" routes to: "));
    lines.map(|(node, rest)| (node.to_owned(), rest.to_owned())).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_edge_reaches_the_pods_of_its_unit() {
    cluster_or_skip!("every_edge_reaches_the_pods_of_its_unit");
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    choose_ports(&data, 6);
    let output = tombolo(&data, &COMMAND).args(["--until-synced", "--apply", &example()]).output().unwrap();
    let log = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{log}\n{}", String::from_utf8_lossy(&output.stderr));
    for unit in ["berlin", "lisbon", "oslo"] {
        for (kind, child) in [("DeploymentGrid shop/web", "web"), ("StatefulSetGrid shop/db", "db")] {
            let line = format!("{kind}, unit {unit}: {child}-{unit}, ready 2/2, edge-");
            assert!(log.contains(&line), "{line}\n{log}");
        }
    }
    let seen = last_seen(&log);
    assert_eq!(seen.len(), 6, "{log}");
    for line in seen.values() {
        let addresses = line.matches(" 10.").count();
        assert_eq!(addresses, 6, "two pods of each Service and two names: {line}");
        assert!(line.contains("names: db-0 10.") && line.contains(", db-1 10."), "{line}");
    }
    for (first, second) in [("edge-1", "edge-2"), ("edge-3", "edge-4"), ("edge-5", "edge-6")] {
        assert_eq!(seen[first], seen[second], "one unit");
    }
    assert!(seen["edge-1"] != seen["edge-3"] && seen["edge-3"] != seen["edge-5"], "{seen:#?}");

    // The next start continues from there, and a node that changes its unit routes elsewhere.
    let running = Running::start_in(folder, "second", &COMMAND).await.unwrap();
    kubectl(&running.kubeconfig, &["label", "node", "edge-2", "zone=lisbon", "--overwrite"]).unwrap();
    wait_for("edge-2 to lead where edge-3 does", DEADLINE, || async {
        let log = running.process.log();
        let seen = last_seen(&log);
        let moved = seen.contains_key("edge-2") && seen.get("edge-2") == seen.get("edge-3");
        if moved { Ok(()) } else { Err(log) }
    })
    .await;
}

/// A grid cannot become ready without a component that creates pods, and need not.
#[test]
fn grids_without_controllers_do_not_delay_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = tombolo(folder.path(), &["--edges", "2", "--until-synced", "--apply", &example()]);
    let output = command.output().unwrap();
    let log = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{log}\n{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn impossible_grid_is_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("grid.yaml");
    let text =
        "apiVersion: superedge.io/v1\nkind: DeploymentGrid\nmetadata: {name: web}\nspec: {gridUniqKey: ''}\n";
    std::fs::write(&file, text).unwrap();
    let mut command = tombolo(&folder.path().join("data"), &["--apply"]);
    command.arg(&file);
    assert_one_line(&command.output().unwrap(), &["document 1", "DeploymentGrid web", "gridUniqKey"]);
}
