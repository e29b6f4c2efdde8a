//! Where the records are kept: a fixed number of Secrets, so that a Role can name them.
//!
//! What is in memory of a Secret only moves forward by the API's version of it: what a watch or a slow read tells is often older
//! than what was read or written here meanwhile. One answer goes back: that of a read that began when a later version was
//! known here. The API reads what was written last, so its history has gone back (a restored etcd).

use std::collections::BTreeMap;

use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};
use tombolo_proto::NodeId;

use super::entry::Entry;
use super::{IdentityError, SHARDS};
use crate::bootstrap::secrets::{SecretData, SecretError, SecretStore, StoredSecret};

/// Attempts to write while others write too.
const ATTEMPTS: usize = 16;

/// Which Secret has the record of a name.
pub(super) fn shard_of(node: &NodeId) -> usize {
    usize::from(Sha256::digest(node.as_str())[0]) % SHARDS
}

/// Name of a Secret.
#[must_use]
pub(super) fn name_of(shard: usize) -> String {
    format!("{}-{shard}", super::SECRET_PREFIX)
}

/// Which Secret has this name.
fn named(name: &str) -> Option<usize> {
    (0..SHARDS).find(|shard| name_of(*shard) == name)
}

/// What is in memory of one Secret.
#[derive(Debug, Default)]
struct Shard {
    entries: BTreeMap<String, Entry>,
    /// The API's version of it; 0 until it was read.
    version: u64,
    /// Bytes of the records.
    len: usize,
}

/// All records, as far as they are known here.
#[derive(Debug, Default)]
pub(super) struct Shelf {
    shards: [Mutex<Shard>; SHARDS],
    /// One write at a time to each Secret from this process: the others would only conflict.
    writing: [tokio::sync::Mutex<()>; SHARDS],
}

impl Shelf {
    /// Whether every Secret has been read.
    pub(super) fn is_known(&self) -> bool {
        self.versions().iter().all(|version| *version > 0)
    }

    /// What is known here about a name.
    pub(super) fn get(&self, node: &NodeId) -> Option<Entry> {
        self.shards[shard_of(node)].lock().entries.get(node.as_str()).cloned()
    }

    /// The versions that are known, as a question to the API begins.
    pub(super) fn versions(&self) -> [u64; SHARDS] {
        std::array::from_fn(|shard| self.shards[shard].lock().version)
    }

    /// Bytes and names of each Secret.
    pub(super) fn sizes(&self) -> [(usize, usize); SHARDS] {
        std::array::from_fn(|shard| {
            let shard = self.shards[shard].lock();
            (shard.len, shard.entries.len())
        })
    }

    /// Takes what a watch tells of a Secret. With `asked`, the versions that were known when the API was asked, it is the
    /// answer to a question.
    pub(super) fn take(
        &self,
        name: &str,
        version: &str,
        data: &SecretData,
        asked: Option<&[u64; SHARDS]>,
    ) -> bool {
        let Some(shard) = named(name) else { return false };
        let asked = asked.map(|versions| versions[shard]);
        self.put(shard, version, asked, || (read(data), len_of(data)))
    }

    fn put(
        &self,
        shard: usize,
        version: &str,
        asked: Option<u64>,
        content: impl FnOnce() -> (BTreeMap<String, Entry>, usize),
    ) -> bool {
        let version = version.parse().unwrap_or(0);
        let mut kept = self.shards[shard].lock();
        let went_back = asked.is_some_and(|asked| version < asked && kept.version >= asked);
        if version <= kept.version && !went_back {
            return false;
        }
        let (mut entries, len) = content();
        if !went_back {
            keep_latest(&mut entries, &kept.entries);
        }
        *kept = Shard { entries, version, len };
        true
    }

    /// What the API has about a name now.
    pub(super) async fn refresh(
        &self,
        store: &dyn SecretStore,
        node: &NodeId,
    ) -> Result<Option<Entry>, SecretError> {
        let name = name_of(shard_of(node));
        let asked = self.versions();
        // A record that was deleted whole: what is known stays, so that nothing that was revoked comes back.
        let Some(stored) = store.get(&name).await? else { return Ok(self.get(node)) };
        self.take(&name, &stored.version, &stored.data, Some(&asked));
        // What is known by now may be later than what was read.
        Ok(self.get(node))
    }

    /// Reads every Secret, and makes those that are missing.
    pub(super) async fn open(&self, store: &dyn SecretStore) -> Result<(), SecretError> {
        for shard in 0..SHARDS {
            let name = name_of(shard);
            if store.get(&name).await?.is_none() {
                match store.create(&name, SecretData::new()).await {
                    Ok(_) | Err(SecretError::Exists { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
            if let Some(stored) = store.get(&name).await? {
                self.take(&name, &stored.version, &stored.data, None);
            }
        }
        Ok(())
    }

    /// Changes the record of one name by compare-and-swap. `change` is asked again for each version that it is read
    /// in; when it has nothing to change, what it gives is the result. What makes the Secret larger than `room` is refused.
    pub(super) async fn change<T>(
        &self,
        store: &dyn SecretStore,
        node: &NodeId,
        room: usize,
        over: impl Fn(&Entry) -> bool + Send + Sync,
        mut change: impl FnMut(Option<&Entry>) -> Result<Option<Entry>, T> + Send,
    ) -> Result<Result<(), T>, IdentityError>
    where
        T: Send,
    {
        let shard = shard_of(node);
        let name = name_of(shard);
        let _turn = self.writing[shard].lock().await;
        for _ in 0..ATTEMPTS {
            let asked = self.versions();
            let stored = store.get(&name).await?;
            let mut entries = match &stored {
                Some(StoredSecret { data, version }) => {
                    self.take(&name, version, data, Some(&asked));
                    let mut entries = read(data);
                    let kept = self.shards[shard].lock();
                    if version.parse() == Ok(kept.version) {
                        keep_latest(&mut entries, &kept.entries);
                    }
                    entries
                }
                None => self.shards[shard].lock().entries.clone(),
            };
            let entry = match change(entries.get(node.as_str())) {
                Err(refused) => return Ok(Err(refused)),
                Ok(None) => return Ok(Ok(())),
                Ok(Some(entry)) => entry,
            };
            let former_len = stored.as_ref().map_or(0, |stored| len_of(&stored.data));
            entries.insert(node.as_str().to_owned(), entry);
            entries.retain(|_, entry| !over(entry));
            let data = write(&entries);
            let len = len_of(&data);
            if len > room && len > former_len {
                return Err(IdentityError::Full { name });
            }
            let written = match &stored {
                Some(stored) => store.update(&name, &stored.version, data).await,
                None => store.create(&name, data).await,
            };
            match written {
                Ok(version) => {
                    self.put(shard, &version, None, || (entries, len));
                    return Ok(Ok(()));
                }
                Err(SecretError::Conflict { .. } | SecretError::Exists { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(SecretError::Conflict { name }.into())
    }
}

/// What cannot be read counts as revoked: nobody gets in by damage.
fn read(data: &SecretData) -> BTreeMap<String, Entry> {
    let entry = |value: &[u8]| {
        serde_json::from_slice(value).unwrap_or_else(|_| Entry { revoked: true, ..Entry::default() })
    };
    data.iter().map(|(name, value)| (name.clone(), entry(value))).collect()
}

/// Puts back what a cloudcore of an older version has left out, which does not know it and writes all records of a Secret: when the
/// latest certificate of a name began to be valid, and when the last one ends. Neither becomes earlier without a new join.
fn keep_latest(entries: &mut BTreeMap<String, Entry>, known: &BTreeMap<String, Entry>) {
    for (name, known) in known {
        if let Some(entry) = entries.get_mut(name).filter(|entry| entry.joined == known.joined) {
            *entry = std::mem::take(entry).after(Some(known));
        }
    }
}

fn write(entries: &BTreeMap<String, Entry>) -> SecretData {
    let text = |entry: &Entry| serde_json::to_vec(entry).unwrap_or_default();
    entries.iter().map(|(name, entry)| (name.clone(), text(entry))).collect()
}

fn len_of(data: &SecretData) -> usize {
    data.iter().map(|(name, value)| name.len() + value.len()).sum()
}
