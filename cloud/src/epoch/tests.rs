use std::sync::Arc;

use http::{Method, Request, Response};
use http_body_util::BodyExt as _;
use kube::Client;
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tombolo_proto::ObjectKey;

use super::*;
use crate::kube::resources;

/// A model of the API server, as far as epochs are concerned.
#[derive(Debug, Clone)]
struct Api {
    revision: u64,
    record: Option<Value>,
    /// A pod.
    pod: Option<Value>,
    /// Requests received.
    asked: Vec<String>,
}

impl Api {
    fn at(revision: u64) -> Arc<Mutex<Self>> {
        Arc::new(Mutex::new(Self { revision, record: None, pod: None, asked: Vec::new() }))
    }

    fn answer(&mut self, method: &Method, path: &str, body: &[u8]) -> (u16, Value) {
        if path.ends_with("/kube-system") {
            return (200, json!({"metadata": {"uid": "cluster"}}));
        }
        if let Some(pod) = self.pod.clone().filter(|_| path.ends_with("/pods/p")) {
            return (200, pod);
        }
        if *method == Method::GET {
            assert!(path.ends_with("/configmaps"), "everything is read in one list: {path}");
            let items: Vec<_> = self.record.iter().collect();
            return (
                200,
                json!({"metadata": {"resourceVersion": self.revision.to_string()}, "items": items}),
            );
        }
        let mut record: Value = serde_json::from_slice(body).expect("JSON");
        let known = self.record.as_ref().map(|record| &record["metadata"]["resourceVersion"]);
        if known != record["metadata"].get("resourceVersion") {
            return (409, json!({"message": "somebody else has written"}));
        }
        self.revision += 1;
        record["metadata"]["resourceVersion"] = self.revision.to_string().into();
        self.record = Some(record);
        (200, json!({}))
    }

    fn generation(&self) -> u64 {
        let record = self.record.as_ref().expect("recorded");
        record["data"]["generation"].as_str().and_then(|text| text.parse().ok()).expect("a number")
    }

    /// Restores the state of a snapshot.
    fn restored_to(&mut self, revision: u64, record: Option<Value>) {
        (self.revision, self.record) = (revision, record);
    }
}

fn kube(api: &Arc<Mutex<Api>>) -> Kube {
    let api = Arc::clone(api);
    let service = tower::service_fn(move |request: Request<Body>| {
        let api = Arc::clone(&api);
        async move {
            let (parts, body) = request.into_parts();
            let body = body.collect().await?.to_bytes();
            let mut api = api.lock();
            api.asked.push(format!("{} {}", parts.method, parts.uri));
            let (code, reply) = api.answer(&parts.method, parts.uri.path(), &body);
            let response = Response::builder().status(code).header("content-type", "application/json");
            Ok::<_, tower::BoxError>(response.body(Body::from(reply.to_string().into_bytes()))?)
        }
    });
    Kube::from(Client::new(service, "default"))
}

/// A replica whose folder is empty at its start, as with the shipped manifest.
async fn replica(api: &Arc<Mutex<Api>>, folder: &tempfile::TempDir) -> EpochKeeper {
    EpochKeeper::establish(kube(api), "kubeedge", folder.path()).await.expect("established")
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("folder")
}

#[tokio::test]
async fn running_replica_notices_a_restored_record_despite_higher_revisions() {
    let api = Api::at(100);
    let folder = folder();
    let mut first = replica(&api, &folder).await;
    api.lock().revision = 50;
    assert!(first.check(&NodeObjectCache::default(), None).await.expect("checked"), "the revision went back");
    let snapshot = api.lock().record.clone();
    api.lock().revision = 10;
    assert!(first.check(&NodeObjectCache::default(), None).await.expect("checked"));
    // Restored to the moment between the two, with many writes before anyone checked.
    api.lock().restored_to(1_000_000, snapshot);
    let before = first.epoch();
    assert!(first.check(&NodeObjectCache::default(), None).await.expect("checked"), "the record went back");
    assert!(first.epoch().generation > before.generation);
    assert!(!first.check(&NodeObjectCache::default(), None).await.expect("checked"), "once");
}

#[tokio::test]
async fn replica_that_missed_a_restore_learns_of_it_from_another() {
    let api = Api::at(100);
    let folders = [folder(), folder()];
    let (mut first, mut second) = (replica(&api, &folders[0]).await, replica(&api, &folders[1]).await);
    assert_eq!(first.epoch(), second.epoch());
    api.lock().revision = 50;
    assert!(first.check(&NodeObjectCache::default(), None).await.expect("checked"));
    api.lock().revision = 1_000_000;
    assert!(
        second.check(&NodeObjectCache::default(), None).await.expect("checked"),
        "its own numbers are no evidence"
    );
    assert_eq!(first.epoch(), second.epoch());
    for replica in [&mut first, &mut second] {
        assert!(
            !replica.check(&NodeObjectCache::default(), None).await.expect("checked"),
            "both are at rest"
        );
    }
}

fn claim(generation: u64, revision: u64) -> Option<HistoryProgress> {
    Some(HistoryProgress { generation, beat: 0, revision: CloudRevision(revision) })
}

#[tokio::test]
async fn restarted_replica_recognises_a_restore_by_an_edge_attestation() {
    let api = Api::at(100);
    let folders = [folder(), folder(), folder()];
    let before = replica(&api, &folders[0]).await.epoch().generation;
    let snapshot = api.lock().record.clone();
    // All replicas stop, and etcd goes back from revision 900 to 400.
    api.lock().restored_to(400, snapshot);
    let (mut first, mut second) = (replica(&api, &folders[1]).await, replica(&api, &folders[2]).await);
    assert_eq!(first.epoch().generation, before, "the two histories cannot be distinguished");
    assert!(!first.check(&NodeObjectCache::default(), None).await.expect("checked"));
    assert!(first.check(&NodeObjectCache::default(), claim(before, 900)).await.expect("checked"));
    assert!(first.epoch().generation > before);
    assert_eq!(api.lock().generation(), first.epoch().generation);
    // The other replica gets the same claim, and finds that the new epoch has begun.
    assert!(second.check(&NodeObjectCache::default(), claim(before, 900)).await.expect("checked"));
    assert_eq!(first.epoch(), second.epoch());
    for replica in [&mut first, &mut second] {
        assert!(
            !replica.check(&NodeObjectCache::default(), claim(before, 900)).await.expect("checked"),
            "once"
        );
    }
}

#[tokio::test]
async fn next_generation_exceeds_a_forgotten_one() {
    let api = Api::at(100);
    let folders = [folder(), folder()];
    let old = replica(&api, &folders[0]).await.epoch().generation;
    let snapshot = api.lock().record.clone();
    // Two epochs later, far in the future of this clock, everything is restored, the record included.
    let future = unix_seconds() * 2;
    api.lock().restored_to(1_000_000, snapshot);
    let mut replica = replica(&api, &folders[1]).await;
    assert_eq!(replica.epoch().generation, old);
    assert!(replica.check(&NodeObjectCache::default(), claim(future, 5)).await.expect("checked"));
    assert!(replica.epoch().generation > future, "the claimed epoch was another one as well");
    assert_eq!(api.lock().generation(), replica.epoch().generation);
}

#[tokio::test]
async fn valid_attestation_begins_no_epoch() {
    let (api, folder) = (Api::at(100), folder());
    let mut replica = replica(&api, &folder).await;
    let before = replica.epoch();
    api.lock().revision = 900;
    for claim in [claim(before.generation, 900), claim(before.generation - 1, u64::MAX), claim(0, 0), None] {
        assert!(!replica.check(&NodeObjectCache::default(), claim).await.expect("checked"), "{claim:?}");
    }
    // Deleting the record is not a restore.
    api.lock().record = None;
    let holds = claim(before.generation, 900);
    assert!(!replica.check(&NodeObjectCache::default(), holds).await.expect("checked"));
    assert_eq!(replica.epoch(), before);
}

/// One check after the beat interval.
async fn beat(replica: &mut EpochKeeper) {
    tokio::time::advance(BEAT_INTERVAL).await;
    assert!(!replica.check(&NodeObjectCache::default(), None).await.expect("checked"));
}

#[tokio::test(start_paused = true)]
async fn restored_history_is_recognised_by_its_counter() {
    let api = Api::at(100);
    let folders = [folder(), folder()];
    let mut before = replica(&api, &folders[0]).await;
    let snapshot = api.lock().record.clone();
    beat(&mut before).await;
    assert!(
        !before.check(&NodeObjectCache::default(), None).await.expect("checked"),
        "a look shows what was written"
    );
    assert_eq!(before.progress().beat, 1);
    // A restore that raises revisions, or that was followed by many writes, while no replica ran.
    api.lock().restored_to(1_000_000, snapshot.clone());
    let mut after = replica(&api, &folders[1]).await;
    assert!(!after.check(&NodeObjectCache::default(), None).await.expect("checked"));
    assert!(after.check(&NodeObjectCache::default(), Some(before.progress())).await.expect("checked"));
    assert!(after.epoch().generation > before.epoch().generation);
    // A running replica, and one with its old folder, detect it by themselves.
    api.lock().restored_to(2_000_000, snapshot.clone());
    assert!(before.check(&NodeObjectCache::default(), None).await.expect("checked"));
    api.lock().restored_to(3_000_000, snapshot);
    assert!(replica(&api, &folders[0]).await.epoch().generation > before.epoch().generation);
}

#[tokio::test(start_paused = true)]
async fn beat_raised_by_one_replica_counts_for_all() {
    let api = Api::at(100);
    let folders = [folder(), folder()];
    let (mut first, mut second) = (replica(&api, &folders[0]).await, replica(&api, &folders[1]).await);
    let writes = || api.lock().asked.iter().filter(|asked| asked.starts_with("PUT")).count();
    assert_eq!(writes(), 0);
    beat(&mut first).await;
    for replica in [&mut first, &mut second] {
        assert!(!replica.check(&NodeObjectCache::default(), None).await.expect("checked"));
    }
    // Its own interval has passed as well, but it has seen that another replica wrote.
    assert!(!second.check(&NodeObjectCache::default(), None).await.expect("checked"));
    assert_eq!((writes(), first.progress(), second.progress().beat), (1, second.progress(), 1));
    // The next beat creates a deleted record again.
    let generation = api.lock().generation();
    api.lock().record = None;
    beat(&mut first).await;
    let back = api.lock().generation();
    assert_eq!((back, writes()), (generation, 1));
}

/// Within one history, whatever has the name of an object is at least as new as what was seen of it.
#[tokio::test]
async fn an_older_object_of_any_incarnation_tells_of_a_restore() {
    for (uid, revision, expected) in
        [("u", 105, true), ("other", 105, true), ("u", 110, false), ("other", 112, false)]
    {
        let (api, folder) = (Api::at(100), folder());
        let mut replica = replica(&api, &folder).await;
        api.lock().revision = 200;
        api.lock().pod = Some(json!({"metadata": {"uid": uid, "resourceVersion": revision.to_string()}}));
        let down = NodeObjectCache::default();
        let key = ObjectKey::new(resources::pods(), "d", "p");
        down.saw(ObservedVersion { key, uid: Uid::parse("u").expect("valid"), revision: CloudRevision(110) });
        down.observed_versions().suspect();
        let went_back = replica.check(&down, None).await.expect("checked");
        assert_eq!(went_back, expected, "{uid} at {revision}");
    }
}

#[tokio::test]
async fn epoch_check_is_one_read() {
    let (api, folder) = (Api::at(100), folder());
    let mut replica = replica(&api, &folder).await;
    api.lock().asked.clear();
    assert!(!replica.check(&NodeObjectCache::default(), None).await.expect("checked"));
    let one = "GET /api/v1/namespaces/kubeedge/configmaps?fieldSelector=metadata.name%3Dtombolo-epoch";
    assert_eq!(api.lock().asked, [one]);
}

#[tokio::test]
async fn a_contended_record_is_written_by_one() {
    let api = Api::at(100);
    let folders = [folder(), folder()];
    let (mut first, mut second) = (replica(&api, &folders[0]).await, replica(&api, &folders[1]).await);
    let before = first.epoch().generation;
    let (look, known) = (record::look(&second.kube.0, "kubeedge").await.expect("read"), second.progress());
    assert!(first.check(&NodeObjectCache::default(), claim(before, 900)).await.expect("checked"));
    // What the second replica read is outdated: its write is refused, and it adopts what it finds.
    second.agree(look, known, true).await.expect("agreed");
    assert_eq!(first.epoch(), second.epoch());
}
