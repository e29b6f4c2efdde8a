//! The files in `deploy/` match the programs: settings, ports, flags and folders.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use tombolo_testkit::{ControlPlane, ControlPlaneOptions, cluster_or_skip};
use tombolo_tests::source::{documents, root};
use tombolo_tests::world::{ALLOCATOR, binary};

fn document(path: &str, kind: &str) -> Value {
    let all = documents(&root().join("deploy").join(path)).unwrap();
    all.into_iter().find(|document| document["kind"] == kind).unwrap_or_else(|| panic!("{kind} in {path}"))
}

const DEPLOYMENT: &str = "cloudcore/90-deployment.yaml";

/// Ports as `name/number/protocol`.
fn ports(list: &Value, number: &str) -> BTreeSet<String> {
    let ports = list.as_array().unwrap().iter();
    ports
        .map(|port| {
            let protocol = port["protocol"].as_str().unwrap_or("TCP");
            format!("{}/{}/{protocol}", port["name"].as_str().unwrap(), port[number])
        })
        .collect()
}

#[test]
fn deployment_settings_and_ports_match_the_program() {
    let settings = document(DEPLOYMENT, "ConfigMap")["data"]["cloudcore.yaml"].as_str().unwrap().to_owned();
    let config = tombolo_cloud::Config::parse(&settings).unwrap();
    let listen = config.listen;
    let port = |name: &str, port: u16, protocol: &str| format!("{name}/{port}/{protocol}");
    let reached = [
        port("websocket", listen.websocket.unwrap().port(), "TCP"),
        port("quic", listen.quic.unwrap().port(), "UDP"),
        port("join", listen.join.port(), "TCP"),
    ];
    let admin = port("admin", listen.admin.unwrap().port(), "TCP");

    let pod = document(DEPLOYMENT, "Deployment")["spec"]["template"]["spec"].clone();
    let container = &pod["containers"][0];
    let inside: BTreeSet<String> = reached.iter().cloned().chain([admin]).collect();
    assert_eq!(ports(&container["ports"], "containerPort"), inside);
    let service = document(DEPLOYMENT, "Service");
    assert_eq!(
        ports(&service["spec"]["ports"], "port"),
        BTreeSet::from(reached),
        "the admin port is not exposed"
    );
    for port in service["spec"]["ports"].as_array().unwrap() {
        assert_eq!(port["targetPort"], port["name"]);
    }
    for probe in ["livenessProbe", "readinessProbe"] {
        assert_eq!(container[probe]["httpGet"]["port"], "admin");
    }

    let mounts = container["volumeMounts"].as_array().unwrap();
    let data = json!(config.data_dir);
    assert!(mounts.iter().any(|mount| mount["mountPath"] == data && mount["readOnly"] != true), "{mounts:?}");
    assert_eq!(
        pod["serviceAccountName"],
        document("cloudcore/10-rights.yaml", "ServiceAccount")["metadata"]["name"]
    );
    let variables: Vec<Value> =
        ALLOCATOR.iter().map(|(name, value)| json!({"name": name, "value": value})).collect();
    assert_eq!(container["env"], json!(variables), "what the tests and the benchmarks start cloudcore with");
    let grace = pod["terminationGracePeriodSeconds"].as_u64().unwrap();
    assert!(grace > config.drain_grace.as_secs(), "killed before it has drained");
    let arguments = container["args"].as_array().unwrap().iter().map(|argument| argument.as_str().unwrap());
    known_flags("cloudcore", &arguments.collect::<Vec<_>>());
}

/// Fails if a program does not know one of these flags.
fn known_flags(program: &str, arguments: &[&str]) {
    let help = Command::new(binary(program).unwrap()).arg("--help").output().unwrap();
    let help = String::from_utf8_lossy(&help.stdout).into_owned();
    for flag in arguments.iter().filter(|argument| argument.starts_with("--")) {
        let known = help.split_whitespace().any(|word| word.trim_end_matches(',') == *flag);
        assert!(known, "{program} does not know {flag}: {help}");
    }
}

#[test]
fn the_unit_starts_the_agent_with_flags_and_folders_that_it_has() {
    let unit = fs::read_to_string(root().join("deploy/edge/edgecore.service")).unwrap();
    let value = |key: &str| {
        let line = unit.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        line.unwrap_or_else(|| panic!("no {key} in {unit}"))
    };
    let start: Vec<&str> = value("ExecStart").split_whitespace().collect();
    assert!(start[0].ends_with("/edgecore"), "{start:?}");
    known_flags("edgecore", &start);

    let kept = Path::new("/var/lib").join(value("StateDirectory"));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("edgecore.yaml");
    fs::write(&file, "nodeName: edge-a\n").unwrap();
    let config = tombolo_edge::Config::load(&file).unwrap();
    assert!(config.data_dir.starts_with(&kept), "{} is not in {}", config.data_dir.display(), kept.display());
    // The program can only read the rest of the file system.
    assert_eq!(value("ProtectSystem"), "strict");
    // The folder contains keys.
    assert_eq!(value("StateDirectoryMode"), "0700");
}

/// A KubeEdge cloudcore as its own manifests create it, reduced to names and the fields that distinguish versions.
const KUBEEDGE: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: kubeedge, labels: {k8s-app: kubeedge}}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: cloudcore, namespace: kubeedge}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: cloudcore, namespace: kubeedge, labels: {k8s-app: kubeedge}}
data: {cloudcore.yaml: 'modules: {}'}
---
apiVersion: v1
kind: Secret
metadata: {name: cloudcoresecret, namespace: kubeedge}
---
apiVersion: v1
kind: Secret
metadata: {name: casecret, namespace: kubeedge}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: cloudcore, namespace: kubeedge, labels: {kubeedge: cloudcore}}
spec:
  selector: {matchLabels: {kubeedge: cloudcore}}
  template:
    metadata: {labels: {kubeedge: cloudcore}}
    spec: {containers: [{name: cloudcore, image: kubeedge}]}
---
apiVersion: v1
kind: Service
metadata: {name: cloudcore, namespace: kubeedge}
spec: {selector: {kubeedge: cloudcore}, ports: [{port: 10000}]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: cloudcore}
rules: [{apiGroups: [''], resources: [nodes], verbs: [get]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: cloudcore}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cloudcore}
subjects: [{kind: ServiceAccount, name: cloudcore, namespace: kubeedge}]
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: rules.rules.kubeedge.io, labels: {kubeedge: 'true'}}
spec:
  group: rules.kubeedge.io
  scope: Namespaced
  names: {kind: Rule, listKind: RuleList, plural: rules, singular: rule}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, description: of kubeedge}}}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: ruleendpoints.rules.kubeedge.io, labels: {kubeedge: 'true'}}
spec:
  group: rules.kubeedge.io
  scope: Namespaced
  names: {kind: RuleEndpoint, listKind: RuleEndpointList, plural: ruleendpoints, singular: ruleendpoint}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, description: of kubeedge}}}
";

/// KubeEdge's definitions of kinds that we define as well.
const KUBEEDGE_CRDS: [&str; 2] = ["crd/rules.rules.kubeedge.io", "crd/ruleendpoints.rules.kubeedge.io"];

async fn plane() -> ControlPlane {
    let options = ControlPlaneOptions { controllers: false, ..ControlPlaneOptions::default() };
    ControlPlane::start(options).await.unwrap()
}

/// Runs kubectl and returns its output.
fn kubectl(plane: &ControlPlane, arguments: &[&str]) -> String {
    let output = plane.kubectl(arguments).unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_command_applies_the_folder_to_a_fresh_cluster() {
    cluster_or_skip!("one_command_applies_the_folder_to_a_fresh_cluster");
    let plane = plane().await;
    let folder = root().join("deploy/cloudcore");
    kubectl(&plane, &["apply", "-f", &folder.display().to_string()]);
    for name in ["deployments/tombolo-cloudcore", "roles/tombolo:cloudcore", "services/tombolo-cloudcore"] {
        kubectl(&plane, &["-n", "kubeedge", "get", name]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn manifests_leave_a_kubeedge_cloudcore_unchanged() {
    cluster_or_skip!("manifests_leave_a_kubeedge_cloudcore_unchanged");
    let plane = plane().await;
    let folder = tempfile::tempdir().unwrap();
    let kubeedge = folder.path().join("kubeedge.yaml");
    fs::write(&kubeedge, KUBEEDGE).unwrap();
    let kubeedge = kubeedge.display().to_string();
    // As KubeEdge's manual says: parts that a manifest omits are removed when it is applied over this.
    kubectl(&plane, &["apply", "-f", &kubeedge]);
    let established = ["wait", "--for=condition=Established", "--timeout=60s"];
    kubectl(&plane, &[&established[..], &KUBEEDGE_CRDS].concat());
    let kinds = "serviceaccounts,configmaps,secrets,deployments,services,roles,rolebindings";
    let cluster = "clusterroles/cloudcore,clusterrolebindings/cloudcore".replace(',', " ");
    let versions = || {
        let columns =
            "-o=custom-columns=KIND:.kind,NAME:.metadata.name,UID:.metadata.uid,AT:.metadata.resourceVersion";
        let inside = kubectl(&plane, &["-n", "kubeedge", "get", kinds, "--no-headers", columns]);
        let mut outside = vec!["get", "--no-headers", columns];
        outside.extend(cluster.split(' '));
        outside.extend(KUBEEDGE_CRDS);
        let all = inside + &kubectl(&plane, &outside);
        // The column width depends on the longest name.
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        all.lines().map(words).collect::<BTreeSet<String>>()
    };
    let before = versions();
    assert!(before.len() >= 10, "{before:?}");
    for ours in ["deploy/cloudcore", "deploy/optional/grids.yaml", "deploy/optional/kubeedge-edges.yaml"] {
        kubectl(&plane, &["apply", "-f", &root().join(ours).display().to_string()]);
    }
    // As the guide says: existing definitions are left unchanged and reported as existing.
    let rules = root().join("deploy/crds/rules.yaml").display().to_string();
    let created = plane.kubectl(&["create", "-f", &rules]).unwrap();
    let said = String::from_utf8_lossy(&created.stderr).into_owned();
    assert_eq!(said.matches("AlreadyExists").count(), KUBEEDGE_CRDS.len(), "{said}");
    let after = versions();
    let changed: Vec<_> = before.difference(&after).collect();
    assert!(changed.is_empty(), "changed or deleted: {changed:?}");
    let labels = kubectl(&plane, &["get", "namespace", "kubeedge", "-o=jsonpath={.metadata.labels.k8s-app}"]);
    assert_eq!(labels, "kubeedge");
}
