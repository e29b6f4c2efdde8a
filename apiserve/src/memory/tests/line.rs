//! Who waits for the disk behind whom.

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

/// A disk that takes nothing until it may go on. Remembers names and lengths.
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

fn creation(payer: &Payer, name: &str, len: usize) -> WriteRequest {
    let attributes = Attributes {
        verb: "create".to_owned(),
        namespace: "default".to_owned(),
        payer: payer.clone(),
        ..Attributes::default()
    };
    let body = format!(r#"{{"metadata":{{"name":"{name}"}},"data":{{"text":"{}"}}}}"#, "x".repeat(len));
    WriteRequest {
        attributes,
        kind: Arc::clone(Kinds::builtin().get(&configmaps()).unwrap()),
        verb: WriteVerb::Create,
        options: WriteOptions::default(),
        may_create: false,
        body: body.into(),
        content_type: "application/json".to_owned(),
        query: Params::default(),
        path_and_query: String::new(),
        authorization: None,
    }
}

/// Some write large objects as fast as they can: what others write stands in line behind a few of these, and each batch takes
/// the disk a bounded time.
#[tokio::test]
async fn large_writes_of_one_sender_wait_behind_each_other_and_not_before_those_of_others() {
    let (hold, go) = mpsc::channel();
    let batches = Batches::default();
    let disk = Disk { go: Mutex::new(go), batches: Arc::clone(&batches) };
    let store =
        MemoryStore::restore(Revision(7), Vec::new(), Some(Box::new(disk)), small(), Rules::default());
    let writes = LocalWrites::new(Arc::new(store));
    let senders = Senders::default();
    let payer = |name: &str| {
        Payer::from(senders.find(&Identity::new(name, &[AUTHENTICATED_GROUP]), Source::of(None)))
    };
    let greedy = ["eve", "mallory", "trudy"].map(|name| (name, payer(name)));
    let large = |number: usize| greedy.iter().map(move |(name, payer)| (format!("{name}{number}"), payer));
    let requests = (0..12).flat_map(large).map(|(name, payer)| creation(payer, &name, 900 * 1024));
    let mut waiting: Vec<BoxFuture<'_, Result<WriteReply, ApiError>>> =
        requests.chain([creation(&payer("bob"), "bob", 10)]).map(|request| writes.execute(request)).collect();
    assert!(waiting.iter_mut().all(|write| write.now_or_never().is_none()), "the disk takes nothing");
    drop(hold);
    assert!(join_all(waiting).await.iter().all(Result::is_ok));
    let batches = batches.lock();
    let written: Vec<&str> = batches.iter().flatten().map(|(name, _)| name.as_str()).collect();
    let before = written.iter().position(|name| *name == "bob").unwrap();
    assert!(before <= 3 * 4, "{before} of four that each of the others may have in line: {written:?}");
    assert_eq!(written.len(), 37);
    for batch in batches.iter() {
        let len: usize = batch.iter().map(|(_, len)| len).sum();
        assert!(len <= JOURNAL_BATCH_LEN_MAX + 64 * batch.len(), "{len} bytes at a time");
    }
}
