//! The cost of one node's agent: memory, and the daily traffic of a node on which nothing happens.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tombolo_cli::process::Process;
use tombolo_testkit::wait_for;
use tombolo_tests::world::objects::Objects;
use tombolo_tests::world::{Api, DEADLINE, Transport, World};

use super::table::Row;

const NODE: &str = "bench";

/// Factor by which the node's periods are shortened while its traffic is measured.
const HASTE: u64 = 10;

/// The agent's default lease and status periods, in milliseconds (`edge/src/config.rs`).
const LEASE_MILLIS: u64 = 10_000;
const STATUS_MILLIS: u64 = 300_000;

/// Duration of the traffic measurement: a multiple of the shortened periods.
const MEASURED: Duration = Duration::from_millis(2 * STATUS_MILLIS / HASTE);

const DAY: Duration = Duration::from_secs(24 * 3600);

/// Pods on the idle node, and on the node whose memory is measured.
const IDLE_PODS: usize = 5;
const PODS: usize = 50;

/// Measures memory and traffic of an `edgecore` built for a device, with its local API enabled and in use.
pub(crate) async fn measure() -> Result<Vec<Row>> {
    let mut world = World::start(Api::Real, Transport::WebSocket).await?;
    world.set_periods(LEASE_MILLIS / HASTE, STATUS_MILLIS / HASTE);
    // A relay without a rate limit: it only counts the bytes that pass.
    world.slow_down(u32::MAX).await?;
    world.start_edge_program(NODE, &device_edgecore()?).await?;
    let objects = Objects::new(world.client().await?).await?;
    objects.config_map("settings", "1").await?;
    add_pods(&world, &objects, 0..IDLE_PODS).await;
    tokio::time::sleep(Duration::from_millis(STATUS_MILLIS / HASTE)).await;
    let before = world.relayed();
    tokio::time::sleep(MEASURED).await;
    let bytes = world.relayed() - before;
    let day = bytes as f64 * DAY.as_secs_f64() / (MEASURED.as_secs_f64() * HASTE as f64);

    add_pods(&world, &objects, IDLE_PODS..PODS).await;
    let process = Process::new(world.edge_id(NODE).context("edgecore is not running")?)?;
    let resident = process.read()?.resident;
    let seconds = MEASURED.as_secs();
    let idle =
        format!("a day of an idle node with {IDLE_PODS} pods, from {seconds} s at {HASTE} times the pace");
    Ok(vec![
        Row::once(&format!("agent with {PODS} pods, resident"), "MB", resident as f64 / 1e6).at_most(15.0),
        Row::once(&idle, "MB", day / 1e6).at_most(5.0),
    ])
}

/// The `edgecore` with profile `device`, which `cargo xtask bench` builds beside the other programs.
fn device_edgecore() -> Result<PathBuf> {
    let own = std::env::current_exe()?;
    let target = own.ancestors().nth(2).context("the benchmark is not in a target folder")?;
    let path = target.join("device/edgecore");
    ensure!(path.is_file(), "{} is not built: run `cargo xtask bench`", path.display());
    Ok(path)
}

/// Creates pods and waits until the local API lists them as running.
async fn add_pods(world: &World, objects: &Objects, numbers: std::ops::Range<usize>) {
    for number in numbers {
        let name = format!("pod-{number}");
        let create = || async {
            match objects.pod(&name, NODE, &["settings"], &[]).await {
                Err(error) if !format!("{error:#}").contains("AlreadyExists") => Err(format!("{error:#}")),
                _ => Ok(()),
            }
        };
        // A new namespace has no ServiceAccount at first, and pods are rejected until it has one.
        wait_for("a pod to be created", DEADLINE, create).await;
    }
    wait_for("every pod to run", DEADLINE, || async {
        let pods = objects.pods().list(&kube::api::ListParams::default()).await;
        let pods = pods.map_err(|error| error.to_string())?;
        let phase = |pod: &k8s_openapi::api::core::v1::Pod| pod.status.as_ref()?.phase.clone();
        let waiting = pods.iter().filter(|pod| phase(pod).as_deref() != Some("Running")).count();
        if waiting == 0 { Ok(()) } else { Err(format!("{waiting} pods do not run")) }
    })
    .await;
    world.converges(NODE).await;
}
