//! Renews the certificate before it expires.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures::FutureExt as _;
use futures::future::BoxFuture;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::sync::watch;
use tombolo_proto::ids::NodeId;
use tombolo_runtime::{Backoff, BackoffConfig};
use tracing::{error, info, warn};

use super::{Identity, JoinError, renew};

#[cfg(test)]
mod tests;

/// Waits between attempts to renew (docs/reference/kubeedge.md#join-procedure: from 2 s to 32 s; these grow further so
/// that a fleet does not overload the cloud).
const BACKOFF: BackoffConfig =
    BackoffConfig { first: Duration::from_secs(2), max: Duration::from_secs(600), factor: 2.0 };

/// Longest single sleep. It is bounded because the wall clock may be changed meanwhile.
const NAP_MAX: Duration = Duration::from_secs(3600);

/// Fraction of the certificate's life after which it is renewed, drawn at random for every certificate, so that a fleet
/// that joined together does not renew together.
const DUE: std::ops::Range<f64> = 0.7..0.9;

/// Logged when a new certificate is due for renewal at once.
const AHEAD: &str = "the node's certificate is renewed, but by this node's clock the new one is already due too: \
                     set the clock, or issue certificates with a longer validity";

/// Access to the cloud and the clock, which tests replace.
pub(crate) trait Renewal: Send + Sync + 'static {
    /// Requests a new identity with the current one, and saves it.
    fn renew(&self, present: Arc<Identity>) -> BoxFuture<'_, Result<Identity, JoinError>>;

    /// What time it is.
    fn now(&self) -> SystemTime;
}

/// Renewal at the cloud's join endpoints.
pub(crate) struct CloudRenewal {
    pub(crate) node: NodeId,
    pub(crate) endpoint: String,
    pub(crate) data_dir: PathBuf,
}

impl Renewal for CloudRenewal {
    fn renew(&self, present: Arc<Identity>) -> BoxFuture<'_, Result<Identity, JoinError>> {
        async move {
            let renewed = renew(&present, &self.node, &self.endpoint).await?;
            // Saved before it is used. The old pair remains complete on disk until the new one replaces it.
            renewed.save(&self.data_dir)?;
            Ok(renewed)
        }
        .boxed()
    }

    fn now(&self) -> SystemTime {
        SystemTime::now()
    }
}

/// Renews the certificate at a random moment between 70 and 90 % of its life, or at once when it has expired, and
/// publishes the new identity. Runs until dropped.
pub(crate) async fn rotate(renewal: impl Renewal, current: watch::Sender<Arc<Identity>>, seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut backoff = Backoff::new(BACKOFF);
    let mut fraction = rng.random_range(DUE);
    loop {
        let identity = Arc::clone(&current.borrow());
        let wait = until_due(&identity, fraction, renewal.now());
        if !wait.is_zero() {
            tokio::time::sleep(wait.min(NAP_MAX)).await;
            continue;
        }
        match renewal.renew(identity).await {
            Ok(renewed) => {
                info!("the node's certificate is renewed");
                fraction = rng.random_range(DUE);
                let is_due = until_due(&renewed, fraction, renewal.now()).is_zero();
                current.send_replace(Arc::new(renewed));
                if is_due {
                    // The next one would also be due at once, and each renewal ends a session.
                    let delay = backoff.next_delay(&mut rng);
                    warn!(retry_in = ?delay, "{AHEAD}");
                    tokio::time::sleep(delay).await;
                } else {
                    backoff.reset();
                }
            }
            Err(error) => {
                let delay = backoff.next_delay(&mut rng);
                report(&error, delay);
                tokio::time::sleep(delay).await;
            }
        }
    }
}

/// Failures that need the operator are logged as errors, others as warnings. All are retried.
fn report(error: &JoinError, retry_in: Duration) {
    let advice = error.advice();
    if error.may_heal() {
        warn!(%error, ?retry_in, advice, "the node's certificate could not be renewed");
    } else {
        error!(%error, ?retry_in, advice, "the node's certificate cannot be renewed");
    }
}

/// Time until a certificate is to be renewed; zero when it cannot be parsed.
fn until_due(identity: &Identity, fraction: f64, now: SystemTime) -> Duration {
    identity.validity().map(|validity| remaining(validity, fraction, now)).unwrap_or_default()
}

/// Time until this fraction of the certificate's life has passed.
fn remaining((begin, end): (SystemTime, SystemTime), fraction: f64, now: SystemTime) -> Duration {
    let life = end.duration_since(begin).unwrap_or_default();
    let due = begin + life.mul_f64(fraction);
    due.duration_since(now).unwrap_or_default()
}
