//! Priority and fairness: which flow schema and which level a request matches.

use http::Request;
use kube::client::Body;
use serde_json::json;
use tombolo_testkit::wait_for;

use crate::harness::{Api, DEADLINE, Server};

const GROUP: &str = "/apis/flowcontrol.apiserver.k8s.io/v1";

/// UIDs of the schema and of the level in the response to a user.
async fn named(api: &Api, user: &str) -> [String; 2] {
    let request = Request::builder().uri("/version").header("impersonate-user", user);
    let request = request.header("impersonate-group", "system:authenticated");
    let answer = api.client.send(request.body(Body::empty()).unwrap()).await.unwrap();
    ["x-kubernetes-pf-flowschema-uid", "x-kubernetes-pf-prioritylevel-uid"].map(|name| {
        answer.headers().get(name).map_or_else(String::new, |uid| uid.to_str().unwrap().to_owned())
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_names_the_flow_schema_of_its_request() {
    let server = Server::start().await;
    let api = server.api().await;
    let limited = json!({"nominalConcurrencyShares": 1, "limitResponse": {"type": "Reject"}});
    let level = json!({"metadata": {"name": "own"}, "spec": {"type": "Limited", "limited": limited}});
    let rule = json!({
        "subjects": [{"kind": "User", "user": {"name": "ann"}}],
        "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
    });
    let schema = json!({"metadata": {"name": "own"}, "spec": {
        "matchingPrecedence": 1000, "priorityLevelConfiguration": {"name": "own"}, "rules": [rule]}});
    let before = named(&api, "ann").await;
    let schema = api.create(&format!("{GROUP}/flowschemas"), &schema).await;
    assert_eq!(named(&api, "ann").await, before, "its level is not there");
    let level = api.create(&format!("{GROUP}/prioritylevelconfigurations"), &level).await;
    let uids = [&schema, &level].map(|object| object["metadata"]["uid"].as_str().unwrap().to_owned());
    assert_eq!(named(&api, "ann").await, uids);
    assert_eq!(named(&api, "bob").await, before);
    let default = api.get(&format!("{GROUP}/flowschemas/global-default")).await.1;
    assert_eq!(default["metadata"]["uid"], before[0].as_str());
    wait_for("the schema to say that its level exists", DEADLINE, || async {
        let schema = api.get(&format!("{GROUP}/flowschemas/own")).await.1;
        let condition = &schema["status"]["conditions"][0];
        if condition["type"] == "Dangling" && condition["status"] == "False" {
            Ok(())
        } else {
            Err(schema.to_string())
        }
    })
    .await;
    server.stop().await;
}
