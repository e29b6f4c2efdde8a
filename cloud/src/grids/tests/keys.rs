//! Grids that older definitions have let in.

use k8s_openapi::api::events::v1::Event;

use super::*;

/// Row G3 of docs/reference/superedge.md#reconcile-rows: a grid without a key says so in the words that its users know,
/// and leaves its children exactly as they are.
#[tokio::test]
async fn a_grid_without_a_key_says_so_and_leaves_its_children() {
    let mut definitions = api::definitions().to_vec();
    for version in definitions.iter_mut().flat_map(|definition| &mut definition.spec.versions) {
        let schema = version.schema.as_mut().unwrap().open_api_v3_schema.as_mut().unwrap();
        let spec = schema.properties.as_mut().unwrap().get_mut("spec").unwrap();
        spec.properties.as_mut().unwrap().get_mut("gridUniqKey").unwrap().min_length = None;
    }
    let world = World::with_definitions(definitions).await;
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
    // Another unit comes and the first one goes, as a grid with a key sees.
    world.node("n2", "b").await;
    world.all::<Node>().delete("n1", &DeleteParams::default()).await.unwrap();
    make(&grids, grid("other", 1)).await;
    until(&deployments, "other-b", Value::is_object).await;
    until(&deployments, "other-a", Value::is_null).await;
    let events = world.of::<Event>("default").list(&Default::default()).await.unwrap();
    let said = events.items.iter().find(|event| event.reason.as_deref() == Some("Empty")).expect("an event");
    assert_eq!((said.type_.as_deref(), said.note.as_deref()), (Some("Warning"), Some(words)));
    assert_eq!(get(&deployments, "web-a").await, before);
    // With a key it goes on.
    patch(&grids, "web", json!({"spec": {"gridUniqKey": "zone"}})).await;
    until(&deployments, "web-b", Value::is_object).await;
    until(&deployments, "web-a", Value::is_null).await;
}
