//! Writes.

use serde_json::{Value, json};

use crate::server::*;

const MERGE: &str = "application/merge-patch+json";
const APPLY: &str = "application/apply-patch+yaml";

#[tokio::test]
async fn creation_fills_in_what_the_server_sets() {
    let server = Server::start().await;
    let created = server.post(CONFIGMAPS, &configmap("a", "1")).await.expect(201);
    let metadata = &created["metadata"];
    assert_eq!((&metadata["name"], &metadata["namespace"]), (&json!("a"), &json!("default")));
    assert_eq!(metadata["uid"].as_str().unwrap().len(), 36);
    assert!(metadata["creationTimestamp"].as_str().unwrap().ends_with('Z'));
    assert_eq!(created, server.get(&format!("{CONFIGMAPS}/a")).await.expect(200));
    let again = server.post(CONFIGMAPS, &configmap("a", "1")).await.expect(409);
    assert_eq!(again["message"], "configmaps \"a\" already exists");
    assert_eq!(again["details"], json!({"name": "a", "kind": "configmaps"}));
}

#[tokio::test]
async fn generated_names_keep_their_prefix() {
    let server = Server::start().await;
    let body = json!({"metadata": {"generateName": "job-"}});
    let one = server.post(CONFIGMAPS, &body).await.expect(201);
    let other = server.post(CONFIGMAPS, &body).await.expect(201);
    let (one, other) = (&one["metadata"]["name"], &other["metadata"]["name"]);
    assert!(one.as_str().unwrap().starts_with("job-") && one.as_str().unwrap().len() == 9);
    assert_ne!(one, other);
}

#[tokio::test]
async fn a_job_selects_the_pods_that_carry_its_uid() {
    let server = Server::start().await;
    let template = json!({"metadata": {"labels": {"job-name": "mine", "app": "a"}},
        "spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}});
    let mut body = json!({"metadata": {"name": "j"}, "spec": {"template": template}});
    let refused = server.post("/apis/batch/v1/namespaces/default/jobs", &body).await.expect(422);
    assert_eq!(refused["details"]["causes"][0]["field"], "spec.template.metadata.labels[job-name]");
    body["spec"]["template"]["metadata"]["labels"] = json!({"app": "a"});
    let job = server.post("/apis/batch/v1/namespaces/default/jobs", &body).await.expect(201);
    let uid = &job["metadata"]["uid"];
    let labels = json!({"app": "a", "job-name": "j", "controller-uid": uid,
        "batch.kubernetes.io/job-name": "j", "batch.kubernetes.io/controller-uid": uid});
    assert_eq!(job["spec"]["template"]["metadata"]["labels"], labels);
    assert_eq!(job["spec"]["selector"], json!({"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}));
    let manual = json!({"metadata": {"name": "k"}, "spec": {"manualSelector": true, "template": template,
        "selector": {"matchLabels": {"app": "a"}}}});
    let job = server.post("/apis/batch/v1/namespaces/default/jobs", &manual).await.expect(201);
    assert_eq!(job["spec"]["template"]["metadata"]["labels"], template["metadata"]["labels"]);
}

#[tokio::test]
async fn action_subresources_accept_only_the_verb_create() {
    let server = Server::start().await;
    let path = "namespaces/default/serviceaccounts/a/token";
    let body = json!({"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1"});
    assert_eq!(server.post(&format!("/api/v1/{path}"), &body).await.expect(201), body);
    for (method, target) in [
        ("GET", "/api/v1"),
        ("PUT", "/api/v1"),
        ("PATCH", "/api/v1"),
        ("DELETE", "/api/v1"),
        ("GET", "/api/v1/watch"),
        ("POST", "/api/v1/watch"),
        ("OPTIONS", "/api/v1"),
    ] {
        let refused = server.call(method, &format!("{target}/{path}"), JSON, body.to_string()).await;
        assert_eq!(refused.status, 405, "{method} {target}: {:?}", refused.bytes);
    }
    let configmap = configmap("a", "1");
    server.post("/api/v1/watch/namespaces/default/configmaps", &configmap).await.expect(405);
    let refused = server.post("/api/v1/proxy/namespaces/default/configmaps", &configmap).await;
    assert_eq!((refused.status.as_u16(), &*refused.bytes), (404, &b"404 page not found\n"[..]));
    server.get(&format!("{CONFIGMAPS}/a")).await.expect(404);
    // The paths of these name no resource, so no authorization is requested.
    for path in ["/api/v1/watch", "/apis/apps/v1/proxy/"] {
        let refused = server.get(path).await;
        let wanted = format!(
            "Internal Server Error: \"{path}\": failed to create RequestInfo: unable to determine kind and namespace from url, {path}\n"
        );
        assert_eq!(refused.status, 500);
        assert_eq!(String::from_utf8_lossy(&refused.bytes), wanted);
    }
}

#[tokio::test]
async fn malformed_creations_are_refused() {
    let server = Server::start().await;
    let refusals = [
        (
            json!({"metadata": {"name": "b", "namespace": "other"}}),
            400,
            "the namespace of the provided object does not match the namespace sent on the request",
        ),
        (
            json!({"metadata": {}}),
            422,
            "ConfigMap \"\" is invalid: metadata.name: Required value: name or generateName is required",
        ),
        (
            json!({"metadata": {"name": "b", "resourceVersion": "5"}}),
            500,
            "resourceVersion should not be set on objects to be created",
        ),
    ];
    for (body, code, message) in refusals {
        let refused = server.post(CONFIGMAPS, &body).await.expect(code);
        assert_eq!(refused["message"], message);
        assert_eq!((&refused["kind"], &refused["code"]), (&json!("Status"), &json!(code)));
    }
    for body in ["", "{bad", "[]", "3"] {
        server.call("POST", CONFIGMAPS, JSON, body).await.expect(400);
    }
    let wrong = json!({"kind": "Secret", "apiVersion": "v1", "metadata": {"name": "b"}});
    server.post(CONFIGMAPS, &wrong).await.expect(400);
    let protobuf = server.call("POST", CONFIGMAPS, "application/vnd.kubernetes.protobuf", "k8s").await;
    assert_eq!(protobuf.expect(400)["reason"], "BadRequest");
    let text = server.call("POST", CONFIGMAPS, "text/plain", "k8s").await;
    assert_eq!(text.expect(415)["reason"], "UnsupportedMediaType");
}

#[tokio::test]
async fn unknown_fields_are_refused_reported_or_dropped() {
    let server = Server::start().await;
    let body = json!({"metadata": {"name": "b"}, "foo": 1});
    let strict = server.post(&format!("{CONFIGMAPS}?fieldValidation=Strict"), &body).await.expect(400);
    let wanted = "ConfigMap in version \"v1\" cannot be handled as a ConfigMap: strict decoding error: unknown field \"foo\"";
    assert_eq!(strict["message"], wanted);
    let silent = server.post(&format!("{CONFIGMAPS}?fieldValidation=Ignore&dryRun=All"), &body).await;
    assert!(silent.headers.get("warning").is_none());
    let warned = server.post(CONFIGMAPS, &body).await;
    assert_eq!(warned.headers["warning"], "299 - \"unknown field \\\"foo\\\"\"");
    assert!(warned.expect(201).get("foo").is_none());
}

#[tokio::test]
async fn yaml_bodies_are_read() {
    let server = Server::start().await;
    let text = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: m\ndata:\n  a: b\n";
    let created = server.call("POST", CONFIGMAPS, "application/yaml", text).await.expect(201);
    assert_eq!(created["data"]["a"], "b");
}

#[tokio::test]
async fn dry_runs_write_nothing() {
    let server = Server::start().await;
    let dry = server.post(&format!("{CONFIGMAPS}?dryRun=All"), &configmap("a", "1")).await.expect(201);
    assert_eq!(dry["metadata"]["name"], "a");
    server.get(&format!("{CONFIGMAPS}/a")).await.expect(404);
    server.post(CONFIGMAPS, &configmap("a", "1")).await.expect(201);
    let path = format!("{CONFIGMAPS}/a?dryRun=All");
    assert_eq!(server.put(&path, &configmap("a", "2")).await.expect(200)["data"]["text"], "2");
    assert_eq!(server.delete(&path).await.expect(200)["status"], "Success");
    assert_eq!(server.get(&format!("{CONFIGMAPS}/a")).await.expect(200)["data"]["text"], "1");
}

#[tokio::test]
async fn updates_check_version_uid_and_name() {
    let server = Server::start().await;
    let path = format!("{CONFIGMAPS}/a");
    let mut object = server.post(CONFIGMAPS, &configmap("a", "1")).await.expect(201);
    object["data"]["text"] = "2".into();
    let updated = server.put(&path, &object).await.expect(200);
    assert!(revision(&updated) > revision(&object));
    assert_eq!(updated["metadata"]["uid"], object["metadata"]["uid"]);
    let stale = server.put(&path, &object).await.expect(409);
    assert_eq!(
        stale["message"],
        "Operation cannot be fulfilled on configmaps \"a\": the object has been modified; please apply your changes \
         to the latest version and try again"
    );
    let mut other = configmap("a", "3");
    other["metadata"]["uid"] = "zzz".into();
    assert_eq!(server.put(&path, &other).await.expect(409)["reason"], "Conflict");
    server.put(&path, &configmap("b", "3")).await.expect(400);
    server.put(&path, &json!({"metadata": {}})).await.expect(400);
    server.put(&format!("{CONFIGMAPS}/none"), &configmap("none", "1")).await.expect(404);
    let unconditional = server.put(&path, &configmap("a", "4")).await.expect(200);
    assert_eq!(unconditional["data"]["text"], "4");
}

#[tokio::test]
async fn update_without_changes_uses_no_revision() {
    let server = Server::start().await;
    let object = server.post(CONFIGMAPS, &configmap("a", "1")).await.expect(201);
    let same = server.put(&format!("{CONFIGMAPS}/a"), &object).await.expect(200);
    assert_eq!(same, object);
    let patched = server.call("PATCH", &format!("{CONFIGMAPS}/a"), MERGE, r#"{"data":{"text":"1"}}"#).await;
    assert_eq!(revision(&patched.expect(200)), revision(&object));
}

#[tokio::test]
async fn each_kind_of_patch_changes_only_the_fields_it_names() {
    let server = Server::start().await;
    server.post(PODS, &pod("p", "n1")).await.expect(201);
    let path = format!("{PODS}/p");
    let merged = server.call("PATCH", &path, MERGE, r#"{"metadata":{"labels":{"a":"1"}}}"#).await.expect(200);
    assert_eq!(merged["metadata"]["labels"]["a"], "1");
    let json_patch = r#"[{"op":"add","path":"/metadata/labels/b","value":"2"}]"#;
    let patched = server.call("PATCH", &path, "application/json-patch+json", json_patch).await.expect(200);
    assert_eq!(patched["metadata"]["labels"], json!({"a": "1", "b": "2"}));
    let strategic = r#"{"spec":{"containers":[{"name":"c","image":"other"}]}}"#;
    let kind = "application/strategic-merge-patch+json";
    let patched = server.call("PATCH", &path, kind, strategic).await.expect(200);
    assert_eq!(patched["spec"]["containers"][0]["image"], "other");
    let stale = server.call("PATCH", &path, MERGE, r#"{"metadata":{"resourceVersion":"2"}}"#).await;
    stale.expect(409);
    let renamed = server.call("PATCH", &path, MERGE, r#"{"metadata":{"name":"zz"}}"#).await;
    renamed.expect(400);
    server.call("PATCH", &path, JSON, "{}").await.expect(415);
    server.call("PATCH", &format!("{PODS}/none"), MERGE, "{}").await.expect(404);
    server.call("PATCH", &path, MERGE, "{").await.expect(400);
}

#[tokio::test]
async fn server_side_apply_creates_merges_and_finds_conflicts() {
    let server = Server::start().await;
    let apply = |manager: &str, text: &str, force: bool| {
        let path = format!("{CONFIGMAPS}/a?fieldManager={manager}&force={force}");
        let body = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"text": text}});
        let server = &server;
        async move { server.call("PATCH", &path, APPLY, body.to_string()).await }
    };
    let created = apply("one", "1", false).await.expect(201);
    assert_eq!(created["metadata"]["managedFields"][0]["manager"], "one");
    let conflict = apply("two", "2", false).await.expect(409);
    assert_eq!(conflict["message"], "Apply failed with 1 conflict: conflict with \"one\": .data.text");
    assert_eq!(
        conflict["details"]["causes"],
        json!([{"reason": "FieldManagerConflict", "message": "conflict with \"one\"", "field": ".data.text"}])
    );
    let forced = apply("two", "2", true).await.expect(200);
    assert_eq!(forced["data"]["text"], "2");
    let path = format!("{CONFIGMAPS}/a");
    server.call("PATCH", &path, APPLY, "{}").await.expect(422);
}

#[tokio::test]
async fn status_and_spec_are_written_apart() {
    let server = Server::start().await;
    let path = "/apis/apps/v1/namespaces/default/deployments";
    let template =
        json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let spec = json!({"replicas": 2, "selector": {"matchLabels": {"a": "b"}}, "template": template});
    let body = json!({"metadata": {"name": "d"}, "spec": spec, "status": {"replicas": 9}});
    let created = server.post(path, &body).await.expect(201);
    assert_eq!((&created["metadata"]["generation"], &created["status"]), (&json!(1), &json!({})));
    let mut changed = created.clone();
    changed["spec"]["replicas"] = 5.into();
    changed["status"]["replicas"] = 3.into();
    let status = server.put(&format!("{path}/d/status"), &changed).await.expect(200);
    assert_eq!((&status["spec"]["replicas"], &status["status"]["replicas"]), (&json!(2), &json!(3)));
    assert_eq!(status["metadata"]["generation"], 1);
    changed["metadata"]["resourceVersion"] = status["metadata"]["resourceVersion"].clone();
    changed["status"]["replicas"] = 7.into();
    let main = server.put(&format!("{path}/d"), &changed).await.expect(200);
    assert_eq!((&main["spec"]["replicas"], &main["status"]["replicas"]), (&json!(5), &json!(3)));
    assert_eq!(main["metadata"]["generation"], 2);
}

#[tokio::test]
async fn scale_shows_the_replica_count() {
    let server = Server::start().await;
    let path = "/apis/apps/v1/namespaces/default/deployments";
    let template =
        json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let spec = json!({"replicas": 2, "selector": {"matchLabels": {"a": "b"}}, "template": template});
    server.post(path, &json!({"metadata": {"name": "d"}, "spec": spec})).await.expect(201);
    let mut scale = server.get(&format!("{path}/d/scale")).await.expect(200);
    assert_eq!((&scale["kind"], &scale["spec"]["replicas"]), (&json!("Scale"), &json!(2)));
    assert_eq!(scale["status"]["selector"], "a=b");
    scale["spec"]["replicas"] = 4.into();
    let put = server.put(&format!("{path}/d/scale"), &scale).await.expect(200);
    assert_eq!(put["spec"]["replicas"], 4);
    server.put(&format!("{path}/d/scale"), &scale).await.expect(409);
    let patched = server.call("PATCH", &format!("{path}/d/scale"), MERGE, r#"{"spec":{"replicas":6}}"#).await;
    patched.expect(200);
    assert_eq!(server.get(&format!("{path}/d")).await.expect(200)["spec"]["replicas"], 6);
    let negative =
        server.call("PATCH", &format!("{path}/d/scale"), MERGE, r#"{"spec":{"replicas":-1}}"#).await;
    negative.expect(422);
}

#[tokio::test]
async fn bound_pods_are_given_time() {
    let server = Server::start().await;
    server.post(PODS, &pod("p", "n1")).await.expect(201);
    let path = format!("{PODS}/p");
    let marked = server.delete(&path).await.expect(200);
    assert_eq!(marked["metadata"]["deletionGracePeriodSeconds"], 30);
    let again = server.delete(&path).await.expect(200);
    assert_eq!(again, marked, "a second deletion changes nothing");
    let shorter = server.delete(&format!("{path}?gracePeriodSeconds=5")).await.expect(200);
    assert_eq!(shorter["metadata"]["deletionGracePeriodSeconds"], 5);
    assert!(
        shorter["metadata"]["deletionTimestamp"].as_str() < marked["metadata"]["deletionTimestamp"].as_str()
    );
    server.delete(&format!("{path}?gracePeriodSeconds=0")).await.expect(200);
    server.get(&path).await.expect(404);
    server.post(PODS, &pod("q", "")).await.expect(201);
    let gone = server.delete(&format!("{PODS}/q")).await.expect(200);
    assert_eq!(gone["kind"], "Pod", "an unbound pod is removed at once");
    server.get(&format!("{PODS}/q")).await.expect(404);
}

#[tokio::test]
async fn finalizers_keep_an_object_until_the_last_is_removed() {
    let server = Server::start().await;
    let mut body = configmap("a", "1");
    body["metadata"]["finalizers"] = json!(["x.io/hold"]);
    server.post(CONFIGMAPS, &body).await.expect(201);
    let path = format!("{CONFIGMAPS}/a");
    let marked = server.delete(&path).await.expect(200);
    assert!(marked["metadata"]["deletionTimestamp"].is_string());
    server.get(&path).await.expect(200);
    let mut watch =
        server.watch(&format!("{CONFIGMAPS}?watch=1&resourceVersion={}", revision(&marked))).await;
    let released = server.call("PATCH", &path, MERGE, r#"{"metadata":{"finalizers":null}}"#).await;
    released.expect(200);
    assert_eq!(watch.brief().await, "DELETED a");
    server.get(&path).await.expect(404);
}

#[tokio::test]
async fn propagation_policies_become_finalizers() {
    let server = Server::start().await;
    for (policy, finalizer) in [("Foreground", "foregroundDeletion"), ("Orphan", "orphan")] {
        server.post(CONFIGMAPS, &configmap("a", "1")).await.expect(201);
        let path = format!("{CONFIGMAPS}/a");
        let options = json!({"propagationPolicy": policy}).to_string();
        let marked = server.call("DELETE", &path, JSON, options).await.expect(200);
        assert_eq!(marked["metadata"]["finalizers"], json!([finalizer]));
        server.call("PATCH", &path, MERGE, r#"{"metadata":{"finalizers":[]}}"#).await.expect(200);
        server.get(&path).await.expect(404);
    }
    let bogus =
        server.call("DELETE", &format!("{CONFIGMAPS}/a"), JSON, r#"{"propagationPolicy":"Bogus"}"#).await;
    bogus.expect(422);
}

#[tokio::test]
async fn preconditions_guard_deletions() {
    let server = Server::start().await;
    let created = server.post(CONFIGMAPS, &configmap("a", "1")).await.expect(201);
    let path = format!("{CONFIGMAPS}/a");
    let with = |preconditions: Value| json!({"preconditions": preconditions}).to_string();
    let refused = server.call("DELETE", &path, JSON, with(json!({"uid": "zzz"}))).await.expect(409);
    assert!(
        refused["message"].as_str().unwrap().contains("the UID in the precondition (zzz) does not match")
    );
    server.call("DELETE", &path, JSON, with(json!({"resourceVersion": "1"}))).await.expect(409);
    let uid = &created["metadata"]["uid"];
    let done = server.call("DELETE", &path, JSON, with(json!({"uid": uid}))).await.expect(200);
    assert_eq!(done["details"], json!({"name": "a", "kind": "configmaps", "uid": uid}));
}

#[tokio::test]
async fn collections_are_deleted_by_selection() {
    let server = Server::start().await;
    server.post(CONFIGMAPS, &labelled("a", "web")).await.expect(201);
    server.post(CONFIGMAPS, &labelled("b", "db")).await.expect(201);
    let deleted = server.delete(&format!("{CONFIGMAPS}?labelSelector=app%3Dweb")).await.expect(200);
    assert_eq!(names(&deleted), ["a"]);
    assert_eq!(names(&server.get(CONFIGMAPS).await.expect(200)), ["b"]);
    server.delete("/api/v1/namespaces").await.expect(405);
}

#[tokio::test]
async fn concurrent_patches_without_a_version_all_land() {
    let server = std::sync::Arc::new(Server::start().await);
    server.post(CONFIGMAPS, &configmap("a", "1")).await.expect(201);
    let patches = (0..8).map(|number| {
        let server = std::sync::Arc::clone(&server);
        async move {
            let body = format!(r#"{{"data":{{"k{number}":"v"}}}}"#);
            server.call("PATCH", &format!("{CONFIGMAPS}/a"), MERGE, body).await.expect(200);
        }
    });
    futures::future::join_all(patches).await;
    let object = server.get(&format!("{CONFIGMAPS}/a")).await.expect(200);
    assert_eq!(object["data"].as_object().unwrap().len(), 9);
}

#[tokio::test]
async fn namespaces_wait_for_their_own_finalizers() {
    let server = Server::start().await;
    let created = server.post("/api/v1/namespaces", &json!({"metadata": {"name": "n"}})).await.expect(201);
    assert_eq!(created["spec"]["finalizers"], json!(["kubernetes"]));
    let marked = server.delete("/api/v1/namespaces/n").await.expect(200);
    assert_eq!(marked["status"]["phase"], "Terminating");
    let mut done = server.get("/api/v1/namespaces/n").await.expect(200);
    done["spec"]["finalizers"] = json!([]);
    server.put("/api/v1/namespaces/n/finalize", &done).await.expect(200);
    server.get("/api/v1/namespaces/n").await.expect(404);
}

#[tokio::test]
async fn action_subresources_cannot_be_read() {
    let server = Server::start().await;
    server.post(PODS, &pod("p", "n1")).await.expect(201);
    assert_eq!(server.get(&format!("{PODS}/p/log")).await.expect(501)["kind"], "Status");
    let binding = json!({"target": {"name": "n2"}});
    assert_ne!(server.post(&format!("{PODS}/p/binding"), &binding).await.status, 201);
    assert_eq!(server.get(&format!("{PODS}/p")).await.expect(200)["spec"]["nodeName"], "n1");
}
