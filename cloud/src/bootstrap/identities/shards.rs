//! Storage of the records: a fixed number of Secrets, so that a Role can name them.
//!
//! The copy of a Secret in memory only moves forward in the API's version of it: a watch or a slow read often reports
//! an older state than the one that was read or written here meanwhile. There is one exception: if a read began when a
//! later version was already known here, the API's history has gone back (a restored etcd), because the API always
//! reads the last write.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};
use tombolo_proto::NodeId;

use super::entry::Entry;
use super::{IdentityError, SHARDS};
use crate::bootstrap::secrets::{SecretData, SecretError, SecretStore, StoredSecret};

/// Attempts to write while others write too.
const ATTEMPTS: usize = 16;

/// The Secret that holds the record of a name.
pub(super) fn shard_of(node: &NodeId) -> usize {
    usize::from(Sha256::digest(node.as_str())[0]) % SHARDS
}

/// Name of a Secret.
#[must_use]
pub(super) fn name_of(shard: usize) -> String {
    format!("{}-{shard}", super::SECRET_PREFIX)
}

/// The number of the Secret with this name.
fn named(name: &str) -> Option<usize> {
    (0..SHARDS).find(|shard| name_of(*shard) == name)
}

/// The copy of one Secret in memory.
#[derive(Debug, Default)]
struct Shard {
    entries: BTreeMap<String, Entry>,
    /// The API's version of it; 0 until it is read.
    version: u64,
    /// Bytes of the records.
    len: usize,
}

/// All records, as far as they are known here.
#[derive(Debug, Default)]
pub(super) struct Shards {
    shards: [Mutex<Shard>; SHARDS],
    /// Serialises this process's writes to each Secret: concurrent ones would only conflict.
    writing: [tokio::sync::Mutex<()>; SHARDS],
}

impl Shards {
    /// Whether every Secret has been read.
    pub(super) fn is_known(&self) -> bool {
        self.versions().iter().all(|version| *version > 0)
    }

    /// The known record of a name.
    pub(super) fn get(&self, node: &NodeId) -> Option<Entry> {
        self.shards[shard_of(node)].lock().entries.get(node.as_str()).cloned()
    }

    /// The known versions, to be taken before the API is asked.
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

    /// Takes in the content of a Secret. With `asked`, the versions that were known when the API was asked, it is the
    /// answer to a read; otherwise it comes from a watch. Returns whether the copy has changed.
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

    /// The record of a name, read from the API now.
    pub(super) async fn refresh(
        &self,
        store: &dyn SecretStore,
        node: &NodeId,
    ) -> Result<Option<Entry>, SecretError> {
        let name = name_of(shard_of(node));
        let asked = self.versions();
        // The Secret was deleted as a whole. Keep what is known, so that no revoked certificate comes back.
        let Some(stored) = store.get(&name).await? else { return Ok(self.get(node)) };
        self.take(&name, &stored.version, &stored.data, Some(&asked));
        // The copy may be newer by now than what was read.
        Ok(self.get(node))
    }

    /// Reads every Secret, and creates missing ones.
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

    /// Changes the record of one name by compare-and-swap. `change` is called again for each version that is read. If
    /// it returns none, nothing is written. A change that makes the Secret larger than `room` is refused.
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

/// An unreadable record counts as revoked, so that damage admits no node.
fn read(data: &SecretData) -> BTreeMap<String, Entry> {
    let entry = |value: &[u8]| {
        serde_json::from_slice(value).unwrap_or_else(|_| Entry { revoked: true, ..Entry::default() })
    };
    data.iter().map(|(name, value)| (name.clone(), entry(value))).collect()
}

/// Restores fields that an older version of cloudcore has dropped, because it does not know them but writes all records
/// of a Secret: the start of validity of the latest certificate of a name, and the end of validity of the last one.
/// Neither becomes earlier without a new join.
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
