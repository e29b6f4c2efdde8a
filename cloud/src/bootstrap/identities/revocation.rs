//! Revocations. They succeed whatever else writes to the records.

use std::sync::Arc;
use std::time::Duration;

use tombolo_proto::NodeId;
use tombolo_runtime::{Backoff, BackoffConfig};

use super::{Denied, Entry, Identities, IdentityError, NodeLookup, SHARD_LEN_MAX, SecretError, SecretStore};

/// Bytes up to which a name can be revoked, even if the records are full.
const REVOKED_LEN_MAX: usize = SHARD_LEN_MAX + 64 * 1024;

/// Number of waits of a revocation while others keep writing. After each wait there are several attempts.
const REVOCATION_WAITS: u32 = 12;

/// Length of the waits: about a minute in total.
const REVOCATION_WAIT: BackoffConfig =
    BackoffConfig { first: Duration::from_millis(250), max: Duration::from_secs(10), factor: 2.0 };

impl Identities {
    /// Revokes all certificates of a name: no session opens with them, none is renewed, and open sessions end. Returns
    /// whether a certificate was on record.
    ///
    /// # Errors
    /// [`IdentityError`] when the API does not accept the write.
    pub(crate) async fn revoke(&self, node: &NodeId) -> Result<bool, IdentityError> {
        let (mut is_known, mut backoff) = (false, Backoff::new(REVOCATION_WAIT));
        loop {
            let revoked = |entry: Option<&Entry>| {
                is_known = entry.is_some();
                let entry = Entry { revoked: true, ..entry.cloned().unwrap_or_default() };
                Ok::<_, Denied>(Some(entry))
            };
            match self.change_within(REVOKED_LEN_MAX, node, revoked).await {
                // Other processes keep writing the same Secret.
                Err(IdentityError::Secret(SecretError::Conflict { .. }))
                    if backoff.attempts() < REVOCATION_WAITS => {}
                outcome => return outcome.map(|_| is_known),
            }
            let wait = backoff.next_delay(&mut rand::rng());
            tokio::time::sleep(wait).await;
        }
    }
}

/// Revokes the certificates of a node, as `tombolo revoke` does. Every cloudcore of the cluster is notified. False when
/// none was on record; the name is still blocked.
///
/// # Errors
/// [`IdentityError`] when the API does not accept the write.
pub async fn revoke(
    store: Arc<dyn SecretStore>,
    nodes: Arc<dyn NodeLookup>,
    node: &NodeId,
) -> Result<bool, IdentityError> {
    // No other record must be removed by this: how long an expired certificate counts is a setting of cloudcore.
    let identities = Identities::open(store, nodes, Arc::new(std::time::SystemTime::now), u64::MAX).await?;
    identities.revoke(node).await
}
