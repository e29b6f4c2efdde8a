//! Kept answers of the cloud, to serve the same requests later: replies to token requests, decisions about rights,
//! published documents. All are encrypted at rest. Each class has its own bounds. Beyond them, the owner with the most
//! answers of a class loses its oldest one first.

use std::collections::BTreeSet;

use bytes::Bytes;
use redb::{ReadableTable, Table};
use sha2::{Digest as _, Sha256};
use tombolo_proto::ids::Uid;

use super::error::{ReadError, WriteError, reading, storage};
use super::seal::Sealer;
use crate::fair::Fair;

/// Kinds of answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Replies to token requests. They belong to a pod and are deleted with it.
    Token,
    /// Decisions: the account of a token, or the rights of an account. They belong to the sender
    /// ([`Question::of_sender`]).
    Decision,
    /// Documents that the cluster publishes: keys, discovery, OpenAPI.
    Document,
}

impl Class {
    const fn tag(self) -> u8 {
        match self {
            Self::Token => 1,
            Self::Decision => 2,
            Self::Document => 3,
        }
    }

    /// Maximum number of answers of this class, and maximum bytes of one. Tokens: several for each pod of a full node.
    /// Documents: the OpenAPI document of a group can be large.
    fn bounds(self) -> (usize, usize) {
        match self {
            Self::Token => (1024, 64 * 1024),
            Self::Decision => (1024, 16 * 1024),
            Self::Document => (128, 4 * 1024 * 1024),
        }
    }
}

/// A request whose answer can be kept.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Question {
    class: Class,
    row_key: Vec<u8>,
}

impl Question {
    /// A question of a class. The parts are compared one by one.
    #[must_use]
    pub fn new(class: Class, parts: &[&str]) -> Self {
        Self::of_pod(class, None, parts)
    }

    /// A question that belongs to a pod. Its answer is deleted with the pod.
    #[must_use]
    pub fn of_pod(class: Class, pod: Option<&Uid>, parts: &[&str]) -> Self {
        Self::of(class, pod.map(Uid::as_str).unwrap_or_default(), parts)
    }

    /// A decision for a sender ([`tombolo_apicore::senders::name_of`]). A sender with many decisions loses only its
    /// own.
    #[must_use]
    pub fn of_sender(sender: &str, parts: &[&str]) -> Self {
        Self::of(Class::Decision, sender, parts)
    }

    fn of(class: Class, of: &str, parts: &[&str]) -> Self {
        let mut text = Sha256::new();
        for part in parts {
            text.update((part.len() as u64).to_be_bytes());
            text.update(part.as_bytes());
        }
        let mut row_key = owner(class, of);
        row_key.extend_from_slice(&text.finalize());
        Self { class, row_key }
    }
}

/// A kept answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CachedReply {
    /// When it was given, in seconds since the Unix epoch.
    pub given_at: u64,
    /// The answer.
    pub body: Bytes,
}

pub(super) type Answers<'t> = Table<'t, &'static [u8], &'static [u8]>;

/// Length of the time at the start of a row. It is not encrypted, so that the oldest row can be found without the key.
const TIME_LEN: usize = 8;

pub(super) fn read(
    rows: &impl ReadableTable<&'static [u8], &'static [u8]>,
    sealer: &Sealer,
    question: &Question,
) -> Result<Option<CachedReply>, ReadError> {
    let Some(row) = rows.get(question.row_key.as_slice()).map_err(reading)? else { return Ok(None) };
    let damaged = || ReadError::Damaged("answer");
    let (time, sealed) = row.value().split_first_chunk::<TIME_LEN>().ok_or_else(damaged)?;
    let body = sealer.open(&question.row_key, sealed).ok_or_else(damaged)?;
    Ok(Some(CachedReply { given_at: u64::from_le_bytes(*time), body }))
}

/// Whether a row can be read.
pub(super) fn is_sound(sealer: &Sealer, row_key: &[u8], row: &[u8]) -> bool {
    let sealed = row.split_first_chunk::<TIME_LEN>();
    sealed.is_some_and(|(_, sealed)| sealer.open(row_key, sealed).is_some())
}

pub(super) fn put(
    rows: &mut Answers<'_>,
    sealer: &Sealer,
    answers: &[(Question, CachedReply)],
) -> Result<(), WriteError> {
    let mut grown = BTreeSet::new();
    for (question, answer) in answers {
        if answer.body.len() > question.class.bounds().1 {
            continue;
        }
        let sealed = sealer.seal(&question.row_key, &answer.body);
        let sealed =
            sealed.ok_or_else(|| WriteError::Storage("no random numbers for encryption".to_owned()))?;
        let row = [answer.given_at.to_le_bytes().as_slice(), &sealed].concat();
        if rows.insert(question.row_key.as_slice(), row.as_slice()).map_err(storage)?.is_none() {
            grown.insert(question.class);
        }
    }
    grown.into_iter().try_for_each(|class| fit(rows, class))
}

/// Removes answers beyond the bound of a class. The owner with the most answers loses its oldest one first.
fn fit(rows: &mut Answers<'_>, class: Class) -> Result<(), WriteError> {
    let (start, end) = ([class.tag()], [class.tag() + 1]);
    let mut kept = Vec::new();
    for entry in rows.range(start.as_slice()..end.as_slice()).map_err(storage)? {
        let (row_key, row) = entry.map_err(storage)?;
        let time = row.value().first_chunk::<TIME_LEN>().map_or(0, |time| u64::from_le_bytes(*time));
        kept.push((time, row_key.value().to_vec()));
    }
    let count = class.bounds().0;
    if kept.len() <= count {
        return Ok(());
    }
    kept.sort_unstable();
    let mut left = Fair::new(count);
    for (_, row_key) in &kept {
        left.insert(row_key.get(..OWNER_END).unwrap_or_default(), row_key.as_slice(), 1, ());
    }
    for (_, row_key) in kept.iter().filter(|(_, row_key)| left.get(row_key.as_slice()).is_none()) {
        rows.remove(row_key.as_slice()).map_err(storage)?;
    }
    Ok(())
}

/// Removes the answers of a pod.
pub(super) fn forget_pod(rows: &mut Answers<'_>, pod: &Uid) -> Result<(), WriteError> {
    let start = owner(Class::Token, pod.as_str());
    let mut gone = Vec::new();
    for entry in rows.range(start.as_slice()..).map_err(storage)? {
        let row_key = entry.map_err(storage)?.0.value().to_vec();
        if !row_key.starts_with(&start) {
            break;
        }
        gone.push(row_key);
    }
    for row_key in gone {
        rows.remove(row_key.as_slice()).map_err(storage)?;
    }
    Ok(())
}

/// Length of the prefix with class and owner in a place.
const OWNER_END: usize = 33;

/// Prefix of the places of an owner's answers of a class.
fn owner(class: Class, owner: &str) -> Vec<u8> {
    let mut row_key = vec![class.tag()];
    row_key.extend_from_slice(&Sha256::digest(owner));
    row_key
}

#[cfg(test)]
mod tests {
    use super::super::tests::{KEY, delete, key, synced, upsert};
    use super::super::{FaultyDisk, FileMedium, LogBounds, Sealer, Store, SubscriptionId};
    use super::*;

    fn answer(given_at: u64, body: &'static str) -> CachedReply {
        CachedReply { given_at, body: Bytes::from_static(body.as_bytes()) }
    }

    async fn keep(store: &Store, question: &Question, answer: CachedReply) {
        store.keep_answer(question.clone(), answer).await.unwrap();
    }

    #[tokio::test]
    async fn kept_answers_survive_a_restart_encrypted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store.redb");
        let open = || {
            let medium = Box::new(FileMedium::new(&path));
            Store::open_on(medium, Sealer::new(&KEY), LogBounds::default()).unwrap().store
        };
        let store = open();
        let [one, other] = [["a", "bc"], ["ab", "c"]].map(|parts| Question::new(Class::Decision, &parts));
        keep(&store, &one, answer(5, "the-secret-answer")).await;
        keep(&store, &one, answer(6, "the-newer-answer")).await;
        store.close().await;
        let store = open();
        assert_eq!(store.answer(&one).unwrap(), Some(answer(6, "the-newer-answer")));
        assert_eq!(store.answer(&other).unwrap(), None);
        let file = std::fs::read(&path).unwrap();
        assert!(!file.windows(12).any(|bytes| bytes == b"newer-answer"), "encrypted");
    }

    #[tokio::test]
    async fn answers_of_a_pod_go_with_it() {
        let disk = FaultyDisk::new(1);
        let store = synced(&disk).await;
        let uid = |text: &str| Uid::parse(text).unwrap();
        store.apply(vec![upsert(&key("pods", "a"), "u1", 10, &[])]).await.unwrap();
        store.apply(vec![upsert(&key("pods", "b"), "u2", 11, &[])]).await.unwrap();
        let [first, second] = ["u1", "u2"].map(|pod| Question::of_pod(Class::Token, Some(&uid(pod)), &["q"]));
        keep(&store, &first, answer(1, "one")).await;
        keep(&store, &second, answer(1, "two")).await;
        assert!(store.holds_pod("default", "a", &uid("u1")).unwrap());
        assert!(!store.holds_pod("default", "a", &uid("u2")).unwrap());
        store.apply(vec![delete(&key("pods", "a"))]).await.unwrap();
        assert_eq!(store.answer(&first).unwrap(), None);
        assert_eq!(store.answer(&second).unwrap(), Some(answer(1, "two")));
        // Another object with the same name.
        store.apply(vec![upsert(&key("pods", "b"), "u3", 12, &[])]).await.unwrap();
        assert_eq!(store.answer(&second).unwrap(), None);
        assert!(store.inventory(SubscriptionId::NODE).unwrap().len() == 1);
    }

    #[tokio::test]
    async fn the_oldest_answers_of_a_class_make_room() {
        let store = synced(&FaultyDisk::new(1)).await;
        let question = |class, number: usize| Question::new(class, &[&number.to_string()]);
        let (count, len) = Class::Document.bounds();
        keep(&store, &question(Class::Decision, 0), answer(0, "of another class")).await;
        for number in 0..=count {
            keep(&store, &question(Class::Document, number), answer(number as u64 + 1, "document")).await;
        }
        assert_eq!(store.answer(&question(Class::Document, 0)).unwrap(), None);
        assert!(store.answer(&question(Class::Document, 1)).unwrap().is_some());
        assert!(store.answer(&question(Class::Decision, 0)).unwrap().is_some());
        let large = CachedReply { given_at: 1, body: vec![0; len + 1].into() };
        keep(&store, &question(Class::Document, 9999), large).await;
        assert_eq!(store.answer(&question(Class::Document, 9999)).unwrap(), None, "too large to be kept");
    }

    #[tokio::test]
    async fn sender_with_many_decisions_evicts_only_its_own() {
        let store = synced(&FaultyDisk::new(1)).await;
        let (count, _) = Class::Decision.bounds();
        let of = |sender: &str, number: usize| {
            (Question::of_sender(sender, &[&number.to_string()]), answer(number as u64, "yes"))
        };
        let held = |sender: &'static str, numbers: std::ops::Range<usize>| {
            let numbers = numbers.filter(|number| store.answer(&of(sender, *number).0).unwrap().is_some());
            numbers.collect::<Vec<_>>()
        };
        store.keep_answers((0..50).map(|number| of("shop", number)).collect()).await.unwrap();
        for first in [100, 1_000, 2_000] {
            store
                .keep_answers((first..first + 1_000).map(|number| of("eve", number)).collect())
                .await
                .unwrap();
        }
        assert_eq!(held("shop", 0..50), (0..50).collect::<Vec<_>>());
        assert_eq!(held("eve", 0..3_000), (3_000 - (count - 50)..3_000).collect::<Vec<_>>(), "the newest");
    }
}
