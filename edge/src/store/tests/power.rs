use std::collections::BTreeMap;

use rand::Rng;
use rand::rngs::StdRng;
use tombolo_testkit::{Seed, seeds, times};

use super::*;

/// Power cuts in one run of the test. `TOMBOLO_POWER_CUTS` asks for more.
const CUTS: u64 = 1_000;

/// Power cuts of one disk.
const CUTS_OF_A_DISK: u64 = 20;

/// Disks whose seeds are the same in every run. As many others have new seeds.
const FIXED_DISKS: u64 = 25;

/// The expected content after a power loss: the acknowledged version of each object, or one that was being written when
/// the power was lost.
#[derive(Default)]
struct Oracle {
    acknowledged: BTreeMap<ObjectKey, Option<u64>>,
    in_flight: BTreeMap<ObjectKey, Vec<Option<u64>>>,
    revision: u64,
    reports: u64,
    /// Newest own write that was answered, and newest that was requested.
    own: (u64, u64),
}

impl Oracle {
    fn check(&self, store: &Store) {
        for (key, acknowledged) in &self.acknowledged {
            let found = match store.get(key) {
                Ok(found) => {
                    found.map(|stored| value(&stored)["data"]["at"].as_str().unwrap().parse().unwrap())
                }
                Err(StoreError::NotSynced { .. }) => None,
                Err(error) => panic!("{key}: {error}"),
            };
            let possible = self.in_flight.get(key).is_some_and(|versions| versions.contains(&found));
            assert!(
                found == *acknowledged || possible,
                "{key} is {found:?}, acknowledged was {acknowledged:?}"
            );
        }
        assert!(store.revision().0 >= self.revision, "the revision went back");
        let (held, told) = own(store);
        assert_eq!(held, told, "a write and its report are one");
        assert!((self.own.0..=self.own.1).contains(&held), "{held} of {:?}", self.own);
        let reports = store.counts().unwrap().reports - u64::from(told > 0);
        assert!((self.reports..=self.reports + 1).contains(&reports), "{reports} reports");
    }

    fn adopt(&mut self, store: &Store) {
        for (key, acknowledged) in &mut self.acknowledged {
            *acknowledged = store
                .get(key)
                .ok()
                .flatten()
                .map(|stored| value(&stored)["data"]["at"].as_str().unwrap().parse().unwrap());
        }
        self.in_flight.clear();
        let (held, told) = own(store);
        self.own = (held, held);
        self.reports = store.counts().unwrap().reports - u64::from(told > 0);
    }
}

fn random_batch(rng: &mut StdRng, revision: &mut u64) -> Vec<(ObjectKey, Option<u64>, Delivery)> {
    let one = |rng: &mut StdRng, revision: &mut u64| {
        let resource = ["configmaps", "secrets"][rng.random_range(0..2)];
        let key = key(resource, &format!("o{}", rng.random_range(0..6)));
        *revision += 1;
        if rng.random_bool(0.2) {
            return (key.clone(), None, delete(&key));
        }
        let delivery = upsert(&key, "u1", *revision, &[]);
        (key, Some(*revision), delivery)
    };
    // One version of an object per batch, as sessions deliver.
    let mut batch: BTreeMap<ObjectKey, (ObjectKey, Option<u64>, Delivery)> = BTreeMap::new();
    for _ in 0..rng.random_range(1..6) {
        let change = one(rng, revision);
        batch.insert(change.0.clone(), change);
    }
    batch.into_values().collect()
}

fn lease() -> ObjectKey {
    ObjectKey::new(Resource::new("coordination.k8s.io", "v1", "leases"), "kube-node-lease", "n")
}

/// The number in the node's own object, and the one in its waiting report; 0 if there is none.
fn own(store: &Store) -> (u64, u64) {
    let held = store.visible(&lease()).unwrap();
    let held = held.map_or(0, |held| value(&held)["data"]["at"].as_str().unwrap().parse().unwrap());
    let waiting = store.waiting(ReportKind::Lease, &lease()).unwrap();
    (held, waiting.map_or(0, |waiting| waiting.call.body.parse().unwrap()))
}

/// The next version of the node's own object, with its report.
fn own_write(store: &Store, number: u64) -> Result<OfflineWrite, ReadError> {
    let call = Call {
        method: "PATCH".to_owned(),
        path_and_query: "/".to_owned(),
        content_type: String::new(),
        body: number.to_string(),
    };
    let report = Report { kind: ReportKind::Lease, key: lease(), call, status: None, base: None };
    let replaced = store.waiting(ReportKind::Lease, &lease())?.map(|waiting| waiting.number);
    Ok(OfflineWrite {
        key: lease(),
        expected: store.visible(&lease())?.map(|held| held.revision),
        uid: Uid::parse("l").unwrap(),
        body: body(&lease(), "l", &json!({"at": number.to_string()})).to_string().into(),
        report: Some((report, replaced)),
    })
}

fn event(number: u64) -> Report {
    let key = ObjectKey::new(Resource::new("", "v1", "pods"), "default", &format!("p{number}"));
    let call = Call {
        method: "PATCH".to_owned(),
        path_and_query: "/".to_owned(),
        content_type: String::new(),
        body: "{}".to_owned(),
    };
    Report { kind: ReportKind::Status, key, call, status: None, base: None }
}

#[tokio::test]
async fn power_cuts_lose_no_acknowledged_write() {
    let disks = times("TOMBOLO_POWER_CUTS", CUTS).div_ceil(CUTS_OF_A_DISK);
    let fixed = FIXED_DISKS.min(disks / 2);
    for seed in seeds(disks - fixed).chain((0..fixed).map(Seed::fixed)) {
        let (disk, mut rng) = (FaultyDisk::new(seed.number()), seed.rng());
        let mut oracle = Oracle::default();
        let mut revision = 10;
        synced(&disk).await.close().await;
        for _ in 0..CUTS_OF_A_DISK {
            let store = open(&disk);
            oracle.check(&store);
            oracle.adopt(&store);
            disk.cut_after(rng.random_range(1..60));
            run_until_dark(&store, &mut oracle, &mut rng, &mut revision).await;
            store.close().await;
            disk.restart();
        }
        assert_eq!(disk.times_set_aside(), 0, "a power cut must not cost the store");
    }
}

async fn run_until_dark(store: &Store, oracle: &mut Oracle, rng: &mut StdRng, revision: &mut u64) {
    loop {
        if rng.random_bool(0.3) {
            *revision += 1;
            match store.report(event(*revision)).await {
                Ok(()) => oracle.reports += 1,
                Err(_) => return,
            }
        }
        if rng.random_bool(0.3) {
            oracle.own.1 += 1;
            let Ok(write) = own_write(store, oracle.own.1) else { return };
            match store.accept(write).await {
                Ok(accepted) => assert!(matches!(accepted, Accepted::Stored(_)), "{accepted:?}"),
                Err(_) => return,
            }
            oracle.own.0 = oracle.own.1;
        }
        let batch = random_batch(rng, revision);
        let deliveries = batch.iter().map(|(.., delivery)| delivery.clone()).collect();
        match store.apply(deliveries).await {
            Ok(outcomes) => {
                assert!(outcomes.iter().all(Result::is_ok));
                for (key, version, _) in batch {
                    oracle.acknowledged.insert(key, version);
                }
                oracle.revision = store.revision().0;
            }
            Err(_) => {
                for (key, version, _) in batch {
                    oracle.acknowledged.entry(key.clone()).or_default();
                    oracle.in_flight.entry(key).or_default().push(version);
                }
                return;
            }
        }
    }
}

#[tokio::test]
async fn full_disk_refuses_writes_and_serves_reads() {
    let disk = FaultyDisk::new(1);
    let store = synced(&disk).await;
    let small = key("configmaps", "small");
    apply(&store, &[upsert(&small, "u1", 1, &[])]).await;
    disk.set_capacity(disk.used());
    let large = |revision: u64| {
        let key = key("configmaps", &format!("large-{revision}"));
        let text = body(&key, "u1", &json!({"x": "x".repeat(400_000)})).to_string();
        let version = ObjectVersion {
            uid: Uid::parse("u1").unwrap(),
            revision: CloudRevision(revision),
            hash: ContentHash(0),
        };
        let change = Change::Upsert(Arc::new(SharedObject::new(key, version, text.into(), Vec::new())));
        Delivery { subscription: SubscriptionId::NODE, change }
    };
    let mut full = None;
    for revision in 2..40 {
        if let Err(error) = store.apply(vec![large(revision)]).await {
            full = Some((revision, error));
            break;
        }
    }
    let (revision, error) = full.expect("the disk must run full");
    assert_eq!(error, WriteError::Full);
    assert!(store.get(&small).unwrap().is_some(), "reads continue");
    assert_eq!(store.list(small.resource(), None).unwrap().items.len() as u64, revision - 1);
    disk.set_capacity(u64::MAX);
    apply(&store, &[large(revision)]).await;
    assert_eq!(disk.times_set_aside(), 0);
}

#[tokio::test]
async fn a_lost_key_means_another_store() {
    let disk = FaultyDisk::new(1);
    let store = synced(&disk).await;
    apply(&store, &[upsert(&key("secrets", "s"), "u1", 5, &[])]).await;
    store.close().await;
    let opened = Store::open_on(Box::new(disk), Sealer::new(&[1; 32]), LogBounds::default()).unwrap();
    assert!(opened.set_aside.unwrap().contains("encrypted with a key"), "the reason is logged");
}
