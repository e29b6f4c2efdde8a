//! Compares deploy/optional/grids.yaml with the requests of the controllers: the rights must be exactly those in use.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use tombolo_testkit::{cluster_or_skip, wait_for_value};
use tombolo_tests::rights::{CLOUDCORE, Right, Unused, granted, not_asked, right_of};
use tombolo_tests::world::{Api, DEADLINE};

use super::{Grids, deployment, grid};

/// Rights that this test does not use, with the reason.
const NOT_PLAYED: [Unused; 9] = [
    ("update", "superedge.io", "deploymentgrids/finalizers", ADMISSION),
    ("update", "superedge.io", "statefulsetgrids/finalizers", ADMISSION),
    ("update", "superedge.io", "servicegrids/finalizers", ADMISSION),
    ("patch", "events.k8s.io", "events", "an event that repeats is patched after minutes"),
    ("create", "", "services", APPLY),
    ("create", "apps", "deployments", APPLY),
    ("create", "apps", "statefulsets", APPLY),
    ("create", "apiextensions.k8s.io", "customresourcedefinitions", APPLY),
    ("get", "apiextensions.k8s.io", "customresourcedefinitions", "with grids.installDefinitions off"),
];

const APPLY: &str = "a server-side apply that creates an object needs it and is logged as a patch";

const ADMISSION: &str = "a right that the admission plugin OwnerReferencesPermissionEnforcement checks";

/// Makes the controllers do everything that they can do.
async fn play(grids: &Grids) {
    grids.node("n1", &[("zone", "a")]).await;
    grids.node("n2", &[("zone", "b")]).await;
    let with_pool = |name: &str| {
        let mut wanted = grid(name, "zone", &deployment());
        wanted["spec"]["templatePool"] = json!({"kept": deployment(), "unused": deployment()});
        wanted["spec"]["templates"] = json!({"a": "kept"});
        wanted["spec"]["autoDeleteUnusedTemplate"] = true.into();
        wanted
    };
    // Children left behind by a grid of the same name.
    let orphan = |name: &str, spec: Value| json!({"metadata": {"name": name, "labels": {"superedge.io/grid-selector": "shop"}}, "spec": spec});
    let ports = json!({"ports": [{"port": 80}]});
    grids.create("Deployment", orphan("shop-a", deployment())).await;
    grids.create("StatefulSet", orphan("shop-a", deployment())).await;
    grids.create("Service", orphan("shop-svc", ports.clone())).await;
    grids.create("ServiceGrid", grid("shop", "zone", &ports)).await;
    for (kind, child) in [("DeploymentGrid", "Deployment"), ("StatefulSetGrid", "StatefulSet")] {
        grids.create(kind, with_pool("shop")).await;
        grids.until(child, "shop-b", Value::is_object).await;
        grids.until(kind, "shop", |grid| grid["spec"]["templatePool"]["unused"].is_null()).await;
    }
    let is_owned = |found: &Value| found["metadata"]["ownerReferences"][0]["kind"] == "ServiceGrid";
    let service = grids.until("Service", "shop-svc", is_owned).await;
    let unlabelled = json!({"metadata": {"labels": {"superedge.io/grid-selector": null}}});
    grids.patch("Service", "shop-svc", unlabelled).await;
    let anew = |found: &Value| is_owned(found) && found["metadata"]["uid"] != service["metadata"]["uid"];
    grids.until("Service", "shop-svc", anew).await;
    grids.patch("Node", "n2", json!({"metadata": {"labels": {"zone": null}}})).await;
    for (kind, child) in [("DeploymentGrid", "Deployment"), ("StatefulSetGrid", "StatefulSet")] {
        grids.until(child, "shop-b", Value::is_null).await;
        grids.patch(kind, "shop", json!({"spec": {"templates": {"a": "missing"}}})).await;
        grids.event("TemplateNotFound", "shop").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn manifest_grants_every_used_right() {
    cluster_or_skip!("manifest_grants_every_used_right");
    let mut grids = Grids::start(Api::Real).await;
    play(&grids).await;
    // A watch is logged when it ends.
    grids.world.kill_cloud();
    let manifest = granted("optional/grids.yaml", "").unwrap();
    let plane = grids.world.plane.as_ref().unwrap();
    let watches: BTreeSet<Right> = manifest.iter().filter(|(verb, _, _)| verb == "watch").cloned().collect();
    let asked = wait_for_value("the ends of the watches", DEADLINE, || async {
        let events = plane.audit_events().map_err(|error| error.to_string())?;
        let own = events.iter().filter(|event| event.user == CLOUDCORE && event.impersonated.is_none());
        let asked: BTreeSet<Right> = own.filter(|event| event.code != 403).map(right_of).collect();
        match watches.iter().find(|watch| !asked.contains(*watch)) {
            None => Ok(asked),
            Some(missing) => Err(format!("no {missing:?}")),
        }
    })
    .await;
    let surplus = not_asked(&manifest, &asked, &NOT_PLAYED);
    assert!(surplus.is_empty(), "granted by grids.yaml but never used: {surplus:?}");
    let others =
        ["cloudcore/10-rights.yaml", "cloudcore/30-edge-network.yaml"].map(|name| granted(name, "").unwrap());
    let is_missing = |right: &&Right| {
        !right.2.is_empty() && ![&manifest, &others[0], &others[1]].iter().any(|all| all.contains(*right))
    };
    let missing: Vec<_> = asked.iter().filter(is_missing).collect();
    assert!(missing.is_empty(), "used but not granted by deploy/cloudcore: {missing:?}");
}
