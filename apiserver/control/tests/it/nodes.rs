//! Requests of node A for objects of node B: one table of requests, which get the same codes from the embedded server
//! and from kube-apiserver.

use serde_json::{Value, json};
use tombolo_testkit::{ControlPlane, ControlPlaneOptions, cluster_or_skip, wait_for};

use crate::harness::{Answered, Api, Ask, DEADLINE, Server, assert_same_answers};

/// `METHOD path [body]` as node `a`; writes are dry runs.
const REQUESTS: &[&str] = &[
    "GET /api/v1/namespaces/shop/secrets/secret-a",
    "GET /api/v1/namespaces/shop/secrets/secret-b",
    "GET /api/v1/namespaces/shop/secrets",
    "GET /api/v1/secrets",
    "GET /api/v1/namespaces/shop/secrets?fieldSelector=metadata.name%3Dsecret-a",
    "GET /api/v1/namespaces/shop/secrets?fieldSelector=metadata.name%3Dsecret-b",
    "GET /api/v1/namespaces/shop/configmaps/map-a",
    "GET /api/v1/namespaces/shop/configmaps/map-b",
    "GET /api/v1/namespaces/shop/configmaps/absent",
    "GET /api/v1/namespaces/shop/pods/pod-a",
    "GET /api/v1/namespaces/shop/pods/pod-b",
    "GET /api/v1/namespaces/shop/pods",
    "GET /api/v1/pods?fieldSelector=spec.nodeName%3Da",
    "GET /api/v1/pods?fieldSelector=spec.nodeName%3Db",
    "GET /api/v1/pods",
    "GET /api/v1/nodes/a",
    "GET /api/v1/nodes/b",
    "GET /api/v1/nodes",
    "GET /api/v1/services",
    "GET /api/v1/namespaces/default/services/kubernetes",
    "GET /apis/discovery.k8s.io/v1/endpointslices",
    "GET /api/v1/namespaces",
    "GET /apis/apps/v1/statefulsets",
    "GET /apis/networking.k8s.io/v1/servicecidrs",
    "GET /apis/storage.k8s.io/v1/csidrivers",
    "GET /apis/node.k8s.io/v1/runtimeclasses",
    "GET /apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/a",
    "GET /apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/b",
    "GET /apis/coordination.k8s.io/v1/namespaces/shop/leases/a",
    "GET /api/v1/namespaces/shop/serviceaccounts/account-a",
    "GET /api/v1/namespaces/shop/serviceaccounts/account-b",
    "GET /api/v1/namespaces/shop/persistentvolumeclaims/claim",
    "GET /apis/storage.k8s.io/v1/csinodes/a",
    "GET /apis/storage.k8s.io/v1/csinodes/b",
    "GET /apis/rbac.authorization.k8s.io/v1/clusterroles",
    "GET /version",
    "GET /metrics",
    "DELETE /api/v1/namespaces/shop/pods/pod-a?dryRun=All",
    "DELETE /api/v1/namespaces/shop/pods/pod-b?dryRun=All",
    "DELETE /api/v1/namespaces/shop/pods/absent?dryRun=All",
    "DELETE /api/v1/nodes/a?dryRun=All",
    "DELETE /api/v1/nodes/b?dryRun=All",
    "DELETE /api/v1/namespaces/shop/secrets/secret-a?dryRun=All",
    "DELETE /apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/b?dryRun=All",
    "PATCH /api/v1/nodes/a?dryRun=All {\"metadata\":{\"labels\":{\"app\":\"x\"}}}",
    "PATCH /api/v1/nodes/a?dryRun=All {\"metadata\":{\"labels\":{\"node-role.kubernetes.io/edge\":\"\"}}}",
    "PATCH /api/v1/nodes/a?dryRun=All {\"metadata\":{\"labels\":{\"node-restriction.kubernetes.io/x\":\"\"}}}",
    "PATCH /api/v1/nodes/a?dryRun=All {\"spec\":{\"taints\":[{\"key\":\"k\",\"effect\":\"NoSchedule\"}]}}",
    "PATCH /api/v1/nodes/a/status?dryRun=All {\"status\":{\"addresses\":[{\"type\":\"Hostname\",\"address\":\"a\"}]}}",
    "PATCH /api/v1/nodes/b?dryRun=All {\"metadata\":{\"labels\":{\"app\":\"x\"}}}",
    "PATCH /api/v1/nodes/b/status?dryRun=All {\"status\":{\"addresses\":[{\"type\":\"Hostname\",\"address\":\"a\"}]}}",
    "PATCH /api/v1/namespaces/shop/pods/pod-a/status?dryRun=All {\"status\":{\"phase\":\"Running\"}}",
    "PATCH /api/v1/namespaces/shop/pods/pod-b/status?dryRun=All {\"status\":{\"phase\":\"Running\"}}",
    "PATCH /api/v1/namespaces/shop/pods/pod-a/status?dryRun=All {\"metadata\":{\"labels\":{\"x\":\"y\"}}}",
    "PATCH /api/v1/namespaces/shop/pods/pod-a?dryRun=All {\"metadata\":{\"labels\":{\"x\":\"y\"}}}",
    "PATCH /api/v1/namespaces/shop/secrets/secret-a?dryRun=All {\"data\":{}}",
    "PATCH /apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/a?dryRun=All {\"spec\":{\"holderIdentity\":\"a\"}}",
    "PATCH /apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/b?dryRun=All {\"spec\":{\"holderIdentity\":\"a\"}}",
    "POST /api/v1/nodes?dryRun=All {\"metadata\":{\"name\":\"a\"}}",
    "POST /api/v1/nodes?dryRun=All {\"metadata\":{\"name\":\"c\"}}",
    "POST /api/v1/namespaces/shop/secrets?dryRun=All {\"metadata\":{\"name\":\"x\"}}",
    "POST /api/v1/namespaces/shop/configmaps?dryRun=All {\"metadata\":{\"name\":\"x\"}}",
    "POST /api/v1/namespaces/shop/events?dryRun=All {\"metadata\":{\"name\":\"e\",\"namespace\":\"shop\"},\"involvedObject\":{\"kind\":\"Pod\",\"name\":\"pod-a\",\"namespace\":\"shop\"},\"reason\":\"r\",\"type\":\"Normal\"}",
    "POST /api/v1/namespaces/shop/pods?dryRun=All {\"metadata\":{\"name\":\"x\"},\"spec\":{\"nodeName\":\"a\",\"containers\":[{\"name\":\"c\",\"image\":\"i\"}]}}",
    "POST /api/v1/namespaces/shop/pods?dryRun=All {\"metadata\":{\"name\":\"x\",\"annotations\":{\"kubernetes.io/config.mirror\":\"m\"}},\"spec\":{\"nodeName\":\"b\",\"containers\":[{\"name\":\"c\",\"image\":\"i\"}]}}",
    "POST /api/v1/namespaces/shop/pods?dryRun=All {\"metadata\":{\"name\":\"x\",\"annotations\":{\"kubernetes.io/config.mirror\":\"m\"}},\"spec\":{\"nodeName\":\"a\",\"containers\":[{\"name\":\"c\",\"image\":\"i\"}]}}",
    "POST /api/v1/namespaces/shop/pods/pod-a/eviction?dryRun=All {\"apiVersion\":\"policy/v1\",\"kind\":\"Eviction\",\"metadata\":{\"name\":\"pod-a\"}}",
    "POST /api/v1/namespaces/shop/pods/pod-b/eviction?dryRun=All {\"apiVersion\":\"policy/v1\",\"kind\":\"Eviction\",\"metadata\":{\"name\":\"pod-b\"}}",
    "POST /api/v1/namespaces/shop/pods/pod-b/binding?dryRun=All {\"apiVersion\":\"v1\",\"kind\":\"Binding\",\"metadata\":{\"name\":\"pod-b\"},\"target\":{\"name\":\"a\"}}",
    "POST /apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases?dryRun=All {\"metadata\":{\"name\":\"c\"}}",
    "POST /apis/coordination.k8s.io/v1/namespaces/shop/leases?dryRun=All {\"metadata\":{\"name\":\"a\"}}",
    "POST /apis/storage.k8s.io/v1/csinodes?dryRun=All {\"metadata\":{\"name\":\"b\"},\"spec\":{\"drivers\":[]}}",
    "POST /api/v1/namespaces/shop/serviceaccounts/account-a/token TOKEN-A",
    "POST /api/v1/namespaces/shop/serviceaccounts/account-b/token TOKEN-A",
    "POST /api/v1/namespaces/shop/serviceaccounts/account-b/token TOKEN-B",
    "POST /api/v1/namespaces/shop/serviceaccounts/account-a/token {\"spec\":{}}",
    "POST /api/v1/namespaces/shop/serviceaccounts/account-a/token TOKEN-A-FOREIGN",
    "POST /apis/authorization.k8s.io/v1/subjectaccessreviews {\"spec\":{\"user\":\"u\",\"resourceAttributes\":{\"verb\":\"get\",\"resource\":\"pods\"}}}",
    "POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews {\"spec\":{\"resourceAttributes\":{\"verb\":\"get\",\"resource\":\"pods\"}}}",
    "POST /apis/rbac.authorization.k8s.io/v1/clusterrolebindings?dryRun=All {\"metadata\":{\"name\":\"x\"},\"roleRef\":{\"apiGroup\":\"rbac.authorization.k8s.io\",\"kind\":\"ClusterRole\",\"name\":\"cluster-admin\"}}",
];

const AS_NODE_A: [(&str, &str); 2] =
    [("impersonate-user", "system:node:a"), ("impersonate-group", "system:nodes")];

async fn prepare(api: &Api) -> [Value; 2] {
    api.create("/api/v1/namespaces", &json!({"metadata": {"name": "shop"}})).await;
    let mut pods = Vec::new();
    for node in ["a", "b"] {
        api.create("/api/v1/nodes", &json!({"metadata": {"name": node}})).await;
        let lease = json!({"metadata": {"name": node}, "spec": {"holderIdentity": node}});
        api.create("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases", &lease).await;
        let named = |prefix: &str| json!({"metadata": {"name": format!("{prefix}-{node}")}});
        api.create("/api/v1/namespaces/shop/secrets", &named("secret")).await;
        api.create("/api/v1/namespaces/shop/configmaps", &named("map")).await;
        api.create("/api/v1/namespaces/shop/serviceaccounts", &named("account")).await;
        api.wait_code("/api/v1/namespaces/shop/configmaps/kube-root-ca.crt", 200).await;
        let pod = json!({"metadata": {"name": format!("pod-{node}")}, "spec": {
            "nodeName": node, "serviceAccountName": format!("account-{node}"),
            "containers": [{"name": "c", "image": "i", "envFrom": [{"configMapRef": {"name": format!("map-{node}")}}]}],
            "volumes": [{"name": "s", "secret": {"secretName": format!("secret-{node}")}}],
        }});
        pods.push(api.create("/api/v1/namespaces/shop/pods", &pod).await);
    }
    // kube-apiserver updates its graph with a delay.
    wait_for("the node authorizer to know the pod", DEADLINE, || async {
        let (code, body) = as_node(api, "GET", "/api/v1/namespaces/shop/secrets/secret-a", "").await;
        if code == 200 { Ok(()) } else { Err(body.to_string()) }
    })
    .await;
    pods.try_into().unwrap()
}

async fn as_node(api: &Api, method: &str, path: &str, body: &str) -> (u16, Value) {
    let media_type = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
    let mut headers = AS_NODE_A.to_vec();
    if !body.is_empty() {
        headers.push(("content-type", media_type));
    }
    api.send(Ask { method, path, headers: &headers, body: body.to_owned() }).await
}

fn token_request(pod: &Value, audiences: &[&str]) -> String {
    let reference = json!({"kind": "Pod", "apiVersion": "v1", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]});
    json!({"spec": {"audiences": audiences, "boundObjectRef": reference}}).to_string()
}

async fn answers(api: &Api) -> Vec<Answered> {
    let [pod_a, pod_b] = prepare(api).await;
    let mut answers = Vec::new();
    for request in REQUESTS {
        let mut parts = request.splitn(3, ' ');
        let mut part = || parts.next().unwrap_or_default();
        let (method, path, body) = (part(), part(), part());
        let body = match body {
            "TOKEN-A" => token_request(&pod_a, &[]),
            "TOKEN-B" => token_request(&pod_b, &[]),
            "TOKEN-A-FOREIGN" => token_request(&pod_a, &["vault"]),
            body => body.to_owned(),
        };
        let (code, reply) = as_node(api, method, path, &body).await;
        let mut message = if code >= 400 {
            reply["message"].as_str().unwrap_or_default().to_owned()
        } else {
            String::new()
        };
        for pod in [&pod_a, &pod_b] {
            message = message.replace(pod["metadata"]["uid"].as_str().unwrap(), "UID");
        }
        answers.push(((*request).to_owned(), code, message));
    }
    answers
}

#[tokio::test(flavor = "multi_thread")]
async fn node_a_gets_the_same_answers_as_from_the_real_server() {
    cluster_or_skip!("embedded::node_a_gets_the_same_answers_as_from_the_real_server");
    let plane =
        ControlPlane::start(ControlPlaneOptions { controllers: true, ..ControlPlaneOptions::default() })
            .await
            .unwrap();
    // The embedded server has this role from the start; a cluster gets it with cloudcore.
    let network = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/cloudcore/30-edge-network.yaml");
    let applied = plane.kubectl(&["apply", "-f", network]).unwrap();
    assert!(applied.status.success(), "{}", String::from_utf8_lossy(&applied.stderr));
    let real = answers(&Api { client: plane.admin_client().await.unwrap() }).await;
    let server = Server::start().await;
    let own = answers(&server.api().await).await;
    assert_same_answers(&real, &own);
    let allowed = own.iter().filter(|(_, code, _)| *code < 300).count();
    assert!(allowed > 15 && allowed < own.len() - 15, "{allowed} of {} are allowed", own.len());
    server.stop().await;
}

/// A node cannot make objects too large: as a tree, an object takes many times its text.
#[tokio::test(flavor = "multi_thread")]
async fn node_cannot_grow_an_object_beyond_what_cloudcore_parses() {
    let server = Server::start().await;
    let api = server.api().await;
    api.create("/api/v1/namespaces", &json!({"metadata": {"name": "shop"}})).await;
    let node = api.create("/api/v1/nodes", &json!({"metadata": {"name": "a"}})).await;
    let names = |first: &str, count: usize| {
        let names = (0..count).map(|number| (format!("{first}{number:06}"), json!("")));
        names.collect::<serde_json::Map<_, _>>()
    };
    let owner = json!({"apiVersion": "v1", "kind": "Node", "name": "a", "uid": node["metadata"]["uid"], "controller": true});
    let pod = |name: &str, count: usize| {
        let mut annotations = names("a", count);
        annotations.insert("kubernetes.io/config.mirror".to_owned(), json!("m"));
        let metadata = json!({"name": name, "annotations": annotations, "ownerReferences": [owner]});
        json!({"metadata": metadata, "spec": {"nodeName": "a", "containers": [{"name": "c", "image": "i"}]}})
            .to_string()
    };
    let pods = "/api/v1/namespaces/shop/pods";
    assert_eq!(as_node(&api, "POST", pods, &pod("small", 5_000)).await.0, 201);
    let (code, refused) = as_node(&api, "POST", pods, &pod("large", 8_000)).await;
    assert_eq!(code, 413, "{refused}");
    let message = refused["message"].as_str().unwrap_or_default();
    assert!(message.contains("pods \"large\"") && message.contains("give it fewer"), "{message}");
    let status = |len: usize| json!({"status": {"message": "x".repeat(len)}}).to_string();
    let own = format!("{pods}/small/status");
    // The names in the pod and its field owners take 80 KiB of the bound.
    let (code, refused) = as_node(&api, "PATCH", &own, &status(370 * 1024)).await;
    assert!(
        code == 413 && refused["message"].as_str().is_some_and(|text| text.contains("of text")),
        "{refused}"
    );
    assert_eq!(as_node(&api, "PATCH", &own, &status(250 * 1024)).await.0, 200);
    assert_eq!(as_node(&api, "PATCH", &own, &status(500 * 1024)).await.0, 413);
    // Data that the node wrote before counts.
    let labels = |first: &str| json!({"metadata": {"labels": names(first, 4_000)}}).to_string();
    let own = "/api/v1/nodes/a";
    assert_eq!(as_node(&api, "PATCH", own, &labels("a")).await.0, 200);
    assert_eq!(as_node(&api, "PATCH", own, &labels("b")).await.0, 413);
    // The node may still write to objects that others made large.
    let others = api.merge(own, &json!({"metadata": {"labels": names("c", 8_000)}})).await;
    assert_eq!(others.0, 200);
    for change in
        [json!({"metadata": {"labels": {"a000000": null}}}), json!({"metadata": {"labels": names("d", 100)}})]
    {
        assert_eq!(as_node(&api, "PATCH", own, &change.to_string()).await.0, 200);
    }
    assert_eq!(as_node(&api, "PATCH", own, &labels("e")).await.0, 413);
    let mut pod = json!({"metadata": {"name": "others"}, "spec": {"nodeName": "a", "containers": [{"name": "c", "image": "i"}]}});
    pod["spec"]["containers"][0]["args"] = json!(vec!["x".repeat(22); 50_000]);
    api.create(pods, &pod).await;
    let status = json!({"status": {"phase": "Running"}}).to_string();
    assert_eq!(as_node(&api, "PATCH", &format!("{pods}/others/status"), &status).await.0, 200);
    let many = (0..8_000).map(|number| format!("a.example/{number:060}")).collect::<Vec<_>>();
    let many = json!({"metadata": {"finalizers": many}}).to_string();
    assert_eq!(as_node(&api, "PATCH", &format!("{pods}/small/status"), &many).await.0, 413);
    server.stop().await;
}
