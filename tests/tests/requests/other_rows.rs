//! Rows about reports without an answer, and about features that Tombolo does not have.

use serde_json::{Value, json};
use tombolo_testkit::wait_for;
use tombolo_tests::world::DEADLINE;

use super::Stage;
use super::peer::{Form, Request};

fn event_object(stage: &Stage, count: u32) -> Value {
    json!({"metadata": {"name": "web.1", "namespace": stage.namespace}, "reason": "Started", "count": count,
        "type": "Normal", "message": "Started container", "source": {"component": "kubelet", "host": stage.name},
        "involvedObject": {"kind": "Pod", "namespace": stage.namespace, "name": "mine"}})
}

/// In dialect `kubeedge`, events are never answered; their effect shows that they were accepted.
pub(crate) async fn event(stage: &Stage) {
    let (peer, path) = (&stage.peer, stage.path("event", "web.1"));
    let patch = json!({"event": event_object(stage, 2), "patchData": "{\"count\":3}"});
    for (operation, content, count) in
        [("insert", event_object(stage, 1), 1), ("update", event_object(stage, 2), 2), ("patch", patch, 3)]
    {
        if let Some(answer) = peer.report(operation, &path, content).await {
            answer.done(&path);
        }
        counted(stage, count).await;
    }
    let elsewhere = json!({"metadata": {"name": "web.1", "namespace": "no-such-namespace"}, "reason": "x",
        "involvedObject": {"kind": "Pod", "namespace": "no-such-namespace", "name": "x"}});
    for (operation, path, content) in [
        ("insert", "no-such-namespace/event/web.1", elsewhere),
        ("update", &*stage.path("event", "unknown"), json!({"metadata": {"name": "unknown"}})),
        ("insert", &*path, json!("no event")),
        ("patch", &*path, json!({"event": {}})),
        ("delete", &*path, Value::Null),
    ] {
        if let Some(answer) = peer.report(operation, path, content).await {
            answer.refused(Form::Sentence);
        }
    }
    counted(stage, 3).await;
}

async fn counted(stage: &Stage, count: u32) {
    wait_for("the event", DEADLINE, async || match &stage.live("event", "web.1")["count"] {
        found if *found == count => Ok(()),
        found => Err(found.to_string()),
    })
    .await;
}

pub(crate) async fn rulestatus(stage: &Stage) {
    for (name, node) in [("mine", &stage.name), ("theirs", &stage.neighbour)] {
        stage.create(&json!({"apiVersion": "rules.kubeedge.io/v1", "kind": "Rule",
            "metadata": {"name": name, "namespace": stage.namespace}, "spec": {"source": "bus", "target": "cloud",
            "sourceResource": {"topic": "t", "node_name": node}, "targetResource": {"resource": "http://127.0.0.1:1/"}}}));
    }
    let success = || json!({"RuleID": "mine", "ProjectID": "", "Status": "SUCCESS"});
    let own = stage.path("rulestatus", "mine");
    for (path, content) in [
        (stage.path("rulestatus", "theirs"), success()),
        (stage.path("rulestatus", "nobody"), success()),
        (own.clone(), json!({"Status": "MAYBE"})),
        (own.clone(), json!("no result")),
    ] {
        if let Some(answer) = stage.peer.report("update", &path, content).await {
            answer.refused(Form::Sentence);
        }
    }
    if let Some(answer) = stage.peer.report("update", &own, success()).await {
        answer.done(&own);
    }
    wait_for("the result to be counted", DEADLINE, async || match &stage.live("rule", "mine")["status"] {
        status if status["successMessages"] == 1 => Ok(()),
        status => Err(status.to_string()),
    })
    .await;
    assert_eq!(stage.live("rule", "theirs")["status"], Value::Null);
}

/// `k8s/ca.crt`.
pub(crate) async fn authority(stage: &Stage) {
    let authority = stage.peer.ask("query", "k8s/ca.crt", Value::Null).await;
    assert_eq!((&*authority.operation, &*authority.resource), ("response", "k8s/ca.crt"), "{authority:?}");
    assert!(authority.content.as_str().is_some_and(|pem| pem.contains("BEGIN CERTIFICATE")), "{authority:?}");
    if stage.peer.is_kubeedge() {
        assert_eq!(authority.source, "cloudhub");
    }
}

/// A device twin repeats each message until it is confirmed. Its query for devices is confirmed; its reports are
/// rejected in a form that no twin takes for a confirmation. Our edges have no twin, so there is nothing to request.
pub(crate) async fn devices(stage: &Stage) {
    let path = |rest: &str| format!("device/{}/sensor/{rest}", stage.namespace);
    let detail = json!("{\"event_type\":\"group_membership_event\",\"operation\":\"detail\"}");
    let twin = json!({"event_id": "", "timestamp": 1, "twin": {"t": {"actual": {"value": "20"}}}});
    let state = json!("{\"event_id\":\"\",\"device\":{\"name\":\"sensor\",\"state\":\"online\"}}");
    for (operation, resource, content) in [
        ("get", "membership/detail".to_owned(), detail),
        ("update", path("twin/edge_updated"), twin),
        ("update", path("state/update"), state),
        ("update", path("state/update"), Value::Null),
        ("update", "nothing/of/the/kind".to_owned(), json!([])),
    ] {
        let request = Request { source: "twin", group: "resource", operation, resource: &resource, content };
        let answer = stage.peer.ask_as(&request).await.unwrap();
        if stage.peer.is_kubeedge() && operation == "get" {
            assert_eq!((&*answer.source, &*answer.group), ("devicecontroller", "twin"), "{answer:?}");
            assert_eq!((&*answer.operation, &answer.content), ("response", &json!("OK")), "{answer:?}");
        } else if stage.peer.is_kubeedge() {
            assert_eq!((&*answer.group, &*answer.operation), ("resource", "error"), "{answer:?}");
            assert!(answer.content.as_str().is_some_and(|text| text.contains("kubeedge.devices: discard")));
        } else {
            answer.refused(Form::Sentence);
        }
    }
}

/// The answer is sent where no module of the edge takes it for a task: to the group `resource`, as an error.
pub(crate) async fn node_tasks(stage: &Stage) {
    let new = format!("operations.kubeedge.io/v1alpha2/nodeupgradejob/j/node/{}", stage.name);
    let old = format!("task/t/node/{}", stage.name);
    let status = json!({"action": "Check", "succ": true, "finishTime": "", "reason": "", "extend": ""});
    let legacy = json!({"NodeName": stage.name, "Event": "Check", "Action": "Success"});
    for (operation, resource, content) in [
        ("UpdateNodeActionStatus", &new, status),
        ("UpdateNodeActionStatus", &new, json!("no status")),
        ("upgrade", &old, legacy.clone()),
        ("prepull", &old, legacy.clone()),
        ("rollback", &old, legacy.clone()),
        ("backup", &old, legacy),
    ] {
        let request = Request { source: "websocket", group: "hub", operation, resource, content };
        let answer = stage.peer.ask_as(&request).await.unwrap();
        let (_, sentence) = answer.refused(Form::Sentence);
        assert!(sentence.contains("node tasks"), "{sentence}");
    }
}

/// Messages through the edge's own router: an application waits for the answer, MQTT does not.
pub(crate) async fn applications_of_the_edge(stage: &Stage) {
    let resource = "http://shop.example/orders";
    let request = Request {
        source: "servicebus",
        group: "user",
        operation: "upload",
        resource,
        content: json!("aGk="),
    };
    let answer = stage.peer.ask_as(&request).await.unwrap();
    assert_eq!(answer.operation, "error", "{answer:?}");
    assert!(answer.content.as_str().is_some_and(|sentence| sentence.contains("router")), "{answer:?}");
    if stage.peer.is_kubeedge() {
        assert_eq!(answer.group, "user", "the group in which the application waits: {answer:?}");
    }
}

pub(crate) async fn what_is_no_request(stage: &Stage) {
    for (operation, resource) in [
        ("publish", stage.path("pod", "mine")),
        ("query", stage.path("deployment", "mine")),
        ("delete", stage.path("secret", "mine")),
        ("insert", "null/persistentvolume/x".to_owned()),
        ("query", "../pod/x".to_owned()),
        ("query", "default/secret/..".to_owned()),
        ("query", "nothing".to_owned()),
        ("", String::new()),
    ] {
        stage.peer.ask(operation, &resource, Value::Null).await.refused(Form::Sentence);
    }
}
