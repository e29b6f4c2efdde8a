//! Renewal before the certificate ends.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::sync::watch;
use tombolo_proto::ids::NodeId;
use tombolo_runtime::{Backoff, BackoffConfig};
use tracing::{info, warn};

use super::{Identity, renew};

/// Waits between attempts to renew (reference 4.4: from 2 s to 32 s; ours go on to grow, a fleet must not hammer).
const BACKOFF: BackoffConfig =
    BackoffConfig { first: Duration::from_secs(2), max: Duration::from_secs(600), factor: 2.0 };

/// Longest single sleep: the wall clock may be set meanwhile.
const NAP_MAX: Duration = Duration::from_secs(3600);

/// What renewal needs to know.
pub(crate) struct Rotation {
    pub(crate) node: NodeId,
    pub(crate) endpoint: String,
    pub(crate) data_dir: PathBuf,
    pub(crate) seed: u64,
}

/// Renews the certificate at a random moment between 70 and 90 % of its life, at once when it has ended, and tells
/// about it. Runs until dropped.
pub(crate) async fn rotate(settings: Rotation, current: watch::Sender<Arc<Identity>>) {
    let mut rng = StdRng::seed_from_u64(settings.seed);
    let mut backoff = Backoff::new(BACKOFF);
    let mut fraction = rng.random_range(0.7..0.9);
    loop {
        let identity = Arc::clone(&current.borrow());
        let wait = identity
            .validity()
            .map(|validity| remaining(validity, fraction, SystemTime::now()))
            .unwrap_or_default();
        if !wait.is_zero() {
            tokio::time::sleep(wait.min(NAP_MAX)).await;
            continue;
        }
        match attempt(&settings, &identity).await {
            Ok(renewed) => {
                info!(node = %settings.node, "the node's certificate is renewed");
                current.send_replace(Arc::new(renewed));
                backoff.reset();
                fraction = rng.random_range(0.7..0.9);
            }
            Err(error) => {
                let delay = backoff.next_delay(&mut rng);
                warn!(%error, retry_in = ?delay, "the node's certificate could not be renewed");
                tokio::time::sleep(delay).await;
            }
        }
    }
}

async fn attempt(settings: &Rotation, identity: &Identity) -> Result<Identity, super::JoinError> {
    let renewed = renew(identity, &settings.node, &settings.endpoint).await?;
    // On disk before it is used: the old pair stays complete until the new one has taken its place.
    renewed.save(&settings.data_dir)?;
    Ok(renewed)
}

/// Time until this fraction of the certificate's life is over.
fn remaining((begin, end): (SystemTime, SystemTime), fraction: f64, now: SystemTime) -> Duration {
    let life = end.duration_since(begin).unwrap_or_default();
    let due = begin + life.mul_f64(fraction);
    due.duration_since(now).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    #[test]
    fn renewal_is_due_before_the_end() {
        let day = Duration::from_secs(24 * 3600);
        let life = (UNIX_EPOCH + day, UNIX_EPOCH + day * 11);
        assert_eq!(remaining(life, 0.8, UNIX_EPOCH + day), day * 8);
        assert_eq!(remaining(life, 0.8, UNIX_EPOCH + day * 9), Duration::ZERO);
        assert_eq!(remaining(life, 0.8, UNIX_EPOCH + day * 100), Duration::ZERO, "expired while away");
        assert_eq!(remaining(life, 0.8, UNIX_EPOCH), day * 9, "a clock that is behind");
    }
}
