//! Revocations: they come through whatever others do to the records.

use std::sync::Arc;
use std::time::Duration;

use tombolo_proto::NodeId;
use tombolo_runtime::{Backoff, BackoffConfig};

use super::{Denied, Entry, Identities, IdentityError, NodeLookup, SHARD_LEN_MAX, SecretError, SecretStore};

/// Bytes up to which a name can be revoked: also where the records are full.
const REVOKED_LEN_MAX: usize = SHARD_LEN_MAX + 64 * 1024;

/// Waits of a revocation while others keep writing; after each there are several attempts.
const REVOCATION_WAITS: u32 = 12;

/// How long they are: about a minute in all.
const REVOCATION_WAIT: BackoffConfig =
    BackoffConfig { first: Duration::from_millis(250), max: Duration::from_secs(10), factor: 2.0 };

impl Identities {
    /// Takes all certificates of a name back: no session opens with them, none is renewed, and those that are open end. Says
    /// whether one was on record.
    ///
    /// # Errors
    /// [`IdentityError`] when the API does not take it.
    pub(crate) async fn revoke(&self, node: &NodeId) -> Result<bool, IdentityError> {
        let (mut is_known, mut backoff) = (false, Backoff::new(REVOCATION_WAIT));
        loop {
            let revoked = |entry: Option<&Entry>| {
                is_known = entry.is_some();
                let entry = Entry { revoked: true, ..entry.cloned().unwrap_or_default() };
                Ok::<_, Denied>(Some(entry))
            };
            match self.change_within(REVOKED_LEN_MAX, node, revoked).await {
                // Others write the same Secret all the time.
                Err(IdentityError::Secret(SecretError::Conflict { .. }))
                    if backoff.attempts() < REVOCATION_WAITS => {}
                outcome => return outcome.map(|_| is_known),
            }
            let wait = backoff.next_delay(&mut rand::rng());
            tokio::time::sleep(wait).await;
        }
    }
}

/// Takes the certificates of a node back, as `tombolo revoke` does: every cloudcore of the cluster hears of it. False when none
/// was on record; the name is closed all the same.
///
/// # Errors
/// [`IdentityError`] when the API does not take it.
pub async fn revoke(
    store: Arc<dyn SecretStore>,
    nodes: Arc<dyn NodeLookup>,
    node: &NodeId,
) -> Result<bool, IdentityError> {
    // Nobody else's record is over for this: how long an ended certificate counts is a setting of cloudcore.
    let identities = Identities::open(store, nodes, Arc::new(std::time::SystemTime::now), u64::MAX).await?;
    identities.revoke(node).await
}
