use http::Method;

use super::super::{ApiActor, ApiStatus, ModelApi, ModelConfig};
use super::*;

fn actor() -> (ModelApi, ApiActor) {
    let api = ModelApi::new(ModelConfig::default());
    api.controllers().create_namespace("d").expect("a namespace");
    let admin = api.actor("admin");
    (api, admin)
}

fn map(name: &str, value: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "d"}, "data": {"a": value}})
}

fn reason(outcome: Result<Value, ApiStatus>) -> (u16, String) {
    let refused = outcome.expect_err("a refusal");
    (refused.code, refused.reason)
}

fn is(code: u16, reason: &str) -> (u16, String) {
    (code, reason.to_owned())
}

#[tokio::test(start_paused = true)]
async fn a_new_object_gets_its_identity_from_the_server() {
    let (_, admin) = actor();
    let mut sent = map("m", "1");
    for (field, value) in [("uid", "mine"), ("creationTimestamp", "2000-01-01T00:00:00Z")] {
        sent["metadata"][field] = value.into();
    }
    sent["metadata"]["generation"] = 9.into();
    let created = admin.create(&sent).expect("created");
    let metadata = &created["metadata"];
    assert_eq!(metadata["creationTimestamp"], "2026-01-01T00:00:00Z");
    assert_eq!((metadata["uid"].as_str().map(str::len), metadata.get("generation")), (Some(36), None));
    assert_eq!(metadata["managedFields"][0]["fieldsV1"]["f:data"], json!({".": {}, "f:a": {}}));
    assert_eq!(reason(admin.create(&sent)), is(409, "AlreadyExists"));
    let mut unnamed = map("", "1");
    unnamed["metadata"]["generateName"] = "web-".into();
    let named = admin.create(&unnamed).expect("created");
    assert!(object::name(&named).starts_with("web-") && object::name(&named).len() == 9, "{named}");
    assert_eq!(reason(admin.create(&map("", "1"))), is(422, "Invalid"));
    assert_eq!(reason(admin.create(&map("Upper", "1"))), is(422, "Invalid"));
    let mut old = map("old", "1");
    old["metadata"]["resourceVersion"] = "1".into();
    assert_eq!(admin.create(&old).expect_err("has a version").code, 500);
    let elsewhere = map("e", "1");
    let path = "/api/v1/namespaces/kube-system/configmaps";
    let sent = admin.send(&Method::POST, path, ("application/json", &elsewhere));
    assert_eq!(reason(sent), is(400, "BadRequest"));
}

#[tokio::test(start_paused = true)]
async fn an_update_replaces_the_version_that_it_names() {
    let (_, admin) = actor();
    let first = admin.create(&map("m", "1")).expect("created");
    let mut second = first.clone();
    second["data"]["a"] = "2".into();
    let second = admin.replace(&second).expect("replaced");
    assert!(object::version(&second) > object::version(&first));
    let mut stale = first.clone();
    stale["data"]["a"] = "3".into();
    assert_eq!(reason(admin.replace(&stale)), is(409, "Conflict"));
    let mut other = second.clone();
    other["metadata"]["uid"] = "other".into();
    assert_eq!(reason(admin.replace(&other)), is(409, "Conflict"));
    let again = admin.replace(&second).expect("nothing to do");
    assert_eq!(object::version(&again), object::version(&second), "no write without a change");
    let unconditional = admin.replace(&map("m", "4")).expect("replaced");
    assert_eq!(unconditional["data"]["a"], "4");
    assert_eq!(reason(admin.replace(&map("none", "1"))), is(404, "NotFound"));
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": "l", "namespace": "d"}, "spec": {}});
    admin.create(&lease).expect("created");
    assert_eq!(reason(admin.replace(&lease)), is(422, "Invalid"), "a lease names its version");
}

#[tokio::test(start_paused = true)]
async fn status_is_written_by_its_own_path_alone() {
    let (_, admin) = actor();
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "d"},
        "spec": {"containers": [{"name": "c", "image": "i:1"}]}, "status": {"phase": "Running"}});
    let created = admin.create(&pod).expect("created");
    assert_eq!(
        (&created["status"]["phase"], &created["metadata"]["generation"]),
        (&json!("Pending"), &json!(1))
    );
    let path = "/api/v1/namespaces/d/pods/p";
    let patch =
        json!({"spec": {"containers": [{"name": "c", "image": "i:2"}]}, "status": {"phase": "Running"}});
    let status = admin.patch(&format!("{path}/status"), &patch).expect("patched");
    assert_eq!(
        (&status["status"]["phase"], &status["metadata"]["generation"]),
        (&json!("Running"), &json!(1))
    );
    assert_eq!(status["spec"]["containers"][0]["image"], "i:1");
    let mut spec = status.clone();
    spec["spec"]["containers"][0]["image"] = "i:3".into();
    spec["status"]["phase"] = "Failed".into();
    let spec = admin.replace(&spec).expect("replaced");
    assert_eq!((&spec["status"]["phase"], &spec["metadata"]["generation"]), (&json!("Running"), &json!(2)));
    let managers: Vec<&Value> = spec["metadata"]["managedFields"]
        .as_array()
        .expect("managers")
        .iter()
        .map(|one| &one["subresource"])
        .collect();
    assert!(managers.contains(&&json!("status")), "{managers:?}");
    assert_eq!(
        reason(admin.patch("/api/v1/namespaces/d/configmaps/x/status", &json!({}))),
        is(404, "NotFound")
    );
}

#[tokio::test(start_paused = true)]
async fn a_definition_is_served_soon_and_its_objects_go_with_it() {
    let (api, admin) = actor();
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.a.example"},
        "spec": {"group": "a.example", "scope": "Namespaced", "names": {"plural": "widgets", "kind": "Widget"},
                 "versions": [{"name": "v1", "served": true, "storage": true, "subresources": {"status": {}}}]},
    });
    let widget = json!({"apiVersion": "a.example/v1", "kind": "Widget", "metadata": {"name": "w", "namespace": "d"},
        "spec": {"a": 1}, "status": {"b": 1}});
    assert_eq!(admin.create(&widget).expect_err("no such kind").code, 404);
    let created = admin.create(&definition).expect("created");
    assert!(created.get("status").is_none(), "not yet");
    let created = admin.create(&widget).expect("created");
    assert_eq!((created.get("status"), &created["metadata"]["generation"]), (None, &json!(1)));
    let path = "/apis/a.example/v1/namespaces/d/widgets/w";
    let patch = json!({"metadata": {"labels": {"x": "y"}}, "status": {"b": 2}});
    let status = admin.patch(&format!("{path}/status"), &patch).expect("patched");
    assert_eq!((&status["status"]["b"], status["metadata"].get("labels")), (&json!(2), None));
    admin
        .delete("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.a.example", &Value::Null)
        .expect("deleted");
    assert!(api.objects(&KindKey::new("a.example", "widgets")).is_empty());
    assert_eq!(admin.get(path).expect_err("no such kind").code, 404);
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_changes_nothing() {
    let (api, admin) = actor();
    let before = api.revision();
    let path = "/api/v1/namespaces/d/configmaps?dryRun=All";
    admin.send(&Method::POST, path, ("application/json", &map("m", "1"))).expect("admitted");
    assert_eq!(api.revision(), before);
    let refused = admin.send(&Method::POST, path, ("application/json", &map("BAD", "1")));
    assert_eq!(reason(refused), is(422, "Invalid"));
}

#[tokio::test(start_paused = true)]
async fn a_service_keeps_its_address() {
    let (_, admin) = actor();
    let service = |port: u64| {
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s", "namespace": "d"},
            "spec": {"ports": [{"port": port}]}})
    };
    let created = admin.create(&service(80)).expect("created");
    let address = created["spec"]["clusterIP"].clone();
    assert!(address.is_string());
    let replaced = admin.replace(&service(81)).expect("replaced");
    assert_eq!(
        (&replaced["spec"]["clusterIP"], &replaced["spec"]["ports"][0]["port"]),
        (&address, &json!(81))
    );
    let moved = json!({"spec": {"clusterIP": "10.96.9.9"}});
    assert_eq!(reason(admin.patch("/api/v1/namespaces/d/services/s", &moved)), is(422, "Invalid"));
}
