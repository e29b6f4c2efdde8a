//! Evictions and their admission; Services that are created concurrently.

use std::collections::HashSet;

use futures::future::join_all;
use serde_json::{Value, json};

use crate::harness::{Api, Server};

const NAMESPACE: &str = "/api/v1/namespaces/default";
const BUDGETS: &str = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";
const POLICIES: &str = "/apis/admissionregistration.k8s.io/v1";

async fn running(api: &Api, name: &str) {
    let pod = json!({"metadata": {"name": name, "labels": {"app": "till"}},
                     "spec": {"containers": [{"name": "main", "image": "image"}]}});
    api.create(&format!("{NAMESPACE}/pods"), &pod).await;
    let status = json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
    let (code, answer) = api.merge(&format!("{NAMESPACE}/pods/{name}/status"), &status).await;
    assert_eq!(code, 200, "{answer}");
}

async fn evict(api: &Api, name: &str) -> (u16, Value) {
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}});
    api.post(&format!("{NAMESPACE}/pods/{name}/eviction"), &eviction).await
}

async fn budget(api: &Api, allowed: i64) {
    let spec = json!({"minAvailable": 2, "selector": {"matchLabels": {"app": "till"}}});
    let budget = api.create(BUDGETS, &json!({"metadata": {"name": "b"}, "spec": spec})).await;
    assert_eq!(evict(api, "a").await.0, 429, "the controller has not processed the budget yet");
    let status = json!({"status": {"disruptionsAllowed": allowed, "currentHealthy": 3, "desiredHealthy": 2,
        "expectedPods": 3, "observedGeneration": budget["metadata"]["generation"]}});
    let (code, answer) = api.merge(&format!("{BUDGETS}/b/status"), &status).await;
    assert_eq!(code, 200, "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_evictions_spend_a_budget_once() {
    let server = Server::start().await;
    let api = server.api().await;
    api.wait_code(&format!("{NAMESPACE}/serviceaccounts/default"), 200).await;
    for name in ["a", "b", "c"] {
        running(&api, name).await;
    }
    budget(&api, 1).await;
    let answers = join_all(["a", "b", "c"].map(|name| evict(&api, name))).await;
    let mut codes: Vec<u16> = answers.iter().map(|(code, _)| *code).collect();
    codes.sort_unstable();
    assert_eq!(codes, [201, 429, 429], "{answers:?}");
    let (_, left) = api.get(&format!("{NAMESPACE}/pods")).await;
    assert_eq!(left["items"].as_array().map(Vec::len), Some(2));
    let (_, budget) = api.get(&format!("{BUDGETS}/b")).await;
    assert_eq!(budget["status"]["disruptionsAllowed"].as_i64().unwrap_or(0), 0, "{budget}");
    assert_eq!(budget["status"]["disruptedPods"].as_object().map(serde_json::Map::len), Some(1), "{budget}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn policies_apply_to_actions() {
    let server = Server::start().await;
    let api = server.api().await;
    api.wait_code(&format!("{NAMESPACE}/serviceaccounts/default"), 200).await;
    running(&api, "a").await;
    let policy = json!({"metadata": {"name": "stay"}, "spec": {
        "matchConstraints": {"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"],
            "resources": ["pods/eviction", "pods/binding", "serviceaccounts/token"]}]},
        "validations": [{"expression": "request.name == 'other'", "message": "it stays"}]}});
    api.create(&format!("{POLICIES}/validatingadmissionpolicies"), &policy).await;
    let binding =
        json!({"metadata": {"name": "stay"}, "spec": {"policyName": "stay", "validationActions": ["Deny"]}});
    api.create(&format!("{POLICIES}/validatingadmissionpolicybindings"), &binding).await;
    let token = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}});
    let to_node = json!({"metadata": {"name": "a"}, "target": {"kind": "Node", "name": "n"}});
    for (code, answer) in [
        evict(&api, "a").await,
        api.post(&format!("{NAMESPACE}/pods/a/binding"), &to_node).await,
        api.post(&format!("{NAMESPACE}/serviceaccounts/default/token"), &token).await,
    ] {
        assert_eq!(code, 422, "{answer}");
        assert!(answer["message"].as_str().unwrap_or_default().contains("it stays"), "{answer}");
    }
    assert_eq!(api.get(&format!("{NAMESPACE}/pods/a")).await.0, 200);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn policies_can_change_the_content_of_actions() {
    let server = Server::start().await;
    let api = server.api().await;
    api.wait_code(&format!("{NAMESPACE}/serviceaccounts/default"), 200).await;
    running(&api, "a").await;
    let patch = |path: &str, value: &str| {
        json!({"patchType": "JSONPatch", "jsonPatch": {"expression":
        format!("[JSONPatch{{op: 'add', path: '{path}', value: {value}}}]")}})
    };
    let apply = |fields: &str| json!({"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": fields}});
    for (resource, kind, mutation) in [
        ("pods/eviction", "Eviction", patch("/deleteOptions", "{'dryRun': ['All']}")),
        ("pods/binding", "Binding", patch("/metadata/annotations", "{'by': 'policy'}")),
        ("serviceaccounts/token", "TokenRequest", apply("Object{spec: Object.spec{expirationSeconds: 700}}")),
    ] {
        let name = kind.to_lowercase();
        let policy = json!({"metadata": {"name": name}, "spec": {
            "matchConstraints": {"resourceRules": [
                {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": [resource]}]},
            "matchConditions": [{"name": "kind", "expression": format!("request.kind.kind == '{kind}'")}],
            "failurePolicy": "Fail", "reinvocationPolicy": "Never", "mutations": [mutation]}});
        api.create(&format!("{POLICIES}/mutatingadmissionpolicies"), &policy).await;
        let binding = json!({"metadata": {"name": name}, "spec": {"policyName": name}});
        api.create(&format!("{POLICIES}/mutatingadmissionpolicybindings"), &binding).await;
    }
    let (code, answer) = evict(&api, "a").await;
    assert_eq!(code, 201, "{answer}");
    let to_node = json!({"metadata": {"name": "a"}, "target": {"kind": "Node", "name": "n"}});
    let (code, answer) = api.post(&format!("{NAMESPACE}/pods/a/binding"), &to_node).await;
    assert_eq!(code, 201, "{answer}");
    let (_, pod) = api.get(&format!("{NAMESPACE}/pods/a")).await;
    let metadata = &pod["metadata"];
    assert_eq!(
        (&metadata["deletionTimestamp"], &metadata["annotations"]["by"]),
        (&Value::Null, &json!("policy"))
    );
    // A request with an empty body goes through admission as well.
    for token in [json!({"spec": {"expirationSeconds": 7200}}), json!({})] {
        let (code, answer) = api.post(&format!("{NAMESPACE}/serviceaccounts/default/token"), &token).await;
        assert_eq!((code, &answer["spec"]["expirationSeconds"]), (201, &json!(700)), "{answer}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dry_run_in_the_body_spends_no_budget_and_deletes_nothing() {
    let server = Server::start().await;
    let api = server.api().await;
    api.wait_code(&format!("{NAMESPACE}/serviceaccounts/default"), 200).await;
    running(&api, "a").await;
    budget(&api, 1).await;
    let tried = |dry_run: Value| {
        json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "a"},
        "deleteOptions": {"dryRun": dry_run}})
    };
    let (path, all) = (format!("{NAMESPACE}/pods/a"), json!(["All"]));
    for (dry_run, wanted) in [(all.clone(), 201), (json!("All"), 400), (json!([7]), 400)] {
        let (code, answer) = api.post(&format!("{path}/eviction"), &tried(dry_run)).await;
        assert_eq!(code, wanted, "{answer}");
    }
    assert_eq!(api.delete(&path, json!({"dryRun": all})).await.0, 200);
    let (_, budget) = api.get(&format!("{BUDGETS}/b")).await;
    assert_eq!(budget["status"]["disruptionsAllowed"], 1, "{budget}");
    assert_eq!(api.get(&path).await.1["metadata"]["deletionTimestamp"], Value::Null);
    // Policies see that the deletion is a dry run.
    let policy = json!({"metadata": {"name": "real"}, "spec": {
        "matchConstraints": {"resourceRules": [
            {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["DELETE"], "resources": ["pods"]}]},
        "validations": [{"expression": "!request.dryRun", "message": "only tried"}]}});
    api.create(&format!("{POLICIES}/validatingadmissionpolicies"), &policy).await;
    let binding =
        json!({"metadata": {"name": "real"}, "spec": {"policyName": "real", "validationActions": ["Deny"]}});
    api.create(&format!("{POLICIES}/validatingadmissionpolicybindings"), &binding).await;
    let (code, answer) = api.delete(&path, json!({"dryRun": all})).await;
    assert_eq!(code, 422, "{answer}");
    assert!(answer["message"].as_str().unwrap_or_default().contains("only tried"), "{answer}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrently_created_services_share_no_address_or_port() {
    let server = Server::start().await;
    let api = server.api().await;
    let service = |name: String| json!({"metadata": {"name": name}, "spec": {"type": "NodePort", "ports": [{"port": 80}, {"port": 81, "name": "b"}]}});
    let mut services = (0..64).map(|number| {
        let mut service = service(format!("s{number}"));
        service["spec"]["ports"][0]["name"] = json!("a");
        service
    });
    let path = format!("{NAMESPACE}/services");
    let created = join_all(services.by_ref().map(|service| {
        let (api, path) = (&api, &path);
        async move { api.create(path, &service).await }
    }))
    .await;
    let addresses: HashSet<&str> =
        created.iter().filter_map(|service| service["spec"]["clusterIP"].as_str()).collect();
    assert_eq!(addresses.len(), created.len());
    let ports = created.iter().flat_map(|service| service["spec"]["ports"].as_array().into_iter().flatten());
    let ports: HashSet<u64> = ports.filter_map(|port| port["nodePort"].as_u64()).collect();
    assert_eq!(ports.len(), 2 * created.len());
    // If several request the same address, one gets it, and the others are refused.
    let asks = (0..8).map(|number| {
        let mut service =
            json!({"metadata": {"name": format!("t{number}")}, "spec": {"ports": [{"port": 80}]}});
        service["spec"]["clusterIP"] = json!("10.0.77.77");
        let (api, path) = (&api, &path);
        async move { api.post(path, &service).await.0 }
    });
    let mut codes = join_all(asks).await;
    codes.sort_unstable();
    assert_eq!(codes, [vec![201], vec![422; 7]].concat());
    server.stop().await;
}
