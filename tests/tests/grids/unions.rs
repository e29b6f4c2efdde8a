//! Parts of a child that hold one of several members: the template's member replaces the member that others have set.

use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use tombolo_testkit::cluster_or_skip;
use tombolo_tests::world::Api;

use super::{Grids, condition, deployment, grid};

/// Pod and strategy of a Deployment whose unions have one member each.
#[allow(clippy::needless_pass_by_value, reason = "literals read better by value in tests")]
fn template(strategy: Value, source: Value, value: Value, handler: Value) -> Value {
    let mut template = deployment();
    template["strategy"] = strategy;
    let pod = &mut template["template"]["spec"];
    pod["volumes"] = json!([source]);
    let container = &mut pod["containers"][0];
    container["env"] = json!([value]);
    container["livenessProbe"] = handler;
    template
}

fn before() -> Value {
    template(
        json!({"type": "RollingUpdate"}),
        json!({"name": "data", "emptyDir": {}}),
        json!({"name": "PLACE", "value": "here"}),
        json!({"httpGet": {"port": 80}}),
    )
}

fn after() -> Value {
    template(
        json!({"type": "Recreate"}),
        json!({"name": "data", "hostPath": {"path": "/data"}}),
        json!({"name": "PLACE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}),
        json!({"exec": {"command": ["true"]}}),
    )
}

async fn follow(api: Api) {
    let grids = Grids::start(api).await;
    grids.node("n1", &[("zone", "a")]).await;
    grids.create("DeploymentGrid", grid("web", "zone", &before())).await;
    grids.until("Deployment", "web-a", Value::is_object).await;
    // Another manager owns the same members, or parts of them, and more.
    let shared = json!({"containers": [
        {"name": "echo", "env": [{"name": "PLACE", "value": "here"}],
            "livenessProbe": {"httpGet": {"path": "/healthz"}, "periodSeconds": 7}},
        {"name": "theirs", "image": "theirs:1"},
    ], "volumes": [{"name": "data", "emptyDir": {"sizeLimit": "1Mi"}}]});
    let shared =
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "spec": {"template": {"spec": shared}}});
    let patch = |patch: Patch<Value>| {
        let api = grids.api("Deployment");
        async move { api.patch("web-a", &PatchParams::apply("a-user"), &patch).await.unwrap() }
    };
    patch(Patch::Apply(shared)).await;
    grids.patch("DeploymentGrid", "web", json!({"spec": {"template": after()}})).await;
    let follows = |child: &Value| {
        let pod = &child["spec"]["template"]["spec"];
        let own = pod["containers"].as_array().and_then(|all| all.iter().find(|one| one["name"] == "echo"));
        let Some(own) = own else { return false };
        let (volume, variable, probe) = (&pod["volumes"][0], &own["env"][0], &own["livenessProbe"]);
        volume["hostPath"]["path"] == "/data"
            && volume["emptyDir"].is_null()
            && variable["valueFrom"]["fieldRef"]["fieldPath"] == "spec.nodeName"
            && variable["value"].is_null()
            && probe["exec"]["command"] == json!(["true"])
            && probe["httpGet"].is_null()
            && child["spec"]["strategy"] == json!({"type": "Recreate"})
    };
    let child = grids.until("Deployment", "web-a", follows).await;
    let containers = child["spec"]["template"]["spec"]["containers"].as_array().unwrap();
    assert!(containers.iter().any(|one| one["name"] == "theirs"), "{containers:?}");
    assert!(containers.iter().any(|one| one["livenessProbe"]["periodSeconds"] == 7), "{containers:?}");
    let is_synced = |grid: &Value| condition(grid, "Synced")["status"] == "True";
    grids.until("DeploymentGrid", "web", is_synced).await;
    // Another client sets a different source for the volume.
    let source = json!([{"name": "data", "emptyDir": {}, "hostPath": null}]);
    patch(Patch::Strategic(json!({"spec": {"template": {"spec": {"volumes": source}}}}))).await;
    grids.until("Deployment", "web-a", follows).await;
    // Parts that the template drops later are removed: the controller does not become a second manager of the parts
    // that it restored.
    grids.patch("DeploymentGrid", "web", json!({"spec": {"template": {"strategy": null}}})).await;
    let dropped = |child: &Value| child["spec"]["strategy"]["type"] == "RollingUpdate";
    grids.until("Deployment", "web-a", dropped).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn union_member_follows_the_template_on_the_embedded_server() {
    follow(Api::Embedded).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn union_member_follows_the_template_on_kube_apiserver() {
    cluster_or_skip!("union_member_follows_the_template_on_kube_apiserver");
    follow(Api::Real).await;
}
