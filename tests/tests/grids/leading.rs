//! With several cloudcores, one runs the controllers.

use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tombolo_testkit::{cluster_or_skip, wait_for, wait_for_value};
use tombolo_tests::world::{Api as ApiKind, DEADLINE};

use super::{Grids, deployment, grid};

/// Longest time from the end of one leader to the next leader (docs/application-grid.md), and to that leader's first
/// work on a busy machine.
const TAKE_OVER_MAX: Duration = Duration::from_secs(15);
const WORKS_AFTER_MAX: Duration = Duration::from_secs(30);

async fn leader(grids: &Grids, other_than: &str) -> String {
    let leases: Api<Lease> = Api::namespaced(grids.client.clone(), "kubeedge");
    wait_for_value("a leader", DEADLINE, || async {
        let lease = leases.get_opt("tombolo-grid-controllers").await.map_err(|error| error.to_string())?;
        let holder = lease.and_then(|lease| lease.spec?.holder_identity).unwrap_or_default();
        if holder.is_empty() || holder == other_than { Err(format!("{holder:?} leads")) } else { Ok(holder) }
    })
    .await
}

/// Starts two cloudcores on kube-apiserver. The first one leads and has created the child of one unit. Returns its
/// identity.
async fn two_cloudcores() -> (Grids, String) {
    let mut grids = Grids::start(ApiKind::Real).await;
    grids.node("n1", &[("zone", "a")]).await;
    let first = leader(&grids, "").await;
    grids.world.start_replica().await.unwrap();
    grids.create("DeploymentGrid", grid("web", "zone", &deployment())).await;
    grids.until("Deployment", "web-a", Value::is_object).await;
    (grids, first)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn second_cloudcore_takes_over_from_a_killed_one() {
    cluster_or_skip!("second_cloudcore_takes_over_from_a_killed_one");
    let (mut grids, first) = two_cloudcores().await;
    grids.world.kill_cloud();
    let killed = Instant::now();
    grids.patch("Node", "n1", json!({"metadata": {"labels": {"zone": "b"}}})).await;
    let second = leader(&grids, &first).await;
    let taken = killed.elapsed();
    grids.until("Deployment", "web-b", Value::is_object).await;
    let works = killed.elapsed();
    assert_ne!(first, second);
    assert!(taken <= TAKE_OVER_MAX && works <= WORKS_AFTER_MAX, "{taken:?}, {works:?}");
    println!("taken over after {taken:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frozen_leader_does_no_harm_when_it_resumes() {
    cluster_or_skip!("frozen_leader_does_no_harm_when_it_resumes");
    let (grids, first) = two_cloudcores().await;
    let process = i32::try_from(grids.world.cloud_id().unwrap()).ok().and_then(Pid::from_raw).unwrap();
    kill_process(process, Signal::STOP).unwrap();
    // The first one still sees two replicas in unit a.
    grids.patch("Node", "n1", json!({"metadata": {"labels": {"zone": "b"}}})).await;
    grids.patch("DeploymentGrid", "web", json!({"spec": {"template": {"replicas": 5}}})).await;
    let second = leader(&grids, &first).await;
    let child = grids.until("Deployment", "web-b", |child| child["spec"]["replicas"] == 5).await;
    grids.until("Deployment", "web-a", Value::is_null).await;
    kill_process(process, Signal::CONT).unwrap();
    wait_for("the first to notice that it no longer leads", DEADLINE, || async {
        match grids.world.cloud_metric("tombolo_cloud_grid_leading").await {
            Ok(0.0) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    assert_eq!(leader(&grids, "").await, second);
    // A later change arrives, and the child has changed only by it.
    grids.patch("DeploymentGrid", "web", json!({"spec": {"template": {"replicas": 6}}})).await;
    let after = grids.until("Deployment", "web-b", |child| child["spec"]["replicas"] == 6).await;
    assert_eq!(after["metadata"]["uid"], child["metadata"]["uid"]);
    let generation = |child: &Value| child["metadata"]["generation"].as_i64().unwrap();
    assert_eq!(generation(&after), generation(&child) + 1);
    assert_eq!(grids.names("Deployment").await, ["web-b"]);
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
    assert!(started.elapsed() < Duration::from_secs(8), "it need not wait for the lease to expire");
}
