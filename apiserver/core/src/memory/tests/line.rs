//! The order in which writes wait for the disk.

use std::sync::mpsc;

use futures::FutureExt as _;
use futures::future::{BoxFuture, join_all};

use super::*;
use crate::auth::{AUTHENTICATED_GROUP, Attributes, Identity};
use crate::backend::{WriteBackend as _, WriteOptions, WriteReply, WriteRequest, WriteVerb};
use crate::kinds::Kinds;
use crate::query::params::Params;
use crate::senders::{Payer, Senders, Source};
use crate::status::ApiError;
use crate::write::LocalWrites;

type Batches = Arc<Mutex<Vec<Vec<(String, usize)>>>>;

/// A disk that blocks until it is released. It records names and lengths.
struct Disk {
    go: Mutex<mpsc::Receiver<()>>,
    batches: Batches,
}

impl Journal for Disk {
    fn append(&self, batch: &[JournalEntry]) -> Result<(), StoreError> {
        self.go.lock().recv().unwrap_err();
        let entry = |entry: &JournalEntry| (entry.object.key.name().to_owned(), entry.object.body_len());
        self.batches.lock().push(batch.iter().map(entry).collect());
        Ok(())
    }
}

/// A store, with what its disk has written and the guard that blocks the disk.
struct Held {
    store: MemoryStore,
    writes: LocalWrites,
    senders: Senders,
    batches: Batches,
    hold: mpsc::Sender<()>,
}

/// A store of these objects on a disk that blocks until [`Held::hold`] is dropped.
fn held(objects: Vec<Stored>) -> Held {
    let (hold, go) = mpsc::channel();
    let batches = Batches::default();
    let disk = Disk { go: Mutex::new(go), batches: Arc::clone(&batches) };
    let store = MemoryStore::restore(Revision(7), objects, Some(Box::new(disk)), small(), Rules::default());
    let writes = LocalWrites::new(Arc::new(store.clone()));
    Held { store, writes, senders: Senders::default(), batches, hold }
}

impl Held {
    fn payer(&self, name: &str) -> Payer {
        self.senders.find(&Identity::new(name, &[AUTHENTICATED_GROUP]), Source::of(None)).into()
    }

    /// How many writes wait for the disk.
    fn in_line(&self) -> usize {
        self.store.shared.queue.lock().waiting.len()
    }
}

fn request(payer: &Payer, verb: WriteVerb, name: &str, body: String) -> WriteRequest {
    let attributes = Attributes {
        verb: if verb == WriteVerb::Delete { "delete" } else { "create" }.to_owned(),
        namespace: "default".to_owned(),
        name: name.to_owned(),
        payer: payer.clone(),
        ..Attributes::default()
    };
    WriteRequest {
        attributes,
        kind: Arc::clone(Kinds::builtin().get(&configmaps()).unwrap()),
        verb,
        options: WriteOptions::default(),
        may_create: false,
        body: body.into(),
        content_type: "application/json".to_owned(),
        query: Params::default(),
        path_and_query: String::new(),
        authorization: None,
    }
}

fn creation(payer: &Payer, name: &str, len: usize) -> WriteRequest {
    let body = format!(r#"{{"metadata":{{"name":"{name}"}},"data":{{"text":"{}"}}}}"#, "x".repeat(len));
    request(payer, WriteVerb::Create, name, body)
}

fn deletion(payer: &Payer, name: &str) -> WriteRequest {
    request(payer, WriteVerb::Delete, name, String::new())
}

fn stored(name: &str, len: usize) -> Stored {
    let metadata = format!(r#"{{"name":"{name}","namespace":"default","uid":"u","resourceVersion":"7"}}"#);
    let body = format!(r#"{{"metadata":{metadata},"data":{{"text":"{}"}}}}"#, "x".repeat(len));
    Stored::new(key("default", name), Uid::parse("u").unwrap(), Revision(7), body.into())
}

/// Some senders write large objects as fast as they can: the writes of others queue behind only a few of these, and
/// each batch takes the disk a bounded time.
#[tokio::test]
async fn large_writes_of_one_sender_queue_without_delaying_others() {
    let held = held(Vec::new());
    let greedy = ["eve", "mallory", "trudy"].map(|name| (name, held.payer(name)));
    let large = |number: usize| greedy.iter().map(move |(name, payer)| (format!("{name}{number}"), payer));
    // Large for the queue, and small enough to be read directly, so that other reads of the process delay none of them.
    let requests = (0..80).flat_map(large).map(|(name, payer)| creation(payer, &name, 60 * 1024));
    let requests = requests.chain([creation(&held.payer("bob"), "bob", 10)]);
    let mut waiting: Vec<BoxFuture<'_, Result<WriteReply, ApiError>>> =
        requests.map(|request| held.writes.execute(request)).collect();
    assert!(waiting.iter_mut().all(|write| write.now_or_never().is_none()), "the disk rejects all writes");
    drop(held.hold);
    let refused: Vec<_> = join_all(waiting).await.into_iter().filter_map(Result::err).collect();
    assert!(refused.is_empty(), "{refused:?}");
    let batches = held.batches.lock();
    let written: Vec<&str> = batches.iter().flatten().map(|(name, _)| name.as_str()).collect();
    let before = written.iter().position(|name| *name == "bob").unwrap();
    assert!(before <= 3 * 68, "{before} of 68 that each of the others may have in line: {written:?}");
    assert_eq!(written.len(), 3 * 80 + 1);
    for batch in batches.iter() {
        let len: usize = batch.iter().map(|(_, len)| len).sum();
        assert!(len <= JOURNAL_BATCH_LEN_MAX + 64 * batch.len(), "{len} bytes at a time");
    }
}

/// A request may be cancelled; its queued writes still count for its sender.
#[tokio::test]
async fn queued_writes_of_abandoned_requests_count_for_their_sender() {
    let held = held(Vec::new());
    let eve = held.payer("eve");
    for number in 0..40 {
        let write = held.writes.execute(creation(&eve, &format!("eve{number}"), 900 * 1024));
        assert!(write.now_or_never().is_none(), "the disk rejects all writes");
    }
    let mut last: BoxFuture<'_, _> = held.writes.execute(creation(&held.payer("bob"), "bob", 10)).boxed();
    assert!((&mut last).now_or_never().is_none());
    drop(held.hold);
    assert!(last.await.is_ok());
    let written = held.batches.lock().iter().map(Vec::len).sum::<usize>();
    assert!(written <= 5, "{written} of four that eve may have in line, and one of bob");
}

/// A sender that deletes in a loop without waiting for answers blocks no other sender and is not refused.
#[tokio::test]
async fn deletions_of_one_sender_queue_and_are_never_refused() {
    let names = (0..8).map(|number| format!("large{number}"));
    let large = names.clone().map(|name| stored(&name, 1024 * 1024 - 512));
    let held = held(large.chain([stored("small", 10)]).collect());
    let eve = held.payer("eve");
    for _ in 0..JOURNAL_QUEUE_MAX + 100 {
        let gone = held.writes.execute(deletion(&eve, "small")).now_or_never();
        assert!(gone.is_none(), "neither created nor refused: {gone:?}");
    }
    assert!(held.in_line() <= 1024, "{} writes of one sender", held.in_line());
    let mut bob: BoxFuture<'_, _> = held.writes.execute(creation(&held.payer("bob"), "bob", 10)).boxed();
    assert!((&mut bob).now_or_never().is_none(), "it is in line");
    let payers = ["mallory", "trudy"].map(|name| held.payer(name));
    let more = names.zip(payers.iter().cycle()).map(|(name, payer)| deletion(payer, &name));
    let mut more = more.map(|request| held.writes.execute(request)).collect::<Vec<_>>();
    assert!(more.iter_mut().all(|write| write.now_or_never().is_none()), "the disk rejects all writes");
    drop(held.hold);
    assert!(bob.await.is_ok());
    assert!(
        join_all(more).await.iter().all(Result::is_ok),
        "a deleted object is removed when its write is processed"
    );
    for batch in held.batches.lock().iter() {
        let len: usize = batch.iter().map(|(_, len)| len).sum();
        assert!(len <= JOURNAL_BATCH_LEN_MAX + 64 * batch.len(), "{len} bytes at a time");
    }
    let left = held.store.list(&configmaps(), None).unwrap().items;
    assert_eq!(left.iter().map(|item| item.key.name()).collect::<Vec<_>>(), ["bob"]);
}
