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

fn limited(count: usize, bytes: usize) -> Arc<Histories> {
    Histories::new(LogLimits { count, bytes, newest: 2, copies: true })
}

fn log(count: usize, bytes: usize) -> Arc<Log> {
    limited(count, bytes).log(Revision(10))
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
fn watch_stream_buffers_few_large_changes() {
    let log = log(100, 1 << 30);
    for (revision, length) in (11..).zip([1, BATCH_LEN_MAX / 2, BATCH_LEN_MAX / 2, 4 * BATCH_LEN_MAX, 1, 1]) {
        log.push(change(revision, length));
    }
    let mut stream = log.subscribe(Revision(10)).unwrap();
    let batches =
        std::iter::from_fn(|| Some(revisions(&stream.poll_ready().unwrap())).filter(|b| !b.is_empty()));
    assert_eq!(batches.collect::<Vec<_>>(), [vec![11, 12], vec![13], vec![14], vec![15, 16]]);
}

#[test]
fn revisions_older_than_the_log_have_expired() {
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
fn bytes_are_bounded_over_all_histories_and_the_largest_is_shortened() {
    let histories = limited(100, 1000);
    let (large, small) = (histories.log(Revision(10)), histories.log(Revision(10)));
    let push = |log: &Arc<Log>, revision: u64, length: usize| {
        log.push(change(revision, length));
        histories.fit([&large, &small].into_iter());
    };
    push(&small, 11, 100);
    for revision in 12..16 {
        push(&large, revision, 225);
    }
    assert_eq!(histories.bytes(), 1000);
    push(&large, 16, 1);
    assert_eq!(histories.bytes(), 776, "one change more than needed would be too many");
    assert!(large.subscribe(Revision(11)).is_err());
    assert_eq!(revisions(&small.subscribe(Revision(10)).unwrap().poll_ready().unwrap()), [11]);
    push(&large, 17, 5000);
    push(&large, 18, 5000);
    let left = large.subscribe(Revision(16)).unwrap().poll_ready().unwrap();
    assert_eq!(revisions(&left), [17, 18], "the newest events are kept, regardless of their size");
    drop((large, left));
    assert_eq!(histories.bytes(), 100, "what is dropped counts no longer");
}

#[test]
fn replaced_body_counts_with_its_replacing_change() {
    let histories = Histories::new(LogLimits::default());
    let log = histories.log(Revision(10));
    let first = Arc::clone(&change(11, 10).object);
    let second = Arc::clone(&change(12, 20).object);
    let gone = Arc::clone(&change(13, 30).object);
    let push = |kind, object: &Arc<Stored>, previous: Option<&Arc<Stored>>| {
        log.push(Arc::new(Change { kind, object: Arc::clone(object), previous: previous.cloned() }));
        histories.bytes()
    };
    assert_eq!(push(ChangeKind::Added, &first, None), 0);
    assert_eq!(push(ChangeKind::Modified, &second, Some(&first)), 10);
    assert_eq!(push(ChangeKind::Deleted, &gone, Some(&second)), 60);
    log.compact(Revision(12));
    assert_eq!(histories.bytes(), 50);
}

#[test]
fn idle_stream_survives_compaction() {
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
