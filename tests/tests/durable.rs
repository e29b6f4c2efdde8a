//! The embedded server's data survives kills at any time and a full disk, and its size is bounded.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api as Objects, Client};
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::json;
use tombolo_testkit::wait_for;
use tombolo_tests::world::{Api, DEADLINE, Transport, World};

/// How often the server is killed.
const KILLS: usize = 8;

/// Concurrent writers, each with its own objects.
const WRITERS: usize = 8;

/// Objects of one writer.
const NAMES: usize = 6;

/// Number of objects that are created and deleted together, and the size of each in bytes.
const CHURN: usize = 200;
const CHURN_LEN: usize = 20_000;

/// One writer's knowledge of one of its objects.
#[derive(Debug, Clone, Default)]
struct Known {
    /// The last acknowledged state; `None`: it does not exist.
    answered: Option<String>,
    /// States of later writes without an answer: each of them may have been stored.
    unanswered: Vec<Option<String>>,
}

type Beliefs = Arc<Mutex<BTreeMap<String, Known>>>;

fn map(name: &str, value: &str) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": name}, "data": {"value": value}})).unwrap()
}

fn value(object: &ConfigMap) -> Option<String> {
    object.data.as_ref()?.get("value").cloned()
}

/// Writes until a write fails because the server is gone. Returns how many writes were answered.
async fn write(maps: Objects<ConfigMap>, writer: usize, mut rng: StdRng, beliefs: Beliefs) -> u64 {
    for turn in 0_u64.. {
        let name = format!("w{writer}-{}", rng.random_range(0..NAMES));
        let text = format!("{writer} {turn} {}", rng.random::<u64>());
        let exists = {
            let mut beliefs = beliefs.lock();
            let known = beliefs.entry(name.clone()).or_default();
            let exists = known.answered.is_some();
            let deletes = exists && turn % 5 == 4;
            known.unanswered.push((!deletes).then(|| text.clone()));
            (exists, deletes)
        };
        let outcome = match exists {
            (_, true) => maps.delete(&name, &DeleteParams::default()).await.map(drop),
            (true, _) => {
                let patch = Patch::Merge(json!({"data": {"value": text}}));
                maps.patch(&name, &PatchParams::default(), &patch).await.map(drop)
            }
            (false, _) => maps.create(&PostParams::default(), &map(&name, &text)).await.map(drop),
        };
        if let Err(error) = outcome {
            assert!(!matches!(error, kube::Error::Api(_)), "the server rejected a write: {error}");
            return turn;
        }
        let mut beliefs = beliefs.lock();
        let known = beliefs.entry(name).or_default();
        known.answered = known.unanswered.pop().flatten();
        known.unanswered.clear();
    }
    unreachable!("a writer ends with its server")
}

/// Compares the stored state with the acknowledged states, and accepts the stored state from now on.
async fn compare(maps: &Objects<ConfigMap>, beliefs: &Beliefs) {
    let stored = maps.list(&ListParams::default()).await.unwrap();
    let stored: BTreeMap<String, Option<String>> =
        stored.items.iter().map(|object| (object.metadata.name.clone().unwrap(), value(object))).collect();
    for (name, known) in beliefs.lock().iter_mut() {
        let found = stored.get(name).cloned().flatten();
        let possible = found == known.answered || known.unanswered.contains(&found);
        assert!(possible, "{name} is {found:?}, but {known:?} was acknowledged or pending");
        *known = Known { answered: found, unanswered: Vec::new() };
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_at_any_time_loses_no_answered_write() {
    let seed = tombolo_testkit::seed();
    let mut rng = seed.rng();
    let mut world = World::start(Api::Embedded, Transport::WebSocket).await.unwrap();
    let beliefs = Beliefs::default();
    let mut newest = 0;
    for _ in 0..KILLS {
        let client = world.client().await.unwrap();
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let maps = Objects::default_namespaced(client.clone());
                let rng = StdRng::seed_from_u64(rng.random());
                tokio::spawn(write(maps, writer, rng, Arc::clone(&beliefs)))
            })
            .collect();
        // A random moment is the point of this test, so it does not wait for a condition.
        tokio::time::sleep(Duration::from_millis(rng.random_range(20..400))).await;
        world.kill_cloud();
        let mut written = 0;
        for writer in writers {
            written += tokio::time::timeout(DEADLINE, writer).await.expect("the writer did not end").unwrap();
        }
        world.start_cloud().await.unwrap();
        let maps: Objects<ConfigMap> = Objects::default_namespaced(world.client().await.unwrap());
        compare(&maps, &beliefs).await;
        let revision: u64 = maps
            .list(&ListParams::default())
            .await
            .unwrap()
            .metadata
            .resource_version
            .unwrap()
            .parse()
            .unwrap();
        let expected = newest + u64::from(written > 0);
        assert!(revision >= expected, "from {newest} the revision went to {revision} with {written} writes");
        newest = revision;
    }
    let answered = beliefs.lock().values().filter(|known| known.answered.is_some()).count();
    assert!(answered > WRITERS, "hardly anything was written: {answered} objects");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn file_size_follows_its_content() {
    let world = World::start(Api::Embedded, Transport::WebSocket).await.unwrap();
    let client = world.client().await.unwrap();
    let journal = world.cloud_dir().join("objects.redb");
    let mut lengths = Vec::new();
    for round in 0..6 {
        churn(&client, round).await;
        lengths.push(fs::metadata(&journal).unwrap().len());
    }
    // Freed pages are reused; otherwise the file would have grown by everything that was written.
    let written = 6 * 2 * CHURN * CHURN_LEN;
    assert!(lengths.iter().all(|length| *length < written as u64 / 2), "{lengths:?}, {written} were written");
}

/// Creates objects, writes each again, and deletes them.
async fn churn(client: &Client, round: usize) {
    let maps: Objects<ConfigMap> = Objects::default_namespaced(client.clone());
    let pad = format!("{round}").repeat(CHURN_LEN);
    let each = |number: usize| {
        let (maps, pad) = (maps.clone(), pad.clone());
        async move {
            let name = format!("churn-{number}");
            maps.create(&PostParams::default(), &map(&name, &pad)).await.unwrap();
            let patch = Patch::Merge(json!({"data": {"value": format!("{pad}!")}}));
            maps.patch(&name, &PatchParams::default(), &patch).await.unwrap();
            maps.delete(&name, &DeleteParams::default()).await.unwrap();
        }
    };
    futures::future::join_all((0..CHURN).map(each)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_disk_refuses_writes_and_serves_reads() {
    let world = World::start(Api::Embedded, Transport::WebSocket).await.unwrap();
    let maps: Objects<ConfigMap> = Objects::default_namespaced(world.client().await.unwrap());
    maps.create(&PostParams::default(), &map("kept", "1")).await.unwrap();
    let length = fs::metadata(world.cloud_dir().join("objects.redb")).unwrap().len();
    world.limit_cloud_files(Some(length)).unwrap();
    // Every write eventually needs new pages; free pages in the file are used first.
    let pad = "x".repeat(500_000);
    let mut refused = None;
    for number in 0..100 {
        if let Err(error) = maps.create(&PostParams::default(), &map(&format!("m{number}"), &pad)).await {
            refused = Some((number, error));
            break;
        }
    }
    let (number, refused) = refused.expect("the disk never became full");
    let kube::Error::Api(status) = refused else { panic!("no Status: {refused}") };
    assert_eq!((status.code, status.reason.as_str()), (500, "InternalError"), "{status:?}");
    assert!(status.message.contains("the disk of the data folder is full: make room on it"), "{status:?}");
    assert_eq!(value(&maps.get("kept").await.unwrap()).as_deref(), Some("1"));
    assert_eq!(maps.list(&ListParams::default().limit(500)).await.unwrap().items.len(), number + 2);
    world.limit_cloud_files(None).unwrap();
    wait_for("writes to be accepted again", DEADLINE, || async {
        let patch = Patch::Merge(json!({"data": {"value": "2"}}));
        maps.patch("kept", &PatchParams::default(), &patch).await.map(drop).map_err(|e| e.to_string())
    })
    .await;
}
