//! Disks that are full, and store files that are damaged or torn.

use std::fs;
use std::os::unix::fs::FileExt;

use tombolo_testkit::wait_for;
use tombolo_tests::world::objects::Objects;
use tombolo_tests::world::{Api, DEADLINE, Transport, World};

const NODE: &str = "edge-a";

/// A world whose edge holds a pod with two ConfigMaps and a Secret.
async fn settled(limitable: bool) -> (World, Objects) {
    let mut world = World::start(Api::Embedded, Transport::WebSocket).await.unwrap();
    let objects = Objects::new(world.client().await.unwrap()).await.unwrap();
    for name in ["settings", "catalogue"] {
        objects.config_map(name, "1").await.unwrap();
    }
    objects.secret("password", "1").await.unwrap();
    if limitable {
        world.start_limitable_edge(NODE).await.unwrap();
    } else {
        world.start_edge(NODE).await.unwrap();
    }
    objects.accepted_pod("shop", NODE, &["settings", "catalogue"], &["password"]).await;
    world.converges(NODE).await;
    (world, objects)
}

async fn logged(world: &World, edge: bool, parts: &[&str]) {
    wait_for(&format!("{parts:?} in a log"), DEADLINE, || async {
        let log = if edge { world.edge_log(NODE) } else { world.cloud_log() };
        let lines: Vec<&str> = log.lines().collect();
        let found = lines.iter().any(|line| parts.iter().all(|part| line.contains(part)));
        if found { Ok(()) } else { Err(lines[lines.len().saturating_sub(10)..].join("\n")) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_is_told_on_both_sides_and_heals() {
    let (mut world, objects) = settled(true).await;
    let length = fs::metadata(world.edge_dir(NODE).join("store.redb")).unwrap().len();
    world.limit_edge_files(NODE, Some(length)).unwrap();
    // More than the file has free; not compressible, so that it stays more.
    let catalogue = noise(900 * 1024);
    objects.config_map("catalogue", &catalogue).await.unwrap();
    logged(
        &world,
        true,
        &["a delivery is refused", "catalogue", "the disk of the data folder is full: make room"],
    )
    .await;
    logged(&world, false, &["delivery refused", NODE, "catalogue", "the disk of the data folder is full"])
        .await;
    let local = objects.seen_by(world.edge_client(NODE).await.unwrap());
    let held = local.config_maps().get("settings").await.unwrap();
    assert_eq!(held.data.unwrap()["value"], "1", "what was held is still served");
    world.check_edge(NODE).unwrap();

    world.limit_edge_files(NODE, None).unwrap();
    // The refused version waits for its retry; a newer one does not.
    objects.config_map("catalogue", &format!("{catalogue}!")).await.unwrap();
    objects.config_map("settings", "2").await.unwrap();
    world.converges(NODE).await;
    world.check_edge(NODE).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_store_is_set_aside_and_filled_again() {
    let (mut world, objects) = settled(false).await;
    let path = world.edge_dir(NODE).join("store.redb");
    world.kill_edge(NODE);
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    let length = file.metadata().unwrap().len();
    for at in (0..length).step_by(4096) {
        file.write_all_at(&[0x5a; 512], at).unwrap();
    }
    drop(file);
    objects.config_map("settings", "2").await.unwrap();
    world.start_edge(NODE).await.unwrap();
    world.converges(NODE).await;
    logged(
        &world,
        true,
        &["the store was damaged and is moved aside", "the cloud fills a new one", "damaged-"],
    )
    .await;
    let aside = fs::read_dir(world.edge_dir(NODE)).unwrap().flatten();
    let aside = aside.filter(|entry| entry.file_name().to_string_lossy().contains("damaged-"));
    assert_eq!(aside.count(), 1, "kept for inspection");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_torn_last_write_costs_nothing_but_itself() {
    let (mut world, objects) = settled(false).await;
    let path = world.edge_dir(NODE).join("store.redb");
    for round in 2..5 {
        let update = tokio::spawn({
            let objects = objects.clone();
            async move { objects.config_map("settings", &round.to_string()).await.unwrap() }
        });
        world.kill_edge(NODE);
        // What the kernel had not written yet when the power went: the file's end, cut in the middle of a page.
        let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
        let length = file.metadata().unwrap().len();
        file.set_len(length - 100 * round).unwrap();
        drop(file);
        update.await.unwrap();
        world.start_edge(NODE).await.unwrap();
        world.converges(NODE).await;
    }
    world.check_edge(NODE).unwrap();
}

fn noise(length: usize) -> String {
    use rand::Rng as _;
    let mut random = rand::rng();
    (0..length).map(|_| char::from(random.sample(rand::distr::Alphanumeric))).collect()
}
