//! Leader election between cloudcores: the holder of a Lease runs the grid controllers (`coordination.k8s.io/v1`, as in
//! client-go's leader election).
//!
//! Timestamps of other machines are not compared. A holder has lost the lease when its record has not changed for the
//! lease duration, measured by this machine's own clock.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use tokio::time::Instant;
use tombolo_runtime::Drain;

/// Name of the Lease.
pub const LEASE: &str = "tombolo-grid-controllers";

/// How long the others wait for a silent holder. They see a renewal up to [`RETRY`] late, and try again up to [`RETRY`]
/// after that time: 15 s in all (docs/application-grid.md).
const LEASE_DURATION: Duration = Duration::from_secs(10);

/// A holder that could not renew for this long stops before another takes over.
const RENEW_DEADLINE: Duration = Duration::from_secs(8);

/// Interval between two attempts.
const RETRY: Duration = Duration::from_secs(2);

/// One candidate.
pub(super) struct Candidate {
    leases: Api<Lease>,
    identity: String,
    /// The record seen last, and since when it has not changed.
    seen: Option<(LeaseSpec, Instant)>,
}

impl Candidate {
    /// A candidate for the Lease in a namespace. The identity must be unique.
    pub(super) fn new(client: Client, namespace: &str, identity: &str) -> Self {
        Self { leases: Api::namespaced(client, namespace), identity: identity.to_owned(), seen: None }
    }

    /// Waits until this candidate holds the Lease.
    pub(super) async fn acquire(&mut self) {
        loop {
            match self.try_hold().await {
                Ok(true) => return,
                Ok(false) => {}
                Err(error) => tracing::warn!(%error, lease = LEASE, "cannot acquire the lease; trying again"),
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    /// Renews the Lease until it is lost: another candidate holds it, or it could not be renewed in time.
    pub(super) async fn keep(&mut self) {
        let mut renewed = Instant::now();
        loop {
            tokio::time::sleep(RETRY).await;
            let left = RENEW_DEADLINE.saturating_sub(renewed.elapsed());
            match tokio::time::timeout(left, self.try_hold()).await {
                Ok(Ok(true)) => renewed = Instant::now(),
                Ok(Ok(false)) => return,
                Ok(Err(error)) => {
                    tracing::warn!(%error, lease = LEASE, "cannot renew the lease; trying again");
                }
                Err(_) => return,
            }
            if renewed.elapsed() >= RENEW_DEADLINE {
                return;
            }
        }
    }

    /// Releases the Lease, so that the next holder need not wait.
    pub(super) async fn release(&mut self) {
        let Ok(Some(mut lease)) = self.leases.get_opt(LEASE).await else { return };
        let Some(spec) =
            lease.spec.as_mut().filter(|spec| spec.holder_identity.as_ref() == Some(&self.identity))
        else {
            return;
        };
        spec.holder_identity = Some(String::new());
        spec.lease_duration_seconds = Some(1);
        if let Err(error) = self.leases.replace(LEASE, &PostParams::default(), &lease).await {
            tracing::debug!(%error, "cannot release the lease");
        }
    }

    /// Tries once to acquire or renew the Lease; returns whether this candidate holds it now.
    async fn try_hold(&mut self) -> Result<bool, kube::Error> {
        let Some(mut lease) = self.leases.get_opt(LEASE).await? else {
            let metadata = ObjectMeta { name: Some(LEASE.to_owned()), ..ObjectMeta::default() };
            let lease = Lease { metadata, spec: Some(self.record(None)) };
            return settled(self.leases.create(&PostParams::default(), &lease).await);
        };
        let record = lease.spec.clone().unwrap_or_default();
        if self.seen.as_ref().is_none_or(|(seen, _)| *seen != record) {
            self.seen = Some((record.clone(), Instant::now()));
        }
        let holder = record.holder_identity.as_deref().unwrap_or_default();
        let lasts =
            Duration::from_secs(u64::try_from(record.lease_duration_seconds.unwrap_or(0)).unwrap_or(0));
        let is_silent = self.seen.as_ref().is_none_or(|(_, since)| since.elapsed() >= lasts);
        if holder != self.identity && !holder.is_empty() && !is_silent {
            return Ok(false);
        }
        lease.spec = Some(self.record(Some(&record)));
        settled(self.leases.replace(LEASE, &PostParams::default(), &lease).await)
    }

    fn record(&self, before: Option<&LeaseSpec>) -> LeaseSpec {
        let now = MicroTime(Timestamp::now());
        let own = before.filter(|before| before.holder_identity.as_ref() == Some(&self.identity));
        let transitions = before.and_then(|before| before.lease_transitions).unwrap_or_default();
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: i32::try_from(LEASE_DURATION.as_secs()).ok(),
            acquire_time: own.and_then(|own| own.acquire_time.clone()).or_else(|| Some(now.clone())),
            renew_time: Some(now),
            lease_transitions: Some(match (before, own) {
                (Some(_), None) => transitions.saturating_add(1),
                _ => transitions,
            }),
            ..LeaseSpec::default()
        }
    }
}

/// A conflict means that another candidate was faster.
fn settled(written: Result<Lease, kube::Error>) -> Result<bool, kube::Error> {
    match written {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
        Err(error) => Err(error),
    }
}

/// Runs `work` whenever this process holds the Lease, until the drain starts. Losing the Lease drops the work.
pub(super) async fn lead<W, F>(mut candidate: Candidate, drain: Drain, work: W)
where
    W: Fn() -> F,
    F: Future<Output = ()>,
{
    loop {
        if drain.until_started(candidate.acquire()).await.is_none() {
            return;
        }
        tracing::info!(lease = LEASE, "this cloudcore runs the grid controllers");
        tokio::select! {
            () = work() => {}
            () = candidate.keep() => tracing::warn!(lease = LEASE, "lease lost; stopping the controllers"),
            () = drain.started() => {
                if tokio::time::timeout(RETRY, candidate.release()).await.is_err() {
                    tracing::debug!("releasing the lease timed out");
                }
                return;
            }
        }
    }
}
