//! Custom kinds of the cluster at the local API of an edge: plain kubectl finds, reads and explains them, with the
//! cloud and without it.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;
use tombolo_testkit::{cluster_or_skip, wait_for};
use tombolo_tests::world::{Api, DEADLINE, Transport, World, kubectl};

const NODE: &str = "edge-a";
const DESCRIPTION: &str = "How many teeth the wheel has.";

/// A definition, and the right of nodes (and of cloudcore, which follows and writes for them) to read it and its
/// objects, and to create another definition.
const MANIFESTS: &str = r#"
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: wheels.parts.example.com
spec:
  group: parts.example.com
  scope: Namespaced
  names: {plural: wheels, singular: wheel, kind: Wheel, shortNames: [wh]}
  versions:
  - name: v1
    served: true
    storage: true
    additionalPrinterColumns:
    - {name: Teeth, type: integer, jsonPath: .spec.teeth}
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            properties:
              teeth: {type: integer, description: How many teeth the wheel has.}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: wheels}
rules:
- apiGroups: [parts.example.com]
  resources: [wheels]
  verbs: [get, list, watch]
- apiGroups: [apiextensions.k8s.io]
  resources: [customresourcedefinitions]
  resourceNames: [wheels.parts.example.com]
  verbs: [get, list, watch]
- apiGroups: [apiextensions.k8s.io]
  resources: [customresourcedefinitions]
  verbs: [get, create, patch]
- apiGroups: [spare.example.com]
  resources: [spokes]
  verbs: [get, list, watch, create, patch]
- apiGroups: [apiextensions.k8s.io, spare.example.com]
  resources: [customresourcedefinitions, spokes]
  verbs: ["impersonate-on:arbitrary-node:get", "impersonate-on:arbitrary-node:create", "impersonate-on:arbitrary-node:patch"]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: wheels}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: wheels}
subjects:
- {apiGroup: rbac.authorization.k8s.io, kind: Group, name: "system:nodes"}
- {kind: ServiceAccount, name: tombolo-cloudcore, namespace: kubeedge}
"#;

/// A definition that is created through the edge.
const DEFINITION: &str = r#"
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: spokes.spare.example.com
spec:
  group: spare.example.com
  scope: Namespaced
  names: {plural: spokes, singular: spoke, kind: Spoke}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}
"#;

/// A kubeconfig in a folder of its own: kubectl stores its discovery cache beside it.
fn fresh(kubeconfig: &Path, name: &str) -> PathBuf {
    let folder = kubeconfig.with_file_name(name);
    fs::create_dir(&folder).unwrap();
    let copy = folder.join("config");
    fs::copy(kubeconfig, &copy).unwrap();
    copy
}

async fn finds_reads_and_explains(kubeconfig: &Path, name: &str) {
    let mut attempt = 0;
    let edge = |attempt: u32| fresh(kubeconfig, &format!("{name}-{attempt}"));
    wait_for(&format!("wheels {name}"), DEADLINE, || {
        attempt += 1;
        let edge = edge(attempt);
        async move {
            let listed =
                kubectl(&edge, &["get", "wh", "-A", "-o", "name"]).map_err(|error| error.to_string())?;
            if listed.trim() != "wheel.parts.example.com/cog" {
                return Err(listed);
            }
            let one = kubectl(&edge, &["get", "wheel", "cog"]).map_err(|error| error.to_string())?;
            let words: Vec<&str> = one.split_whitespace().collect();
            if words != ["NAME", "TEETH", "cog", "12"] {
                return Err(one);
            }
            let known = kubectl(&edge, &["api-resources", "--api-group", "parts.example.com"]);
            let known = known.map_err(|error| error.to_string())?;
            assert!(known.contains("wheels") && known.contains("Wheel") && known.contains("true"), "{known}");
            let explained = kubectl(&edge, &["explain", "wheels.spec"]).map_err(|error| error.to_string())?;
            if explained.contains(DESCRIPTION) { Ok(()) } else { Err(explained) }
        }
    })
    .await;
}

/// Applies a definition and then an object of it through the edge, with one discovery cache of kubectl.
async fn defines_and_uses(kubeconfig: &Path) {
    let edge = fresh(kubeconfig, "defines");
    let file = |name: &str, text: &str| {
        let path = edge.with_file_name(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let definition = file("definition.yaml", DEFINITION);
    kubectl(&edge, &["apply", "-f", &definition]).unwrap();
    let spoke = json!({"apiVersion": "spare.example.com/v1", "kind": "Spoke",
        "metadata": {"name": "steel", "namespace": "default"}, "spec": {"length": 29}});
    let object = file("object.json", &spoke.to_string());
    wait_for("an object of the new kind", DEADLINE, || async {
        kubectl(&edge, &["apply", "-f", &object]).map(drop).map_err(|error| error.to_string())
    })
    .await;
    let read = kubectl(&edge, &["get", "spoke", "steel", "-o", "jsonpath={.spec.length}"]).unwrap();
    assert_eq!(read.trim(), "29");
}

async fn play(api: Api, transport: Transport) {
    let mut world = World::start(api, transport).await.unwrap();
    world.start_edge(NODE).await.unwrap();
    world.converges(NODE).await;
    let edge = world.edge_kubeconfig(NODE).unwrap();
    // The agent has requested discovery before this is defined.
    let manifests = world.edge_dir(NODE).join("wheels.yaml");
    fs::write(&manifests, MANIFESTS).unwrap();
    world.kubectl(&["apply", "-f", manifests.to_str().unwrap()]).unwrap();
    let cog = json!({"apiVersion": "parts.example.com/v1", "kind": "Wheel",
        "metadata": {"name": "cog", "namespace": "default"}, "spec": {"teeth": 12}});
    let object = world.edge_dir(NODE).join("cog.json");
    fs::write(&object, cog.to_string()).unwrap();
    wait_for("the definition to be served", DEADLINE, || async {
        world.kubectl(&["apply", "-f", object.to_str().unwrap()]).map(drop).map_err(|error| error.to_string())
    })
    .await;
    finds_reads_and_explains(&edge, "with").await;
    defines_and_uses(&edge).await;

    world.kill_cloud();
    finds_reads_and_explains(&edge, "without").await;
    world.kill_edge(NODE);
    world.start_edge(NODE).await.unwrap();
    finds_reads_and_explains(&edge, "restarted").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kinds_of_the_embedded_server() {
    play(Api::Embedded, Transport::Quic).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kinds_of_kube_apiserver() {
    cluster_or_skip!("kinds_of_kube_apiserver");
    play(Api::Real, Transport::WebSocket).await;
}
