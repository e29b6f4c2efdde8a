//! Grids that older definitions have accepted.

use k8s_openapi::api::events::v1::Event;
use tombolo_cloud::grids::api::definitions;

use super::*;

/// Row G3 of docs/reference/superedge.md#reconcile-rows: a grid without a key reports so in the wording that users
/// know, and leaves its children untouched.
#[tokio::test]
async fn grid_without_a_key_reports_it_and_keeps_its_children() {
    let mut definitions = definitions();
    for version in definitions.iter_mut().flat_map(|definition| &mut definition.spec.versions) {
        let schema = version.schema.as_mut().unwrap().open_api_v3_schema.as_mut().unwrap();
        let spec = schema.properties.as_mut().unwrap().get_mut("spec").unwrap();
        spec.properties.as_mut().unwrap().get_mut("gridUniqKey").unwrap().min_length = None;
    }
    let world = World::with_definitions(&definitions).await;
    let (grids, deployments) = (world.of::<DeploymentGrid>("default"), world.of::<Deployment>("default"));
    world.node("n1", "a").await;
    make(&grids, grid("web", 2)).await;
    until(&grids, "web", |grid| grid["status"]["units"] == 1).await;
    let before = get(&deployments, "web-a").await;
    let synced = |grid: &Value| {
        let conditions = grid["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.into_iter().find(|one| one["type"] == "Synced").unwrap_or_default()
    };

    patch(&grids, "web", json!({"spec": {"gridUniqKey": ""}})).await;
    let refused = until(&grids, "web", |grid| synced(grid)["reason"] == "Empty").await;
    let words = "This deployment-grid has an empty grid key";
    assert_eq!(synced(&refused)["message"], words);
    // Another unit appears and the first one disappears, as a grid with a key observes.
    world.node("n2", "b").await;
    world.all::<Node>().delete("n1", &DeleteParams::default()).await.unwrap();
    make(&grids, grid("other", 1)).await;
    until(&deployments, "other-b", Value::is_object).await;
    until(&deployments, "other-a", Value::is_null).await;
    let events = world.of::<Event>("default").list(&Default::default()).await.unwrap();
    let said = events.items.iter().find(|event| event.reason.as_deref() == Some("Empty")).expect("an event");
    assert_eq!((said.type_.as_deref(), said.note.as_deref()), (Some("Warning"), Some(words)));
    assert_eq!(get(&deployments, "web-a").await, before);
    // Once it has a key it continues.
    patch(&grids, "web", json!({"spec": {"gridUniqKey": "zone"}})).await;
    until(&deployments, "web-b", Value::is_object).await;
    until(&deployments, "web-a", Value::is_null).await;
}
