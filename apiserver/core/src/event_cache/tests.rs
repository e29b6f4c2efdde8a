use super::*;
use crate::kinds::Kinds;
use crate::kinds::strategy::NoStrategy;
use crate::schema::rules::NoRules;
use tombolo_proto::object::Resource;

fn key(kind: &Arc<KindInfo>, revision: u64) -> ShownKey {
    ShownKey {
        revision: Revision(revision),
        kind: SameKind(Arc::clone(kind)),
        form: Form::Metadata("v1"),
        include: Include::Metadata,
        event: "ADDED",
        columns: false,
    }
}

/// A separate instance with every call.
fn configmaps() -> Arc<KindInfo> {
    Kinds::builtin_with(&NoStrategy, Arc::new(NoRules))
        .get(&Resource::new("", "v1", "configmaps"))
        .unwrap()
        .clone()
}

#[test]
fn event_lines_are_cached_by_their_form_and_the_oldest_is_evicted() {
    let (kind, other) = (configmaps(), configmaps());
    let shown = EventCache::new(100);
    let ask = |key: &ShownKey, len: usize| shown.line(key, || vec![b'x'; len].into()).len();
    assert_eq!(ask(&key(&kind, 1), 40), 40);
    assert_eq!(ask(&key(&kind, 1), 1), 40, "kept");
    assert_eq!(ask(&key(&other, 1), 30), 30, "another edition of the kind");
    assert_eq!(ask(&ShownKey { event: "DELETED", ..key(&kind, 1) }, 30), 30);
    assert_eq!(ask(&key(&kind, 2), 10), 10, "beyond the bound, the first line is dropped");
    assert_eq!(shown.lines.lock().bytes, 70);
    assert_eq!(ask(&key(&kind, 1), 5), 5, "encoded again");
    assert_eq!(ask(&key(&kind, 3), 1000), 1000, "too large to be kept");
    let lines = shown.lines.lock();
    assert_eq!((lines.bytes, lines.kept.len()), (0, 0));
}

/// Writers of large objects cannot fill the memory with events that no watcher reads, and slow watchers share one copy.
#[test]
fn uncached_long_line_is_shared_by_its_readers() {
    let kind = configmaps();
    let shown = EventCache::new(100);
    let ask = |revision: u64| shown.line(&key(&kind, revision), || vec![b'x'; PASSING_LEN_MIN].into());
    let before = ENCODED.get();
    let first = ask(1);
    ask(2);
    assert_eq!(ask(1).as_ptr(), first.as_ptr());
    assert_eq!(ENCODED.get() - before, 2);
    drop(first);
    ask(1);
    assert_eq!(ENCODED.get() - before, 3, "no watcher has received it");
    assert_eq!(shown.lines.lock().bytes, 0);
}

#[test]
fn the_number_of_lines_is_bounded() {
    let kind = configmaps();
    let shown = EventCache::new(usize::MAX);
    for revision in 0..2 * LINES_MAX as u64 {
        shown.line(&key(&kind, revision), Bytes::new);
    }
    assert_eq!(shown.lines.lock().by_key.len(), LINES_MAX);
}
