//! Many nodes, units and grids.

use std::time::Instant;

use futures::{StreamExt, stream};
use serde_json::Value;
use tombolo_tests::world::Api;

use super::{Grids, condition, deployment, grid};

const NODES: usize = 500;
const UNITS: usize = 50;
const GRIDS: usize = 20;
/// Concurrent requests of this test.
const CLIENTS: usize = 16;

impl Grids {
    async fn writes(&self) -> f64 {
        self.world.cloud_metric("tombolo_cloud_grid_writes_total").await.unwrap()
    }

    async fn all_have(&self, units: usize) {
        for number in 0..GRIDS {
            let is_done = |grid: &Value| {
                grid["status"]["units"] == units && condition(grid, "Synced")["status"] == "True"
            };
            self.until("DeploymentGrid", &format!("g{number}"), is_done).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_hundred_nodes_in_fifty_units_have_twenty_grids() {
    let grids = Grids::start(Api::Embedded).await;
    let all = &grids;
    let nodes = (0..NODES).map(|number| async move {
        all.node(&format!("n{number}"), &[("zone", &format!("u{}", number % UNITS))]).await;
    });
    stream::iter(nodes).buffer_unordered(CLIENTS).collect::<()>().await;
    let started = Instant::now();
    let made = (0..GRIDS).map(|number| async move {
        all.create("DeploymentGrid", grid(&format!("g{number}"), "zone", &deployment())).await;
    });
    stream::iter(made).buffer_unordered(CLIENTS).collect::<()>().await;
    grids.all_have(UNITS).await;
    let (children, writes) = (GRIDS * UNITS, grids.writes().await);
    println!("{children} children of {GRIDS} grids after {:?}, with {writes} writes", started.elapsed());
    assert_eq!(grids.names("Deployment").await.len(), children);
    // One write per child, and some for each grid's status.
    assert!(writes < (children + 10 * GRIDS) as f64, "{writes}");
    let moved = Instant::now();
    grids.patch("Node", "n0", serde_json::json!({"metadata": {"labels": {"zone": "new"}}})).await;
    grids.all_have(UNITS + 1).await;
    let more = grids.writes().await - writes;
    println!("a node moves into a unit of its own: {:?}, with {more} writes", moved.elapsed());
    assert!(more <= (4 * GRIDS) as f64, "{more}");
}
