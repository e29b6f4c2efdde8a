//! Where the records are kept: a fixed number of Secrets, so that a Role can name them.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};
use tombolo_proto::NodeId;

use super::entry::Entry;
use super::{IdentityError, SHARD_LEN_MAX, SHARDS};
use crate::bootstrap::secrets::{SecretData, SecretError, SecretStore};

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

/// What is in memory of one Secret.
#[derive(Debug, Default)]
struct Shard {
    entries: BTreeMap<String, Entry>,
    /// The API's version of it.
    version: u64,
    known: bool,
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
        self.shards.iter().all(|shard| shard.lock().known)
    }

    /// What is known here about a name.
    pub(super) fn get(&self, node: &NodeId) -> Option<Entry> {
        self.shards[shard_of(node)].lock().entries.get(node.as_str()).cloned()
    }

    /// Takes what a Secret holds; an older version than the known one only after a list (`anew`), which tells what is there.
    pub(super) fn take(&self, name: &str, version: &str, data: &SecretData, anew: bool) -> bool {
        let Some(shard) = (0..SHARDS).find(|shard| name_of(*shard) == name) else { return false };
        let version = version.parse().unwrap_or(0);
        let mut kept = self.shards[shard].lock();
        if kept.known && !anew && version < kept.version {
            return false;
        }
        *kept = Shard { entries: read(data), version, known: true };
        true
    }

    /// Reads the Secret of a name from the API.
    pub(super) async fn refresh(&self, store: &dyn SecretStore, node: &NodeId) -> Result<(), SecretError> {
        let name = name_of(shard_of(node));
        if let Some(stored) = store.get(&name).await? {
            // What the API answers is what is there, also after a restore has taken versions back.
            self.take(&name, &stored.version, &stored.data, true);
        }
        Ok(())
    }

    /// Reads every Secret, and makes those that are missing.
    pub(super) async fn open(&self, store: &dyn SecretStore) -> Result<(), SecretError> {
        for shard in 0..SHARDS {
            let name = name_of(shard);
            if store.get(&name).await?.is_none() {
                match store.create(&name, SecretData::new()).await {
                    Ok(()) | Err(SecretError::Exists { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
            if let Some(stored) = store.get(&name).await? {
                self.take(&name, &stored.version, &stored.data, true);
            }
        }
        Ok(())
    }

    /// Changes the record of one name by compare-and-swap. `change` is asked again for each version that it is read
    /// in; when it has nothing to change, what it gives is the result.
    pub(super) async fn change<T>(
        &self,
        store: &dyn SecretStore,
        node: &NodeId,
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
            let stored = store.get(&name).await?;
            let mut entries = stored.as_ref().map(|stored| read(&stored.data)).unwrap_or_default();
            let entry = match change(entries.get(node.as_str())) {
                Err(refused) => return Ok(Err(refused)),
                Ok(None) => return Ok(Ok(())),
                Ok(Some(entry)) => entry,
            };
            entries.retain(|_, entry| !over(entry));
            entries.insert(node.as_str().to_owned(), entry);
            let data = write(&entries);
            if data.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>() > SHARD_LEN_MAX {
                return Err(IdentityError::Full { name });
            }
            let written = match &stored {
                Some(stored) => store.update(&name, &stored.version, data).await,
                None => store.create(&name, data).await,
            };
            match written {
                Ok(()) => {
                    // What is stored now is read with its version by whoever follows; until then it counts here.
                    self.shards[shard].lock().entries = entries;
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

fn write(entries: &BTreeMap<String, Entry>) -> SecretData {
    let text = |entry: &Entry| serde_json::to_vec(entry).unwrap_or_default();
    entries.iter().map(|(name, entry)| (name.clone(), text(entry))).collect()
}
