use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

use bytes::Bytes;
use proptest::prelude::*;
use tombolo_proto::ids::Uid;

use super::*;
use crate::store::{Expect, Write};

mod line;
mod shares;

fn configmaps() -> Resource {
    Resource::new("", "v1", "configmaps")
}

fn key(namespace: &str, name: &str) -> ObjectKey {
    ObjectKey::new(configmaps(), namespace, name)
}

fn put(key: &ObjectKey, expected: Expect, text: &str) -> Mutation {
    let body = Bytes::from(format!(r#"{{"metadata":{{}},"data":{{"text":"{text}"}}}}"#));
    Mutation { key: key.clone(), expected, write: Write::Put { uid: Uid::parse("u").unwrap(), body } }
}

fn delete(key: &ObjectKey) -> Mutation {
    Mutation { key: key.clone(), expected: Expect::Present, write: Write::Delete }
}

fn small() -> LogLimits {
    LogLimits { count: 16, ..LogLimits::default() }
}

fn commit(store: &MemoryStore, mutation: Mutation) -> Result<Arc<Stored>, StoreError> {
    futures::executor::block_on(store.commit(mutation))
}

#[test]
fn conditions_are_checked_and_named() {
    let store = MemoryStore::new(MemoryStore::START, small());
    let a = key("default", "a");
    assert!(matches!(commit(&store, delete(&a)), Err(StoreError::NotFound { .. })));
    let first = commit(&store, put(&a, Expect::Absent, "1")).unwrap();
    assert_eq!(first.revision, Revision(2));
    assert_eq!(first.body(), r#"{"metadata":{"resourceVersion":"2"},"data":{"text":"1"}}"#);
    assert!(matches!(commit(&store, put(&a, Expect::Absent, "2")), Err(StoreError::AlreadyExists { .. })));
    let stale = commit(&store, put(&a, Expect::Revision(Revision(1)), "2")).unwrap_err();
    let wanted = StoreError::Conflict { key: a.clone(), expected: Revision(1), found: Revision(2) };
    assert_eq!(stale, wanted);
    assert_eq!(store.revision(), Revision(2), "refused writes take no revision");
    let gone = commit(&store, delete(&a)).unwrap();
    assert_eq!(gone.body(), r#"{"metadata":{"resourceVersion":"3"},"data":{"text":"1"}}"#);
    assert_eq!(store.get(&a).unwrap(), None);
}

#[test]
fn memory_of_bodies_is_known_for_objects_and_history() {
    let store = MemoryStore::new(MemoryStore::START, LogLimits::default());
    assert_eq!(store.held(), Held::default());
    let (text, a) = ("x".repeat(1024), key("default", "a"));
    commit(&store, put(&a, Expect::Absent, &text)).unwrap();
    let len = store.get(&a).unwrap().unwrap().body_len() as u64;
    assert_eq!(store.held(), Held { objects: len, history: 0 }, "the body is not compressed yet");
    commit(&store, put(&a, Expect::Any, "")).unwrap();
    let now = store.get(&a).unwrap().unwrap().body_len() as u64;
    assert_eq!(store.held(), Held { objects: now, history: len });
    // Writes of other objects make it old.
    for number in 0..crate::stored::compressed::FRESH_COUNT_MAX {
        commit(&store, put(&key("default", &format!("b-{number}")), Expect::Absent, "")).unwrap();
    }
    let held = store.held();
    assert!(held.history < len / 4 && held.objects > now, "{held:?}");
    commit(&store, delete(&a)).unwrap();
    assert!(store.held().objects < held.objects && store.held().history > held.history, "{:?}", store.held());
}

#[test]
fn body_without_metadata_is_refused_without_using_a_revision() {
    let store = MemoryStore::new(MemoryStore::START, small());
    let write = Write::Put { uid: Uid::parse("u").unwrap(), body: Bytes::from_static(b"[1]") };
    let mutation = Mutation { key: key("default", "a"), expected: Expect::Any, write };
    assert!(matches!(commit(&store, mutation), Err(StoreError::Refused { .. })));
    assert_eq!(store.revision(), MemoryStore::START);
}

#[test]
fn namespaces_are_listed_apart_and_in_order() {
    let store = MemoryStore::new(MemoryStore::START, small());
    for (namespace, name) in [("b", "x"), ("a", "z"), ("a", "y"), ("ab", "w")] {
        commit(&store, put(&key(namespace, name), Expect::Absent, "")).unwrap();
    }
    let names = |namespace| -> Vec<String> {
        let items = store.list(&configmaps(), namespace).unwrap().items;
        items.iter().map(|item| format!("{}/{}", item.key.namespace(), item.key.name())).collect()
    };
    assert_eq!(names(None), ["a/y", "a/z", "ab/w", "b/x"]);
    assert_eq!(names(Some("a")), ["a/y", "a/z"]);
    assert_eq!(names(Some("c")), [""; 0]);
}

#[test]
fn watches_before_the_start_expire_and_future_ones_wait() {
    let store = MemoryStore::new(Revision(100), small());
    assert!(matches!(store.watch(&configmaps(), Revision(99)), Err(StoreError::Expired { .. })));
    assert!(store.watch(&configmaps(), Revision(100)).is_ok());
    let mut future = store.watch(&configmaps(), Revision(101)).unwrap();
    commit(&store, put(&key("default", "a"), Expect::Any, "")).unwrap();
    assert!(future.poll_ready().unwrap().is_empty(), "it is not after the revision");
    commit(&store, put(&key("default", "b"), Expect::Any, "")).unwrap();
    let seen: Vec<Revision> = future.poll_ready().unwrap().iter().map(|change| change.revision()).collect();
    assert_eq!(seen, [Revision(102)]);
}

/// A client that watches from the revision of the last event that it received.
#[test]
fn seen_change_is_never_in_the_future() {
    const CHANGES: u64 = 20_000;
    let store = MemoryStore::new(MemoryStore::START, small());
    let last = Revision(MemoryStore::START.0 + CHANGES);
    let mut seen = store.watch(&configmaps(), store.revision()).unwrap();
    let writer = store.clone();
    let writing = std::thread::spawn(move || {
        for _ in 0..CHANGES {
            commit(&writer, put(&key("default", "a"), Expect::Any, "")).unwrap();
        }
    });
    while store.revision() < last {
        match futures::executor::block_on(seen.next()) {
            Ok(Some(changes)) => {
                let shown = changes.last().unwrap().revision();
                // The change may have been dropped in the meantime, which is the other 410.
                if let Err(StoreError::Expired { requested, oldest }) = store.watch(&configmaps(), shown) {
                    assert!(
                        requested < oldest,
                        "{requested:?} was shown and {oldest:?} is said to be newest"
                    );
                }
            }
            Ok(None) => panic!("the resource is not forgotten"),
            // The client fell behind the sixteen changes that are kept.
            Err(_) => seen = store.watch(&configmaps(), store.revision()).unwrap_or(seen),
        }
    }
    writing.join().unwrap();
}

#[test]
fn a_forgotten_resource_ends_its_watches() {
    let store = MemoryStore::new(MemoryStore::START, small());
    commit(&store, put(&key("default", "a"), Expect::Absent, "")).unwrap();
    let mut stream = store.watch(&configmaps(), store.revision()).unwrap();
    store.forget(&configmaps());
    assert!(futures::executor::block_on(stream.next()).unwrap().is_none());
    assert!(store.list(&configmaps(), None).unwrap().items.is_empty());
}

#[derive(Debug, Clone)]
enum Op {
    Put(u8, u8),
    Delete(u8, u8),
    /// Disconnect watcher number n and let it resume or list again.
    Cut(usize),
    /// Let watcher number n read.
    Read(usize),
    /// Compare the state at an earlier time.
    Back(usize),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (0..3u8, 0..6u8).prop_map(|(namespace, name)| Op::Put(namespace, name)),
        2 => (0..3u8, 0..6u8).prop_map(|(namespace, name)| Op::Delete(namespace, name)),
        1 => (0..4usize).prop_map(Op::Cut),
        3 => (0..4usize).prop_map(Op::Read),
        1 => (0..200usize).prop_map(Op::Back),
    ]
}

type Contents = BTreeMap<ObjectKey, Arc<Stored>>;

fn contents(items: &[Arc<Stored>]) -> Contents {
    items.iter().map(|item| (item.key.clone(), Arc::clone(item))).collect()
}

/// A client that lists, watches, and lists again when its revision expired.
struct Client {
    state: Contents,
    revision: Revision,
    stream: Option<ChangeStream>,
}

impl Client {
    fn new() -> Self {
        Self { state: Contents::new(), revision: Revision(0), stream: None }
    }

    fn read(&mut self, store: &MemoryStore) {
        if self.stream.is_none() {
            match store.watch(&configmaps(), self.revision) {
                Ok(stream) => self.stream = Some(stream),
                Err(_) => return self.list(store),
            }
        }
        let Some(stream) = &mut self.stream else { return };
        loop {
            match stream.poll_ready() {
                Ok(batch) if batch.is_empty() => return,
                Ok(batch) => {
                    batch.iter().for_each(|change| apply(&mut self.state, &mut self.revision, change));
                }
                Err(_) => return self.list(store),
            }
        }
    }

    fn list(&mut self, store: &MemoryStore) {
        let snapshot = store.list(&configmaps(), None).unwrap();
        self.state = contents(&snapshot.items);
        self.revision = snapshot.revision;
        self.stream = None;
    }
}

/// Checks that the change fits the client's state: nothing was lost or repeated.
fn apply(state: &mut Contents, revision: &mut Revision, change: &Change) {
    assert!(change.revision() > *revision, "revisions only grow");
    *revision = change.revision();
    let known = state.get(&change.object.key).cloned();
    assert_eq!(known, change.previous, "each change follows from the one before");
    match change.kind {
        ChangeKind::Added => assert!(known.is_none()),
        _ => assert!(known.is_some()),
    }
    match change.kind {
        ChangeKind::Deleted => state.remove(&change.object.key),
        _ => state.insert(change.object.key.clone(), Arc::clone(&change.object)),
    };
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(tombolo_testkit::cases(300)))]

    #[test]
    fn watchers_and_old_lists_agree_with_a_brute_force_history(ops in prop::collection::vec(op(), 1..200)) {
        let store = MemoryStore::new(MemoryStore::START, small());
        let mut clients: Vec<Client> = (0..4).map(|_| Client::new()).collect();
        let mut history: Vec<(Revision, Contents)> = vec![(store.revision(), Contents::new())];
        for op in ops {
            match op {
                Op::Put(namespace, name) => {
                    let key = key(&format!("n{namespace}"), &format!("o{name}"));
                    let stored = commit(&store, put(&key, Expect::Any, &history.len().to_string())).unwrap();
                    let mut state = history.last().unwrap().1.clone();
                    state.insert(key, Arc::clone(&stored));
                    history.push((stored.revision, state));
                }
                Op::Delete(namespace, name) => {
                    let key = key(&format!("n{namespace}"), &format!("o{name}"));
                    let mut state = history.last().unwrap().1.clone();
                    match commit(&store, delete(&key)) {
                        Ok(gone) => {
                            prop_assert!(state.remove(&key).is_some());
                            history.push((gone.revision, state));
                        }
                        Err(_) => prop_assert!(!state.contains_key(&key)),
                    }
                }
                Op::Cut(index) => clients[index].stream = None,
                Op::Read(index) => clients[index].read(&store),
                Op::Back(steps) => {
                    let (revision, state) = &history[history.len().saturating_sub(1 + steps)];
                    match store.list_at(&configmaps(), None, *revision) {
                        Ok(snapshot) => {
                            prop_assert_eq!(&contents(&snapshot.items), state);
                            let keys: Vec<_> = snapshot.items.iter().map(|item| item.key.clone()).collect();
                            prop_assert!(keys.is_sorted());
                            let one = store.list_at(&configmaps(), Some("n1"), *revision).unwrap();
                            prop_assert!(one.items.iter().all(|item| item.key.namespace() == "n1"));
                            let count = state.keys().filter(|key| key.namespace() == "n1").count();
                            prop_assert_eq!(one.items.len(), count);
                        }
                        Err(_) => prop_assert!(steps >= small().count, "the log reaches further than that"),
                    }
                }
            }
        }
        for client in &mut clients {
            client.read(&store);
            prop_assert_eq!(&client.state, &history.last().unwrap().1);
        }
    }
}

#[test]
fn returning_resource_has_no_earlier_history() {
    let store = MemoryStore::new(MemoryStore::START, small());
    let before = store.revision();
    commit(&store, put(&key("default", "a"), Expect::Absent, "1")).unwrap();
    let seen = store.revision();
    store.forget(&configmaps());
    commit(&store, put(&key("default", "b"), Expect::Absent, "1")).unwrap();
    assert!(matches!(store.watch(&configmaps(), before), Err(StoreError::Expired { .. })));
    assert!(matches!(store.list_at(&configmaps(), None, before), Err(StoreError::Expired { .. })));
    let mut changes = store.watch(&configmaps(), seen).unwrap();
    assert_eq!(changes.poll_ready().unwrap().len(), 1);
}

#[test]
fn states_expire_by_time_in_an_idle_store() {
    let store = MemoryStore::new(MemoryStore::START, small());
    let begin = Instant::now();
    commit(&store, put(&key("default", "a"), Expect::Absent, "1")).unwrap();
    let page = store.revision();
    commit(&store, put(&key("default", "b"), Expect::Absent, "1")).unwrap();
    let newest = store.revision();
    let listable = |revision: Revision| store.list_at(&configmaps(), None, revision).is_ok();
    store.tick(begin + TICK_INTERVAL * 2);
    store.tick(begin + SNAPSHOT_AGE_MAX);
    assert!(listable(page) && listable(newest));
    store.tick(begin + SNAPSHOT_AGE_MAX + TICK_INTERVAL * 3);
    assert!(!listable(page), "it was overtaken more than five minutes ago");
    assert!(listable(newest), "it is still the newest");
}

proptest! {
    #[test]
    fn watch_misses_nothing_of_a_resource_that_comes_and_goes(
        ops in prop::collection::vec((0..8u8, 0..3u8), 1..80)
    ) {
        let store = MemoryStore::new(MemoryStore::START, LogLimits { count: 8, ..LogLimits::default() });
        let mut changes: Vec<Revision> = Vec::new();
        let mut withdrawn = None;
        for (op, name) in ops {
            let key = key("default", &name.to_string());
            match op {
                0 => {
                    store.forget(&configmaps());
                    withdrawn = (!changes.is_empty()).then(|| store.revision());
                    changes.clear();
                }
                1 => changes.extend(commit(&store, delete(&key)).ok().map(|gone| gone.revision)),
                _ => changes.push(commit(&store, put(&key, Expect::Any, "x")).unwrap().revision),
            }
            for since in 1..=store.revision().0 {
                let Ok(mut stream) = store.watch(&configmaps(), Revision(since)) else { continue };
                prop_assert!(withdrawn.is_none_or(|at| since >= at.0), "{since} is from before {withdrawn:?}");
                let mut seen = Vec::new();
                loop {
                    let batch = stream.poll_ready().unwrap();
                    if batch.is_empty() { break }
                    seen.extend(batch.iter().map(|change| change.revision()));
                }
                let wanted: Vec<_> = changes.iter().copied().filter(|change| change.0 > since).collect();
                prop_assert_eq!(seen, wanted);
            }
        }
    }
}

#[tokio::test]
async fn one_writer_cannot_fill_the_store_for_others() {
    let notebook = Arc::new(Notebook::default());
    let writers = WriterShares { prefix: "node:", share: 20_000, all: 90_000 };
    let rules = Rules { len_max: 100_000, writers: Some(writers), ..Rules::default() };
    let journal: Box<dyn Journal> = Box::new(Arc::clone(&notebook));
    let store = MemoryStore::restore(Revision(7), Vec::new(), Some(journal), small(), rules);
    let text = "x".repeat(8_000);
    let write = async |user: &str, name: &str, text: &str| {
        store.commit_for(put(&key("default", name), Expect::Any, text), user, None).await
    };
    write("node:a", "1", &text).await.unwrap();
    write("node:a", "2", &text).await.unwrap();
    let refused = write("node:a", "3", &text).await.unwrap_err();
    assert!(matches!(&refused, StoreError::OverShare { writer, .. } if writer == "node:a"), "{refused}");
    // Objects that cannot be stored count in no share.
    notebook.full.store(true, Ordering::SeqCst);
    write("node:b", "3", &text).await.unwrap_err();
    notebook.full.store(false, Ordering::SeqCst);
    write("node:b", "3", &text).await.unwrap();
    write("node:b", "4", &text).await.unwrap();
    write("node:a", "2", &text).await.unwrap();
    store.commit(delete(&key("default", "1"))).await.unwrap();
    write("node:a", "1", &text).await.unwrap();
    for number in 5..20 {
        if write("admin", &number.to_string(), &"x".repeat(4_000)).await.is_err() {
            break;
        }
    }
    assert!(store.size().0 > 90_000, "others have the last part: {:?}", store.size());
    let refused = write("node:c", "small", "x").await.unwrap_err();
    assert!(matches!(refused, StoreError::Full { max: 90_000, .. }), "{refused}");
    write("node:a", "1", &text).await.unwrap();
    store.commit_for(delete(&key("default", "1")), "node:a", None).await.unwrap();
    store.commit_for(delete(&key("default", "3")), "node:b", None).await.unwrap();
    write("node:c", "small", "x").await.unwrap();
}

/// Records what was appended; fails on demand.
#[derive(Default)]
struct Notebook {
    entries: Mutex<Vec<(Revision, bool)>>,
    batches: AtomicU64,
    full: AtomicBool,
}

impl Journal for Arc<Notebook> {
    fn append(&self, batch: &[JournalEntry]) -> Result<(), StoreError> {
        if self.full.load(Ordering::SeqCst) {
            return Err(StoreError::NotStored { reason: "the disk is full".to_owned() });
        }
        self.batches.fetch_add(1, Ordering::SeqCst);
        self.entries.lock().extend(batch.iter().map(|entry| (entry.object.revision, entry.deleted)));
        Ok(())
    }
}

fn durable(notebook: &Arc<Notebook>) -> MemoryStore {
    MemoryStore::restore(
        Revision(7),
        Vec::new(),
        Some(Box::new(Arc::clone(notebook))),
        small(),
        Rules::default(),
    )
}

#[tokio::test]
async fn a_write_is_journaled_before_it_is_answered() {
    let notebook = Arc::new(Notebook::default());
    let store = durable(&notebook);
    let a = key("default", "a");
    store.commit(put(&a, Expect::Absent, "1")).await.unwrap();
    store.commit(delete(&a)).await.unwrap();
    assert_eq!(*notebook.entries.lock(), [(Revision(8), false), (Revision(9), true)]);
}

#[tokio::test]
async fn unjournaled_write_is_invisible_and_blocks_nothing() {
    let notebook = Arc::new(Notebook::default());
    let store = durable(&notebook);
    let a = key("default", "a");
    notebook.full.store(true, Ordering::SeqCst);
    let refused = store.commit(put(&a, Expect::Absent, "1")).await.unwrap_err();
    assert!(matches!(refused, StoreError::NotStored { .. }), "{refused}");
    assert_eq!(store.get(&a).unwrap(), None);
    assert_eq!(store.revision(), Revision(7));
    notebook.full.store(false, Ordering::SeqCst);
    let stored = store.commit(put(&a, Expect::Absent, "1")).await.unwrap();
    assert_eq!(stored.revision, Revision(8));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_writes_share_batches_and_keep_their_conditions() {
    const WRITERS: usize = 64;
    let notebook = Arc::new(Notebook::default());
    let store = durable(&notebook);
    let one = key("default", "one");
    let same: Vec<_> = (0..WRITERS)
        .map(|_| {
            let (store, one) = (store.clone(), one.clone());
            tokio::spawn(async move { store.commit(put(&one, Expect::Absent, "x")).await.is_ok() })
        })
        .collect();
    let mut created = 0;
    for task in same {
        created += usize::from(task.await.unwrap());
    }
    assert_eq!(created, 1, "only one of them can have found it absent");
    let own = (0..WRITERS).map(|number| {
        let (store, own) = (store.clone(), key("default", &format!("n{number}")));
        async move { store.commit(put(&own, Expect::Absent, "x")).await.unwrap() }
    });
    futures::future::join_all(own).await;
    let revisions: Vec<_> = notebook.entries.lock().iter().map(|(revision, _)| revision.0).collect();
    assert_eq!(revisions, (8..8 + 1 + WRITERS as u64).collect::<Vec<_>>());
    let batches = notebook.batches.load(Ordering::SeqCst);
    assert!(
        batches < 1 + WRITERS as u64,
        "{batches} batches: writes that wait together are journaled together"
    );
}

#[tokio::test]
async fn abandoned_request_does_not_undo_its_write() {
    let notebook = Arc::new(Notebook::default());
    let store = durable(&notebook);
    let a = key("default", "a");
    let mut pending = store.commit(put(&a, Expect::Absent, "1"));
    let _ = futures::poll!(&mut pending);
    drop(pending);
    tombolo_testkit::wait_for("the write to land", Duration::from_secs(10), || async {
        store.get(&a).unwrap().map(drop).ok_or_else(|| "not there".to_owned())
    })
    .await;
}
