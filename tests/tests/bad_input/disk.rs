//! Full disks, and store files that are damaged or torn.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};
use tokio::time::Instant;
use tombolo_testkit::{wait_for, wait_for_value};
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
async fn full_disk_is_reported_on_both_sides_and_recovers() {
    let (mut world, objects) = settled(true).await;
    let length = fs::metadata(world.edge_dir(NODE).join("store.redb")).unwrap().len();
    world.limit_edge_files(NODE, Some(length)).unwrap();
    // Larger than the free space in the file, and incompressible, so that it stays larger.
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
    assert_eq!(held.data.unwrap()["value"], "1", "the object that the edge held is still served");
    world.check_edge(NODE).unwrap();

    world.limit_edge_files(NODE, None).unwrap();
    // The rejected version waits for its retry; a newer version does not.
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
    assert_eq!(set_aside(&world), 1, "kept for inspection");
}

/// Number of stores that were moved aside.
fn set_aside(world: &World) -> usize {
    let entries = fs::read_dir(world.edge_dir(NODE)).unwrap().flatten();
    entries.filter(|entry| entry.file_name().to_string_lossy().contains("damaged-")).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn torn_last_write_loses_only_itself() {
    let (mut world, objects) = settled(false).await;
    let path = world.edge_dir(NODE).join("store.redb");
    let mut torn = 0;
    for round in 2..40 {
        let before = settled_file(&world, &path).await;
        objects.config_map("settings", &round.to_string()).await.unwrap();
        let after = next_commit(&path, newest_commit(&before)).await;
        world.kill_edge(NODE);
        torn += usize::from(tear(&path, &before, &after));
        world.start_edge(NODE).await.unwrap();
        world.converges(NODE).await;
        if torn == 3 {
            break;
        }
    }
    assert_eq!(torn, 3, "the agent was never caught right after one commit");
    world.check_edge(NODE).unwrap();
    assert_eq!(set_aside(&world), 0, "the earlier commits are kept");
    let log = world.edge_log(NODE);
    assert!(!log.contains("moved aside"), "{log}");
}

/// Bytes of a page of the store's file.
const PAGE: usize = 4096;

/// Newest transaction in the header of a redb file, which has two slots for commits (redb's `docs/design.md`).
fn newest_commit(file: &[u8]) -> u64 {
    let at = |offset: usize| u64::from_le_bytes(file[offset..offset + 8].try_into().unwrap());
    at(64 + 104).max(at(192 + 104))
}

/// The file while the agent is halted: complete, without pending writes.
async fn settled_file(world: &World, path: &Path) -> Vec<u8> {
    wait_for_value("a moment without a commit", DEADLINE, || async {
        let id = world.edge_id(NODE).and_then(|id| Pid::from_raw(i32::try_from(id).ok()?)).unwrap();
        kill_process(id, Signal::STOP).unwrap();
        let (first, second) = (fs::read(path).unwrap(), fs::read(path).unwrap());
        kill_process(id, Signal::CONT).unwrap();
        if first == second { Ok(second) } else { Err("it was being written".to_owned()) }
    })
    .await
}

/// The file as soon as its header shows a newer commit.
async fn next_commit(path: &Path, before: u64) -> Vec<u8> {
    let end = Instant::now() + DEADLINE;
    loop {
        let file = fs::read(path).unwrap();
        if newest_commit(&file) > before {
            return file;
        }
        assert!(Instant::now() < end, "no commit after {before}");
        tokio::task::yield_now().await;
    }
}

/// Writes to the file what a power cut may leave of the commit after `before`: some of its pages, one of them torn, and
/// the header of either state. False when there was more than one commit.
fn tear(path: &Path, before: &[u8], after: &[u8]) -> bool {
    let killed = fs::read(path).unwrap();
    if newest_commit(&killed) != newest_commit(before) + 1 || killed != after || after.len() != before.len() {
        return false;
    }
    let mut pages = (1..after.len() / PAGE).map(|page| page * PAGE);
    let Some(last) = pages.rfind(|at| after[*at..at + PAGE] != before[*at..at + PAGE]) else { return false };
    let file = fs::OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(&before[last + PAGE / 2..last + PAGE], (last + PAGE / 2) as u64).unwrap();
    true
}

fn noise(length: usize) -> String {
    use rand::{Rng as _, SeedableRng as _};
    let mut random = rand::rngs::StdRng::seed_from_u64(1);
    (0..length).map(|_| char::from(random.sample(rand::distr::Alphanumeric))).collect()
}
