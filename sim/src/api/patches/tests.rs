use http::Method;

use super::super::{ApiActor, ModelApi, ModelConfig};
use super::*;

const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n";

fn actor() -> ApiActor {
    let admin = ModelApi::new(ModelConfig::default()).actor("admin");
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": "n", "namespace": "kube-node-lease", "annotations": {"p/q": "1"}},
        "spec": {"renewTime": "a"}});
    admin.create(&lease).expect("created");
    admin
}

fn patch_as(actor: &ApiActor, content_type: &str, path: &str, patch: &Value) -> Result<Value, ApiStatus> {
    actor.send(&Method::PATCH, path, (content_type, patch))
}

#[tokio::test(start_paused = true)]
async fn a_json_patch_applies_as_a_whole_or_not_at_all() {
    let admin = actor();
    let json = "application/json-patch+json";
    let renew = |value: &str| {
        json!([{"op": "test", "path": "/metadata/annotations/p~1q", "value": value},
            {"op": "add", "path": "/spec/renewTime", "value": "b"}])
    };
    let refused = patch_as(&admin, json, LEASE, &renew("2")).expect_err("the test fails");
    assert_eq!((refused.code, &*refused.reason), (422, "Invalid"));
    assert_eq!(admin.get(LEASE).expect("read")["spec"]["renewTime"], "a");
    assert_eq!(patch_as(&admin, json, LEASE, &renew("1")).expect("patched")["spec"]["renewTime"], "b");
    assert_eq!(patch_as(&admin, json, LEASE, &json!({})).expect_err("no patch").code, 400);
}

#[tokio::test(start_paused = true)]
async fn a_patch_that_names_a_version_needs_that_version() {
    let admin = actor();
    let live = admin.get(LEASE).expect("read");
    let named =
        |version: &Value| json!({"metadata": {"resourceVersion": version}, "spec": {"renewTime": "c"}});
    let version = live["metadata"]["resourceVersion"].clone();
    admin.patch(LEASE, &named(&version)).expect("patched");
    let refused = admin.patch(LEASE, &named(&version)).expect_err("outdated");
    assert_eq!((refused.code, &*refused.reason), (409, "Conflict"));
    let first = json!([{"op": "add", "path": "/metadata/resourceVersion", "value": version},
        {"op": "add", "path": "/spec/renewTime", "value": "d"}]);
    let refused = patch_as(&admin, "application/json-patch+json", LEASE, &first).expect_err("outdated");
    assert_eq!(refused.code, 409);
    let missing = admin.patch(&format!("{LEASE}x"), &json!({})).expect_err("missing");
    assert_eq!(missing.code, 404);
    assert_eq!(patch_as(&admin, "text/plain", LEASE, &json!({})).expect_err("no form").code, 415);
}

#[tokio::test(start_paused = true)]
async fn an_apply_creates_and_keeps_to_its_object() {
    let admin = actor();
    let apply = |path: &str, config: &Value| patch_as(&admin, "application/apply-patch+yaml", path, config);
    let path = "/apis/apps/v1/namespaces/default/deployments/web";
    let config = |image: &str| {
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "namespace": "default"},
            "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": {"metadata": {"labels": {"a": "b"}},
                "spec": {"containers": [{"name": "c", "image": image}]}}}})
    };
    assert_eq!(apply(path, &config("i:1")).expect_err("without a manager").code, 422);
    let managed = format!("{path}?fieldManager=me&force=true");
    let mut other = config("i:1");
    other["metadata"]["uid"] = "gone".into();
    assert_eq!(apply(&managed, &other).expect_err("another one").code, 409);
    let created = apply(&managed, &config("i:1")).expect("created");
    assert_eq!((&created["metadata"]["generation"], &created["spec"]["replicas"]), (&json!(1), &json!(1)));
    let entry = &created["metadata"]["managedFields"][0];
    assert_eq!((&entry["manager"], &entry["operation"]), (&json!("me"), &json!("Apply")));
    assert!(entry["fieldsV1"]["f:spec"].get("f:replicas").is_none(), "defaults belong to nobody");
    let again = apply(&managed, &config("i:1")).expect("applied");
    assert_eq!(object::version(&again), object::version(&created));
    let changed = apply(&managed, &config("i:2")).expect("applied");
    assert_eq!((&changed["metadata"]["generation"], &changed["spec"]["replicas"]), (&json!(2), &json!(1)));
    let unforced = format!("{path}?fieldManager=other");
    let refused = apply(&unforced, &config("i:3")).expect_err("a conflict");
    assert_eq!((refused.code, &*refused.reason), (409, "Conflict"));
    let cause = &refused.details["causes"][0];
    assert_eq!(cause["field"], r#".spec.template.spec.containers[name="c"].image"#);
    assert!(refused.message.starts_with("Apply failed with 1 conflict: conflict with \"me\""), "{refused}");
}

#[tokio::test(start_paused = true)]
async fn managers_can_be_rewritten_by_a_patch() {
    let admin = actor();
    let path = "/api/v1/namespaces/default/configmaps/m?fieldManager=me&force=true";
    let config = |data: Value| {
        let metadata = json!({"name": "m", "namespace": "default"});
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})
    };
    let apply = |data: Value| patch_as(&admin, "application/apply-patch+yaml", path, &config(data));
    apply(json!({"a": "1"})).expect("created");
    let plain = "/api/v1/namespaces/default/configmaps/m";
    admin.patch(&format!("{plain}?fieldManager=other"), &json!({"data": {"b": "1"}})).expect("patched");
    let entries = json!([{"manager": "me", "operation": "Apply", "apiVersion": "v1", "fieldsType": "FieldsV1",
        "fieldsV1": {"f:data": {"f:a": {}, "f:b": {}}}}]);
    admin.patch(plain, &json!({"metadata": {"managedFields": entries}})).expect("patched");
    let applied = apply(json!({"a": "1"})).expect("applied");
    assert_eq!(applied["data"], json!({"a": "1"}), "what was claimed and is not stated is gone");
}
