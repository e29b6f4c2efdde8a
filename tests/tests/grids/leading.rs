//! Several cloudcores: one runs the controllers.

use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use serde_json::{Value, json};
use tombolo_testkit::{cluster_or_skip, wait_for_value};
use tombolo_tests::world::{Api as ApiKind, DEADLINE};

use super::{Grids, deployment, grid};

/// Longest time from the end of one leader to the first work of the next.
const TAKE_OVER_MAX: Duration = Duration::from_secs(15);

async fn leader(grids: &Grids, other_than: &str) -> String {
    let leases: Api<Lease> = Api::namespaced(grids.client.clone(), "kubeedge");
    wait_for_value("a leader", DEADLINE, || async {
        let lease = leases.get_opt("tombolo-grid-controllers").await.map_err(|error| error.to_string())?;
        let holder = lease.and_then(|lease| lease.spec?.holder_identity).unwrap_or_default();
        if holder.is_empty() || holder == other_than { Err(format!("{holder:?} leads")) } else { Ok(holder) }
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_cloudcore_takes_over_from_one_that_was_killed() {
    cluster_or_skip!("another_cloudcore_takes_over_from_one_that_was_killed");
    let mut grids = Grids::start(ApiKind::Real).await;
    grids.node("n1", &[("zone", "a")]).await;
    let first = leader(&grids, "").await;
    grids.world.start_replica().await.unwrap();
    grids.create("DeploymentGrid", grid("web", "zone", &deployment())).await;
    grids.until("Deployment", "web-a", Value::is_object).await;
    grids.world.kill_cloud();
    let killed = Instant::now();
    grids.patch("Node", "n1", json!({"metadata": {"labels": {"zone": "b"}}})).await;
    let second = leader(&grids, &first).await;
    grids.until("Deployment", "web-b", Value::is_object).await;
    let taken = killed.elapsed();
    assert_ne!(first, second);
    assert!(taken <= TAKE_OVER_MAX, "{taken:?}");
    println!("taken over after {taken:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cloudcore_that_stops_gives_the_lease_back() {
    let mut grids = Grids::start(ApiKind::Embedded).await;
    let first = leader(&grids, "").await;
    grids.world.interrupt_cloud().unwrap();
    grids.world.wait_for_cloud().unwrap();
    grids.world.start_cloud().await.unwrap();
    grids.client = grids.world.client().await.unwrap();
    let started = Instant::now();
    leader(&grids, &first).await;
    assert!(started.elapsed() < Duration::from_secs(8), "it need not wait for the lease to end");
}
