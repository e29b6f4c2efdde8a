//! Stock kubectl, as users run it.

use std::process::Command;

use tombolo_testkit::{Child, cluster_or_skip, components, wait_for};

use crate::harness::{DEADLINE, Server};

const DEPLOYMENT: &str = r#"{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "till", "labels": {"app": "till"}},
  "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "till"}}, "template": {"metadata": {"labels": {"app": "till"}},
  "spec": {"containers": [{"name": "web", "image": "web:1", "ports": [{"containerPort": 80}]}]}}}}"#;

#[tokio::test(flavor = "multi_thread")]
async fn reading_creating_and_changing() {
    cluster_or_skip!("embedded::reading_creating_and_changing");
    let server = Server::start().await;
    let namespaces = server.kubectl_ok(&["get", "namespaces", "-o", "name"], "").await;
    assert_eq!(namespaces.lines().count(), 4, "{namespaces}");
    let map = r#"{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": {"k": "v"}}"#;
    server.kubectl_ok(&["create", "-f", "-"], map).await;
    let map = server.kubectl_ok(&["get", "configmap", "m", "-o", "jsonpath={.data.k}"], "").await;
    assert_eq!(map, "v");
    server.kubectl_ok(&["label", "configmap", "m", "tier=front"], "").await;
    let selected = server.kubectl_ok(&["get", "configmaps", "-l", "tier=front", "-o", "name"], "").await;
    assert_eq!(selected.trim(), "configmap/m");
    for (kind, patch, expected) in [
        ("json", r#"[{"op": "replace", "path": "/data/k", "value": "1"}]"#, "1"),
        ("merge", r#"{"data": {"k": "2"}}"#, "2"),
        ("strategic", r#"{"data": {"k": "3"}}"#, "3"),
    ] {
        server.kubectl_ok(&["patch", "configmap", "m", "--type", kind, "-p", patch], "").await;
        let now = server.kubectl_ok(&["get", "configmap", "m", "-o", "jsonpath={.data.k}"], "").await;
        assert_eq!(now, expected, "{kind}");
    }
    let described = server.kubectl_ok(&["describe", "configmap", "m"], "").await;
    assert!(described.contains("tier=front"), "{described}");
    let missing = server.kubectl(&["get", "configmap", "absent"], "").await;
    let missing = String::from_utf8_lossy(&missing.stderr).into_owned();
    assert!(missing.contains(r#"Error from server (NotFound): configmaps "absent" not found"#), "{missing}");
    server.kubectl_ok(&["delete", "configmap", "m"], "").await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn applying_on_the_client_and_on_the_server() {
    cluster_or_skip!("embedded::applying_on_the_client_and_on_the_server");
    let server = Server::start().await;
    server.kubectl_ok(&["apply", "-f", "-"], DEPLOYMENT).await;
    let again = server.kubectl_ok(&["apply", "-f", "-"], DEPLOYMENT).await;
    assert!(again.contains("unchanged"), "{again}");
    let scaled = DEPLOYMENT.replace("\"replicas\": 2", "\"replicas\": 3");
    server.kubectl_ok(&["apply", "-f", "-"], &scaled).await;
    let replicas = ["get", "deployment", "till", "-o", "jsonpath={.spec.replicas}"];
    assert_eq!(server.kubectl_ok(&replicas, "").await, "3");
    let other = DEPLOYMENT.replace("till", "desk");
    server.kubectl_ok(&["apply", "--server-side", "-f", "-"], &other).await;
    let foreign = other.replace("\"replicas\": 2", "\"replicas\": 5");
    let conflict =
        server.kubectl(&["apply", "--server-side", "--field-manager=other", "-f", "-"], &foreign).await;
    let text = String::from_utf8_lossy(&conflict.stderr).into_owned();
    assert!(!conflict.status.success() && text.contains("conflict"), "{text}");
    let force = ["apply", "--server-side", "--field-manager=other", "--force-conflicts", "-f", "-"];
    server.kubectl_ok(&force, &foreign).await;
    server.kubectl_ok(&["scale", "deployment", "desk", "--replicas=1"], "").await;
    let table = server.kubectl_ok(&["get", "deployments"], "").await;
    assert!(table.contains("UP-TO-DATE") && table.contains("desk"), "{table}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_stop_gently_and_finalizers_hold() {
    cluster_or_skip!("embedded::pods_stop_gently_and_finalizers_hold");
    let server = Server::start().await;
    let api = server.api().await;
    server.kubectl_ok(&["run", "p", "--image=i", "--overrides", r#"{"spec": {"nodeName": "n"}}"#], "").await;
    server.kubectl_ok(&["delete", "pod", "p", "--wait=false"], "").await;
    let pod = api.wait_code("/api/v1/namespaces/default/pods/p", 200).await;
    assert_eq!(pod["metadata"]["deletionGracePeriodSeconds"], 30);
    server.kubectl_ok(&["delete", "pod", "p", "--grace-period=0", "--force"], "").await;
    api.wait_code("/api/v1/namespaces/default/pods/p", 404).await;
    let map = r#"{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "held", "finalizers": ["example.com/hold"]}}"#;
    server.kubectl_ok(&["create", "-f", "-"], map).await;
    server.kubectl_ok(&["delete", "configmap", "held", "--wait=false"], "").await;
    let held = api.wait_code("/api/v1/namespaces/default/configmaps/held", 200).await;
    assert!(held["metadata"]["deletionTimestamp"].is_string());
    server
        .kubectl_ok(
            &[
                "patch",
                "configmap",
                "held",
                "--type=json",
                "-p",
                r#"[{"op": "remove", "path": "/metadata/finalizers"}]"#,
            ],
            "",
        )
        .await;
    api.wait_code("/api/v1/namespaces/default/configmaps/held", 404).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn editing_watching_and_describing() {
    cluster_or_skip!("embedded::editing_watching_and_describing");
    let server = Server::start().await;
    let mut command = Command::new(components().unwrap().binary("kubectl"));
    command.arg("--kubeconfig").arg(&server.kubeconfig).env("HOME", server.dir.path());
    command.args(["get", "configmaps", "-w", "--output-watch-events"]);
    let watch = Child::spawn("watch", server.dir.path(), &mut command).unwrap();
    let shows = async |event: &str, name: &str| {
        wait_for(&format!("{event} of {name}"), DEADLINE, || async {
            let log = watch.log();
            let found = log.lines().any(|line| line.starts_with(event) && line.contains(name));
            if found { Ok(()) } else { Err(log) }
        })
        .await;
    };
    shows("ADDED", "kube-root-ca.crt").await;
    let map = r#"{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "edited"}, "data": {"k": "before"}}"#;
    server.kubectl_ok(&["create", "-f", "-"], map).await;
    shows("ADDED", "edited").await;
    let said = server.kubectl_ok(&["edit", "configmap", "edited"], "").await;
    assert!(said.contains("configmap/edited edited"), "{said}");
    let value = server.kubectl_ok(&["get", "configmap", "edited", "-o", "jsonpath={.data.k}"], "").await;
    assert_eq!(value, "after");
    shows("MODIFIED", "edited").await;
    server.kubectl_ok(&["delete", "configmap", "edited"], "").await;
    shows("DELETED", "edited").await;
    drop(watch);

    let node = r#"{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "labels": {"shop": "seven"}},
        "spec": {"taints": [{"key": "edge", "effect": "NoSchedule"}]}}"#;
    server.kubectl_ok(&["create", "-f", "-"], node).await;
    server
        .kubectl_ok(&["run", "p", "--image=web:1", "--overrides", r#"{"spec": {"nodeName": "n"}}"#], "")
        .await;
    let words = |text: String| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let pod = words(server.kubectl_ok(&["describe", "pod", "p"], "").await);
    for part in ["Name: p", "Node: n", "Image: web:1", "kube-api-access-", "Events:"] {
        assert!(pod.contains(part), "{part} in: {pod}");
    }
    let node = words(server.kubectl_ok(&["describe", "node", "n"], "").await);
    for part in ["shop=seven", "edge:NoSchedule", "Non-terminated Pods:", "(1 in total)", "Lease:"] {
        assert!(node.contains(part), "{part} in: {node}");
    }
    server.stop().await;
}
