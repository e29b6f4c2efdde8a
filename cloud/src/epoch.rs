//! Which history the cloud's revisions belong to, and when it went back (design 9.10).
//!
//! The epoch is the UID of namespace `kube-system` and a generation. The generation is kept in ConfigMap
//! [`RECORD`] of cloudcore's namespace, so that all replicas agree; the newest revision seen is kept in a file of the
//! data folder, because a restored etcd takes everything back that is stored in it.

mod record;
mod witness;

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use thiserror::Error;
use tombolo_proto::{CloudRevision, Epoch, Uid};

use crate::edgecontroller::Downstream;
use crate::edgecontroller::sightings::Sighting;
use crate::kube::{ApiCall, CallError, Caller, Kube, RawObject, path_of};
use witness::Witness;

/// Name of the ConfigMap that keeps the generation.
pub const RECORD: &str = "tombolo-epoch";

/// Time between two looks at the cloud's revision.
pub const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// Why the epoch is not known.
#[derive(Debug, Error)]
pub enum EpochError {
    /// The API server gives no answer.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The API server refuses what is needed.
    #[error("cannot {action}: {reason}")]
    Refused {
        /// What was tried.
        action: &'static str,
        /// The API server's reason.
        reason: String,
    },
    /// An answer lacks what every API server sends.
    #[error("the API server's answer has no {0}")]
    Malformed(&'static str),
}

/// Knows the epoch and notices when it ends.
#[derive(Debug)]
pub struct EpochKeeper {
    kube: KubeHandle,
    namespace: String,
    witness: Witness,
    cluster: Uid,
    generation: u64,
    newest: CloudRevision,
}

/// `Kube` without a debug form of its own: it holds credentials.
struct KubeHandle(Kube);

impl std::fmt::Debug for KubeHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Kube")
    }
}

impl EpochKeeper {
    /// Finds or makes the epoch. Starts a new one when the revisions went back since the last run.
    ///
    /// # Errors
    /// [`EpochError`] when the API server does not answer or refuses.
    pub async fn establish(kube: Kube, namespace: &str, data_dir: &Path) -> Result<Self, EpochError> {
        let cluster = cluster_uid(&kube).await?;
        let newest = current_revision(&kube, namespace).await?;
        let witness = Witness::new(data_dir);
        let seen = witness.read().filter(|seen| seen.cluster == cluster.as_str());
        let known = seen.as_ref().map_or(0, |seen| seen.generation);
        let went_back = seen.is_some_and(|seen| seen.revision > newest.0);
        let mut keeper = Self {
            kube: KubeHandle(kube),
            namespace: namespace.to_owned(),
            witness,
            cluster,
            generation: known,
            newest,
        };
        keeper.agree(went_back).await?;
        keeper.remember();
        Ok(keeper)
    }

    /// The epoch in force.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        Epoch { cluster: self.cluster.clone(), generation: self.generation }
    }

    /// Looks whether the history went back: whether the present revision is older than one that was seen, or, after a
    /// watch broke, whether an object is. True when a new epoch has begun.
    ///
    /// # Errors
    /// [`EpochError`] when the API server does not answer or refuses; look again later.
    pub async fn check(&mut self, down: &Downstream) -> Result<bool, EpochError> {
        // What was seen before the question was asked cannot be newer than a consistent answer to it.
        let floor = self.newest.max(down.revision());
        let current = current_revision(&self.kube.0, &self.namespace).await?;
        let mut went_back = current < floor;
        if let Some(suspects) = down.sightings().suspects() {
            went_back = went_back || self.any_older(&suspects).await?;
            down.sightings().acquit();
        }
        if went_back {
            self.agree(true).await?;
            tracing::warn!(%floor, %current, generation = self.generation, "the cloud's history went back");
        }
        self.newest = current;
        self.remember();
        Ok(went_back)
    }

    /// Whether one of these objects is there in an older version than was seen. One that is gone proves nothing.
    async fn any_older(&self, suspects: &[Sighting]) -> Result<bool, EpochError> {
        for Sighting { key, uid, revision } in suspects.iter().rev() {
            let path = path_of(key.resource(), key.namespace(), key.name());
            let answer = self.kube.0.call(Caller::Own, ApiCall::get(path)).await?;
            match answer.code {
                200 => {}
                404 => continue,
                _ => {
                    return Err(EpochError::Refused {
                        action: "read an object again",
                        reason: answer.message(),
                    });
                }
            }
            let found = RawObject::new(answer.json());
            let same = found.uid().is_ok_and(|found| found == *uid);
            if same && found.revision().is_ok_and(|found| found < *revision) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Reads the recorded generation, and raises it when a new epoch has to begin and no other replica has begun it.
    async fn agree(&mut self, went_back: bool) -> Result<(), EpochError> {
        let known = self.generation;
        let floor = if went_back { known.saturating_add(1).max(unix_seconds()) } else { known.max(1) };
        // Another replica that noticed first has recorded a generation above the one that was in force here.
        let enough = |recorded: u64| if went_back { recorded > known } else { recorded >= floor };
        self.generation = record::settle(&self.kube.0, &self.namespace, floor, enough).await?;
        Ok(())
    }

    fn remember(&self) {
        let seen = witness::Seen {
            cluster: self.cluster.to_string(),
            generation: self.generation,
            revision: self.newest.0,
        };
        if let Err(error) = self.witness.write(&seen) {
            tracing::warn!(%error, "cannot keep the newest revision: a restored etcd may go unnoticed");
        }
    }
}

async fn cluster_uid(kube: &Kube) -> Result<Uid, EpochError> {
    let answer = kube.call(Caller::Own, ApiCall::get("/api/v1/namespaces/kube-system")).await?;
    if !answer.is_success() {
        return Err(EpochError::Refused { action: "read namespace kube-system", reason: answer.message() });
    }
    let object = answer.json();
    let uid = object.pointer("/metadata/uid").and_then(serde_json::Value::as_str);
    uid.and_then(|uid| Uid::parse(uid).ok()).ok_or(EpochError::Malformed("metadata.uid"))
}

/// The present revision: a list without `resourceVersion` is consistent.
async fn current_revision(kube: &Kube, namespace: &str) -> Result<CloudRevision, EpochError> {
    let path = format!("/api/v1/namespaces/{namespace}/configmaps?limit=1");
    let answer = kube.call(Caller::Own, ApiCall::get(path)).await?;
    if !answer.is_success() {
        return Err(EpochError::Refused { action: "list configmaps", reason: answer.message() });
    }
    let list = answer.json();
    let revision = list.pointer("/metadata/resourceVersion").and_then(serde_json::Value::as_str);
    let revision = revision.and_then(|text| CloudRevision::parse(text).ok());
    revision.ok_or(EpochError::Malformed("metadata.resourceVersion"))
}

/// Wall clock as a generation: unique after a restore even where the record of the last one was taken back.
fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}
