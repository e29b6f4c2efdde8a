//! Which history the cloud's revisions belong to, and when it went back (design 9.10).
//!
//! The epoch is the UID of namespace `kube-system` and a generation. The generation is kept in ConfigMap
//! [`RECORD`] of cloudcore's namespace, so that all replicas agree, and every replica reads it again with each look: one
//! that runs remembers it, whatever became of its disk and of the API server's. The newest revision seen is kept in a file of the
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

    /// Looks whether the history went back: whether the present revision is older than one that was seen, whether the
    /// recorded generation is another one than this process knows, or, after a watch broke, whether an object is older.
    /// True when a new epoch has begun, here or at another replica.
    ///
    /// # Errors
    /// [`EpochError`] when the API server does not answer or refuses; look again later.
    pub async fn check(&mut self, down: &Downstream) -> Result<bool, EpochError> {
        // What was seen before the question was asked cannot be newer than a consistent answer to it.
        let floor = self.newest.max(down.revision());
        let current = current_revision(&self.kube.0, &self.namespace).await?;
        let recorded = record::read(&self.kube.0, &self.namespace).await?;
        if let Some(recorded) = recorded.filter(|recorded| *recorded > self.generation) {
            // Another replica has noticed what this one may have missed: revisions soon pass those that were seen.
            tracing::warn!(generation = recorded, "another replica has begun a new epoch");
            self.generation = recorded;
            self.newest = current;
            down.sightings().acquit();
            self.remember();
            return Ok(true);
        }
        // The record grows only: one that went back was taken back with everything else.
        let mut went_back = current < floor || recorded.is_some_and(|recorded| recorded < self.generation);
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use http::{Method, Request, Response};
    use http_body_util::BodyExt as _;
    use kube::Client;
    use kube::client::Body;
    use parking_lot::Mutex;
    use serde_json::{Value, json};

    use super::*;

    /// An API server as far as epochs are concerned.
    #[derive(Debug, Clone)]
    struct Api {
        revision: u64,
        record: Option<Value>,
    }

    fn kube(api: &Arc<Mutex<Api>>) -> Kube {
        let api = Arc::clone(api);
        let service = tower::service_fn(move |request: Request<Body>| {
            let api = Arc::clone(&api);
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect().await?.to_bytes();
                let mut api = api.lock();
                let path = parts.uri.path();
                let (code, reply) = match (&parts.method, api.record.clone()) {
                    (&Method::GET, _) if path.ends_with("/kube-system") => {
                        (200, json!({"metadata": {"uid": "cluster"}}))
                    }
                    (&Method::GET, _) if path.ends_with("/configmaps") => {
                        (200, json!({"metadata": {"resourceVersion": api.revision.to_string()}}))
                    }
                    (&Method::GET, Some(record)) => (200, record),
                    (&Method::GET, None) => (404, json!({"message": "not found"})),
                    _ => {
                        api.revision += 1;
                        api.record = serde_json::from_slice(&body).ok();
                        (200, json!({}))
                    }
                };
                let response = Response::builder().status(code).header("content-type", "application/json");
                Ok::<_, tower::BoxError>(response.body(Body::from(reply.to_string().into_bytes()))?)
            }
        });
        Kube::from(Client::new(service, "default"))
    }

    /// A replica with a folder that is empty at its start, as the shipped manifest gives it.
    async fn replica(api: &Arc<Mutex<Api>>, folder: &tempfile::TempDir) -> EpochKeeper {
        EpochKeeper::establish(kube(api), "kubeedge", folder.path()).await.expect("established")
    }

    fn folder() -> tempfile::TempDir {
        tempfile::tempdir().expect("folder")
    }

    #[tokio::test]
    async fn a_replica_that_runs_notices_a_record_that_went_back_though_revisions_have_passed_it() {
        let api = Arc::new(Mutex::new(Api { revision: 100, record: None }));
        let folder = folder();
        let mut first = replica(&api, &folder).await;
        api.lock().revision = 50;
        assert!(first.check(&Downstream::default()).await.expect("checked"), "the revision went back");
        let snapshot = api.lock().record.clone();
        api.lock().revision = 10;
        assert!(first.check(&Downstream::default()).await.expect("checked"));
        // Restored to the moment between the two, and much was written before anybody looked.
        *api.lock() = Api { revision: 1_000_000, record: snapshot };
        let before = first.epoch();
        assert!(first.check(&Downstream::default()).await.expect("checked"), "the record went back");
        assert!(first.epoch().generation > before.generation);
        assert!(!first.check(&Downstream::default()).await.expect("checked"), "once");
    }

    #[tokio::test]
    async fn a_replica_that_missed_a_restore_learns_of_it_from_the_one_that_did_not() {
        let api = Arc::new(Mutex::new(Api { revision: 100, record: None }));
        let folders = [folder(), folder()];
        let (mut first, mut second) = (replica(&api, &folders[0]).await, replica(&api, &folders[1]).await);
        assert_eq!(first.epoch(), second.epoch());
        api.lock().revision = 50;
        assert!(first.check(&Downstream::default()).await.expect("checked"));
        api.lock().revision = 1_000_000;
        assert!(second.check(&Downstream::default()).await.expect("checked"), "its own numbers tell nothing");
        assert_eq!(first.epoch(), second.epoch());
        for replica in [&mut first, &mut second] {
            assert!(!replica.check(&Downstream::default()).await.expect("checked"), "both are at rest");
        }
    }
}
