use bytes::Bytes;
use tombolo_proto::ids::Uid;
use tombolo_proto::object::{ObjectKey, Resource};

use super::*;

fn change(revision: u64, length: usize) -> Arc<Change> {
    let key = ObjectKey::new(Resource::new("", "v1", "configmaps"), "default", "a");
    let body = Bytes::from(vec![b'x'; length]);
    let object = Stored::new(key, Uid::parse("u").unwrap(), Revision(revision), body);
    Arc::new(Change { kind: ChangeKind::Modified, object: Arc::new(object), previous: None })
}

fn revisions(changes: &[Arc<Change>]) -> Vec<u64> {
    changes.iter().map(|change| change.revision().0).collect()
}

fn log(count: usize, bytes: usize) -> Arc<Log> {
    Log::new(Revision(10), LogLimits { count, bytes })
}

#[test]
fn a_stream_sees_every_change_once() {
    let log = log(100, 1 << 20);
    log.push(change(11, 1));
    log.push(change(15, 1));
    let mut stream = log.subscribe(Revision(11)).unwrap();
    assert_eq!(revisions(&stream.poll_ready().unwrap()), [15]);
    assert!(stream.poll_ready().unwrap().is_empty());
    log.push(change(16, 1));
    assert_eq!(revisions(&stream.poll_ready().unwrap()), [16]);
}

#[test]
fn what_is_older_than_the_log_has_expired() {
    let log = log(2, 1 << 20);
    assert!(log.subscribe(Revision(9)).is_err());
    let mut slow = log.subscribe(Revision(10)).unwrap();
    for revision in 11..14 {
        log.push(change(revision, 1));
    }
    let expired = StoreError::Expired { requested: Revision(10), oldest: Revision(11) };
    assert_eq!(slow.poll_ready().unwrap_err(), expired);
    assert_eq!(log.subscribe(Revision(10)).unwrap_err(), expired);
    assert_eq!(revisions(&log.subscribe(Revision(11)).unwrap().poll_ready().unwrap()), [12, 13]);
}

#[test]
fn bytes_are_bounded_and_the_newest_change_always_stays() {
    let log = log(100, 100);
    log.push(change(11, 60));
    log.push(change(12, 60));
    assert!(log.subscribe(Revision(10)).is_err());
    log.push(change(13, 5000));
    assert_eq!(revisions(&log.subscribe(Revision(12)).unwrap().poll_ready().unwrap()), [13]);
}

#[test]
fn an_idle_stream_survives_compaction_of_what_it_does_not_need() {
    let log = log(100, 1 << 20);
    let mut idle = log.subscribe(Revision(10)).unwrap();
    let mut behind = log.subscribe(Revision(10)).unwrap();
    idle.advance(Revision(50));
    log.compact(Revision(40));
    assert!(idle.poll_ready().unwrap().is_empty());
    assert!(behind.poll_ready().is_err());
}

#[tokio::test]
async fn a_waiting_stream_wakes_up_for_changes_and_for_the_end() {
    let log = log(100, 1 << 20);
    let mut stream = log.subscribe(Revision(10)).unwrap();
    let waiting = tokio::spawn(async move {
        let first = stream.next().await.unwrap().map(|batch| revisions(&batch));
        let end = stream.next().await.unwrap().map(|batch| revisions(&batch));
        (first, end)
    });
    tokio::task::yield_now().await;
    log.push(change(11, 1));
    tokio::task::yield_now().await;
    log.close();
    let (first, end) = waiting.await.unwrap();
    assert_eq!(first, Some(vec![11]));
    assert_eq!(end, None);
}
