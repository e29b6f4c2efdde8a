//! `tombolo up --controllers`: stock kube-controller-manager and kube-scheduler against the embedded API server, from
//! `kubectl create deployment` to pods at the edges.

use std::path::Path;
use std::process::Command;

use anyhow::Result;
use serde_json::Value;
use tombolo_testkit::{cluster_or_skip, wait_for};
use tombolo_tests::world::{DEADLINE, kubectl};

use crate::{Running, assert_one_line, tombolo};

/// A workload of each kind that kube-controller-manager turns into pods, in a namespace that is deleted at the end.
const WORKLOADS: &str = r#"
apiVersion: v1
kind: Namespace
metadata: {name: mix}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: mix}
spec:
  replicas: 4
  selector: {matchLabels: {app: web}}
  template: {metadata: {labels: {app: web}}, spec: {containers: [{name: c, image: web}]}}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: mix}
spec: {selector: {app: web}, ports: [{port: 80}]}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db, namespace: mix}
spec:
  serviceName: db
  replicas: 3
  selector: {matchLabels: {app: db}}
  template: {metadata: {labels: {app: db}}, spec: {containers: [{name: c, image: db}]}}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: agent, namespace: mix}
spec:
  selector: {matchLabels: {app: agent}}
  template: {metadata: {labels: {app: agent}}, spec: {containers: [{name: c, image: agent}]}}
---
apiVersion: batch/v1
kind: Job
metadata: {name: once, namespace: mix}
spec:
  completions: 3
  parallelism: 2
  template: {spec: {restartPolicy: Never, containers: [{name: c, image: once}]}}
"#;

/// Waits until kubectl prints this for a JSONPath.
async fn prints(kubeconfig: &Path, object: &str, path: &str, expected: &str) {
    let arguments = ["-n", "mix", "get", object, &format!("-o=jsonpath={path}")];
    wait_for(&format!("{object} {path} = {expected}"), DEADLINE, || async {
        match kubectl(kubeconfig, &arguments) {
            Ok(text) if text == expected => Ok(()),
            Ok(text) => Err(text),
            Err(error) => Err(format!("{error:#}")),
        }
    })
    .await;
}

fn listed(kubeconfig: &Path, resource: &str, selector: &str) -> Result<Vec<Value>> {
    let text = kubectl(kubeconfig, &["-n", "mix", "get", resource, "-l", selector, "-o", "json"])?;
    let list: Value = serde_json::from_str(&text)?;
    Ok(list["items"].as_array().cloned().unwrap_or_default())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workloads_become_pods_at_the_edges() {
    cluster_or_skip!("workloads_become_pods_at_the_edges");
    let folder = tempfile::tempdir().unwrap();
    let manifest = folder.path().join("workloads.yaml");
    std::fs::write(&manifest, WORKLOADS).unwrap();
    let mut running = Running::start(&["--edges", "3", "--controllers", "--simulate-pods"]).await.unwrap();
    let kubeconfig = running.kubeconfig.clone();
    kubectl(&kubeconfig, &["apply", "-f", manifest.to_str().unwrap()]).unwrap();

    prints(&kubeconfig, "deployment/web", "{.status.readyReplicas}", "4").await;
    prints(&kubeconfig, "statefulset/db", "{.status.readyReplicas}", "3").await;
    prints(&kubeconfig, "daemonset/agent", "{.status.numberReady}", "3").await;
    prints(&kubeconfig, "job/once", "{.status.succeeded}", "3").await;
    let mut ordered = listed(&kubeconfig, "pods", "app=db").unwrap();
    ordered.sort_by_key(|pod| pod["metadata"]["creationTimestamp"].as_str().map(str::to_owned));
    let names: Vec<&str> = ordered.iter().filter_map(|pod| pod["metadata"]["name"].as_str()).collect();
    assert_eq!(names, ["db-0", "db-1", "db-2"]);
    wait_for("an EndpointSlice with the four pods", DEADLINE, || async {
        let slices = listed(&kubeconfig, "endpointslices", "kubernetes.io/service-name=web");
        let slices = slices.map_err(|error| format!("{error:#}"))?;
        let ready = slices.iter().flat_map(|slice| slice["endpoints"].as_array().into_iter().flatten());
        let ready = ready.filter(|endpoint| endpoint["conditions"]["ready"] == true).count();
        if ready == 4 { Ok(()) } else { Err(format!("{slices:?}")) }
    })
    .await;

    a_rollout_replaces_every_pod(&kubeconfig).await;
    kubectl(&kubeconfig, &["-n", "mix", "delete", "deployment", "web", "--cascade=foreground"]).unwrap();
    assert!(listed(&kubeconfig, "replicasets,pods", "app=web").unwrap().is_empty());
    kubectl(&kubeconfig, &["delete", "namespace", "mix"]).unwrap();
    let left = kubectl(&kubeconfig, &["get", "pods,jobs,statefulsets", "-A", "-o", "name"]).unwrap();
    assert_eq!(left, "", "workloads are left in the namespace");

    the_components_come_back_and_end_with_it(&mut running).await;
}

async fn a_rollout_replaces_every_pod(kubeconfig: &Path) {
    let image = ["-n", "mix", "set", "image", "deployment/web", "c=web:2"];
    kubectl(kubeconfig, &image).unwrap();
    kubectl(kubeconfig, &["-n", "mix", "rollout", "status", "deployment/web", "--timeout=60s"]).unwrap();
    wait_for("only pods of the new image", DEADLINE, || async {
        let pods = listed(kubeconfig, "pods", "app=web").map_err(|error| format!("{error:#}"))?;
        let new = pods.iter().filter(|pod| pod["spec"]["containers"][0]["image"] == "web:2").count();
        if (new, pods.len()) == (4, 4) { Ok(()) } else { Err(format!("{new} of {}", pods.len())) }
    })
    .await;
}

/// Process ids of a component that uses this data folder.
fn processes(name: &str, data_dir: &Path) -> Vec<String> {
    let ours = |folder: &Path| {
        let line = std::fs::read(folder.join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).into_owned();
        let program = line.split('\0').next().unwrap_or_default();
        program.ends_with(name) && line.contains(&data_dir.display().to_string())
    };
    let all = std::fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
    all.filter(|folder| ours(folder))
        .filter_map(|folder| Some(folder.file_name()?.to_str()?.to_owned()))
        .collect()
}

async fn the_components_come_back_and_end_with_it(running: &mut Running) {
    let data_dir = running.kubeconfig.parent().unwrap().canonicalize().unwrap();
    let running_now = |name: &'static str| processes(name, &data_dir);
    let before = running_now("kube-scheduler");
    assert_eq!((before.len(), running_now("kube-controller-manager").len()), (1, 1));
    assert!(Command::new("kill").arg("-KILL").args(&before).status().unwrap().success());
    wait_for("a new kube-scheduler", DEADLINE, || async {
        let now = running_now("kube-scheduler");
        if now.len() == 1 && now != before { Ok(()) } else { Err(format!("{now:?}")) }
    })
    .await;
    running.process.kill();
    wait_for("the components to end with a killed tombolo", DEADLINE, || async {
        let left = [running_now("kube-scheduler"), running_now("kube-controller-manager")].concat();
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    })
    .await;
}

#[test]
fn missing_binaries_are_named_before_anything_starts() {
    let folder = tempfile::tempdir().unwrap();
    let data_dir = folder.path().join("data");
    let mut command = tombolo(&data_dir, &["--controllers"]);
    command.env("KUBEBUILDER_ASSETS", folder.path()).env("PATH", "").env("XDG_CACHE_HOME", folder.path());
    let output = command.output().unwrap();
    assert_one_line(&output, &["kube-controller-manager", "KUBEBUILDER_ASSETS", "cargo xtask components"]);
    assert!(!data_dir.exists());
}

#[test]
fn component_does_not_start_after_its_parent_has_exited() {
    let program = tombolo_tests::world::binary("tombolo").unwrap();
    let output =
        Command::new(program).args(["component", "--parent", "1", "--", "echo", "started"]).output().unwrap();
    assert_one_line(&output, &["process 1 has already ended"]);
    assert!(output.stdout.is_empty());
}
