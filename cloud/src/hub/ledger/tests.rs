//! Ledgers that several cloudcores share.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::FutureExt as _;
use parking_lot::Mutex;
use tombolo_proto::session::kubeedge::LedgerEntry;
use tombolo_proto::{ObjectKey, Resource};

use super::*;

/// A store in memory.
#[derive(Default)]
struct Shelf(Mutex<HashMap<NodeId, (Record, u64)>>);

impl LedgerStore for Shelf {
    fn read<'a>(
        &'a self,
        node: &'a NodeId,
    ) -> BoxFuture<'a, Result<Option<(Record, RecordVersion)>, LedgerError>> {
        let found = self.0.lock().get(node).cloned();
        async move { Ok(found.map(|(record, version)| (record, version.to_string()))) }.boxed()
    }

    fn write<'a>(
        &'a self,
        node: &'a NodeId,
        expected: Option<&'a RecordVersion>,
        record: &'a Record,
    ) -> BoxFuture<'a, Result<RecordVersion, LedgerError>> {
        let mut shelf = self.0.lock();
        let current = shelf.get(node).map(|(_, version)| *version);
        let result = if current.map(|version| version.to_string()).as_ref() == expected {
            let version = current.unwrap_or_default() + 1;
            shelf.insert(node.clone(), (record.clone(), version));
            Ok(version.to_string())
        } else {
            Err(LedgerError::Conflict)
        };
        async move { result }.boxed()
    }
}

/// A store that counts its concurrent calls.
#[derive(Default)]
struct Counter {
    shelf: Shelf,
    present: AtomicUsize,
    most: AtomicUsize,
}

impl Counter {
    async fn counted<T>(&self, call: impl Future<Output = T>) -> T {
        let present = self.present.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(present, Ordering::SeqCst);
        // Lets all other calls that are allowed in start meanwhile.
        for _ in 0..3 {
            tokio::task::yield_now().await;
        }
        let outcome = call.await;
        self.present.fetch_sub(1, Ordering::SeqCst);
        outcome
    }
}

impl LedgerStore for Counter {
    fn read<'a>(
        &'a self,
        node: &'a NodeId,
    ) -> BoxFuture<'a, Result<Option<(Record, RecordVersion)>, LedgerError>> {
        self.counted(self.shelf.read(node)).boxed()
    }

    fn write<'a>(
        &'a self,
        node: &'a NodeId,
        expected: Option<&'a RecordVersion>,
        record: &'a Record,
    ) -> BoxFuture<'a, Result<RecordVersion, LedgerError>> {
        self.counted(self.shelf.write(node, expected, record)).boxed()
    }
}

fn ledger(names: &[&str]) -> Ledger {
    let mut ledger = Ledger::default();
    for name in names {
        let key = ObjectKey::new(Resource::new("", "v1", "pods"), "default", name);
        ledger.insert(key, LedgerEntry { kind: "Pod".into(), uid: None, revision: None }).expect("room");
    }
    ledger
}

fn version(saved: Saved) -> RecordVersion {
    match saved {
        Saved::Done(version) => version,
        other => panic!("not saved: {other:?}"),
    }
}

#[tokio::test]
async fn former_cloudcore_cannot_write_the_ledger_of_a_moved_node() {
    let store = Arc::new(Shelf::default());
    let [first, second] = ["first", "second"].map(|holder| Ledgers::new(store.clone(), holder));
    let node = NodeId::parse("edge-1").expect("a name");
    assert_eq!(first.open(&node).await.expect("empty"), Opened::default());
    let owner = Uid::parse("u").ok();
    let old = version(first.save(&node, None, ledger(&["a"]), owner.clone()).await);
    let Opened { ledger: seen, owner: found, version: new } = second.open(&node).await.expect("taken over");
    assert_eq!((seen, found, new.as_ref() == Some(&old)), (ledger(&["a"]), owner, false));
    assert!(matches!(first.save(&node, Some(old), ledger(&["b"]), None).await, Saved::TakenOver));
    version(second.save(&node, new, ledger(&["a", "c"]), None).await);
    assert_eq!(first.open(&node).await.expect("back again").ledger, ledger(&["a", "c"]));
}

#[tokio::test]
async fn concurrent_ledger_write_or_deletion_is_reported() {
    let store = Arc::new(Shelf::default());
    let ledgers = Ledgers::new(store.clone(), "one");
    let node = NodeId::parse("edge-1").expect("a name");
    let old = version(ledgers.save(&node, None, ledger(&["a"]), None).await);
    let new = version(ledgers.save(&node, Some(old.clone()), ledger(&["a", "b"]), None).await);
    match ledgers.save(&node, Some(old), ledger(&["c"]), None).await {
        Saved::Conflict(theirs, found) => {
            assert_eq!((theirs, found), (ledger(&["a", "b"]), Some(new.clone())));
        }
        other => panic!("{other:?}"),
    }
    store.0.lock().clear();
    let lost = ledgers.save(&node, Some(new), ledger(&["c"]), None).await;
    assert!(matches!(lost, Saved::Conflict(theirs, None) if theirs.is_empty()));
}

#[tokio::test]
async fn ledger_calls_of_a_thousand_nodes_are_limited() {
    let store = Arc::new(Counter::default());
    let ledgers = Ledgers::new(store.clone(), "one");
    let join = |number: usize| {
        let ledgers = &ledgers;
        async move {
            let node = NodeId::parse(&format!("edge-{number}")).expect("a name");
            let opened = ledgers.open(&node).await.expect("empty");
            version(ledgers.save(&node, opened.version, ledger(&["a"]), None).await);
        }
    };
    futures::future::join_all((0..1000).map(join)).await;
    assert_eq!(store.shelf.0.lock().len(), 1000);
    assert_eq!(store.most.load(Ordering::SeqCst), CALLS_MAX);
}
