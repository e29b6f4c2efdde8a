//! Tracks which history the cloud's revisions belong to, and detects when that history went back
//! (docs/consistency.md#revisions-epochs-trimming-rules).
//!
//! The epoch consists of the UID of namespace `kube-system` and a generation. The generation is stored in ConfigMap
//! [`RECORD`] of cloudcore's namespace, so that all replicas agree. Every replica reads it again at each check, and
//! keeps it in memory while it runs, whatever happens to its disk and to the API server's. Restoring etcd takes back
//! everything that is stored in it, so the progress of the history is also kept elsewhere: in a file of the data
//! folder, and by the edges (`attestation.rs`, `docs/decisions/0010-epoch-witness.md`).

mod attestations;
mod record;
mod witness;

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use thiserror::Error;
use tokio::time::Instant;
use tombolo_proto::message::is_passing;
use tombolo_proto::{CloudRevision, Epoch, Uid};

use crate::edgecontroller::NodeObjectCache;
use crate::edgecontroller::observed_versions::ObservedVersion;
use crate::history_progress::HistoryProgress;
use crate::kube::{Answer, ApiCall, CallError, Caller, Kube, RawObject, path_of};
use crate::startup_retry::Retryable;
pub(crate) use attestations::{AttestationCheck, Attestations, ClaimOutcome};
use record::Look;
use witness::Witness;

/// Name of the ConfigMap that stores the generation.
pub const RECORD: &str = "tombolo-epoch";

/// Interval between two checks of the cloud's revision.
pub const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// Interval at which the record is rewritten, so that a restored record can be told from the current one.
const BEAT_INTERVAL: Duration = Duration::from_secs(600);

/// Why the epoch cannot be determined.
#[derive(Debug, Error)]
pub enum EpochError {
    /// The API server does not answer.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The API server refuses a necessary request.
    #[error("cannot {action}: {reason}")]
    Refused {
        /// The attempted action.
        action: &'static str,
        /// The API server's reason.
        reason: String,
        /// Whether the request may succeed later.
        passing: bool,
    },
    /// The answer lacks a field that every API server sends.
    #[error("the API server's answer has no {0}")]
    Malformed(&'static str),
}

impl EpochError {
    fn refused(action: &'static str, answer: &Answer) -> Self {
        Self::Refused { action, reason: answer.message(), passing: is_passing(answer.code) }
    }
}

impl Retryable for EpochError {
    fn is_passing(&self) -> bool {
        match self {
            Self::Call(error) => error.is_passing(),
            Self::Refused { passing, .. } => *passing,
            Self::Malformed(_) => false,
        }
    }
}

/// Knows the current epoch and detects its end.
#[derive(Debug)]
pub struct EpochKeeper {
    kube: KubeHandle,
    namespace: String,
    witness: Witness,
    cluster: Uid,
    /// The result of the last check.
    progress: HistoryProgress,
    /// When the beat was last seen to change.
    beaten: Instant,
    /// The history went back, and no new epoch could be recorded yet. The proof may be gone by the next check: revisions
    /// pass the old ones, and watches show the restored objects.
    is_pending: bool,
}

/// Wraps `Kube`, which has no debug form because it holds credentials.
struct KubeHandle(Kube);

impl std::fmt::Debug for KubeHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Kube")
    }
}

impl EpochKeeper {
    /// Finds or creates the epoch. Begins a new one when the revisions went back since the last run.
    ///
    /// # Errors
    /// [`EpochError`] when the API server does not answer or refuses.
    pub async fn establish(kube: Kube, namespace: &str, data_dir: &Path) -> Result<Self, EpochError> {
        let cluster = cluster_uid(&kube).await?;
        let look = record::look(&kube, namespace).await?;
        let witness = Witness::new(data_dir);
        let seen = witness.read().filter(|seen| seen.cluster == cluster.as_str());
        let is_pending = seen.as_ref().is_some_and(|seen| seen.went_back);
        let seen = seen.map(|seen| seen.progress());
        let nothing = HistoryProgress { generation: 0, beat: 0, revision: CloudRevision(0) };
        let known = seen.unwrap_or(nothing);
        let progress = look.progress(known);
        let mut keeper = Self {
            kube: KubeHandle(kube),
            namespace: namespace.to_owned(),
            witness,
            cluster,
            progress,
            beaten: Instant::now(),
            is_pending,
        };
        keeper.agree(look, known, is_pending || known.exceeds(&progress)).await?;
        keeper.remember();
        Ok(keeper)
    }

    /// The current epoch.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        Epoch { cluster: self.cluster.clone(), generation: self.progress.generation }
    }

    /// How far the history had progressed at the last check.
    pub(crate) fn progress(&self) -> HistoryProgress {
        self.progress
    }

    /// Checks whether the history went back. It has if it has not progressed as far as was seen or attested (`claim`),
    /// if the recorded generation differs from the one known to this process, or, after a watch broke, if an object is
    /// older than seen before. True when a new epoch has begun, in this replica or in another.
    ///
    /// # Errors
    /// [`EpochError`] when the API server does not answer or refuses; check again later.
    pub(crate) async fn check(
        &mut self,
        down: &NodeObjectCache,
        claim: Option<HistoryProgress>,
    ) -> Result<bool, EpochError> {
        // A consistent answer cannot be older than anything seen or attested before the request was sent.
        let known =
            HistoryProgress { revision: self.progress.revision.max(down.revision()), ..self.progress };
        let look = record::look(&self.kube.0, &self.namespace).await?;
        let now = look.progress(known);
        let refuted = claim.filter(|claim| claim.exceeds(&now));
        if now.generation > known.generation && refuted.is_none() {
            // Another replica detected what this one may have missed: revisions soon exceed those seen before.
            tracing::warn!(generation = now.generation, "another replica has begun a new epoch");
            self.is_pending = false;
            self.go_on(now);
            down.observed_versions().acquit();
            return Ok(true);
        }
        let mut went_back = self.is_pending || known.exceeds(&now) || refuted.is_some();
        if let Some(suspects) = down.observed_versions().suspects() {
            went_back = went_back || self.any_older(&suspects).await?;
            down.observed_versions().acquit();
        }
        if went_back {
            let known = refuted.map_or(known, |claim| claim.and(known));
            self.is_pending = true;
            self.remember();
            self.agree(look, known, true).await?;
            tracing::warn!(
                ?known,
                ?now,
                generation = self.progress.generation,
                "the cluster was restored to an earlier state; a new epoch begins"
            );
            self.remember();
        } else {
            self.keep_beating(&look, now).await;
            self.go_on(now);
        }
        Ok(went_back)
    }

    fn go_on(&mut self, now: HistoryProgress) {
        if now.beat != self.progress.beat {
            self.beaten = Instant::now();
        }
        self.progress = now;
        self.remember();
    }

    /// Raises the beat if no replica has done so for a while.
    async fn keep_beating(&mut self, look: &Look, now: HistoryProgress) {
        if now.beat == self.progress.beat && self.beaten.elapsed() >= BEAT_INTERVAL {
            // Also after a failure: the next check shows what other replicas did, and the next interval tries again.
            self.beaten = Instant::now();
            let raised = record::beat(&self.kube.0, &self.namespace, look, now).await;
            tracing::debug!(beat = now.beat, raised, "beat of the epoch record");
        }
    }

    /// Whether one of these objects now has an older version than was seen. A deleted object proves nothing.
    async fn any_older(&self, suspects: &[ObservedVersion]) -> Result<bool, EpochError> {
        for ObservedVersion { key, revision, .. } in suspects.iter().rev() {
            let path = path_of(key.resource(), key.namespace(), key.name());
            let answer = self.kube.0.call(Caller::Own, ApiCall::get(path)).await?;
            match answer.code {
                200 => {}
                404 => continue,
                _ => return Err(EpochError::refused("read an object again", &answer)),
            }
            // Within one history, another incarnation under this name would be newer too.
            if RawObject::new(answer.json()).revision().is_ok_and(|found| found < *revision) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Adopts the recorded generation. If a new epoch must begin and no other replica has begun it, raises the
    /// generation to one above all known ones.
    async fn agree(&mut self, look: Look, known: HistoryProgress, went_back: bool) -> Result<(), EpochError> {
        let generation = known.generation;
        let floor =
            if went_back { generation.saturating_add(1).max(unix_seconds()) } else { generation.max(1) };
        // A replica that detected it first has recorded a generation above the one in force here.
        let enough = |recorded: u64| if went_back { recorded > generation } else { recorded >= floor };
        self.progress = record::settle(&self.kube.0, &self.namespace, look, (floor, known), enough).await?;
        self.beaten = Instant::now();
        self.is_pending = false;
        Ok(())
    }

    fn remember(&self) {
        let seen = witness::Seen::new(&self.cluster, self.progress, self.is_pending);
        if let Err(error) = self.witness.write(&seen) {
            tracing::warn!(%error, "cannot store the newest revision: a restored etcd may go unnoticed");
        }
    }
}

async fn cluster_uid(kube: &Kube) -> Result<Uid, EpochError> {
    let answer = kube.call(Caller::Own, ApiCall::get("/api/v1/namespaces/kube-system")).await?;
    if !answer.is_success() {
        return Err(EpochError::refused("read namespace kube-system", &answer));
    }
    let object = answer.json();
    let uid = object.pointer("/metadata/uid").and_then(serde_json::Value::as_str);
    uid.and_then(|uid| Uid::parse(uid).ok()).ok_or(EpochError::Malformed("metadata.uid"))
}

/// Wall clock as a generation: unique after a restore even if the record of the last generation was taken back.
fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests;
