//! A pod with its in-cluster configuration: its token, its `ca.crt` and the address of the Service `kubernetes`.
//! kube-proxy routes that address to the API of its node, with the cloud and without it.

use std::path::Path;
use std::process::Output;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tombolo_testkit::{cluster_or_skip, components, wait_for, wait_for_value};
use tombolo_tests::network::{Program, Switch};
use tombolo_tests::world::{Api, DEADLINE};

use crate::TURN;
use crate::node::{Node, OWN_DNS};
use crate::site::{Site, switch_or_skip};

/// An account that may read ConfigMaps, and a pod on the node that uses it.
const WORKLOAD: &str = r#"
apiVersion: v1
kind: ServiceAccount
metadata: {name: till, namespace: default}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: till, namespace: default}
rules:
- {apiGroups: [""], resources: [configmaps], verbs: [get, list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: till, namespace: default}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: till}
subjects:
- {kind: ServiceAccount, name: till, namespace: default}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: prices, namespace: default}
data: {apple: "2"}
---
apiVersion: v1
kind: Pod
metadata: {name: shop, namespace: default}
spec:
  nodeName: node0
  serviceAccountName: till
  containers:
  - name: c
    image: registry.example/shop:1
    ports: [{containerPort: 8080}]
"#;

/// Runs kubectl in the network of a node.
fn kubectl_on(site: &Site, node: &Node, arguments: &[&str]) -> Result<String> {
    let kubeconfig = site.world.edge_kubeconfig(&node.name)?;
    let mut command = node.network.command(components()?.binary("kubectl"));
    command.arg("--kubeconfig").arg(kubeconfig).arg("--request-timeout=10s").args(arguments);
    let output = command.env("HOME", site.world.edge_dir(&node.name)).output()?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "kubectl {arguments:?}: {stderr}");
    Ok(String::from_utf8(output.stdout)?)
}

/// Writes the files that the node's kubelet would mount into the pod, fetched from the local API as the kubelet does.
fn mount(site: &Site, node: &Node, folder: &Path) -> Result<()> {
    let pod: Value = serde_json::from_str(&kubectl_on(site, node, &["get", "pod", "shop", "-o=json"])?)?;
    let uid = pod["metadata"]["uid"].as_str().context("no UID")?;
    let bound = ["--bound-object-kind=Pod", "--bound-object-name=shop", "--bound-object-uid", uid];
    let token = [&["create", "token", "till", "--duration=3607s"][..], &bound].concat();
    let token = kubectl_on(site, node, &token)?;
    let trusted = kubectl_on(site, node, &["get", "configmap", "kube-root-ca.crt", "-o=json"])?;
    let trusted: Value = serde_json::from_str(&trusted)?;
    let trusted = trusted["data"]["ca.crt"].as_str().context("no CA")?;
    ensure!(trusted.matches("BEGIN CERTIFICATE").count() == 2, "the CA of the local API is missing");
    for (name, content) in [("token", token.trim()), ("ca.crt", trusted), ("namespace", "default")] {
        std::fs::write(folder.join(name), content)?;
    }
    Ok(())
}

/// The pod's environment, as a program in it sees it.
struct Shop<'a> {
    program: Program<'a>,
    kubernetes: &'a str,
    home: &'a str,
}

impl Shop<'_> {
    /// Runs kubectl, which finds its configuration like every client in a pod: in the environment and the mounted
    /// files. Any option about the connection would prevent that.
    fn kubectl(&self, arguments: &[&str]) -> Result<Output> {
        let kubectl = components()?.binary("kubectl").display().to_string();
        let words = [&[kubectl.as_str()], arguments].concat();
        let variables = [
            ("KUBERNETES_SERVICE_HOST", self.kubernetes),
            ("KUBERNETES_SERVICE_PORT", "443"),
            ("HOME", self.home),
        ];
        self.program.run(&words, &variables)
    }

    /// Waits until the pod reads the current price, and is denied the objects that its account may not read.
    async fn reads(&self, price: &str) {
        let path = "-o=jsonpath={.items[?(@.metadata.name==\"prices\")].data.apple}";
        wait_for(&format!("the pod to read {price}"), DEADLINE, || async {
            let maps = self.kubectl(&["get", "configmaps", path]).map_err(|error| format!("{error:#}"))?;
            let secrets = self.kubectl(&["get", "secrets"]).map_err(|error| format!("{error:#}"))?;
            let (read, refused) = (text(&maps.stdout), text(&secrets.stderr));
            if read == price && refused.contains("(Forbidden)") {
                return Ok(());
            }
            Err(format!("{read} {} {refused}", text(&maps.stderr)))
        })
        .await;
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

async fn play(api: Api, switch: Switch) {
    let mut site = Site::start(api, switch, &["zone=a"]).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let manifest = folder.path().join("workload.yaml");
    std::fs::write(&manifest, WORKLOAD).unwrap();
    site.done(&["apply", "-f", manifest.to_str().unwrap()]).await;
    site.prints(&["get", "pod", "shop", "-o=jsonpath={.status.phase}"], "Running").await;
    let mounted = folder.path().join("mounted");
    std::fs::create_dir(&mounted).unwrap();
    wait_for("the files that the kubelet mounts", DEADLINE, || async {
        mount(&site, &site.nodes[0], &mounted).map_err(|error| format!("{error:#}"))
    })
    .await;
    // The Service's name, as the pod resolves it, and its address in the environment.
    let address = wait_for_value("the address of kubernetes.default", DEADLINE, || async {
        let found = site.nodes[0].pod(OWN_DNS).resolve("kubernetes.default");
        let found = found.map_err(|error| format!("{error:#}"))?;
        <[String; 1]>::try_from(found).map(|[address]| address).map_err(|found| format!("{found:?}"))
    })
    .await;
    let service = site.done(&["get", "service", "kubernetes", "-o=jsonpath={.spec.clusterIP}"]).await;
    assert_eq!(address, service);

    let home = folder.path().display().to_string();
    reads(&site, &mounted, &address, &home, "2").await;
    // While the cloud is running, its changes arrive.
    site.done(&["patch", "configmap", "prices", "-p", r#"{"data":{"apple":"3"}}"#]).await;
    reads(&site, &mounted, &address, &home, "3").await;
    site.world.kill_cloud();
    reads(&site, &mounted, &address, &home, "3").await;
    site.restart_nodes().await.unwrap();
    reads(&site, &mounted, &address, &home, "3").await;
}

/// Reads by the Service's address and by its name.
async fn reads(site: &Site, mounted: &Path, address: &str, home: &str, expected: &str) {
    for kubernetes in [address, "kubernetes.default.svc"] {
        let program = Program { account: Some(mounted), ..site.nodes[0].pod(OWN_DNS) };
        Shop { program, kubernetes, home }.reads(expected).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_reaches_the_api_of_its_node_with_kube_apiserver() {
    const TEST: &str = "a_pod_reaches_the_api_of_its_node_with_kube_apiserver";
    cluster_or_skip!(TEST);
    let _turn = TURN.lock().await;
    if let Some(switch) = switch_or_skip(TEST) {
        play(Api::Real, switch).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_reaches_the_api_of_its_node_with_the_embedded_server() {
    const TEST: &str = "a_pod_reaches_the_api_of_its_node_with_the_embedded_server";
    cluster_or_skip!(TEST);
    let _turn = TURN.lock().await;
    if let Some(switch) = switch_or_skip(TEST) {
        play(Api::Embedded, switch).await;
    }
}
